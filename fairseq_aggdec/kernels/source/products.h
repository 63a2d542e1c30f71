// Products of rows with weights that are laid out for them: in fp32, in 8 bits and in bfloat16.

#pragma once

#include <cmath>
#include <type_traits>

#include "levels.h"
#include "structs.h"
#include "threads.h"
#include "vector.h"
#if defined(__AMX_INT8__) || defined(AGGDEC_EMULATE_AMX)
#define AGGDEC_AMX
#include "vector/amx.h"
#endif

using namespace aggdec;

namespace {

constexpr int PANEL = 64;
// Outputs that are laid out side by side: as many as a tile of several rows has, which then reads memory in order.
#if defined(AGGDEC_AVX512)
constexpr int STRIP = PANEL;
#else
constexpr int STRIP = LANES;
#endif
// Inputs that are multiplied together, in 8 bits.
#if defined(AGGDEC_AMX)
constexpr int64_t DEPTH = TILE_BYTES;
#else
constexpr int64_t DEPTH = 4;
#endif
// BLOCK inputs in bfloat16 are added up as an AMX instruction does it: a chain of sums for each half of them, each from 0
// on; chain plus chain; that is added to the sum. The two inputs whose weights share a word are APART: in a tile each half
// of a word belongs to a chain of its own, in vectors both belong to one.
constexpr int64_t BLOCK = 32;
#if defined(AGGDEC_AMX)
constexpr int64_t APART = BLOCK / 2;
#else
constexpr int64_t APART = 1;
#endif
enum Kind { FP32, INT8, BF16 };
// Rows that are in registers together, in fp32, in 8 bits and in bfloat16.
constexpr int ROWS = 6;
#if defined(AGGDEC_AVX2) && !defined(__AVXVNNI__)
constexpr int ROWS_INT8 = 5;
#else
constexpr int ROWS_INT8 = 6;
#endif
#if defined(AGGDEC_AVX512)
constexpr int ROWS_BF16 = 6;
#else
constexpr int ROWS_BF16 = 5;  // weights of a pair take twice the registers
#endif
constexpr int most_rows(Kind kind) { return kind == FP32 ? ROWS : kind == INT8 ? ROWS_INT8 : ROWS_BF16; }
// ... with so many vectors of outputs.
constexpr int tile([[maybe_unused]] int rows, [[maybe_unused]] Kind kind) {
#if defined(AGGDEC_AVX512)
    return 4;
#elif defined(AGGDEC_AVX2)
#if !defined(__AVXVNNI__)
    // Sums of 8 bits are those of one addition: one vector hides its latency, and asks memory for what follows.
    if (kind == INT8) return 1;
#endif
    // Two rows of four vectors have eight sums in flight, as many as hide the latency of a sum.
    return rows == 1 || (rows == 2 && kind == FP32) ? 4 : rows == 2 && kind == BF16 ? 2 : 1;
#else
    return rows == 1 ? 4 : rows == 2 && kind != INT8 ? 2 : 1;
#endif
}

struct Output {
    float* y;
    int64_t stride;
    const float* bias;
    const float* residual;  // as y, is added; may be y itself
    bool relu;
    const int64_t* places;  // (N), which row of y each is; null: in their order
};

// Ends the sums of 16 outputs from `column` on, `count` of which exist, in one row.
inline void finish(const Output& out, int64_t row, int64_t column, int count, Floats sum) {
    const int64_t at = (out.places ? out.places[row] : row) * out.stride + column;
    if (count >= LANES) {
        if (out.bias) sum = sum + load(out.bias + column);
        if (out.relu) sum = larger(same(0.0f), sum);  // in this order NaN stays NaN
        if (out.residual) sum = load(out.residual + at) + sum;
        store(out.y + at, sum);
    } else if (count > 0) {
        if (out.bias) sum = sum + load(out.bias + column, count);
        if (out.relu) sum = larger(same(0.0f), sum);  // in this order NaN stays NaN
        if (out.residual) sum = load(out.residual + at, count) + sum;
        store(out.y + at, sum, count);
    }
}

// Where the weights of a panel's vectors from `part` on begin, `unit` numbers for every output and step; and how far apart
// the vectors are.
constexpr int64_t first_weight(int64_t panel, int part, int64_t steps, int64_t unit) {
    return (panel * steps * PANEL + part * (STRIP == PANEL ? LANES : steps * LANES)) * unit;
}
constexpr int64_t between(int64_t steps, int64_t unit) {
    return (STRIP == PANEL ? 1 : steps) * LANES * unit;
}

// Which of the `count` tiles of a panel's vector, one for some of the rows each.
struct Turn {
    int64_t tile, count;
};

// A tile asks memory for later weights while it multiplies. They go into L2, because L1 takes too few requests at a time.
// Behind the last weights it asks for whatever stands there, which is harmless.
//
// Strips as wide as a panel: a panel that several tiles share comes from L2 only if it is there already, so each tile asks
// for its share of the next panel: 1.2 to 1.6 times as fast at 8 to 40 rows. A tile alone asks a little ahead, across the
// bounds of pages, which Intel's processors do not do by themselves (measured on Emerald Rapids): 1.4 times as fast where
// weights come from memory, slower by 5 % where they come from L3, as those of models with few channels do. AMD's do, and
// lose by it (Zen 4): 2 to 4 rows of a model of 512 channels take up to 1.5 times as long. One row alone gains nothing.
// Narrow strips: each of several tiles asks for its share of the next strip, a tile alone some pages ahead. 7 to 12 rows
// of a model of 512 channels are 1.3 to 1.7 times as fast as with requests into L1 (Zen 4). Fewer rows in fp32: see below.
constexpr int64_t LINE = 64;
constexpr int64_t SOME_PAGES = 8192;  // bytes
constexpr int64_t MANY_INPUTS = 512;  // a model as wide does not fit into a core's share of L3

// Stands before a loop over registers. GCC 12 unrolls such a loop late by itself, and stores each sum in every step.
#define IN_REGISTERS _Pragma("GCC unroll 6")

template <int R, int TILE>
struct Ahead {
    const char* from;
    int64_t pace, lines;  // bytes of a step, and lines that are asked for in it
    Ahead(const Product& p, int64_t steps, int64_t panel, int part, Turn turn) {
        const int64_t bytes = steps * LINE * TILE;
        from = static_cast<const char*>(p.weight) + first_weight(panel, part, steps, LINE / LANES);
        pace = LINE * TILE / turn.count, lines = (TILE + turn.count - 1) / turn.count;
        if (turn.count > 1) {
            const bool last = (panel + 1) * PANEL >= p.outputs && (part + TILE) * LANES >= PANEL;
            if (STRIP == PANEL || !last) from += bytes + turn.tile * (bytes / turn.count);
        } else if (STRIP == PANEL) {
            from += SOME_PAGES;
            if (R == 1 || p.inputs < MANY_INPUTS || IS_AMD) lines = 0;
        } else {
            from += 2 * SOME_PAGES;
        }
    }
    void ask(uint64_t step) const {
        if (STRIP == PANEL)
            for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(from + step * pace + i * LINE, 0, 2);
        else if (TILE == 1)
            __builtin_prefetch(from + step * pace, 0, 2);
    }
};

// Rows `row` to `row + R` of one panel's vectors `part` and on, in fp32. Inlined, what the caller keeps in registers would
// be missing here.
template <int R, int TILE>
[[gnu::noinline]] void tile_fp32(const Product& p, int64_t panel, int part, const float* x,
                                 int64_t row, Turn turn, const Output& out) {
    const float* weight =
        static_cast<const float*>(p.weight) + first_weight(panel, part, p.inputs, 1);
    const int64_t apart = between(p.inputs, 1);
    const Ahead<R, TILE> ahead(p, p.inputs, panel, part, turn);
    x += row * p.inputs;
    Floats a[R][TILE];
    IN_REGISTERS for (auto& of_row : a)
        IN_REGISTERS for (auto& sum : of_row) sum = same(0.0f);
    for (int64_t k = 0; k < p.inputs; ++k, weight += STRIP) {
        Floats w[TILE];
        IN_REGISTERS for (int t = 0; t < TILE; ++t) w[t] = load(weight + t * apart);
        ahead.ask(k);
        IN_REGISTERS for (int r = 0; r < R; ++r) {
            const Floats one = same(x[r * p.inputs + k]);
            IN_REGISTERS for (int t = 0; t < TILE; ++t) a[r][t] = multiply_add(one, w[t], a[r][t]);
        }
    }
    alignas(LINE) float sums[R][TILE][LANES];
    IN_REGISTERS for (int r = 0; r < R; ++r)
        IN_REGISTERS for (int t = 0; t < TILE; ++t) store(sums[r][t], a[r][t]);
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TILE; ++t) {
            const int64_t column = panel * PANEL + (part + t) * LANES;
            finish(out, row + r, column, static_cast<int>(p.outputs - column), load(sums[r][t]));
        }
}

#if defined(AGGDEC_AVX2)

// Steps of a strip that are multiplied before those of the next strip.
constexpr int64_t ROUND = 64;

// A few rows through some steps of a strip, added to their sums. The steps ask for the next lines of all four strips, one
// after the other; `apart` numbers lie between strips.
template <int R>
[[gnu::noinline]] void some_steps(const float* weight, const float* x, int64_t inputs, int64_t steps, const float* next,
                                  int64_t apart, float* sums) {
    constexpr int STRIPS = PANEL / LANES;
    Floats a[R];
    IN_REGISTERS for (int r = 0; r < R; ++r) a[r] = load(sums + r * LANES);
    const auto step = [&](int64_t k) {
        const Floats w = load(weight + k * LANES);
        IN_REGISTERS for (int r = 0; r < R; ++r) a[r] = multiply_add(same(x[r * inputs + k]), w, a[r]);
    };
    int64_t k = 0;
    for (; k + STRIPS <= steps; k += STRIPS, next += LANES)
#pragma GCC unroll 4
        for (int strip = 0; strip < STRIPS; ++strip) {
            __builtin_prefetch(next + strip * apart, 0, 2);
            step(k + strip);
        }
    for (; k < steps; ++k) step(k);
    IN_REGISTERS for (int r = 0; r < R; ++r) store(sums + r * LANES, a[r]);
}

// A few rows of a panel in fp32, whose strips take turns after some steps. One core gets more from memory where it reads
// several strips at a time, 20e9 bytes a second and not 14e9 (Zen 3, weights that no cache holds): 3 to 6 rows of a model of
// 512 channels take 1.3 times as long as one row, and 1.5 times strip by strip. On Zen 4 strip by strip was as fast.
template <int R>
void panel_in_rounds(const Product& p, int64_t panel, const float* x, const Output& out) {
    constexpr int STRIPS = PANEL / LANES;
    const int64_t steps = p.inputs, apart = steps * LANES;
    const float* weight = static_cast<const float*>(p.weight) + first_weight(panel, 0, steps, 1);
    alignas(LINE) float sums[STRIPS][R * LANES] = {};
    for (int64_t begin = 0; begin < steps; begin += ROUND) {
        const int64_t count = std::min(ROUND, steps - begin), later = begin + ROUND;
        const float* next = weight + (later < steps ? later * LANES : STRIPS * apart);
        for (int strip = 0; strip < STRIPS; ++strip, next += ROUND / STRIPS * LANES)
            some_steps<R>(weight + strip * apart + begin * LANES, x + begin, steps, count, next, apart, sums[strip]);
    }
    for (int r = 0; r < R; ++r)
        for (int strip = 0; strip < STRIPS; ++strip) {
            const int64_t column = panel * PANEL + strip * LANES;
            finish(out, r, column, static_cast<int>(p.outputs - column), load(&sums[strip][r * LANES]));
        }
}

#endif

// Ends the exact sums of 16 outputs from `column` on in one row.
inline void finish(const Product& p, const Levels& x, const Output& out, int64_t row, int64_t column, Ints raw_sums) {
    const Ints exact = raw_sums - all(x.zeros[row]) * load(p.sums + column);
    const Floats y = floats(exact) * same(x.scales[row]) * load(p.scales + column);
    finish(out, row, column, static_cast<int>(p.outputs - column), y);
}

// The sums of R rows, `stride` bytes apart, with a panel's vectors, `apart` bytes apart: sums (R, TILE, 16), which begin as they
// are.
template <int R, int TILE>
[[gnu::noinline]] void sums_int8(const int8_t* weight, int64_t apart, const uint8_t* levels, int64_t stride, int64_t groups,
                                 int32_t* sums) {
    Ints a[R][TILE];
    IN_REGISTERS for (int r = 0; r < R; ++r)
        IN_REGISTERS for (int t = 0; t < TILE; ++t) a[r][t] = load(sums + (r * TILE + t) * LANES);
    for (int64_t g = 0; g < groups; ++g, weight += STRIP * 4) {
        Ints w[TILE];
        IN_REGISTERS for (int t = 0; t < TILE; ++t) w[t] = load_bytes(weight + t * apart);
        // Some pages ahead, across their bounds.
        if (TILE == 1) __builtin_prefetch(weight + 2 * SOME_PAGES, 0, 2);
        IN_REGISTERS for (int r = 0; r < R; ++r) {
            const Inputs four = four_levels(levels + r * stride + 4 * LEVEL_BYTES * g);
            IN_REGISTERS for (int t = 0; t < TILE; ++t) a[r][t] = add_products(a[r][t], four, w[t]);
        }
    }
    IN_REGISTERS for (int r = 0; r < R; ++r)
        IN_REGISTERS for (int t = 0; t < TILE; ++t) store(sums + (r * TILE + t) * LANES, a[r][t]);
}

// Rows `row` to `row + R` of one panel's vectors `part` and on, in 8 bits.
template <int R, int TILE>
void tile_int8(const Product& p, int64_t panel, int part, const Levels& x, int64_t row, const Output& out) {
    alignas(64) int32_t sums[R * TILE * LANES];
    for (int r = 0; r < R; ++r) std::fill_n(sums + r * TILE * LANES, TILE * LANES, x.starts[row + r]);
    // Apart from what ends the sums: together GCC 12 keeps them in memory.
    sums_int8<R, TILE>(static_cast<const int8_t*>(p.weight) + first_weight(panel, part, x.groups, 4), between(x.groups, 4),
                       x.levels + row * x.stride(), x.stride(), x.groups, sums);
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TILE; ++t)
            finish(p, x, out, row + r, panel * PANEL + (part + t) * LANES, load(sums + (r * TILE + t) * LANES));
}

// A number of fp32 as bits whose lower half is 0, to the nearest in bfloat16, of two the even one; NaN stays NaN.
inline uint32_t in_bf16(uint32_t bits) {
    const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) & 0xFFFF0000u;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : rounded;
}

// A row rounded to bfloat16 and filled up with zeros: numbers of fp32, for tiles words of two as in `Product`.
void round_row(const float* x, int64_t inputs, uint32_t* rounded) {
    for (; inputs > 0; x += BLOCK, inputs -= BLOCK) {
        uint32_t bits[BLOCK] = {};
        std::memcpy(bits, x, sizeof(float) * static_cast<size_t>(std::min(inputs, BLOCK)));
        for (uint32_t& one : bits) one = in_bf16(one);
#if defined(AGGDEC_AMX)
        for (int64_t i = 0; i < BLOCK / 2; ++i) *rounded++ = bits[i] | bits[i + APART] >> 16;
#else
        rounded = std::copy_n(bits, BLOCK, rounded);
#endif
    }
}

#if !defined(AGGDEC_AMX)

// Rows `row` to `row + R` of one panel's vectors `part` and on, in bfloat16, x (N, K rounded up). One row goes through both
// chains of a block at once: each would wait for its own sums.
template <int R, int TILE>
[[gnu::noinline]] void tile_bf16(const Product& p, int64_t panel, int part, const float* x, int64_t steps, int64_t row,
                                 Turn turn, const Output& out) {
    constexpr int CHAINS = 2, AT_ONCE = STRIP == PANEL && R == 1 ? CHAINS : 1;
    constexpr int64_t LENGTH = BLOCK / 2 / CHAINS;
    const int64_t apart = between(steps, 1);
    const int32_t* weight = static_cast<const int32_t*>(p.weight) + first_weight(panel, part, steps, 1);
    const Ahead<R, TILE> ahead(p, steps, panel, part, turn);
    x += row * 2 * steps;
    Floats sums[R][TILE], chain_sums[CHAINS][R][TILE];
    for (auto& of_row : sums)
        for (auto& sum : of_row) sum = same(0.0f);
    for (int64_t block = 0; block < steps; block += BLOCK / 2) {
#pragma GCC unroll 2
        for (int chain = 0; chain < CHAINS; chain += AT_ONCE) {
            Floats a[AT_ONCE][R][TILE];
            for (auto& of_chain : a)
                for (auto& of_row : of_chain)
                    for (auto& sum : of_row) sum = same(0.0f);
            for (int64_t i = 0; i < LENGTH; ++i)
#pragma GCC unroll 2
                for (int c = 0; c < AT_ONCE; ++c) {
                    const int64_t k = block + (chain + c) * LENGTH + i;
                    Ints w[TILE];
                    for (int t = 0; t < TILE; ++t) w[t] = load(weight + k * STRIP + t * apart);
                    ahead.ask(k);
                    for (int r = 0; r < R; ++r) {
                        const Floats one = same(x[2 * (r * steps + k)]), other = same(x[2 * (r * steps + k) + 1]);
                        for (int t = 0; t < TILE; ++t)
                            a[c][r][t] = multiply_add(other, lower(w[t]), multiply_add(one, upper(w[t]), a[c][r][t]));
                    }
                }
            for (int c = 0; c < AT_ONCE; ++c)
                for (int r = 0; r < R; ++r)
                    for (int t = 0; t < TILE; ++t) chain_sums[chain + c][r][t] = a[c][r][t];
        }
        for (int r = 0; r < R; ++r)
            for (int t = 0; t < TILE; ++t) sums[r][t] = sums[r][t] + (chain_sums[0][r][t] + chain_sums[1][r][t]);
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TILE; ++t) {
            const int64_t column = panel * PANEL + (part + t) * LANES;
            finish(out, row + r, column, static_cast<int>(p.outputs - column), sums[r][t]);
        }
}

#endif

#if defined(AGGDEC_AMX)

// Rows in 8 bits from which on tiles are faster than vectors: a trial on Intel (Sapphire Rapids) took 0.93 of the time at 5 rows,
// 0.82 at 8, 0.57 at 40.
constexpr int64_t FEWEST_ROWS = 5;

// Panels `begin` to `end` of all rows: ended(row, column, sums of 16 outputs). Behind the last row `inputs`, of `stride`
// bytes a row, has room for TILE_ROWS more, which may hold anything.
template <class SUM, class F>
void panels_of_tiles(const Product& p, const void* inputs, int64_t stride, int64_t rows, int64_t begin, int64_t end,
                     const F& ended) {
    const int64_t blocks = (rows + TILE_ROWS - 1) / TILE_ROWS, height = (rows + blocks - 1) / blocks;
    TileShapes shapes;
    for (int tile = 0; tile < 5; ++tile) shapes.set(tile, height);  // sums of four vectors, inputs
    for (int tile = 5; tile < 8; ++tile) shapes.set(tile, DEPTH / 4);  // weights
    begin_tiles(shapes);
    constexpr int64_t LINE_OF_PANEL = PANEL * 4;  // bytes of weights: four of each output
    alignas(64) SUM sums[TILE_ROWS * PANEL];
    for (int64_t panel = begin; panel < end; ++panel)
        for (int64_t first = 0; first < rows; first += height) {
            const auto* weight = static_cast<const int8_t*>(p.weight) + first_weight(panel, 0, stride / 4, 4);
            const auto* x = static_cast<const uint8_t*>(inputs) + first * stride;
            clear_tile<0>(), clear_tile<1>(), clear_tile<2>(), clear_tile<3>();
            for (int64_t k = 0; k < stride; k += DEPTH, weight += DEPTH * PANEL) {
                // Of the first rows: the others find the weights in the cache.
                if (!first)
                    for (int64_t i = 0; i < DEPTH * PANEL; i += LINE) __builtin_prefetch(weight + SOME_PAGES + i, 0, 2);
                load_tile<4>(x + k, stride);
                load_tile<5>(weight, LINE_OF_PANEL), multiply_tiles<SUM, 0, 4, 5>();
                load_tile<6>(weight + 64, LINE_OF_PANEL), multiply_tiles<SUM, 1, 4, 6>();
                load_tile<7>(weight + 128, LINE_OF_PANEL), multiply_tiles<SUM, 2, 4, 7>();
                load_tile<5>(weight + 192, LINE_OF_PANEL), multiply_tiles<SUM, 3, 4, 5>();
            }
            store_tile<0>(sums, LINE_OF_PANEL), store_tile<1>(sums + LANES, LINE_OF_PANEL);
            store_tile<2>(sums + 2 * LANES, LINE_OF_PANEL), store_tile<3>(sums + 3 * LANES, LINE_OF_PANEL);
            for (int64_t row = first; row < std::min(rows, first + height); ++row)
                for (int64_t i = 0; i < PANEL; i += LANES)
                    ended(row, panel * PANEL + i, load(sums + (row - first) * PANEL + i));
        }
    end_tiles();
}

#endif

template <int N>
using Number = std::integral_constant<int, N>;

// f(Number<rows>), 1 to MOST.
template <int MOST, class F>
void with(int64_t rows, const F& f) {
    switch (rows) {
        case 1: return f(Number<1>{});
        case 2: return f(Number<2>{});
        case 3: return f(Number<3>{});
        case 4: return f(Number<4>{});
        case 5: return f(Number<5>{});
        default: return f(Number<MOST>{});
    }
}

// f(R, TILE, row, part, turn) for the tiles of one panel, as few as there can be. The weights of a vector serve all rows
// while they are in the cache. All tiles have as many rows, or one more: one row alone waits for its own sums.
template <Kind KIND, class F>
void by_tiles(int64_t rows, const F& f) {
    constexpr int MOST = most_rows(KIND), VECTORS = PANEL / LANES;
    const int64_t count = (rows + MOST - 1) / MOST;
    if (count == 1)
        return with<MOST>(rows, [&](auto size) {
            constexpr int TILE = tile(decltype(size)::value, KIND);
            for (int part = 0; part < VECTORS; part += TILE)
                f(size, Number<TILE>{}, 0, part, Turn{0, 1});
        });
    constexpr int TILE = tile(MOST, KIND);
    for (int part = 0; part < VECTORS; part += TILE)
        for (int64_t row = 0, i = 0; i < count; ++i) {
            const int64_t some = (rows + i) / count;
            with<MOST>(some, [&](auto size) { f(size, Number<TILE>{}, row, part, Turn{i, count}); });
            row += some;
        }
}

// Panels `begin` to `end`: f(R, TILE, panel, row, part, turn) for the tiles of each. As many rows at a time as stay in a
// core's L2 while panel after panel reads them; all where panels are so large that they push the rows out.
constexpr int64_t IN_CACHE = 1 << 20;  // bytes

template <Kind KIND, class F>
void by_panels(int64_t begin, int64_t end, int64_t rows, int64_t row_bytes, const F& f) {
    const bool small = row_bytes * PANEL <= IN_CACHE / 4;
    const int64_t blocks = small ? (rows * row_bytes + IN_CACHE - 1) / IN_CACHE : 1;
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = rows * block / blocks, count = rows * (block + 1) / blocks - first;
        for (int64_t panel = begin; panel < end && count; ++panel)
            by_tiles<KIND>(count, [&](auto size, auto wide, int64_t row, int part, Turn turn) {
                f(size, wide, panel, first + row, part, turn);
            });
    }
}

// In bfloat16. Tiles take any number of rows: they add up in the order of vectors, but read other pairs.
void product_bf16(const Product& p, const float* x, int64_t rows, int64_t threads, const Output& out) {
    const int64_t panels = (p.outputs + PANEL - 1) / PANEL, steps = (p.inputs + BLOCK - 1) / BLOCK * (BLOCK / 2);
#if defined(AGGDEC_AMX)
    const int64_t width = steps, room = rows + TILE_ROWS;
#else
    const int64_t width = 2 * steps, room = rows;
#endif
    uint32_t* rounded = scratch<uint32_t, Scratch::ROUNDED>(room * width);
    share(rows, threads, rows * p.inputs * 8, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) round_row(x + row * p.inputs, p.inputs, rounded + row * width);
    });
    share(panels, threads, rows * p.inputs * p.outputs, [&](int64_t begin, int64_t end) {
        const Flushing flushing;
#if defined(AGGDEC_AMX)
        panels_of_tiles<float>(p, rounded, width * 4, rows, begin, end, [&](int64_t row, int64_t column, Floats sums) {
            finish(out, row, column, static_cast<int>(p.outputs - column), sums);
        });
#else
        const float* numbers = reinterpret_cast<const float*>(rounded);
        by_panels<BF16>(begin, end, rows, width * 4, [&](auto size, auto wide, auto panel, auto row, int part, Turn turn) {
            tile_bf16<size(), wide()>(p, panel, part, numbers, steps, row, turn, out);
        });
#endif
    });
}

// x (N, K), contiguous; y (N, O), may be x only if `residual` is not. places: see Output.
void product(const Product& p, const float* x, int64_t rows, float* y, const float* residual,
             int64_t threads, const int64_t* places = nullptr) {
    const Output out{y, p.outputs, p.bias, residual, p.relu != 0, places};
    const int64_t panels = (p.outputs + PANEL - 1) / PANEL, work = rows * p.inputs * p.outputs;
    if (p.bf16) return product_bf16(p, x, rows, threads, out);
    if (!p.scales) {
        share(panels, threads, work, [&](int64_t begin, int64_t end) {
#if defined(AGGDEC_AVX2)
            if (rows > 2 && rows <= ROWS)
                return with<ROWS>(rows, [&](auto size) {
                    for (int64_t panel = begin; panel < end; ++panel) panel_in_rounds<size()>(p, panel, x, out);
                });
#endif
            by_panels<FP32>(begin, end, rows, p.inputs * 4,
                            [&](auto size, auto wide, auto panel, auto row, int part, Turn turn) {
                                tile_fp32<size(), wide()>(p, panel, part, x, row, turn, out);
                            });
        });
        return;
    }
    const int64_t groups = (p.inputs + DEPTH - 1) / DEPTH * DEPTH / 4, room = rows + DEPTH / 4;
    const Levels levels{scratch<uint8_t, Scratch::LEVELS>(room * groups * 4 * LEVEL_BYTES),
                        scratch<float, Scratch::LEVEL_SCALES>(rows), scratch<int32_t, Scratch::LEVEL_ZEROS>(rows),
                        scratch<int32_t, Scratch::LEVEL_STARTS>(rows), groups};
    share(rows, threads, rows * p.inputs * 8, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            uint8_t* of_row = levels.levels + row * levels.stride();
            quantise(x + row * p.inputs, p.inputs, of_row, levels.scales + row, levels.zeros + row);
            levels.starts[row] = first_sum(of_row, (p.inputs + 3) / 4);
        }
    });
    share(panels, threads, work / 4, [&](int64_t begin, int64_t end) {
#if defined(AGGDEC_AMX)
        const auto ended = [&](int64_t row, int64_t column, Ints sums) { finish(p, levels, out, row, column, sums); };
        if (rows >= FEWEST_ROWS)
            return panels_of_tiles<int32_t>(p, levels.levels, levels.stride(), rows, begin, end, ended);
#endif
        by_panels<INT8>(begin, end, rows, levels.stride(), [&](auto size, auto wide, auto panel, auto row, int part, Turn) {
            tile_int8<size(), wide()>(p, panel, part, levels, row, out);
        });
    });
}

}  // namespace
