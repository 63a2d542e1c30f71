// What a decoder computes with its weights for few rows, with norms, biases and residual connections in the same launch:
//
//   product     y = f(n(x) W^T + b) + r: n a layer norm or nothing, f ReLU or nothing
//   layer_norm  n(x)
//
// Sums are of fp32. What PyTorch's operators would write in the precision of the weights is rounded to it here, too. The
// sums of a row are added in one order, whatever rows are beside it.
//
// A tile is what a tensor core computes at once: 16 rows by 8 outputs. A warp takes inputs by chunks: 4 lanes read 16 bytes
// each of one row. Lane l has row l / 4 and, of inputs, also row l / 4 + 8, at place l % 4 of the chunk.

#pragma once

#include "shared.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 && defined(PRECISION) && PRECISION != 0
#error "tensor cores of compute capability 8.0 are needed for half precision"
#endif

// A thread holds the registers of its lane; in C++ a thread is a whole warp and holds those of all lanes. So the tests see
// from which lane a tensor core takes what.
#ifdef __CUDACC__
constexpr int LANES_HELD = 1;
#define UNROLLED _Pragma("unroll")
__device__ inline int lane_of(int) { return threadIdx.x % LANES; }
__device__ inline float inverse_root(float x) { return rsqrtf(x); }
#else
constexpr int LANES_HELD = 32;
#define UNROLLED
static inline int lane_of(int held) { return held; }
static inline float inverse_root(float x) { return 1 / sqrtf(x); }
#endif

constexpr int PRODUCT_WARPS = 8;                         // of a block
constexpr int TILE_ROWS = 16, TILE_OUTPUTS = 8;
constexpr int ROW_STEP = 20;                            // floats from row to row: without conflicts of banks
constexpr int SCRATCH = 2 * TILE_ROWS * ROW_STEP;       // floats of a warp in shared memory

// Blocks for tiles of outputs, and again for every 16 `high` rows. Rows of x and W start at multiples of 16 bytes.
struct Product {
    Int blocks, precision;
    Int rows, inputs, outputs;        // N, K, O
    Int across, tiles;                // blocks for all outputs; tiles of a block, 1 or, in half precision with a norm, 2
    Int high;                         // tiles of rows that a block computes, one after the other
    Int relu;
    Int twice;                        // n(x) W^T + b is rounded before r is added
    double eps, share;                // of the norm; 1 / K
    const void *x, *weight, *bias;    // (N, K), (O, K), (O,)
    const void *gain, *shift;         // (K,) of the norm, or none
    const void* residual;             // (N, O) r, or none
    void *kept, *y;                   // (N, K) n(x), or not wanted; (N, O)
};

// Memory that the threads of a block share.
struct alignas(16) Common {  // read and written 16 bytes at once
    float scratch[PRODUCT_WARPS][SCRATCH];
    float sums[2][PRODUCT_WARPS][TILE_ROWS];
};

// 16 bytes of a row, or zeros.
template <typename Number>
__device__ inline Sixteen part_of(const Number* from, bool there) {
    return there ? *reinterpret_cast<const Sixteen*>(from) : Sixteen{};
}

template <typename Number>
__device__ inline float number_in(const Sixteen& part, int i) {
    if constexpr (sizeof(Number) == 4) return of_bits(part.words[i]);
    else return widened(Number{static_cast<unsigned short>(part.words[i / 2] >> i % 2 * 16)});
}

template <typename Number>
__device__ inline unsigned word_of(const float* numbers, int word) {
    if constexpr (sizeof(Number) == 4) return bits_of(numbers[word]);
    else {
        Number low, high;
        narrow(numbers[2 * word], low);
        narrow(numbers[2 * word + 1], high);
        return low.bits | static_cast<unsigned>(high.bits) << 16;
    }
}

template <typename Number>
__device__ inline float at(const void* all, Int place) {
    return widened(static_cast<const Number*>(all)[place]);
}

// Of every lane the sum over the four lanes that have its rows.
__device__ inline void add_lanes(float (&mine)[LANES_HELD][2]) {
#ifdef __CUDACC__
    UNROLLED for (int half = 0; half < 2; ++half) {
        mine[0][half] += of_lane(mine[0][half], 1);
        mine[0][half] += of_lane(mine[0][half], 2);
    }
#else
    for (int first = 0; first < LANES_HELD; first += 4) {
        for (int half = 0; half < 2; ++half) {
            float sum = 0;
            for (int lane = first; lane < first + 4; ++lane) sum += mine[lane][half];
            for (int lane = first; lane < first + 4; ++lane) mine[lane][half] = sum;
        }
    }
#endif
}

// Adds to every lane's numbers of a row (of two) what the other warps have of it.
__device__ inline void add_warps(float (&mine)[LANES_HELD][2], float (*sums)[TILE_ROWS], int warp, int warps) {
    add_lanes(mine);
    UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
        const int lane = lane_of(held);
        if (lane % 4 == 0) {
            sums[warp][lane / 4] = mine[held][0];
            sums[warp][lane / 4 + 8] = mine[held][1];
        }
    }
    __syncthreads();
    UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
        UNROLLED for (int half = 0; half < 2; ++half) {
            float sum = 0;
            UNROLLED for (int other = 0; other < PRODUCT_WARPS; ++other) {
                if (other < warps) sum += sums[other][lane_of(held) / 4 + 8 * half];
            }
            mine[held][half] = sum;
        }
    }
}

// A part of a row whose mean and inverse deviation are known.
template <typename Number>
__device__ inline Sixteen normed(const Sixteen& part, const Sixteen& gain, const Sixteen& shift, float mean, float scale) {
    constexpr int EACH = 16 / sizeof(Number);
    float numbers[EACH];
    UNROLLED for (int n = 0; n < EACH; ++n) {
        const float x = (number_in<Number>(part, n) - mean) * scale;
        numbers[n] = x * number_in<Number>(gain, n) + number_in<Number>(shift, n);
    }
    Sixteen packed;
    UNROLLED for (int word = 0; word < 4; ++word) packed.words[word] = word_of<Number>(numbers, word);
    return packed;
}

// The sum over all lanes of the warp.
__device__ inline float over_lanes(float mine) {
    UNROLLED for (int bits = 1; bits < LANES; bits *= 2) mine += of_lane(mine, bits);
    return mine;
}

// D (16, 8) += A (16, 16) B (16, 8) on a tensor core, numbers of 2 bytes. Of lane l, with g = l / 4 and t = l % 4:
// a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with the number right of it; b: (2t, g), (2t + 8, g), each
// with the number below; d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
#ifdef __CUDACC__
#define MULTIPLY(Number, type)                                                                                        \
    __device__ inline void multiply(Number, float (&d)[LANES_HELD][4], const unsigned (&a)[LANES_HELD][4],                        \
                                    const unsigned (&b)[LANES_HELD][2], Int) {                                              \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "     \
            "{%0,%1,%2,%3};"                                                                                          \
            : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])                                              \
            : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(b[0][0]), "r"(b[0][1]));                    \
    }
MULTIPLY(Half, "f16")
MULTIPLY(Bfloat, "bf16")
#else
template <typename Number>
static void multiply(Number, float (&d)[LANES_HELD][4], const unsigned (&a)[LANES_HELD][4], const unsigned (&b)[LANES_HELD][2], Int rows) {
    auto number = [](unsigned word, int i) { return widened(Number{static_cast<unsigned short>(word >> 16 * i)}); };
    for (int row = 0; row < TILE_ROWS && row < rows; ++row) {
        for (int column = 0; column < TILE_OUTPUTS; ++column) {
            float sum = 0;
            for (int k = 0; k < 16; ++k) {
                const int t = k % 8 / 2, right = k / 8;
                sum += number(a[row % 8 * 4 + t][2 * right + row / 8], k % 2) * number(b[column * 4 + t][right], k % 2);
            }
            d[row % 8 * 4 + column / 2][row / 8 * 2 + column % 2] += sum;
        }
    }
}
#endif

// Adds the products of a chunk of inputs (16 rows) and weights (8 outputs). Which of the chunk's numbers are side by side
// in a tensor core does not count, if it is the same for both: each takes two words of every lane.
template <typename Number>
__device__ inline void add_chunk(float (&sums)[LANES_HELD][4], const Sixteen (&inputs)[LANES_HELD][2], const Sixteen (&weights)[LANES_HELD],
                                 float*, Int rows) {
    UNROLLED for (int word = 0; word < 4; word += 2) {
        unsigned a[LANES_HELD][4], b[LANES_HELD][2];
        UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
            UNROLLED for (int i = 0; i < 4; ++i) a[held][i] = inputs[held][i % 2].words[word + i / 2];
            UNROLLED for (int i = 0; i < 2; ++i) b[held][i] = weights[held].words[word + i];
        }
        multiply(Number(), sums, a, b, rows);
    }
}

// Of fp32: exact products, through the warp's shared memory.
template <>
__device__ inline void add_chunk<float>(float (&sums)[LANES_HELD][4], const Sixteen (&inputs)[LANES_HELD][2],
                                        const Sixteen (&weights)[LANES_HELD], float* scratch, Int) {
    auto place = [=](int row, int part) { return reinterpret_cast<Sixteen*>(scratch + row * ROW_STEP + part * 4); };
    UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
        const int g = lane_of(held) / 4, t = lane_of(held) % 4;
        *place(g, t) = inputs[held][0];
        *place(g + 8, t) = inputs[held][1];
        *place(g + TILE_ROWS, t) = weights[held];
    }
    warp_meets();
    UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
        const int g = lane_of(held) / 4, t = lane_of(held) % 4;
        UNROLLED for (int part = 0; part < 4; ++part) {
            UNROLLED for (int i = 0; i < 4; ++i) {
                const Sixteen x = *place(g + i / 2 * 8, part), w = *place(TILE_ROWS + 2 * t + i % 2, part);
                UNROLLED for (int k = 0; k < 4; ++k) sums[held][i] += of_bits(x.words[k]) * of_bits(w.words[k]);
            }
        }
    }
    warp_meets();
}

template <typename Number, int TILES, bool NORMED>
struct Multiplied {
    static constexpr int EACH = 16 / sizeof(Number), CHUNK = 4 * EACH;
    // Chunks whose loads are on their way at once. A norm needs all that the warp has of a row.
    static constexpr int DEPTH = LANES_HELD > 1 ? 32 : NORMED || TILES > 1 ? 4 : 8;
    static constexpr int COUNT = TILE_ROWS * TILE_OUTPUTS * TILES;
    static constexpr int ITEMS = LANES_HELD > 1 ? COUNT : (COUNT + 32 * PRODUCT_WARPS - 1) / (32 * PRODUCT_WARPS);

    const Product& p;
    Common& common;
    const int warps, warp, inputs, outputs, rows, chunks, tiles;  // tiles: of the block, no more than TILES
    int top;          // row of the block
    int first, end;   // its outputs
    int halves;       // 2: there are more than 8 rows
    float sums[TILES][LANES_HELD][4];
    Sixteen weights[DEPTH][TILES][LANES_HELD], input_parts[DEPTH][LANES_HELD][2], gains[DEPTH][LANES_HELD],
        shifts[DEPTH][LANES_HELD];

    __device__ Multiplied(const Product& p, Common& common, int top, int output)
        : p(p),
          common(common),
          warps(LANES_HELD > 1 ? blockDim.x / LANES : PRODUCT_WARPS),
          warp(threadIdx.x / LANES),
          inputs(static_cast<int>(p.inputs)),
          outputs(static_cast<int>(p.outputs)),
          rows(static_cast<int>(p.rows)),
          chunks((inputs + CHUNK - 1) / CHUNK),
          tiles(TILES > 1 ? static_cast<int>(p.tiles) : 1),
          top(top),
          halves(rows - top > 8 ? 2 : 1) {
        take_up(output);
    }

    __device__ int end_of(int first) const { return static_cast<int>(least(outputs, first + TILE_OUTPUTS * tiles)); }

    // The tiles from an output on are the next ones.
    __device__ void take_up(int output) {
        first = output;
        end = end_of(first);
        UNROLLED for (int tile = 0; tile < TILES; ++tile) {
            UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
                UNROLLED for (int i = 0; i < 4; ++i) sums[tile][held][i] = 0;
            }
        }
    }

    // The rows from one on are the next ones.
    __device__ void go_down(int row) {
        top = row;
        halves = rows - top > 8 ? 2 : 1;
        take_up(first);
    }

    // Calls with all lanes' registers: index, first of the inputs that it reads, whether there are any.
    template <typename Each>
    __device__ void lanes(int chunk, Each each) const {
        UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
            const int place = chunk * CHUNK + lane_of(held) % 4 * EACH;
            each(held, lane_of(held) / 4, place, place < inputs);
        }
    }

    // Calls with the warp's chunks from `base` on, by their number.
    template <typename Each>
    __device__ void warp_chunks(int base, Each each) const {
        UNROLLED for (int i = 0; i < DEPTH; ++i) {
            const int chunk = base + i * warps;
            if (chunk < chunks) each(i, chunk);
            else if (LANES_HELD > 1) break;
        }
    }

    // Where a lane's part of the first chunk from `base` on is in a row of inputs or weights; none: there is no such row.
    __device__ const Number* start_of(const void* all, int row, int count, int place) const {
        const Int start = static_cast<Int>(static_cast<unsigned>(row)) * static_cast<unsigned>(inputs);
        return row < count ? static_cast<const Number*>(all) + start + place : nullptr;
    }

    // Loads the weights of the tiles from an output on, and those of the norm: what is read before the wait.
    __device__ void load_weights(int base, int first) {
        const Number *weight[TILES][LANES_HELD], *gain[LANES_HELD], *shift[LANES_HELD];
        const int last = end_of(first);
        lanes(base, [&](int held, int g, int place, bool) {
            UNROLLED for (int tile = 0; tile < TILES; ++tile) {
                weight[tile][held] = start_of(p.weight, first + tile * TILE_OUTPUTS + g, last, place);
            }
            gain[held] = static_cast<const Number*>(p.gain) + place;
            shift[held] = static_cast<const Number*>(p.shift) + place;
        });
        warp_chunks(base, [&](int i, int chunk) {
            lanes(chunk, [&](int held, int, int, bool there) {
                const int step = i * warps * CHUNK;
                UNROLLED for (int tile = 0; tile < TILES; ++tile) {
                    weights[i][tile][held] = part_of(weight[tile][held] + step, there && weight[tile][held]);
                }
                if (NORMED) {
                    gains[i][held] = part_of(gain[held] + step, there);
                    shifts[i][held] = part_of(shift[held] + step, there);
                }
            });
        });
    }

    __device__ void load_inputs(int base) {
        const Number* x[2][LANES_HELD];
        lanes(base, [&](int held, int g, int place, bool) {
            UNROLLED for (int half = 0; half < 2; ++half) x[half][held] = start_of(p.x, top + g + 8 * half, rows, place);
        });
        warp_chunks(base, [&](int i, int chunk) {
            lanes(chunk, [&](int held, int, int, bool there) {
                UNROLLED for (int half = 0; half < 2; ++half) {
                    input_parts[i][held][half] = part_of(x[half][held] + i * warps * CHUNK, there && x[half][held]);
                }
            });
        });
    }

    __device__ void multiply(int base) {
        warp_chunks(base, [&](int i, int) {
            UNROLLED for (int tile = 0; tile < TILES; ++tile) {
                if (tile < tiles) add_chunk<Number>(sums[tile], input_parts[i], weights[i][tile], common.scratch[warp], rows - top);
            }
        });
    }

    __device__ void load_biases(float (&biases)[ITEMS]) const {
        UNROLLED for (int item = 0; item < ITEMS; ++item) {
            const int i = threadIdx.x + item * blockDim.x, output = output_of(i);
            biases[item] = p.bias && i < COUNT && output < end ? at<Number>(p.bias, output) : 0;
        }
    }

    // Calls with every number that is there: register, which of two rows, chunk, its word and place in it.
    template <typename Each>
    __device__ void numbers(int base, Each each) const {
        warp_chunks(base, [&](int i, int chunk) {
            lanes(chunk, [&](int held, int, int, bool there) {
                UNROLLED for (int half = 0; half < 2; ++half) {
                    if (!there || half >= halves) continue;
                    UNROLLED for (int n = 0; n < EACH; ++n) each(held, half, number_in<Number>(input_parts[i][held][half], n));
                }
            });
        });
    }

    // Layer norm of the inputs, as PyTorch has it. Sums twice, as the mean square of differences is not a difference of
    // mean squares in fp32.
    __device__ void normalise(int base) {
        const float share = static_cast<float>(p.share);
        float means[LANES_HELD][2] = {}, scales[LANES_HELD][2] = {};
        numbers(base, [&](int held, int half, float x) { means[held][half] += x; });
        add_warps(means, common.sums[0], warp, warps);
        UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
            UNROLLED for (int half = 0; half < 2; ++half) means[held][half] *= share;
        }
        numbers(base, [&](int held, int half, float x) {
            scales[held][half] += (x - means[held][half]) * (x - means[held][half]);
        });
        add_warps(scales, common.sums[1], warp, warps);
        UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
            UNROLLED for (int half = 0; half < 2; ++half) {
                scales[held][half] = inverse_root(scales[held][half] * share + static_cast<float>(p.eps));
            }
        }
        warp_chunks(base, [&](int i, int chunk) {
            lanes(chunk, [&](int held, int g, int place, bool there) {
                UNROLLED for (int half = 0; half < 2; ++half) {
                    if (half >= halves) continue;
                    Sixteen& part = input_parts[i][held][half];
                    part = normed<Number>(part, gains[i][held], shifts[i][held], means[held][half], scales[held][half]);
                    const int row = top + g + 8 * half;
                    if (p.kept && first == 0 && there && row < rows) {
                        const Int start = static_cast<Int>(row) * inputs + place;
                        *reinterpret_cast<Sixteen*>(static_cast<Number*>(p.kept) + start) = part;
                    }
                }
            });
        });
    }

    // Puts the sums of the warp where the others find them.
    __device__ void share() {
        UNROLLED for (int tile = 0; tile < TILES; ++tile) {
            UNROLLED for (int held = 0; held < LANES_HELD; ++held) {
                const int g = lane_of(held) / 4, t = lane_of(held) % 4;
                UNROLLED for (int i = 0; i < 4; ++i) {
                    const int row = g + i / 2 * 8, place = (row * TILES + tile) * TILE_OUTPUTS + 2 * t + i % 2;
                    if (top + row < rows) common.scratch[warp][place] = sums[tile][held][i];
                }
            }
        }
    }

    // Adds up what all warps have shared. Calls with every number of the tiles: item, row, output, number.
    template <typename Take>
    __device__ void gather(Take take) const {
        UNROLLED for (int item = 0; item < ITEMS; ++item) {
            const int i = threadIdx.x + item * blockDim.x, row = row_of(i), output = output_of(i);
            if (i >= COUNT || row >= rows || output >= end) continue;
            float y = 0;
            UNROLLED for (int other = 0; other < PRODUCT_WARPS; ++other) {
                if (other < warps) y += common.scratch[other][i];
            }
            take(item, row, output, y);
        }
    }

    // Computes the rows from `top` to `bottom`.
    __device__ void run(int bottom) {
        float biases[ITEMS];
        load_weights(warp, first);
        load_biases(biases);
        wait_for_earlier_kernels();
        load_inputs(warp);
        for (;;) {
            compute(biases);
            if (top + TILE_ROWS >= bottom) break;
            // All have read what is shared.
            __syncthreads();
            go_down(top + TILE_ROWS);
            if (chunks > DEPTH * warps) load_weights(warp, first);
            load_inputs(warp);
        }
    }

    __device__ void compute(const float (&biases)[ITEMS]) {
        float added[ITEMS];
        UNROLLED for (int item = 0; item < ITEMS; ++item) {
            const int i = threadIdx.x + item * blockDim.x, row = row_of(i), output = output_of(i);
            const bool there = p.residual && i < COUNT && row < rows && output < end;
            added[item] = there ? at<Number>(p.residual, static_cast<Int>(row) * outputs + output) : 0;
        }
        for (int base = warp;;) {
            if (NORMED) normalise(base);  // once: the host sees to it that all of a row is there
            multiply(base);
            base += DEPTH * warps;
            if (base - warp >= chunks) break;
            load_weights(base, first);
            load_inputs(base);
        }
        share();
        __syncthreads();
        gather([&](int item, int row, int output, float y) {
            y += biases[item];
            if (p.relu && y < 0) y = 0;
            Number narrowed;
            if (p.twice) {
                narrow(y, narrowed);
                y = widened(narrowed);
            }
            narrow(y + added[item], narrowed);
            static_cast<Number*>(p.y)[static_cast<Int>(row) * outputs + output] = narrowed;
        });
    }

    __device__ int row_of(int i) const { return top + i / (TILE_OUTPUTS * TILES); }
    __device__ int output_of(int i) const { return first + i % (TILE_OUTPUTS * TILES); }
};

struct Multiply {
    template <typename Number>
    static __device__ void of(const Product& p, Common& common) {
        const int high = TILE_ROWS * static_cast<int>(p.high);
        const unsigned across = static_cast<unsigned>(p.across), row = p.rows > high ? blockIdx.x / across : 0;
        const int tile = static_cast<int>(blockIdx.x - row * across), top = static_cast<int>(row) * high;
        const int bottom = static_cast<int>(least(p.rows, top + high));
        if (p.gain) {
            constexpr int TILES = sizeof(Number) == 2 ? 2 : 1;
            const int tiles = TILES > 1 ? static_cast<int>(p.tiles) : 1;
            Multiplied<Number, TILES, true>(p, common, top, tile * TILE_OUTPUTS * tiles).run(bottom);
        } else {
            Multiplied<Number, 1, false>(p, common, top, tile * TILE_OUTPUTS).run(bottom);
        }
    }
};

#ifndef PARTS_ONLY  // cross.cu and logits.cu take what is above

// Read before the wait: weight, bias, gain, shift.
extern "C" __global__ void __launch_bounds__(32 * PRODUCT_WARPS, 1) product(const Product p) {
    __shared__ Common common;
    by_precision<Multiply>(p, common);
}

// A block for each row, a warp for each as well.
struct Norm {
    Int blocks, precision, channels;  // N, C
    double eps;
    const void *x, *gain, *shift;     // (N, C), (C,), (C,)
    void* y;                          // (N, C)
};

struct Normalise {
    template <typename Number>
    static __device__ void of(const Norm& p);
};

template <typename Number>
__device__ void Normalise::of(const Norm& p) {
    constexpr int EACH = 16 / sizeof(Number), PARTS = 4 * 32 / LANES;  // no more than that many parts of a lane
    if (threadIdx.x >= LANES) return;  // in C++ a thread is a warp
    const int lane = threadIdx.x, channels = static_cast<int>(p.channels);
    const Int row = static_cast<Int>(blockIdx.x) * channels;
    Sixteen parts[PARTS], gains[PARTS], shifts[PARTS];
    float sum = 0, squares = 0;
    UNROLLED for (int i = 0; i < PARTS; ++i) {
        const int start = (i * LANES + lane) * EACH;
        gains[i] = part_of(static_cast<const Number*>(p.gain) + start, start < channels);
        shifts[i] = part_of(static_cast<const Number*>(p.shift) + start, start < channels);
    }
    wait_for_earlier_kernels();
    UNROLLED for (int i = 0; i < PARTS; ++i) {
        const int start = (i * LANES + lane) * EACH;
        parts[i] = part_of(static_cast<const Number*>(p.x) + row + start, start < channels);
    }
    UNROLLED for (int i = 0; i < PARTS; ++i) {
        UNROLLED for (int n = 0; n < EACH; ++n) sum += number_in<Number>(parts[i], n);
    }
    const float share = 1.0f / static_cast<float>(channels), mean = over_lanes(sum) * share;
    UNROLLED for (int i = 0; i < PARTS; ++i) {
        UNROLLED for (int n = 0; n < EACH; ++n) {
            const float x = number_in<Number>(parts[i], n) - mean;
            squares += (i * LANES + lane) * EACH < channels ? x * x : 0;
        }
    }
    const float scale = inverse_root(over_lanes(squares) * share + static_cast<float>(p.eps));
    UNROLLED for (int i = 0; i < PARTS; ++i) {
        const int start = (i * LANES + lane) * EACH;
        if (start >= channels) continue;
        *reinterpret_cast<Sixteen*>(static_cast<Number*>(p.y) + row + start) =
            normed<Number>(parts[i], gains[i], shifts[i], mean, scale);
    }
}

// Read before the wait: gain, shift.
extern "C" __global__ void __launch_bounds__(32) layer_norm(const Norm p) { by_precision<Normalise>(p); }
#endif
