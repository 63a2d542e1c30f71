// Products of rows with weights that are laid out for them, in fp32 and in 8 bits.

#pragma once

#include <type_traits>

#include "threads.h"
#include "vector.h"

using namespace aggdec;

// y = activation(x W^T + b). Weights are padded with zeros to whole panels of 64 outputs. fp32: (O / 64, K, 64). 8 bits:
// (O / 64, K / 4, 64, 4), K padded with zeros to a multiple of 4, with the scale and the sum of each output's weights.
struct Product {
    int64_t inputs, outputs;
    const void* weight;
    const float* bias;     // (O), none: null
    const float* scales;   // (O / 64 * 64), 8 bits only
    const int32_t* sums;   // (O / 64 * 64), 8 bits only
    int64_t relu;
};

namespace {

constexpr int PANEL = 64;  // outputs that are laid out side by side
// Rows that are in registers together, in fp32 and in 8 bits.
constexpr int ROWS = 6;
#if defined(AGGDEC_AVX2)
constexpr int ROWS_INT8 = 5;
#else
constexpr int ROWS_INT8 = 6;
#endif
// ... with so many vectors of outputs.
constexpr int tile(int rows) {
#if defined(AGGDEC_AVX512)
    return rows ? 4 : 0;
#else
    return rows == 1 ? 4 : rows == 2 ? 2 : 1;
#endif
}
struct Output {
    float* y;
    int64_t stride;
    const float* bias;
    const float* residual;  // as y, is added; may be y itself
    bool relu;
};

// Ends the sums of 16 outputs from `column` on, `count` of which exist, in one row.
inline void finish(const Output& out, int64_t row, int64_t column, int count, Floats sum) {
    const int64_t at = row * out.stride + column;
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

// A tile of a few vectors leaves gaps in its panel. The first tile asks for what is in them, so that a panel which comes
// from memory comes in order, and once.
template <int R, class T>
inline void ask_for_rest(const T* weight, int part) {
    constexpr int64_t LINE = 64, USED = tile(R) * LANES * sizeof(T), ALL = PANEL * sizeof(T);
    if (USED == ALL || part) return;
    for (int64_t at = USED; at < ALL; at += LINE)
        __builtin_prefetch(reinterpret_cast<const char*>(weight) + at);
}

// The panel behind one, in fp32. Behind the last, and but for the first rows, the panel itself, which is there: nothing has
// to be decided in the innermost loop.
inline const char* following(const Product& p, int64_t panel, int64_t row) {
    const bool last = row || (panel + 1) * PANEL >= p.outputs;
    const int64_t bytes = p.inputs * PANEL * static_cast<int64_t>(sizeof(float));
    return static_cast<const char*>(p.weight) + (last ? panel : panel + 1) * bytes;
}

// The tiles behind the first find their panel in the cache and ask for the next one meanwhile, a line in each step: memory
// does not rest while they multiply.
template <int R>
inline void ask_for_next(const char* next, int part, int64_t step, int64_t steps) {
    constexpr int64_t LINE = 64;
    if (tile(R) * LANES == PANEL || part == 0) return;
    __builtin_prefetch(next + ((part / tile(R) - 1) * steps + step) * LINE);
}

// Rows `row` to `row + R` of one panel's vectors `part` and on, in fp32.
template <int R>
void tile_fp32(const Product& p, int64_t panel, int part, const float* x, int64_t row,
               const Output& out) {
    constexpr int TILE = tile(R);
    const float* weight =
        static_cast<const float*>(p.weight) + panel * p.inputs * PANEL + part * LANES;
    const char* next = following(p, panel, row);
    x += row * p.inputs;
    Floats a[R][TILE];
    for (auto& of_row : a)
        for (auto& sum : of_row) sum = same(0.0f);
    for (int64_t k = 0; k < p.inputs; ++k, weight += PANEL) {
        Floats w[TILE];
        for (int t = 0; t < TILE; ++t) w[t] = load(weight + t * LANES);
        ask_for_rest<R>(weight, part);
        ask_for_next<R>(next, part, k, p.inputs);
        for (int r = 0; r < R; ++r) {
            const Floats one = same(x[r * p.inputs + k]);
            for (int t = 0; t < TILE; ++t) a[r][t] = multiply_add(one, w[t], a[r][t]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TILE; ++t) {
            const int64_t column = panel * PANEL + (part + t) * LANES;
            finish(out, row + r, column, static_cast<int>(p.outputs - column), a[r][t]);
        }
}

// The rows of x in 8 bits: level = round(x / scale) + zero, 0 to 255; 0 is a level.
struct Levels {
    uint8_t* levels;  // (N, groups, 4), as store_levels has them
    float* scales;
    int32_t* zeros;  // less LEVEL_SHIFT, as the levels
    int64_t groups;
    int64_t stride() const { return groups * 4 * LEVEL_BYTES; }
};

constexpr float SMALLEST_RANGE = 1e-12f;

void quantise(const float* x, int64_t inputs, uint8_t* levels, float* scale, int32_t* zero) {
    Floats low = same(0.0f), high = same(0.0f);
    int64_t k = 0;
    for (; k + LANES <= inputs; k += LANES) {
        const Floats part = load(x + k);
        low = smaller(part, low), high = larger(part, high);
    }
    if (k < inputs) {
        const Floats part = load(x + k, static_cast<int>(inputs - k));
        low = smaller(part, low), high = larger(part, high);
    }
    const float least = smallest(low), range = std::max(largest(high) - least, SMALLEST_RANGE);
    const float inverse = 255.0f / range;
    const Floats shift = whole(same(-least * inverse));
    for (k = 0; k < inputs; k += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, inputs - k));
        const Floats part = count == LANES ? load(x + k) : load(x + k, count);
        const Floats level = whole(part * same(inverse)) + shift;
        // What fills up the last group is met by weights of zero.
        store_levels(levels + k * LEVEL_BYTES, smaller(larger(level, same(0.0f)), same(255.0f)),
                     (count + 3) / 4);
    }
    float first[LANES];
    store(first, shift);
    *scale = range * (1.0f / 255.0f);
    *zero = static_cast<int32_t>(first[0]) - LEVEL_SHIFT;
}

// ... in 8 bits.
template <int R>
void tile_int8(const Product& p, int64_t panel, int part, const Levels& x, int64_t row,
               const Output& out) {
    constexpr int TILE = tile(R);
    const int64_t groups = x.groups, stride = x.stride();
    const int8_t* weight =
        static_cast<const int8_t*>(p.weight) + panel * groups * PANEL * 4 + part * LANES * 4;
    Ints a[R][TILE];
    for (auto& of_row : a)
        for (auto& sum : of_row) sum = zeros();
    const uint8_t* levels = x.levels + row * stride;
    for (int64_t g = 0; g < groups; ++g, weight += PANEL * 4) {
        Ints w[TILE];
        for (int t = 0; t < TILE; ++t) w[t] = load_bytes(weight + t * LANES * 4);
        ask_for_rest<R>(reinterpret_cast<const int32_t*>(weight), part);
        for (int r = 0; r < R; ++r) {
            const Inputs four = four_levels(levels + r * stride + 4 * LEVEL_BYTES * g);
            for (int t = 0; t < TILE; ++t) a[r][t] = add_products(a[r][t], four, w[t]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TILE; ++t) {
            const int64_t column = panel * PANEL + (part + t) * LANES;
            const Ints exact = a[r][t] - all(x.zeros[row + r]) * load(p.sums + column);
            const Floats y = floats(exact) * same(x.scales[row + r]) * load(p.scales + column);
            finish(out, row + r, column, static_cast<int>(p.outputs - column), y);
        }
}

// f(row, part) for the tiles of R rows in rows `begin` to `end`; a tile's weights serve all rows while they are in the cache.
template <int R, class F>
void tiles(int64_t begin, int64_t end, const F& f) {
    for (int part = 0; part < PANEL / LANES; part += tile(R))
        for (int64_t row = begin; row < end; row += R)
            f(std::integral_constant<int, R>{}, row, part);
}

// The tiles of one panel, up to so many rows in each.
template <int MOST, class F>
void by_tiles(int64_t rows, const F& f) {
    const int64_t full = rows / MOST * MOST;
    tiles<MOST>(0, full, f);
    switch (rows - full) {
        case 1: tiles<1>(full, rows, f); break;
        case 2: tiles<2>(full, rows, f); break;
        case 3: tiles<3>(full, rows, f); break;
        case 4: tiles<4>(full, rows, f); break;
        case 5: tiles<5>(full, rows, f); break;
        default: break;
    }
}

// x (N, K), contiguous; y (N, O), may be x only if `residual` is not.
void product(const Product& p, const float* x, int64_t rows, float* y, const float* residual,
             int64_t threads) {
    const Output out{y, p.outputs, p.bias, residual, p.relu != 0};
    const int64_t panels = (p.outputs + PANEL - 1) / PANEL, work = rows * p.inputs * p.outputs;
    if (!p.scales) {
        share(panels, threads, work, [&](int64_t begin, int64_t end) {
            for (int64_t panel = begin; panel < end; ++panel)
                by_tiles<ROWS>(rows, [&](auto count, int64_t row, int part) {
                    tile_fp32<decltype(count)::value>(p, panel, part, x, row, out);
                });
        });
        return;
    }
    const int64_t groups = (p.inputs + 3) / 4;
    const Levels levels{scratch<uint8_t, 0>(rows * groups * 4 * LEVEL_BYTES),
                        scratch<float, 1>(rows), scratch<int32_t, 2>(rows), groups};
    share(rows, threads, rows * p.inputs * 8, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            quantise(x + row * p.inputs, p.inputs, levels.levels + row * levels.stride(),
                     levels.scales + row, levels.zeros + row);
    });
    share(panels, threads, work / 4, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel)
            by_tiles<ROWS_INT8>(rows, [&](auto count, int64_t row, int part) {
                tile_int8<decltype(count)::value>(p, panel, part, levels, row, out);
            });
    });
}

}  // namespace
