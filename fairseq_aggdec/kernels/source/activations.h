// What the expanded features of a layer go through, one number after the other: where it stands changes nothing.

#pragma once

#include <cmath>
#include <cstdint>

#include "threads.h"

namespace aggdec {

// library.py has the same order. ReLU is part of the product.
enum Activation { NONE, GELU, GELU_BY_TANH, TANH, RELU_SQUARED, SILU, ACTIVATIONS };

template <class F>
inline void each_number(float* x, int64_t count, int64_t threads, const F& f) {
    share(count, threads, 32 * count, [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) x[i] = f(x[i]);
    });
}

// x (count), in place.
inline void activate(int64_t activation, float* x, int64_t count, int64_t threads) {
    switch (activation) {
        case GELU:  // x times the share of a normal distribution that is below x
            return each_number(x, count, threads, [](float y) {
                return 0.5f * y * (1.0f + std::erf(y * 0.70710678f));
            });
        case GELU_BY_TANH:
            return each_number(x, count, threads, [](float y) {
                return 0.5f * y * (1.0f + std::tanh(0.79788456f * (y + 0.044715f * (y * y * y))));
            });
        case TANH:
            return each_number(x, count, threads, [](float y) { return std::tanh(y); });
        case RELU_SQUARED:  // in this order NaN stays NaN
            return each_number(x, count, threads, [](float y) { return y < 0 ? 0 : y * y; });
        case SILU:
            return each_number(x, count, threads, [](float y) { return y / (1.0f + std::exp(-y)); });
        default:
            return;
    }
}

}  // namespace aggdec
