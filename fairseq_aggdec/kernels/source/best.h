// The largest numbers of rows, what normalises them, and the mean probabilities of several models.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "threads.h"
#include "vector.h"

using namespace aggdec;

namespace {

// f(first, how many) for every vector of `size` numbers.
template <class F>
inline void each_vector(int64_t size, const F& f) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) f(i, LANES);
    if (i < size) f(i, static_cast<int>(size - i));
}

// Up to 16 numbers, -inf behind them.
inline Floats padded(const float* p, int count) {
    if (count == LANES) return load(p);
    float copy[LANES];
    std::fill(copy, copy + LANES, -INFINITY);
    std::memcpy(copy, p, sizeof(float) * count);
    return load(copy);
}

// The largest of the logits x (V) and the logarithm of the sum of their exponentials above it; NaN where x holds NaN or
// the largest is infinite. maxima: of every 16th number, from each of the first 16.
struct Normaliser {
    float best, log_sum;
    Floats maxima;
};

// The logarithm of the sum of the exponentials of x (V) above their largest, which is no NaN.
inline float log_sum_above(const float* x, int64_t size, float best) {
    if (std::isinf(best)) return NAN;
    Floats sum = same(0.0f);
    each_vector(size, [&](int64_t i, int width) { sum = sum + exponential(padded(x + i, width) - same(best)); });
    return std::log(total(sum));
}

inline Normaliser normaliser(const float* x, int64_t size) {
    Floats most = same(-INFINITY);
    unsigned broken = 0;
    each_vector(size, [&](int64_t i, int width) {
        const Floats part = padded(x + i, width);
        most = larger(part, most);
        broken |= not_numbers(part);
    });
    const float best = largest(most);
    return {best, broken ? NAN : log_sum_above(x, size, best), most};
}

// The first place of the largest of the numbers x (V); NaN counts as the largest.
inline int64_t first_largest(const float* x, int64_t size) {
    Floats most = same(-INFINITY);
    unsigned broken = 0;
    each_vector(size, [&](int64_t i, int count) {
        const Floats part = padded(x + i, count);
        most = larger(part, most);
        broken |= not_numbers(part);
    });
    const Floats best = same(largest(most));
    int64_t place = size;
    each_vector(size, [&](int64_t i, int count) {
        if (place < size) return;
        const Floats part = padded(x + i, count);
        const unsigned hits = broken ? not_numbers(part) : equal(part, best);
        if (hits) place = i + __builtin_ctz(hits);
    });
    return std::min(place, size - 1);
}

// The largest numbers of a row, best first, of equal ones the first.
struct Best {
    float* values;
    float* places;
    int64_t room, count = 0;

    float least() const { return count < room ? -INFINITY : values[room - 1]; }

    void take(float value, int64_t place) {
        if (count == room) {
            if (value <= values[room - 1]) return;
            --count;
        }
        int64_t at = count++;
        for (; at > 0 && values[at - 1] < value; --at) {
            values[at] = values[at - 1];
            places[at] = places[at - 1];
        }
        values[at] = value;
        places[at] = static_cast<float>(place);
    }
};

// Takes every number of x (V) but that at `pad` which may be among the best. At least as many as there is room for are
// not below `bound`.
inline void take_best(const float* x, int64_t size, int64_t pad, float bound, Best& best) {
    each_vector(size, [&](int64_t i, int width) {
        unsigned hits = at_least(padded(x + i, width), same(std::max(bound, best.least())));
        if (width < LANES) hits &= (1u << width) - 1;
        for (; hits; hits &= hits - 1) {
            const int64_t place = i + __builtin_ctz(hits);
            if (place != pad) best.take(x[place], place);
        }
    });
}

// Several models as an ensemble of stock fairseq: logits (models, rows, V) -> the logarithms of the models' mean probabilities, written to the first of them.
// The order of operations is PyTorch's: log_softmax of each model, logsumexp over them, the logarithm of their number.
void average(float* logits, int64_t models, int64_t rows, int64_t types, int64_t threads) {
    const int64_t apart = rows * types;
    const Floats of_number = same(static_cast<float>(std::log(static_cast<double>(models))));
    share(rows, threads, models * rows * types * 8, [&](int64_t begin, int64_t end) {
        std::vector<Normaliser> norms(models);
        for (int64_t row = begin; row < end; ++row) {
            float* x = logits + row * types;
            for (int64_t m = 0; m < models; ++m) norms[m] = normaliser(x + m * apart, types);
            each_vector(types, [&](int64_t i, int width) {
                const auto log_prob = [&](int64_t m) {
                    return padded(x + m * apart + i, width) - same(norms[m].best) - same(norms[m].log_sum);
                };
                Floats most = log_prob(0), sum = same(0.0f);
                for (int64_t m = 1; m < models; ++m) most = larger(log_prob(m), most);
                // Not -inf, from which -inf is no number.
                const Floats least = larger(most, same(std::numeric_limits<float>::lowest()));
                for (int64_t m = 0; m < models; ++m) sum = sum + exponential(log_prob(m) - least);
                const Floats mean = logarithm(sum) + least - of_number;
                const Floats joint = smaller(most, mean);  // -inf where all are
                width == LANES ? store(x + i, joint) : store(x + i, joint, width);
            });
        }
    });
}

}  // namespace
