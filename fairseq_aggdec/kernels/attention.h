// Layer norm and attention, one token after the other.

#pragma once

#include "threads.h"
#include "vector.h"

using namespace aggdec;

struct Norm {
    const float *weight, *bias;
    double epsilon;
};

namespace {

void normalise(const Norm& norm, const float* x, int64_t size, float* y) {
    Floats sum = same(0.0f);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sum = sum + load(x + i);
    if (i < size) sum = sum + load(x + i, static_cast<int>(size - i));
    const float mean = total(sum) / static_cast<float>(size);
    Floats squares = same(0.0f);
    for (i = 0; i + LANES <= size; i += LANES) {
        const Floats apart = load(x + i) - same(mean);
        squares = multiply_add(apart, apart, squares);
    }
    float rest = 0.0f;
    for (; i < size; ++i) rest = std::fma(x[i] - mean, x[i] - mean, rest);
    const float variance = (total(squares) + rest) / static_cast<float>(size);
    const float inverse = 1.0f / std::sqrt(variance + static_cast<float>(norm.epsilon));
    for (i = 0; i < size; i += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, size - i));
        const bool full = count == LANES;
        const Floats apart = (full ? load(x + i) : load(x + i, count)) - same(mean);
        const Floats weight = full ? load(norm.weight + i) : load(norm.weight + i, count);
        const Floats bias = full ? load(norm.bias + i) : load(norm.bias + i, count);
        const Floats out = multiply_add(apart * same(inverse), weight, bias);
        full ? store(y + i, out) : store(y + i, out, count);
    }
}

void normalise_rows(const Norm& norm, const float* x, int64_t rows, int64_t size, float* y) {
    for (int64_t row = 0; row < rows; ++row) normalise(norm, x + row * size, size, y + row * size);
}

// The keys that a query sees, in their order; what is hidden is not there.
struct Sight {
    const float *keys, *values;
    int64_t stride, head, count;  // from place to place, from head to head; places
    const int32_t* places;  // null: 0 to count
    const float* bias;      // is added to the score of a place; null: nothing
};

inline int64_t place(const Sight& sight, int64_t j) { return sight.places ? sight.places[j] : j; }

template <int V>  // vectors of a head, 0: any number of channels
void attend_head(const float* q, const Sight& sight, int64_t offset, int64_t dim, float scale,
                 float* scores, float* out) {
    const int64_t vectors = V ? V : (dim + LANES - 1) / LANES;
    const auto read = [&](const float* p, int64_t v) {
        if (V) return load(p + v * LANES);
        return load(p + v * LANES, static_cast<int>(std::min<int64_t>(LANES, dim - v * LANES)));
    };
    for (int64_t j = 0; j < sight.count; ++j) {
        const int64_t at = place(sight, j);
        const float* key = sight.keys + at * sight.stride + offset;
        Floats sum = same(0.0f);
        for (int64_t v = 0; v < vectors; ++v) sum = multiply_add(read(q, v), read(key, v), sum);
        scores[j] = total(sum) * scale + (sight.bias ? sight.bias[at] : 0.0f);
    }
    float most = scores[0];
    for (int64_t j = 1; j < sight.count; ++j) most = std::max(most, scores[j]);
    Floats sum = same(0.0f);
    for (int64_t j = 0; j < sight.count; j += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, sight.count - j));
        store(scores + j, exponential(load(scores + j, count) - same(most)), count);
        sum = sum + load(scores + j, count);
    }
    const Floats inverse = same(1.0f / total(sum));
    constexpr int MOST = V ? V : 1;
    for (int64_t v = 0; v < vectors; v += MOST) {
        Floats sums[MOST];
        for (auto& of_part : sums) of_part = same(0.0f);
        for (int64_t j = 0; j < sight.count; ++j) {
            const float* value = sight.values + place(sight, j) * sight.stride + offset;
            const Floats weight = same(scores[j]);
            for (int i = 0; i < MOST; ++i)
                sums[i] = multiply_add(weight, read(value, v + i), sums[i]);
        }
        for (int i = 0; i < MOST; ++i) {
            const Floats y = sums[i] * inverse;
            if (V) store(out + (v + i) * LANES, y);
            else store(out + v * LANES, y, static_cast<int>(std::min<int64_t>(LANES, dim - v * LANES)));
        }
    }
}

// One query (C) over what it sees. A query that sees nothing gets NaN, as in PyTorch.
void attend(const float* q, const Sight& sight, int64_t channels, int64_t heads, float* out) {
    if (sight.count == 0) {
        std::fill(out, out + channels, NAN);
        return;
    }
    const int64_t dim = channels / heads;
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    float* scores = scratch<float, 3>(sight.count);
    for (int64_t h = 0; h < heads; ++h, q += dim, out += dim) {
        const int64_t offset = h * sight.head;
        if (dim == 64) attend_head<4>(q, sight, offset, dim, scale, scores, out);
        else if (dim == 32) attend_head<2>(q, sight, offset, dim, scale, scores, out);
        else attend_head<0>(q, sight, offset, dim, scale, scores, out);
    }
}

// What an additive mask over `all.count` places leaves of them; `memory` for as many numbers.
Sight seen(Sight all, const float* mask, int32_t* memory) {
    if (!mask) return all;
    int64_t left = 0;
    for (int64_t j = 0; j < all.count; ++j)
        if (mask[j] != -INFINITY) memory[left++] = static_cast<int32_t>(j);
    all.count = left, all.places = memory, all.bias = mask;
    return all;
}

// The same of places that are the bits of a number, lowest first.
Sight of_bits(Sight all, const uint8_t* bits, int32_t* memory) {
    int64_t left = 0;
    for (int64_t first = 0; first < all.count; first += 8, ++bits)
        for (unsigned byte = *bits; byte; byte &= byte - 1)
            memory[left++] = static_cast<int32_t>(first + __builtin_ctz(byte));
    all.count = left, all.places = memory;
    return all;
}

}  // namespace
