// Trees of drafted tokens, grown from what a drafter's slots, or block heads, say: the likeliest paths, best first; or of
// each slot the likeliest token behind the one before, which is one path.
//
// fairseq_aggdec/drafters/trees.py does the same in PyTorch's operators, for all slots and candidates at once. Here only
// what the tree reaches is worked out: the vocabulary in runs of slots, along few directions once these are known
// (proposer.py), the chain one candidate at a time.

#pragma once

#include <cmath>
#include <queue>
#include <tuple>
#include <vector>

#include "best.h"
#include "products.h"
#include "structs.h"

using namespace aggdec;

namespace {

constexpr int64_t MOST_CANDIDATES = 16;
// Types that are scored where only their place in a few directions is known.
constexpr int64_t LISTED = 32;
// Slots whose vocabulary is read together: in 8 bits a few more cost next to nothing, reading it again does.
inline int64_t run(const Product& vocabulary) { return vocabulary.scales ? ROWS_INT8 : 4; }

inline float dot(const float* a, const float* b, int64_t size) {
    Floats sum = same(0.0f);
    each_vector(size, [&](int64_t i, int width) {
        if (width == LANES) sum = multiply_add(load(a + i), load(b + i), sum);
        else sum = multiply_add(load(a + i, width), load(b + i, width), sum);
    });
    return total(sum);
}

// What a type scores with features, (C).
inline float score(const Proposer& proposer, const float* features, int64_t type) {
    const int64_t channels = proposer.vocabulary.inputs;
    const float logit = dot(features, proposer.weight + type * channels, channels);
    return proposer.bias ? logit + proposer.bias[type] : logit;
}

// Logits (N, V) of slots by their features, or what is like them.
inline void read_vocabulary(const Proposer& proposer, const float* features, int64_t count,
                            int64_t threads, float* logits) {
    if (!proposer.narrow.weight)
        return product(proposer.vocabulary, features, count, logits, nullptr, threads);
    float* few = scratch<float, Scratch::DIRECTIONS>(count * proposer.directions.outputs);
    product(proposer.directions, features, count, few, nullptr, threads);
    product(proposer.narrow, few, count, logits, nullptr, threads);
}

// The candidates of a slot behind one token: places among them, likeliest first, and the logarithms of their chances.
struct Ranking {
    bool known = false;
    int32_t order[MOST_CANDIDATES];
    double chances[MOST_CANDIDATES];
};

// One row's slots, worked out as far as its tree reaches.
class RowSlots {
  public:
    RowSlots(const Proposer& proposer, const Slots& call, int64_t row)
        : proposer_(proposer),
          call_(call),
          channels_(proposer.vocabulary.inputs),
          features_(call.features + row * call.slots * channels_),
          last_(call.last[row]),
          rankings_(call.slots * proposer.candidates),
          tokens_(call.slots * proposer.candidates),
          logits_(call.slots * proposer.candidates),
          heard_(proposer.heard ? call.slots * channels_ : 0) {}

    int64_t token(int64_t slot, int64_t place) const {
        return static_cast<int64_t>(tokens_[slot * proposer_.candidates + place]);
    }

    // Takes in the logits (count, types) of slots `read()` and on.
    void take(const float* logits, int64_t count) {
        const int64_t types = proposer_.vocabulary.outputs, many = proposer_.candidates;
        for (int64_t slot = read_; slot < read_ + count; ++slot, logits += types) {
            Best best{&logits_[slot * many], &tokens_[slot * many], many};
            if (proposer_.narrow.weight) take_listed(logits, features(slot), best);
            else take_best(logits, types, -1, bound(logits, types, many), best);
            while (best.count < many) best.take(-INFINITY, 0);  // numbers that are none
        }
        if (proposer_.heard)
            product(proposer_.read_slot, features_ + read_ * channels_, count,
                    heard_.data() + read_ * channels_, nullptr, 1);
        read_ += count;
    }

    int64_t candidates() const { return proposer_.candidates; }
    const float* features(int64_t slot) const { return features_ + slot * channels_; }

    // What follows candidate `before` of the slot before.
    const Ranking& ranking(int64_t slot, int64_t before) {
        const int64_t many = proposer_.candidates;
        if (slot >= read_) read_on();
        if (!proposer_.heard || slot == 0) before = 0;
        Ranking& ranking = rankings_[slot * many + before];
        if (!ranking.known) {
            float scores[MOST_CANDIDATES];
            std::copy_n(&logits_[slot * many], many, scores);
            if (proposer_.heard) tell(slot, slot ? token(slot - 1, before) : last_, scores);
            rank(slot, scores, ranking);
        }
        return ranking;
    }

  private:
    // The best by their scores of those that are best by `logits`, which are like them.
    void take_listed(const float* logits, const float* features, Best& best) const {
        const int64_t types = proposer_.vocabulary.outputs, listed = std::min(LISTED, types);
        float near[LISTED], listed_types[LISTED];
        Best list{near, listed_types, listed};
        take_best(logits, types, -1, bound(logits, types, listed), list);
        // Rows of weights that stand far apart: all are asked for at once.
        const int64_t channels = proposer_.vocabulary.inputs;
        for (int64_t i = 0; i < list.count; ++i) {
            const float* row = proposer_.weight + static_cast<int64_t>(listed_types[i]) * channels;
            for (int64_t c = 0; c < channels; c += LINE / 4) __builtin_prefetch(row + c);
        }
        for (int64_t i = 0; i < list.count; ++i) {
            const auto type = static_cast<int64_t>(listed_types[i]);
            const float value = score(proposer_, features, type);
            if (value == value) best.take(value, type);  // no NaN
        }
    }

    // At least `many` of the numbers x are not below it.
    static float bound(const float* x, int64_t size, int64_t many) {
        if (many > 2 * LANES || size < 2 * LANES) return -INFINITY;
        Floats even = same(-INFINITY), odd = even;
        each_vector(size, [&](int64_t i, int width) {
            Floats& most = i / LANES % 2 ? odd : even;
            most = larger(padded(x + i, width), most);
        });
        float maxima[2 * LANES];  // of numbers that are one another's 32nd
        store(maxima, even), store(maxima + LANES, odd);
        std::nth_element(maxima, maxima + many - 1, maxima + 2 * LANES, std::greater<float>());
        return maxima[many - 1];
    }

    void read_on() {
        const int64_t count = std::min(run(proposer_.vocabulary), call_.slots - read_);
        float* logits = scratch<float, Scratch::SLOT_LOGITS>(count * proposer_.vocabulary.outputs);
        read_vocabulary(proposer_, features(read_), count, call_.threads, logits);
        take(logits, count);
    }

    // Scores of a slot's candidates when the slot is told the token before it.
    void tell(int64_t slot, int64_t before, float* scores) {
        float* heard = scratch<float, Scratch::CHAINED>(2 * channels_);
        float* chained = heard + channels_;
        const float *of_slot = heard_.data() + slot * channels_,
                    *of_token = proposer_.heard + before * channels_;
        for (int64_t i = 0; i < channels_; ++i) heard[i] = std::max(of_slot[i] + of_token[i], 0.0f);
        product(proposer_.write, heard, 1, chained, features(slot), 1);
        for (int64_t place = 0; place < proposer_.candidates; ++place)
            scores[place] = score(proposer_, chained, token(slot, place));
    }

    void rank(int64_t slot, const float* scores, Ranking& ranking) const {
        const int64_t many = proposer_.candidates;
        const double most = *std::max_element(scores, scores + many);
        double sum = 0.0;
        for (int64_t place = 0; place < many; ++place) sum += std::exp(scores[place] - most);
        for (int64_t place = 0; place < many; ++place) ranking.order[place] = static_cast<int32_t>(place);
        std::stable_sort(ranking.order, ranking.order + many,
                         [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
        for (int64_t i = 0; i < many; ++i) {
            const double chance = scores[ranking.order[i]] - most - std::log(sum);
            const double logit = chance - std::log(-std::expm1(std::min(chance, -1e-6)));
            const double calibrated = call_.slopes[slot] * logit + call_.shifts[slot];
            ranking.chances[i] = std::min(calibrated, 0.0) - std::log1p(std::exp(-std::abs(calibrated)));
        }
        ranking.known = true;
    }

    const Proposer& proposer_;
    const Slots& call_;
    const int64_t channels_;
    const float* features_;
    const int64_t last_;
    std::vector<Ranking> rankings_;
    std::vector<float> tokens_, logits_, heard_;
    int64_t read_ = 0;
};

// A token that may be taken next: the smallest comes first.
struct Open {
    double cost;  // minus the logarithm of its chance
    int64_t parent, slot, before, rank;
    double base;  // that of its parent

    bool operator>(const Open& other) const {
        return std::tie(cost, parent, slot, before, rank) >
               std::tie(other.cost, other.parent, other.slot, other.before, other.rank);
    }
};

// Nodes are taken as long as they bring more tokens for their cost than those before, see trees.py.
void grow_row(const Slots& call, int64_t row, RowSlots& slots) {
    const int64_t room = std::min(call.room[row], call.slots);
    int64_t* tokens = call.tokens + row * call.nodes;
    int64_t* parents = call.parents + row * call.nodes;
    double* chances = call.chances + row * call.nodes;
    int64_t count = 0;
    std::priority_queue<Open, std::vector<Open>, std::greater<Open>> open;
    if (room > 0) open.push({-slots.ranking(0, 0).chances[0], 0, 0, 0, 0, 0.0});
    double expected = 1.0;
    while (!open.empty() && count < call.nodes) {
        const Open best = open.top();
        open.pop();
        const double chance = call.trust * std::exp(-best.cost);
        if (count && call.costs &&
            chance * call.costs[count] <= expected * (call.costs[count + 1] - call.costs[count]))
            break;
        expected += chance;
        const Ranking& ranking = slots.ranking(best.slot, best.before);
        const int64_t place = ranking.order[best.rank], token = slots.token(best.slot, place);
        tokens[count] = token, parents[count] = best.parent, chances[count] = -best.cost;
        if (++count == call.nodes) break;  // nobody asks for what follows
        if (call.branches && best.rank + 1 < slots.candidates())
            open.push({best.base - ranking.chances[best.rank + 1], best.parent, best.slot, best.before,
                       best.rank + 1, best.base});
        if (best.slot + 1 < room && token != call.eos)
            open.push({best.cost - slots.ranking(best.slot + 1, place).chances[0], count,
                       best.slot + 1, place, 0, best.cost});
    }
    call.counts[row] = count;
}

void grow(const Proposer& proposer, const Slots& call) {
    const int64_t types = proposer.vocabulary.outputs, channels = proposer.vocabulary.inputs;
    const int64_t first = std::min(run(proposer.vocabulary), call.slots);
    // The first run of all rows at once.
    float* features = scratch<float, Scratch::FIRST_SLOTS>(call.rows * first * channels);
    for (int64_t row = 0; row < call.rows; ++row)
        std::copy_n(call.features + row * call.slots * channels, first * channels,
                    features + row * first * channels);
    float* logits = scratch<float, Scratch::FIRST_LOGITS>(call.rows * first * types);
    read_vocabulary(proposer, features, call.rows * first, call.threads, logits);
    for (int64_t row = 0; row < call.rows; ++row) {
        RowSlots slots(proposer, call, row);
        slots.take(logits + row * first * types, first);
        grow_row(call, row, slots);
    }
}

}  // namespace
