// How many tokens a model drafts at once: as many as pay, none where drafts do not. No clock has a say.
//
// fairseq_aggdec/budget/draft_length.py is the same in Python, with the constants of this file.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

// What is known of drafts; the caller keeps it from batch to batch.
struct DraftBudget {
    int64_t size;                    // slots that may be filled
    int64_t adapts, per_batch, pays;    // whether drafts are weighed; once for a batch, with this outcome
    int64_t nodes, stops, branches;  // tokens of a row's tree; no more than are worth their cost; else it is a path
    double step_cost;                // of an iteration beside its positions, in positions
    double drafter_cost;             // what the call of the drafter adds to it
    double tries;                    // sentences that are drafted for although that does not pay
    double gained, gained_weight;    // tokens per iteration with a draft: sum and weight of a mean
    double drafted, drafted_weight;  // tokens per draft
    double deepest;                  // slots that trees fill, the most of late
};

namespace {

// How many more tokens per cost than none a draft must promise: what calls cost is not known exactly.
constexpr double DRAFT_MARGIN = 0.1;
// The weight of older drafts shrinks by this factor with each new one: the last 170 or so count.
constexpr double REMEMBER = 0.994;
// By how many slots the deepest tree of late is forgotten with every draft.
constexpr double FORGET_DEPTH = 0.125;

// Decides for the batch that is decoded.
class DraftPlan {
  public:
    explicit DraftPlan(DraftBudget& budget) : budget_(budget) {}

    // How many tokens to draft for each of R rows.
    int64_t size(int64_t rows) const {
        if (!budget_.adapts) return budget_.size;
        const bool pays = budget_.per_batch ? budget_.pays : drafts_pay(static_cast<double>(rows));
        return pays || budget_.tries > 0.0 ? budget_.size : 0;
    }

    // Slots that the drafter fills: trees do not reach the others.
    int64_t slots(int64_t size) const {
        const int64_t most = std::min(size, budget_.nodes);
        return budget_.stops ? std::min(most, static_cast<int64_t>(std::ceil(budget_.deepest)) + 1) : most;
    }

    // Of an iteration beside its draft, for each of R rows, in tokens.
    double fixed_cost(int64_t rows) const {
        return budget_.stops ? 1.0 + (budget_.step_cost + budget_.drafter_cost) / static_cast<double>(rows) : INFINITY;
    }

    // depth: slots that the deepest tree of a call fills.
    void reached(int64_t depth) {
        if (budget_.stops) budget_.deepest = std::max(static_cast<double>(depth), budget_.deepest - FORGET_DEPTH);
    }

    void observe(int64_t rows, int64_t drafted, int64_t emitted) {
        if (!budget_.adapts || !drafted) return;
        const auto count = static_cast<double>(rows);
        add(budget_.gained, budget_.gained_weight, static_cast<double>(emitted), count);
        add(budget_.drafted, budget_.drafted_weight, static_cast<double>(drafted), count);
        budget_.tries = std::max(0.0, budget_.tries - count);
    }

    const DraftBudget& budget() const { return budget_; }

  private:
    static void add(double& sum, double& weight, double total, double count) {
        sum = sum * REMEMBER + total;
        weight = weight * REMEMBER + count;
    }

    bool drafts_pay(double rows) const {
        const double plain = budget_.step_cost + rows;
        const double drafting = plain + budget_.drafter_cost + rows * (budget_.drafted / budget_.drafted_weight);
        return budget_.gained / budget_.gained_weight * plain >= (1.0 + DRAFT_MARGIN) * drafting;
    }

    DraftBudget& budget_;
};

}  // namespace
