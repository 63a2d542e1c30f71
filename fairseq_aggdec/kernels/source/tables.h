// Tables of the best tokens of each place of a window, from which every search decides.

#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "best.h"
#include "structs.h"
#include "threads.h"

using namespace aggdec;

namespace {

// Changes a logit as the rules say; +inf, which forces a token, changes none.
inline void change_logit(float& logit, double value) {
    if (value == -INFINITY) logit = -INFINITY;
    else if (value != INFINITY) logit += static_cast<float>(value);
}

// Fills the best tokens of one row of logits, which the rules have changed. forced: the token that is written in any case, or -1.
inline void fill_best(const TableCall& call, const float* x, const Normaliser* norm, bool changed, int64_t forced,
                      float* values) {
    const int64_t count = call.best;
    float* tokens = values + count;
    const bool broken = norm && std::isnan(norm->log_sum);
    if (count > 1) {
        float maxima[LANES], bound = -INFINITY;
        if (norm && count < LANES && !changed) {  // one of the maxima may be that of padding
            store(maxima, norm->maxima);
            std::nth_element(maxima, maxima + count, maxima + LANES, std::greater<float>());
            bound = maxima[count];
        }
        Best best{values, tokens, count};
        take_best(x, call.types, call.pad, bound, best);
        while (best.count < count) best.take(-INFINITY, call.pad);
    }
    if (count > 1 && !broken && forced < 0) return;
    const int64_t first = forced < 0 ? first_largest(x, call.types) : forced;
    values[0] = x[first], tokens[0] = static_cast<float>(first);
}

// Writes the table of one row, whose changes begin with `change`; moves that behind them.
inline void write_table(const TableCall& call, int64_t row, const Change*& change, const Change* end) {
    float* x = call.logits + row * call.types;
    float* values = call.tables + row * (2 * call.best + 3);
    float* last = values + 2 * call.best;
    Normaliser norm{};
    if (call.normalise) norm = normaliser(x, call.types), last[1] = norm.best, last[2] = norm.log_sum;
    static thread_local std::vector<float> kept;
    kept.clear();
    const Change* first = change;
    const float pad = x[call.pad];
    int64_t forced = -1;
    x[call.pad] = -INFINITY;
    for (; change != end && change->place == row; ++change) {
        kept.push_back(x[change->token]);
        if (change->value == INFINITY) forced = change->token;
        change_logit(x[change->token], change->value);
    }
    fill_best(call, x, call.normalise ? &norm : nullptr, change != first, forced, values);
    // In reverse: a token may be changed twice.
    for (size_t i = kept.size(); i-- > 0;) x[first[i].token] = kept[i];
    x[call.pad] = pad;
    last[0] = x[static_cast<int64_t>(values[call.best])];
}

inline void write_tables(const TableCall& call) {
    const Change* end = call.changes + call.changed;
    share(call.rows, call.threads, call.rows * call.types * 8, [&](int64_t begin, int64_t stop) {
        const Change* change = std::lower_bound(call.changes, end, begin,
                                                [](const Change& one, int64_t row) { return one.place < row; });
        for (int64_t row = begin; row < stop; ++row) write_table(call, row, change, end);
    });
    for (int64_t n = 0; n < call.wanted; ++n) {
        const Pair& pair = call.pairs[n];
        call.values[n] = pair.token == call.pad ? -INFINITY : call.logits[pair.place * call.types + pair.token];
    }
}

// Writes the largest of the logits x (V) and the logarithm of the sum of the exponentials above it. largest: if it is
// known, and no logit is NaN.
inline void write_normaliser(const float* x, int64_t types, const float* largest, float* out) {
    if (!largest) {
        const Normaliser norm = normaliser(x, types);
        out[0] = norm.best, out[1] = norm.log_sum;
        return;
    }
    out[0] = *largest, out[1] = log_sum_above(x, types, *largest);
}

}  // namespace
