// Checks of sizes: an entry of the library reads and writes nothing before its arguments fit each other.
//
// Python passes the bytes behind each pointer. Sizes that do not fit are a fault of the caller or of a file.

#pragma once

#include <algorithm>
#include <cstdint>

#include "products.h"

namespace {

// True if a * b == c without overflow; no number may be negative.
inline bool times(int64_t a, int64_t b, int64_t c) {
    int64_t product;
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, &product) && product == c;
}

// The smallest multiple of `unit` that is at least `count`.
inline int64_t padded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

constexpr int64_t MOST_CHANNELS = int64_t{1} << 31;  // inputs or outputs: padded sizes cannot overflow

// True if the parts of a product have as many bytes as its inputs and outputs ask for, at an address that is a multiple of
// the size of their numbers. A part that is missing has 0 bytes.
inline bool fits(const Product& p, int64_t weight, int64_t bias, int64_t scales, int64_t sums) {
    const auto is_at = [](const void* part, int64_t bytes, uintptr_t number) {
        return (part != nullptr) == (bytes > 0) && reinterpret_cast<uintptr_t>(part) % number == 0;
    };
    if (p.inputs < 0 || p.outputs < 0 || p.inputs > MOST_CHANNELS || p.outputs > MOST_CHANNELS) return false;
    const bool int8 = p.scales != nullptr;
    if (int8 && p.bf16) return false;
    const int64_t outputs = padded(p.outputs, PANEL);
    const int64_t inputs = int8 ? padded(p.inputs, DEPTH) : p.bf16 ? padded(p.inputs, BLOCK) : p.inputs;
    const int64_t number = int8 ? 1 : p.bf16 ? 2 : 4;
    return is_at(p.weight, weight, static_cast<uintptr_t>(int8 ? 1 : 4)) && times(outputs * number, inputs, weight) &&
           is_at(p.bias, bias, 4) && (!p.bias || bias == p.outputs * 4) && is_at(p.scales, scales, 4) &&
           is_at(p.sums, sums, 4) && scales == (int8 ? outputs * 4 : 0) && sums == scales;
}

inline bool is_from_to(const Product& p, int64_t inputs, int64_t outputs) {
    return p.weight && p.inputs == inputs && p.outputs == outputs;
}

// True if the products of all layers fit the channels of their stack and each other. A layer of an encoder has no
// cross-attention: null weights.
inline bool fit(const Layer* layers, const Shape& shape) {
    const int64_t channels = shape.channels;
    if (shape.layers < 0 || channels <= 0 || shape.heads <= 0 || channels % shape.heads) return false;
    for (const Layer* layer = layers; layer < layers + shape.layers; ++layer) {
        if (!is_from_to(layer->qkv, channels, 3 * channels) || !is_from_to(layer->own_out, channels, channels) ||
            !is_from_to(layer->expand, channels, layer->expand.outputs) ||
            !is_from_to(layer->contract, layer->expand.outputs, channels))
            return false;
        if (!layer->cross_q.weight) continue;
        if (!is_from_to(layer->cross_q, channels, channels) || !is_from_to(layer->cross_out, channels, channels) ||
            !is_from_to(layer->cross_kv, layer->cross_kv.inputs, 2 * channels))
            return false;
    }
    return true;
}

// True if all layers of a decoder read sources of so many channels.
inline bool read(const Layer* layers, int64_t count, int64_t channels) {
    return std::all_of(layers, layers + count, [&](const Layer& layer) {
        return is_from_to(layer.cross_kv, channels, layers->cross_kv.outputs);
    });
}

// True if there are `wanted` block heads, and their products fit each other.
inline bool fit(const Heads& heads, int64_t wanted) {
    const int64_t channels = heads.expand.inputs, units = heads.expand.outputs;
    if (wanted < 0 || wanted > MOST_CHANNELS || heads.hidden < 0 || heads.hidden > MOST_CHANNELS || channels > MOST_CHANNELS) return false;
    if (!heads.contract.weight) return wanted * heads.hidden <= units;
    return heads.contract.inputs == units && wanted * channels <= heads.contract.outputs;
}

}  // namespace
