// Block heads: what heads 2 to k add to the features of a position, each through hidden units of its own or through all.

#pragma once

#include "products.h"

using namespace aggdec;

namespace {

// As `spread` goes on behind the hidden units (R, H J), all of which every head reads.
void spread_all(const Heads& heads, const float* x, const int64_t* tokens, int64_t rows, int64_t wanted,
                const float* hidden, float* out, int64_t threads) {
    const int64_t channels = heads.expand.inputs, width = heads.contract.outputs;
    float* added = scratch<float, Scratch::HEADS_ADDED>(rows * width);
    product(heads.contract, hidden, rows, added, nullptr, threads);
    for (int64_t row = 0; row < rows; ++row, x += channels, added += width) {
        const float* heard = heads.heard ? heads.heard + tokens[row] * channels : nullptr;
        for (int64_t head = 0; head < wanted; ++head, out += channels)
            for (int64_t i = 0; i < channels; ++i) {
                out[i] = added[head * channels + i] + x[i];
                if (heard) out[i] += heard[i];
            }
    }
}

// x (R, C) and tokens (R) -> the first `wanted` heads, (R, wanted, C).
void spread(const Heads& heads, const float* x, const int64_t* tokens, int64_t rows, int64_t wanted,
            float* out, int64_t threads) {
    const int64_t channels = heads.expand.inputs, units = heads.expand.outputs;
    float* hidden = scratch<float, Scratch::HEADS_HIDDEN>(rows * units);
    product(heads.expand, x, rows, hidden, nullptr, threads);
    if (heads.contract.weight) return spread_all(heads, x, tokens, rows, wanted, hidden, out, threads);
    for (int64_t row = 0; row < rows; ++row, x += channels) {
        const float* heard = heads.heard ? heads.heard + tokens[row] * channels : nullptr;
        for (int64_t head = 0; head < wanted; ++head, out += channels) {
            const float* units_of_head = hidden + row * units + head * heads.hidden;
            const float* weights = heads.weights + head * heads.hidden * channels;
            const float* bias = heads.biases + head * channels;
            for (int64_t i = 0; i < channels; i += LANES) {
                const int count = static_cast<int>(std::min<int64_t>(LANES, channels - i));
                const auto read = [&](const float* p) {
                    return count == LANES ? load(p + i) : load(p + i, count);
                };
                Floats sum = read(x) + read(bias);
                if (heard) sum = sum + read(heard);
                for (int64_t j = 0; j < heads.hidden; ++j)
                    sum = multiply_add(same(units_of_head[j]), read(weights + j * channels), sum);
                store(out + i, sum, count);
            }
        }
    }
}

}  // namespace
