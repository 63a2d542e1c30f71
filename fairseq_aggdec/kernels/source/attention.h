// Layer norm and attention, one token after the other.

#pragma once

#include "best.h"
#include "threads.h"
#include "structs.h"
#include "vector.h"

using namespace aggdec;

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
struct KeyView {
    const float *keys, *values;
    int64_t stride, head, count;  // from place to place, from head to head; places
    const int32_t* places;  // null: 0 to count
};

inline int64_t place(const KeyView& view, int64_t j) { return view.places ? view.places[j] : j; }

// How many queries of a row are taken together: what they all see is read once. As many as the registers hold.
#if defined(AGGDEC_AVX512)
constexpr int QUERIES = 4;
#else
constexpr int QUERIES = 1;
#endif

// Softmax of the scores of `visible` keys, but for the normaliser, whose inverse is returned.
inline Floats exponentials(int64_t visible, float scale, float* scores) {
    Floats most = same(-INFINITY), sum = same(0.0f);
    for (int64_t j = 0; j < visible; j += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, visible - j));
        store(scores + j, load(scores + j, count) * same(scale), count);
        most = larger(padded(scores + j, count), most);
    }
    const Floats best = same(largest(most));
    for (int64_t j = 0; j < visible; j += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, visible - j));
        store(scores + j, exponential(load(scores + j, count) - best), count);
        sum = sum + load(scores + j, count);
    }
    return same(1.0f / total(sum));
}

// One head of Q queries `wide` numbers apart, of which the first `shared` keys are the same. V: vectors of a head. What
// comes of a query does not depend on the others.
template <int V, int Q>
void attend_head(const float* q, int64_t wide, const KeyView* views, int64_t shared, int64_t offset,
                 float scale, float* scores, int64_t room, float* out, int64_t apart) {
    const auto key = [&](const KeyView& view, int64_t j) {
        return view.keys + place(view, j) * view.stride + offset;
    };
    const auto product_with = [&](int i, int64_t j) {
        const float* at = key(views[i], j);
        Floats sum = same(0.0f);
        for (int v = 0; v < V; ++v)
            sum = multiply_add(load(q + i * wide + v * LANES), load(at + v * LANES), sum);
        return sum;
    };
    if (Q > 1)
        for (int64_t j = 0; j < shared; ++j) {
            const float* at = key(views[0], j);
            Floats sums[4] = {same(0.0f), same(0.0f), same(0.0f), same(0.0f)};
            for (int v = 0; v < V; ++v) {
                const Floats part = load(at + v * LANES);
                for (int i = 0; i < Q; ++i)
                    sums[i] = multiply_add(load(q + i * wide + v * LANES), part, sums[i]);
            }
            float four[4];
            totals(sums[0], sums[1], sums[2], sums[3], four);
            for (int i = 0; i < Q; ++i) scores[i * room + j] = four[i];
        }
    Floats inverse[Q];
    for (int i = 0; i < Q; ++i) {
        const int64_t last = views[i].count - 1;
        for (int64_t j = Q > 1 ? shared : 0; j <= last; j += 4)
            totals(product_with(i, j), product_with(i, std::min(j + 1, last)),
                   product_with(i, std::min(j + 2, last)), product_with(i, std::min(j + 3, last)),
                   scores + i * room + j);
        inverse[i] = exponentials(views[i].count, scale, scores + i * room);
    }
    Floats sums[Q][V];
    for (auto& of_query : sums)
        for (auto& sum : of_query) sum = same(0.0f);
    const auto value = [&](const KeyView& view, int64_t j) {
        return view.values + place(view, j) * view.stride + offset;
    };
    for (int64_t j = 0; j < shared; ++j) {
        const float* at = value(views[0], j);
        Floats parts[V];
        for (int v = 0; v < V; ++v) parts[v] = load(at + v * LANES);
        for (int i = 0; i < Q; ++i) {
            const Floats weight = same(scores[i * room + j]);
            for (int v = 0; v < V; ++v) sums[i][v] = multiply_add(weight, parts[v], sums[i][v]);
        }
    }
    for (int i = 0; i < Q; ++i) {
        for (int64_t j = shared; j < views[i].count; ++j) {
            const float* at = value(views[i], j);
            const Floats weight = same(scores[i * room + j]);
            for (int v = 0; v < V; ++v)
                sums[i][v] = multiply_add(weight, load(at + v * LANES), sums[i][v]);
        }
        for (int v = 0; v < V; ++v) store(out + i * apart + v * LANES, sums[i][v] * inverse[i]);
    }
}

// One head of one query, of any number of channels.
void attend_head_of(int64_t dim, const float* q, const KeyView& view, int64_t offset, float scale,
                    float* scores, float* out) {
    const auto width = [&](int64_t v) { return static_cast<int>(std::min<int64_t>(LANES, dim - v)); };
    for (int64_t j = 0; j < view.count; ++j) {
        const float* key = view.keys + place(view, j) * view.stride + offset;
        Floats sum = same(0.0f);
        for (int64_t v = 0; v < dim; v += LANES)
            sum = multiply_add(load(q + v, width(v)), load(key + v, width(v)), sum);
        scores[j] = total(sum);
    }
    const Floats inverse = exponentials(view.count, scale, scores);
    for (int64_t v = 0; v < dim; v += LANES) {
        Floats sum = same(0.0f);
        for (int64_t j = 0; j < view.count; ++j) {
            const float* value = view.values + place(view, j) * view.stride + offset;
            sum = multiply_add(same(scores[j]), load(value + v, width(v)), sum);
        }
        store(out + v, sum * inverse, width(v));
    }
}

// How many places the views of `count` queries begin with alike.
int64_t shared_places(const KeyView* views, int count) {
    int64_t least = views[0].count;
    bool alike = true;
    for (int i = 1; i < count; ++i) {
        least = std::min(least, views[i].count);
        alike = alike && views[i].places == views[0].places;
    }
    if (alike) return least;
    for (int64_t j = 0; j < least; ++j)
        for (int i = 1; i < count; ++i)
            if (place(views[i], j) != place(views[0], j)) return j;
    return least;
}

template <int Q>
void attend_heads(const float* q, int64_t wide, const KeyView* views, int64_t shared, int64_t dim,
                  int64_t heads, float scale, float* scores, int64_t room, float* out, int64_t apart) {
    for (int64_t h = 0; h < heads; ++h, q += dim, out += dim) {
        const int64_t offset = h * views[0].head;
        if (dim == 64)
            attend_head<4, Q>(q, wide, views, shared, offset, scale, scores, room, out, apart);
        else
            attend_head<2, Q>(q, wide, views, shared, offset, scale, scores, room, out, apart);
    }
}

// Up to QUERIES queries of one row, `wide` numbers apart, each over what it sees; out (C) `apart` numbers apart. A query
// that sees nothing gets NaN, as in PyTorch.
void attend(const float* q, int64_t wide, const KeyView* views, int count, int64_t channels,
            int64_t heads, float* out, int64_t apart) {
    const int64_t dim = channels / heads;
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    int64_t longest = 0, least = views[0].count;
    for (int i = 0; i < count; ++i) {
        longest = std::max(longest, views[i].count);
        least = std::min(least, views[i].count);
    }
    const int64_t room = longest + 3;
    float* scores = scratch<float, Scratch::ATTENTION_SCORES>(QUERIES * room);
    const bool together = count == QUERIES && least > 0 && (dim == 64 || dim == 32);
    if (together) {
        const int64_t shared = QUERIES > 1 ? shared_places(views, count) : least;
        attend_heads<QUERIES>(q, wide, views, shared, dim, heads, scale, scores, room, out, apart);
        return;
    }
    for (int i = 0; i < count; ++i, q += wide, out += apart) {
        const KeyView& view = views[i];
        if (view.count == 0)
            std::fill(out, out + channels, NAN);
        else if (dim == 64 || dim == 32)
            attend_heads<1>(q, wide, &view, view.count, dim, heads, scale, scores, room, out, apart);
        else
            for (int64_t h = 0; h < heads; ++h)
                attend_head_of(dim, q + h * dim, view, h * view.head, scale, scores, out + h * dim);
    }
}

// What a mask over `all.count` places, -inf or 0 each, leaves of them; `memory` for as many numbers.
KeyView seen(KeyView all, const float* mask, int32_t* memory) {
    if (!mask) return all;
    int64_t left = 0;
    for (int64_t j = 0; j < all.count; ++j)
        if (mask[j] != -INFINITY) memory[left++] = static_cast<int32_t>(j);
    all.count = left, all.places = memory;
    return all;
}

// The same of places that are the bits of a number, lowest first.
KeyView of_bits(KeyView all, const uint8_t* bits, int32_t* memory) {
    int64_t left = 0;
    for (int64_t first = 0; first < all.count; first += 8, ++bits)
        for (unsigned byte = *bits; byte; byte &= byte - 1)
            memory[left++] = static_cast<int32_t>(first + __builtin_ctz(byte));
    all.count = left, all.places = memory;
    return all;
}

}  // namespace
