// How many tokens a model drafts at once: as many as pay, none where drafts do not.
//
// fairseq_aggdec/budget/draft_length.py is the same in Python, with the constants of this file.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "price.h"

// What is known of drafts; the caller keeps it from batch to batch.
struct DraftBudget {
    int64_t size;                    // slots that may be filled
    int64_t adapts, per_batch, pays;    // whether drafts are weighed; once for a batch, with this outcome
    int64_t nodes, stops, branches;  // tokens of a row's tree; no more than are worth their cost; else it is a path
    CallPrice price;
    double tries;                    // sentences that are drafted for although that does not pay
    double gained, gained_weight;    // tokens per iteration with a draft: sum and weight of a mean
    double drafted, drafted_weight;  // tokens per draft
    double hoped, hoped_weight;      // of these accepted, by the drafter's own probabilities
    double depth;                    // of trees, a mean of the last ones
};

namespace {

// How many more tokens per cost than none a draft must promise: what calls cost is not known exactly.
constexpr double DRAFT_MARGIN = 0.05;
// The weight of older drafts shrinks by this factor with each new one: the last 170 or so count.
constexpr double REMEMBER = 0.994;
// The share of a new draft in the mean depth of trees.
constexpr double DEPTH_SHARE = 0.125;
// How many more slots are filled: one more would cost a draft more than the few trees lose that would reach it.
constexpr double SPARE_SLOTS = 1.25;
// Bounds of the trust in a drafter's own probabilities.
constexpr double LEAST_TRUST = 0.1, MOST_TRUST = 2.0;

// Decides for the batch that is decoded.
class DraftPlan {
  public:
    explicit DraftPlan(DraftBudget& budget) : budget_(budget) {}

    // How many tokens to draft for each of R rows; the first call is about all rows of the batch.
    int64_t size(int64_t rows) {
        sentences_ = std::max(sentences_, rows);
        if (!budget_.adapts) return budget_.size;
        // For the last few of a batch it does not pay that the drafter reads all sources.
        const bool few = !drafts_ && 2 * rows < sentences_;
        const bool pays = budget_.per_batch ? budget_.pays : !few && drafts_pay(static_cast<double>(rows));
        return pays || budget_.tries > 0.0 ? budget_.size : 0;
    }

    // Slots that the drafter fills: trees do not reach the others.
    int64_t slots(int64_t size) const {
        const int64_t most = std::min(size, budget_.nodes);
        return budget_.stops ? std::min(most, static_cast<int64_t>(budget_.depth + SPARE_SLOTS)) : most;
    }

    // Of an iteration that drafts 0, 1, ... tokens for each of R rows; null where trees do not stop because of that.
    const double* costs(int64_t rows, int64_t slots) {
        if (!budget_.stops) return nullptr;
        costs_.resize(budget_.nodes + 1);
        for (int64_t n = 0; n <= budget_.nodes; ++n)
            costs_[n] = draft_cost(budget_.price, static_cast<double>(rows), static_cast<double>(n),
                                   static_cast<double>(slots));
        return costs_.data();
    }

    // How many times the drafter's own probability a token is accepted.
    double trust() const {
        if (!budget_.adapts) return 1.0;
        const double gained = budget_.gained / budget_.gained_weight - 1.0, hoped = budget_.hoped / budget_.hoped_weight;
        return std::min(MOST_TRUST, std::max(LEAST_TRUST, gained / hoped));
    }

    // depth: of the trees of a call, their mean.
    void reached(double depth) {
        if (budget_.stops) budget_.depth += DEPTH_SHARE * (depth - budget_.depth);
    }

    // hoped: tokens that were to be accepted by the drafter's own probabilities.
    void observe(int64_t rows, int64_t drafted, int64_t emitted, double hoped) {
        if (!budget_.adapts || !drafted) return;
        const auto count = static_cast<double>(rows);
        drafts_ = true;
        add(budget_.gained, budget_.gained_weight, static_cast<double>(emitted), count);
        add(budget_.drafted, budget_.drafted_weight, static_cast<double>(drafted), count);
        add(budget_.hoped, budget_.hoped_weight, hoped, count);
        budget_.tries = std::max(0.0, budget_.tries - count);
    }

    const DraftBudget& budget() const { return budget_; }

  private:
    static void add(double& sum, double& weight, double total, double count) {
        sum = sum * REMEMBER + total;
        weight = weight * REMEMBER + count;
    }

    bool drafts_pay(double rows) const {
        const double drafted = budget_.drafted / budget_.drafted_weight;
        const double cost = draft_cost(budget_.price, rows, drafted, static_cast<double>(slots(budget_.size)));
        const double gained = budget_.gained / budget_.gained_weight;
        return gained * call_cost(budget_.price, rows) >= (1.0 + DRAFT_MARGIN) * cost;
    }

    DraftBudget& budget_;
    std::vector<double> costs_;
    int64_t sentences_ = 0;
    bool drafts_ = false;  // something was drafted in the batch
};

}  // namespace
