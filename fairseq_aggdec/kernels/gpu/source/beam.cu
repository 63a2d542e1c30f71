// A step of beam search on a GPU:
//
//   leaders    the likeliest tokens of each part of a hypothesis's logits, in the precision that they have
//   best       those of the whole vocabulary, with log-probabilities; the twin of BeamBoard._continuations
//   beam_step  which candidates end and which go on; the twin of BeamBoard._choose
//   best_step  both in one: a block has all hypotheses of a row, so that nothing but the board goes through memory
//
// R rows of the grid, each a sentence of W hypotheses; K continuations of each but for </s>. The board is that of
// search/beam/board.py. A hypothesis's V logits are read in P parts, by as many blocks: few hypotheses have many parts.

#include "shared.h"

constexpr int MOST_BEAM = 32, MOST_KEYS = 512;
constexpr int STEP_THREADS = 512;  // of a block that has all hypotheses of a row: up to 1,056 scores are ranked

typedef unsigned long long Key;

// Orders tokens by their logits, of equal ones the first is the largest. 0 is none.
__device__ inline Key key_of(float logit, int token) {
    const unsigned bits = bits_of(logit + 0.0f);  // -0 is 0
    const unsigned ordered = bits >> 31 ? ~bits : bits | 0x80000000;
    return (Key)ordered << 32 | ~(unsigned)token;
}

__device__ inline int token_of(Key key) { return (int)~(unsigned)key; }

__device__ inline float logit_of(Key key) {
    const unsigned ordered = (unsigned)(key >> 32);
    return of_bits(ordered >> 31 ? ordered & 0x7fffffff : ~ordered);
}

// What the exponentials of logits come to.
struct Exponentials {
    float most;  // the largest logit
    float sum;   // of exp(logit - most)
};

struct JoinExponentials {
    __device__ Exponentials operator()(Exponentials a, const Exponentials& b) const {
        if (b.sum == 0) return a;  // nothing but -inf
        if (a.sum == 0) return b;
        const float most = a.most < b.most ? b.most : a.most;
        return {most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
    }
};

// Of `leaders`, with a block for each part of a hypothesis, and of `best`, with one for each hypothesis.
struct Candidates {
    Int blocks, kept, parts;  // K, P
    Int types, precision;     // V; of the logits
    Int width, prefix;        // W; the length of the forced prefixes
    Int pad, unk, eos;        // -1: there is none
    double unk_penalty;
    const Int *clock, *depths;  // (2,); (S,), of the rows' next tokens; read where there are prefixes
    const Int* forced;          // (S, prefix + 1)
    const void* logits;         // (R W, V)
    Exponentials* sums;         // (R W, P), from leaders to best
    Key* keys;                  // (R W, P, K), from leaders to best
    float* values;              // (R, W, K), log-probabilities
    Int* tokens;                // (R, W, K)
    float* ends;                // (R, W), log-probabilities of </s>
};

// Whether any thread of the block says so; threads meet.
__device__ inline bool any_thread(bool mine) {
#ifdef __CUDACC__
    return __syncthreads_or(mine);
#else
    return joined((Int)mine, Most());
#endif
}

// How many of the threads have a larger top; of equal ones the first thread's is. None is larger than 0. No more than
// `enough` need be counted.
__device__ inline int larger_tops(const unsigned* tops, int enough) {
    const unsigned thread = threadIdx.x, mine = tops[thread];
    int larger = mine ? 0 : enough;
    for (unsigned from = 0; from < blockDim.x && larger < enough; from += LANES) {
#pragma unroll
        for (unsigned i = from; i < from + LANES; ++i) larger += tops[i] > mine || (tops[i] == mine && i < thread);
    }
    return larger;
}

// The keys of the eight logits of a group. Padding has none, and neither has </s>, which is scored apart.
__device__ inline Key keys_of(const Candidates& p, const Row& logits, Int group, Exponentials& sums, Key (&keys)[8]) {
    float x[8];
    const int first = (int)logits.read(group, x);
    add_exponentials(x, sums.most, sums.sum);
    Key top = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int token = first + i;
        if (token == p.unk) x[i] -= (float)p.unk_penalty;
        keys[i] = x[i] == -INFINITY || token == p.pad || token == p.eos ? 0 : key_of(x[i], token);
        top = keys[i] > top ? keys[i] : top;
    }
    return top;
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(FEWER_THREADS) leaders(const Candidates p) {
    __shared__ Key leading[MOST_BEAM], candidates[9 * MOST_BEAM];
    alignas(16) __shared__ unsigned tops[FEWER_THREADS];
    wait_for_earlier_kernels();
    const unsigned parts = (unsigned)p.parts, part = blockIdx.x % parts;
    const int kept = (int)p.kept, thread = (int)threadIdx.x, threads = (int)blockDim.x;
    const Row logits(p.logits, p.precision, blockIdx.x / parts, p.types);
    const unsigned groups = (unsigned)logits.groups(), each = (groups + parts - 1) / parts;
    const Int end = least(groups, (part + 1) * each);
    Exponentials sums{-INFINITY, 0};
    for (int i = thread; i < kept; i += threads) leading[i] = 0;
    for (Int from = (Int)part * each; from < end; from += threads) {
        Key keys[8] = {}, top = 0;
        if (from + thread < end) top = keys_of(p, logits, from + thread, sums, keys);
        __syncthreads();
        const Key least = leading[kept - 1];
        const bool leads = top > least;
        tops[thread] = leads ? (unsigned)(top >> 32) : 0;
        for (int i = thread; i < 9 * kept; i += threads) candidates[i] = i < kept ? leading[i] : 0;
        if (!any_thread(leads)) continue;
        // All that lead are among eight of so many threads as have the largest.
        const int larger = larger_tops(tops, kept);
        if (larger < kept) {
#pragma unroll
            for (int i = 0; i < 8; ++i) candidates[kept + 8 * larger + i] = keys[i];
        }
        __syncthreads();
        for (int i = thread; i < 9 * kept; i += threads) {
            const Key key = candidates[i];
            int rank = key ? 0 : kept;
            for (int j = 0; j < 9 * kept && rank < kept; ++j) rank += candidates[j] > key;
            if (rank < kept) leading[rank] = key;
        }
    }
    sums = joined(sums, JoinExponentials());
    if (thread == 0) p.sums[blockIdx.x] = sums;
    for (int i = thread; i < kept; i += threads) p.keys[(Int)blockIdx.x * kept + i] = leading[i];
}

// The token that the caller wants next, padding where there is none.
template <typename Parameters>
__device__ inline Int forced_token(const Parameters& p, Int row) {
    const Int depth = p.depths[row];
    return p.prefix && depth < p.clock[0] ? p.forced[row * (p.prefix + 1) + least(depth, p.prefix)] : p.pad;
}

// The log-probability of a token under the rules of a hypothesis.
struct LogProbability {
    const Candidates& p;
    Row logits;
    Exponentials sums;

    __device__ float operator()(Int token) const { return of(logits[token], token); }

    __device__ float of(float logit, Int token) const {
        const float value = logit - sums.most - logf(sums.sum);
        return token == p.unk ? value - (float)p.unk_penalty : value;
    }
};

constexpr int OF_LANE = MOST_KEYS / LANES;  // keys that a lane holds
constexpr int IN_TURN = 128;                // parts of which a warp joins one by one what its lanes have joined

struct LargerKey {
    __device__ Key operator()(Key a, Key b) const { return a < b ? b : a; }
};

// A warp finds the likeliest tokens of a hypothesis, which its first lane writes.
__device__ inline void best_of(const Candidates& p, Int place, Int row, float* values, Int* tokens, float* ends) {
    const int kept = (int)p.kept, count = (int)p.parts * kept, lane = (int)threadIdx.x % LANES;
    Key mine[OF_LANE];
#pragma unroll
    for (int i = 0; i < OF_LANE; ++i) mine[i] = lane + i * LANES < count ? p.keys[place * count + lane + i * LANES] : 0;
    Exponentials all{-INFINITY, 0};
    for (int from = 0; from < IN_TURN && from < p.parts; from += LANES) {
        Exponentials lane_sums{-INFINITY, 0};
        for (Int part = from + lane; part < p.parts; part += IN_TURN)
            lane_sums = JoinExponentials()(lane_sums, p.sums[place * p.parts + part]);
        all = JoinExponentials()(all, joined_lanes(lane_sums, JoinExponentials()));
    }
    const LogProbability value{p, {p.logits, p.precision, place, p.types}, all};
    const Int forced = p.prefix ? forced_token(p, row) : p.pad;
    Key last = ~(Key)0;
    for (int i = 0; i < kept; ++i) {
        Key key = 0;
#pragma unroll
        for (int j = 0; j < OF_LANE; ++j) key = mine[j] < last && mine[j] > key ? mine[j] : key;
        last = key = joined_lanes(key, LargerKey());
        const Int token = forced != p.pad ? forced : token_of(key);
        const bool there = forced != p.pad ? i == 0 && forced != p.eos : key != 0;
        if (lane != 0) continue;
        tokens[i] = there ? token : p.pad < 0 ? 0 : p.pad;
        values[i] = !there                               ? -INFINITY
                    : forced != p.pad || token == p.unk ? value(token)
                                                        : value.of(logit_of(key), token);
    }
    if (lane == 0 && p.eos >= 0) *ends = value(p.eos);
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(32) best(const Candidates p) {
    wait_for_earlier_kernels();
    const Int place = blockIdx.x;
    if (threadIdx.x >= LANES) return;  // in C++ a thread is a warp
    best_of(p, place, blockIdx.x / (unsigned)p.width, p.values + place * p.kept, p.tokens + place * p.kept, p.ends + place);
}

// Of `beam_step` and `best_step`, with a block for each row. Each hypothesis has K + 1 continuations, of which the last is
// </s>. `beam_step` reads them in values, tokens and ends, `best_step` finds them in what `leaders` wrote.
struct BeamStep {
    Int blocks, width, each, eos, pad, prefix;
    Int length, visibilities, end;  // T; places of a mask, of which `end` count, whole words of 16 bytes
    Int bytes, room;          // of a number of a mask; columns of `written`, 0 where there is none
    Int parts, types, precision, unk;  // P, V; of the logits
    double unk_penalty;
    const void* logits;          // (R W, V), or none
    Exponentials* exponentials;  // (R W, P), or none
    Key* keys;                   // (R W, P, K), or none
    const Int* clock;
    const float* values;  // (R, W, K)
    const Int* tokens;    // (R, W, K)
    const float* ends;    // (R, W), of </s>
    const Int* forced;    // (S, prefix + 1)
    const Int* lengths;   // of the sources where outputs must match them, or none
    Int *depths, *places;       // (R,), of the next tokens; (R, W), where their keys and values will be
    Int* last;                  // (R, W), the tokens of the hypotheses
    double* sums;
    Int *rounds, *count, *flags, *words, *parents;
    double* totals;
    Int* nodes;
    double* finished;
    void* visibility;
    Int* written;
};

// What lengths and forced tokens allow in a step of a sentence.
struct StepRules {
    bool others, end, free;  // what may follow: other tokens, </s>, which scores 0
    bool copies;             // the caller forces </s>: stock ends as many copies of the best hypothesis
};

__device__ inline StepRules rules_of(const BeamStep& p, Int row, Int depth) {
    const Int limit = p.clock[0], floor = p.clock[1], forced = forced_token(p, row);
    const bool banned = (forced != p.pad && forced != p.eos) || (depth < floor && depth >= p.prefix);
    const bool free = p.lengths != nullptr;
    return {depth < limit, free ? depth >= p.lengths[row] : !banned, free, forced == p.eos};
}

// What the likeliest continuations of a sentence come to.
struct Chosen {
    double sums[MOST_BEAM];
    Int parents[MOST_BEAM], words[MOST_BEAM];
    Int nodes[MOST_BEAM];  // of those that end
    double ended[MOST_BEAM];
    int ends;
};

// One thread goes through the 2 W best continuations, in the order of their scores. Divisions of 8 bytes are slow.
__device__ inline void choose(const BeamStep& p, const int* ranked, const double* scores, Int room, Int depth, Chosen& chosen) {
    const int width = (int)p.width, each = (int)p.each, others = each - 1;
    int going_on = 0;
    chosen.ends = 0;
    for (int rank = 0; rank < 2 * width; ++rank) {
        const int at = ranked[rank], parent = at / each, which = at - parent * each;
        if (which < others && going_on < width) {
            chosen.words[going_on] = which;
            chosen.parents[going_on] = parent;
            chosen.sums[going_on++] = scores[at];
        } else if (which == others && rank < width && chosen.ends < room && scores[at] > -INFINITY) {
            chosen.nodes[chosen.ends] = depth * width + parent;
            chosen.ended[chosen.ends++] = scores[at];
        }
    }
    for (; going_on < width; ++going_on) {
        chosen.words[going_on] = others;  // none: </s> in its place
        chosen.parents[going_on] = 0;
        chosen.sums[going_on] = -INFINITY;
    }
}

constexpr int STAGED = 512;

// What hypothesis i has in some columns becomes what its parent had. All is read before anything is written.
template <typename Number>
__device__ void follow_parents(Number* rows, const Int* parents, int width, Int stride, int columns, Sixteen* stage) {
    Number* staged = reinterpret_cast<Number*>(stage);
    const int thread = (int)threadIdx.x, threads = (int)blockDim.x;
    const int most = STAGED * (int)(sizeof(Sixteen) / sizeof(Number)) / width;
    for (int from = 0; from < columns; from += most) {
        const int here = columns - from < most ? columns - from : most;
        for (int i = thread; i < width * here; i += threads) staged[i] = rows[parents[i / here] * stride + from + i % here];
        __syncthreads();
        for (int i = thread; i < width * here; i += threads) rows[i / here * stride + from + i % here] = staged[i];
        __syncthreads();
    }
}

// What may follow the hypotheses of a row, in the memory of the block.
struct Following {
    float values[MOST_BEAM * MOST_BEAM];
    Int tokens[MOST_BEAM * MOST_BEAM];
    float ends[MOST_BEAM];
};

// A warp for each hypothesis.
__device__ inline void find(const BeamStep& p, Int row, Following& following) {
    Candidates candidates{};
    candidates.kept = p.each - 1;
    candidates.parts = p.parts;
    candidates.types = p.types;
    candidates.precision = p.precision;
    candidates.prefix = p.prefix;
    candidates.pad = p.pad;
    candidates.unk = p.unk;
    candidates.eos = p.eos;
    candidates.unk_penalty = p.unk_penalty;
    candidates.clock = p.clock;
    candidates.depths = p.depths;
    candidates.forced = p.forced;
    candidates.logits = p.logits;
    candidates.sums = p.exponentials;
    candidates.keys = p.keys;
    for (int slot = (int)threadIdx.x / LANES; slot < p.width; slot += (int)blockDim.x / LANES) {
        const int first = slot * (int)candidates.kept;
        best_of(candidates, row * p.width + slot, row, following.values + first, following.tokens + first, following.ends + slot);
    }
    __syncthreads();
}

// The continuations are those of the row: (W, K) each, and (W,).
__device__ inline void step_on(const BeamStep& p, const float* values, const Int* tokens, const float* ends) {
    __shared__ double scores[MOST_BEAM * (MOST_BEAM + 1)];
    __shared__ int ranked[2 * MOST_BEAM];
    __shared__ Chosen chosen;
    __shared__ Sixteen stage[STAGED];
    const int width = (int)p.width, each = (int)p.each, others = each - 1, size = width * each;
    const int thread = (int)threadIdx.x, threads = (int)blockDim.x;
    const Int row = blockIdx.x, first = row * width;
    const Int depth = p.depths[row], before = p.count[row], rounds = p.rounds[row];
    const StepRules rules = rules_of(p, row, depth);
    double* sums = p.sums + first;
    const bool active = sums[0] > -INFINITY;
    Int unknown = 0;  // hypotheses for which the model gave no numbers
#pragma unroll 1
    for (int i = thread; i < size; i += threads) {  // at most two turns, as in the other loops here
        const int slot = i / each, at = i - slot * each;
        const double sum = sums[slot];
        float gain = -INFINITY;
        if (at < others) {
            if (rules.others) gain = values[slot * others + at];
        } else {
            const float end = ends[slot];
            if (rules.end) gain = rules.free ? 0 : end;
            unknown += sum > -INFINITY && end != end;
        }
        const double score = sum + (double)gain;
        scores[i] = sum > -INFINITY && score > -INFINITY ? score : -INFINITY;  // no NaN: that has no rank
    }
    const bool broken = joined(unknown, Sum()) != 0;
#pragma unroll 1
    for (int i = thread; i < size; i += threads) {
        const double score = scores[i];
        int rank = 0;
        for (int j = 0; j < size && rank < 2 * width; ++j) rank += scores[j] > score || (scores[j] == score && j < i);
        if (rank < 2 * width) ranked[rank] = i;
    }
    __syncthreads();
    if (rules.copies) {
        const int best = ranked[0];
        __syncthreads();
        for (int i = thread; i < 2 * width; i += threads) ranked[i] = best;
        __syncthreads();
    }
    if (thread == 0) choose(p, ranked, scores, width - before, depth, chosen);
    __syncthreads();
    const Int count = before + chosen.ends, next = least(depth + 1, p.clock[0]);
    const bool on = count < width && chosen.sums[0] > -INFINITY && !broken;
#pragma unroll 1
    for (int slot = thread; slot < width; slot += threads) {
        const Int at = (row * p.length + depth) * width + slot, parent = chosen.parents[slot], which = chosen.words[slot];
        const Int word = which < others ? tokens[parent * others + which] : p.eos;
        p.last[first + slot] = p.words[at] = word;
        p.parents[at] = parent;
        sums[slot] = p.totals[at] = on ? chosen.sums[slot] : -INFINITY;
        p.places[first + slot] = next * width + slot;
        if (slot < chosen.ends) {
            p.nodes[row * (width + 1) + before + 1 + slot] = chosen.nodes[slot];
            p.finished[row * (width + 1) + before + 1 + slot] = chosen.ended[slot];
        }
    }
    if (thread == 0) {
        p.depths[row] = next;
        p.count[row] = broken ? -1 : count;
        p.rounds[row] = rounds + active;
        p.flags[row] = on ? rounds + active : ~(rounds + active);
    }
    // A hypothesis sees what its parent saw, and itself.
    const Int row_bytes = p.visibilities * p.bytes;
    unsigned char* visibility = (unsigned char*)p.visibility + first * row_bytes;
    // Rounded up: rows are whole sixteens, and the last places need not fill one.
    const int sixteens = (int)((p.end * p.bytes + 15) / 16);
    follow_parents((Sixteen*)visibility, chosen.parents, width, row_bytes / 16, sixteens, stage);
#pragma unroll 1
    for (int slot = thread; slot < width; slot += threads) {
        unsigned char* seen = visibility + slot * row_bytes + (next * width + slot) * p.bytes;
        if (p.bytes == 2) *(unsigned short*)seen = 0;
        if (p.bytes == 4) *(unsigned*)seen = 0;
    }
    if (!p.room) return;
    Int* written = p.written + first * p.room;
    follow_parents(written, chosen.parents, width, p.room, (int)depth + 1, stage);
    for (int slot = thread; slot < width; slot += threads) written[slot * p.room + depth + 1] = p.last[first + slot];
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) beam_step(const BeamStep p) {
    wait_for_earlier_kernels();
    const Int first = blockIdx.x * p.width;
    step_on(p, p.values + first * (p.each - 1), p.tokens + first * (p.each - 1), p.ends + first);
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) best_step(const BeamStep p) {
    __shared__ Following following;
    wait_for_earlier_kernels();
    find(p, blockIdx.x, following);
    step_on(p, following.values, following.tokens, following.ends);
}
