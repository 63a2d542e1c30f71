// Rows in 8 bits, as the products of 8 bits read them.

#pragma once

#include <algorithm>
#include <cmath>

#include "vector.h"

using namespace aggdec;

namespace {

// The rows of x in 8 bits: level = round(x / scale) + zero, 0 to 255; 0 is a level.
struct Levels {
    uint8_t* levels;  // (N, groups, 4), as store_levels has them
    float* scales;
    int32_t* zeros;   // less LEVEL_SHIFT, as the levels
    int32_t* starts;  // initial values of sums
    int64_t groups;
    int64_t stride() const { return groups * 4 * LEVEL_BYTES; }
};

constexpr float SMALLEST_RANGE = 1e-12f;

// A row whose range is not finite, or that holds NaN, gets NaN as scale, which makes all its sums NaN: its levels are
// not written.
void quantise(const float* x, int64_t inputs, uint8_t* levels, float* scale, int32_t* zero) {
    Floats low = same(0.0f), high = same(0.0f);
    unsigned broken = 0;
    const auto widen = [&](Floats part) {
        low = smaller(part, low), high = larger(part, high);  // both leave NaN out
        broken |= not_numbers(part);
    };
    int64_t k = 0;
    for (; k + LANES <= inputs; k += LANES) widen(load(x + k));
    if (k < inputs) widen(load(x + k, static_cast<int>(inputs - k)));
    const float least = smallest(low), range = std::max(largest(high) - least, SMALLEST_RANGE);
    if (broken || std::isinf(range)) {
        *scale = NAN, *zero = 0;
        return;
    }
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

}  // namespace
