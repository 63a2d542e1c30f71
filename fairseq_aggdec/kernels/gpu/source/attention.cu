// Attention of the slots of a window, in one launch: over the cache, in which it stores the window's keys and values,
// or over a source.
//
// R rows of W slots, H heads of D numbers. A block attends for a row, a head and some of the row's slots. So keys and
// values are read once for these slots. Lanes that hold a key together are a group: each lane has 8 numbers of it.
//
// The slots of a row are at consecutive places, behind which nothing is seen; slots that the row does not use repeat the
// last of them. The window's own keys are read where the layer made them: no block reads what another block of the
// launch stores.
//
// What a slot gets depends neither on the other slots nor on how many keys are hidden behind the last that it sees: it
// is always the same sums in the same order. A hidden key adds nothing, whatever is in its place.

#pragma once

#include "shared.h"

constexpr int MOST_WARPS = 4, WIDEST = 128;          // D is a multiple of 8 up to WIDEST
constexpr int HELD = LANES == 1 ? WIDEST : 8;        // numbers of a key that a lane holds
constexpr float LOG2E = 1.4426950408889634f;

struct Attention {
    Int blocks, precision, width, heads, size;
    Int keys;        // places of a row
    Int query_step;  // from a slot's queries to those of the next; their keys and values are behind them, all heads' each
    // From a row's keys to the next row's, to the next key, to the key's value: with a window H D, as the layer made them.
    Int row_step, key_step, value_step;
    Int mask_row, mask_slot;             // from a row's mask to the next row's, from a slot's to the next slot's
    Int words;                           // of the bits of a slot
    Int span;                            // positions back that a slot sees, -1: all
    double scale;
    const void* queries;
    void* kept;       // keys and values, into which those of the window go
    const Int* at;    // (R, W) places of the slots; none: nothing is stored
    const Int* last;  // (R, W) the last place that a slot sees; none: its own
    const Int* bits;  // (R, W, words) the places that a slot sees; none: all up to the last
    const void* mask; // is added; none: nothing is hidden by it
    void* out;        // (R W, H D)
};

// A slot of the window, as all threads of the block see it.
struct Slot {
    int index;       // among R W
    int from, last;  // the places that it sees
};

// What a slot has read.
struct Read {
    float most;  // the largest score, in bits; -inf: nothing is seen
    float sum;   // of 2^(score - most)
};

// What is to be multiplied by when the largest score changes.
__device__ inline float faded(float most, float now) { return exp2f(most - (now == -INFINITY ? 0 : now)); }

template <typename Number, int SLOTS>
struct Tile {
    static constexpr int KEYS = 8 / sizeof(Number);  // of a group at a time, which are loaded at once
    static constexpr int PARTS = HELD / 8;

    const Attention& p;
    const int width, size, keys, channels;  // W, D, places, H D
    int row, head, first;                   // the first slot
    int begin, end;                         // the window's own places
    int shift, group, lane, offset;         // lanes of a group (2 to the shift), this lane in it, its first number
    Slot slots[SLOTS];
    float query[SLOTS][HELD], value[SLOTS][HELD];
    Read read[SLOTS];

    // What one thread of the tile does. queries: (SLOTS, WIDEST); null: the attention's own queries are read.
    __device__ Tile(const Attention& attention, int row, int head, int first, int thread,
                    const float (*queries)[WIDEST] = nullptr)
        : p(attention),
          width((int)p.width),
          size((int)p.size),
          keys((int)p.keys),
          channels((int)(p.heads * p.size)),
          row(row),
          head(head),
          first(first) {
        shift = 0;
        while (HELD << shift < size) ++shift;
        group = 1 << shift;
        lane = thread & (group - 1);
        offset = lane * HELD;
        const int base = row * width;
        for (int i = 0; i < SLOTS; ++i) {
            slots[i].index = base + (first + i < width ? first + i : width - 1);
            for (int n = 0; n < HELD; ++n) query[i][n] = 0;
            for (int part = 0; part < PARTS; ++part) {
                const int from = offset + part * 8;
                if (from >= size) continue;
                const Eight<Number> all = queries ? Eight<Number>{} : eight_at(queries_of(slots[i].index) + from);
                for (int n = 0; n < 8; ++n) {
                    const float x = queries ? queries[i][from + n] : number_of(all, n);
                    query[i][part * 8 + n] = x * ((float)p.scale * LOG2E);
                }
            }
        }
        begin = p.at ? (int)p.at[base] : 0;
        end = p.at ? place_of((int)p.at[base + width - 1]) + 1 : 0;  // no place behind the last is read or written
        for (int i = 0; i < SLOTS; ++i) {
            const int slot = slots[i].index;
            const bool masked = p.bits || p.mask;
            slots[i].last = !p.at ? keys - 1 : masked ? end - 1 : place_of((int)(p.last ? p.last : p.at)[slot]);
            slots[i].from = p.span < 0 ? 0 : (int)(p.at[slot] - least(p.span, p.at[slot]));
        }
    }

    // Numbers of a key that a lane holds.
    __device__ int used() const { return LANES == 1 ? size : HELD; }

    __device__ const Number* queries_of(int slot) const {
        return (const Number*)p.queries + slot * p.query_step + head * size;
    }

    __device__ Number* kept_at(int key) const {
        return (Number*)p.kept + row * p.row_step + key * p.key_step + head * size;
    }

    // A place that there is.
    __device__ int place_of(int key) const { return key < keys ? key : keys - 1; }

    // What is added to the scores of the next keys, -inf: hidden. Loads come first, so that they are on their way together.
    __device__ void see(int start, int stride, float (&added)[SLOTS][KEYS]) const {
        for (int i = 0; i < SLOTS; ++i) {
            for (int k = 0; k < KEYS; ++k) added[i][k] = 0;
        }
        if (p.mask) {
            Number masks[SLOTS][KEYS];
            for (int i = 0; i < SLOTS; ++i) {
                const Number* mask = (const Number*)p.mask + row * p.mask_row + (slots[i].index - row * width) * p.mask_slot;
                for (int k = 0; k < KEYS; ++k) masks[i][k] = mask[place_of(start + k * stride)];
            }
            for (int i = 0; i < SLOTS; ++i) {
                for (int k = 0; k < KEYS; ++k) added[i][k] = widened(masks[i][k]) * LOG2E;
            }
        }
        if (p.bits) {
            Int words[SLOTS][KEYS];
            for (int i = 0; i < SLOTS; ++i) {
                const Int* bits = p.bits + slots[i].index * p.words;
                for (int k = 0; k < KEYS; ++k) words[i][k] = bits[place_of(start + k * stride) / 64];
            }
            for (int i = 0; i < SLOTS; ++i) {
                for (int k = 0; k < KEYS; ++k) {
                    if (!(words[i][k] >> (start + k * stride) % 64 & 1)) added[i][k] = -INFINITY;
                }
            }
        }
        for (int i = 0; i < SLOTS; ++i) {
            for (int k = 0; k < KEYS; ++k) {
                const int key = start + k * stride;
                if (key < slots[i].from || key > slots[i].last) added[i][k] = -INFINITY;
            }
        }
    }

    // The scores of the next keys in place of what is added to them, and their values.
    __device__ void score(int start, int stride, float (&scores)[SLOTS][KEYS], Eight<Number> (&values)[KEYS][PARTS]) const {
        Eight<Number> read[KEYS][PARTS];
        const Number *window = queries_of(row * width) - begin * p.query_step + channels + offset, *kept = kept_at(0) + offset;
        const int window_step = (int)p.query_step, kept_step = (int)p.key_step, value_step = (int)p.value_step;
        for (int k = 0; k < KEYS; ++k) {
            bool seen = false;
            for (int i = 0; i < SLOTS; ++i) seen = seen || scores[i][k] > -INFINITY;
            const int key = start + k * stride;
            const bool in_window = key >= begin && key < end;
            const int step = key * (in_window ? window_step : kept_step);  // within a row, so that 32 bits are enough
            const Number* from = (in_window ? window : kept) + step;
            for (int part = 0; part < PARTS; ++part) {
                read[k][part] = values[k][part] = Eight<Number>{};
                if (!seen || offset + part * 8 >= size) continue;
                read[k][part] = eight_at(from + part * 8);
                values[k][part] = eight_at(from + value_step + part * 8);
            }
        }
        float sums[SLOTS][KEYS];
        for (int i = 0; i < SLOTS; ++i) {
            for (int k = 0; k < KEYS; ++k) {
                sums[i][k] = 0;
                for (int n = 0; n < used(); ++n) sums[i][k] = fmaf(query[i][n], number_of(read[k][n / 8], n % 8), sums[i][k]);
            }
        }
        for (int bits = 1; bits < group; bits *= 2) {
            for (int i = 0; i < SLOTS; ++i) {
                for (int k = 0; k < KEYS; ++k) sums[i][k] += of_lane(sums[i][k], bits);
            }
        }
        for (int i = 0; i < SLOTS; ++i) {
            for (int k = 0; k < KEYS; ++k) {
                if (scores[i][k] != -INFINITY) scores[i][k] += sums[i][k];
            }
        }
    }

    // Reads the keys of one of the `groups` of lanes that the block has.
    __device__ void attend(int which, int groups) {
        for (int i = 0; i < SLOTS; ++i) {
            read[i] = Read{-INFINITY, 0};
            for (int n = 0; n < used(); ++n) value[i][n] = 0;
        }
        int from = slots[0].from, last = slots[0].last;
        for (int i = 1; i < SLOTS; ++i) {
            from = slots[i].from < from ? slots[i].from : from;
            last = slots[i].last > last ? slots[i].last : last;
        }
        const int step = groups * KEYS;
        int start = 0;
        while (start + step <= from) start += step;
        for (; start <= last; start += step) {
            float scores[SLOTS][KEYS];
            Eight<Number> values[KEYS][PARTS];
            see(start + which, groups, scores);
            score(start + which, groups, scores, values);
            for (int i = 0; i < SLOTS; ++i) add(i, scores[i], values);
        }
    }

    __device__ void add(int i, const float (&scores)[KEYS], const Eight<Number> (&values)[KEYS][PARTS]) {
        float most = read[i].most;
        for (int k = 0; k < KEYS; ++k) most = fmaxf(most, scores[k]);
        const float kept = faded(read[i].most, most);
        read[i].most = most;
        read[i].sum *= kept;
        for (int n = 0; n < used(); ++n) value[i][n] *= kept;
        float weights[KEYS];
        for (int k = 0; k < KEYS; ++k) read[i].sum += weights[k] = faded(scores[k], most);
        for (int k = 0; k < KEYS; ++k) {
            if (scores[k] == -INFINITY) continue;  // what is there may be no number
            for (int n = 0; n < used(); ++n) value[i][n] = fmaf(weights[k], number_of(values[k][n / 8], n % 8), value[i][n]);
        }
    }

    // Gives the first group of a warp what all groups of the warp have read.
    __device__ void join_groups() {
        for (int bits = group; bits < LANES; bits *= 2) {
            for (int i = 0; i < SLOTS; ++i) {
                const float other = of_lane(read[i].most, bits), most = fmaxf(read[i].most, other);
                const float kept = faded(read[i].most, most), taken = faded(other, most);
                read[i].most = most;
                read[i].sum = fmaf(read[i].sum, kept, of_lane(read[i].sum, bits) * taken);
                for (int n = 0; n < used(); ++n) value[i][n] = fmaf(value[i][n], kept, of_lane(value[i][n], bits) * taken);
            }
        }
    }

    // Stores the keys and values of the tile's slots. The last threads begin: the first have the result to write.
    __device__ void keep() const {
        if (!p.at) return;
        for (int i = 0; i < SLOTS; ++i) {
            if (begin + first + i >= end) break;  // slots that the row does not use
            const Number* from = queries_of(row * width + first + i) + channels;
            Number* to = kept_at(begin + first + i);
            for (int n = (int)(blockDim.x - 1 - threadIdx.x) * 8; n < 2 * size; n += (int)blockDim.x * 8) {
                const int at = n < size ? n : (int)p.value_step + n - size;
                *(Eight<Number>*)(to + at) = eight_at(from + at);
            }
        }
    }
};

// What the warps of a tile have read.
template <int SLOTS>
struct Joint {
    float values[MOST_WARPS][SLOTS][WIDEST];
    Read read[MOST_WARPS][SLOTS];
};

// One of the `threads` of a tile attends. All threads of the block meet.
template <typename Number, int SLOTS>
__device__ void attend_tile(Tile<Number, SLOTS>& tile, Joint<SLOTS>& joint, int thread, int threads) {
    const int warp = thread / LANES, size = tile.size, warps = LANES == 1 ? threads : MOST_WARPS;
    tile.attend(thread >> tile.shift, threads >> tile.shift);
    tile.join_groups();
    if (thread % LANES < tile.group) {
        for (int i = 0; i < SLOTS; ++i) {
            if (tile.lane == 0) joint.read[warp][i] = tile.read[i];
            for (int n = 0; n < tile.used(); ++n) {
                if (tile.offset + n < size) joint.values[warp][i][tile.offset + n] = tile.value[i][n];
            }
        }
    }
    __syncthreads();
    for (int i = 0; i < SLOTS && tile.first + i < tile.width; ++i) {
        float most = -INFINITY, sum = 0, kept[MOST_WARPS];
        for (int other = 0; other < warps; ++other) most = fmaxf(most, joint.read[other][i].most);
        for (int other = 0; other < warps; ++other) {
            kept[other] = faded(joint.read[other][i].most, most);
            sum = fmaf(joint.read[other][i].sum, kept[other], sum);
        }
        Number* out = (Number*)tile.p.out + (Int)(tile.row * tile.width + tile.first + i) * tile.channels + tile.head * size;
        for (int n = thread; n < size; n += threads) {
            float value = 0;
            for (int other = 0; other < warps; ++other) value = fmaf(joint.values[other][i][n], kept[other], value);
            narrow(sum == 0 ? 0 : value / sum, out[n]);  // a slot that sees nothing is one that nobody reads
        }
    }
}

#ifndef PARTS_ONLY  // cross.cu takes what is above
template <int SLOTS>
struct Attend {
    template <typename Number>
    __device__ static void of(const Attention& p) {
        __shared__ Joint<SLOTS> joint;
        const unsigned tiles = (unsigned)(p.width + SLOTS - 1) / SLOTS, heads = (unsigned)p.heads, rest = blockIdx.x / tiles;
        const int first = (int)(blockIdx.x - rest * tiles) * SLOTS, row = (int)(rest / heads);
        Tile<Number, SLOTS> tile(p, row, (int)(rest - row * heads), first, (int)threadIdx.x);
        attend_tile(tile, joint, (int)threadIdx.x, (int)blockDim.x);
        tile.keep();
    }
};

// With a bound of the registers, which the blocks of many rows share.
// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(LANES* MOST_WARPS, 6) attend(const Attention p) {
    wait_for_earlier_kernels();
    by_precision<Attend<1>>(p);
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(LANES* MOST_WARPS, 3) attend_slots(const Attention p) {
    wait_for_earlier_kernels();
    by_precision<Attend<4>>(p);
}
#endif
