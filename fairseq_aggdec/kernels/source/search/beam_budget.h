// Which prefixes are worth evaluating before a beam search asks for them: those whose chance of being needed pays.
//
// A call of the decoder costs as much as some c prefixes, however many it evaluates. Of R sentences with a beam of B each
// call takes the search one step further, which needs about B prefixes per sentence. A prefix that was evaluated ahead
// and is needed then saves its share c / (R B) of a call later; one that is not costs 1. So it is worth its while where
// its chance is at least 1 / (1 + c / (R B)). Chances are learned from what became of the prefixes that were thought of,
// whether they were evaluated or not: that costs the decoder nothing, so what does not pay is watched all the time.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "prefixes.h"

// A mean in which old values count less.
struct Mean {
    double sum, weight;
};

// What is known of all batches of a generator so far; the caller keeps it, and says what is believed at first.
struct BeamBudget {
    double call_cost;   // of a call, in prefixes
    double least_gain;  // how many times its cost a call with a search ahead must save on the mean
    int64_t most;       // prefixes per sentence and call
    int64_t prefixes_count;             // whether prefixes take time beside a call
    int64_t batches, calls;             // begun so far
    Mean text, piece;                   // chances of prefixes, see Why;
    Mean alike[9];                      // by nats behind the best hypothesis (0 to 1, ...)
    Mean gains[64];     // what calls with a search ahead saved as a share of their cost, by size of the batch
};

namespace {

constexpr int64_t LAST_GAP = 8;  // of `alike`: the farthest prefixes are learned together

inline double value(const Mean& mean) { return mean.sum / mean.weight; }

inline void add(Mean& mean, double total, double count, double forget) {
    mean.sum = mean.sum * forget + total;
    mean.weight = mean.weight * forget + count;
}

// What a call may evaluate ahead.
struct Plan {
    int64_t most = 0;                   // prefixes per sentence
    int64_t text = 0, piece = 0;        // tokens of a text at the beginning, and wherever the search stands later
    int64_t alike = -1;                 // nats behind the best hypothesis up to which a prefix is worth it; -1: none is
    double prefix_cost = 0.0;           // what a prefix of each sentence costs, as a share of the call
    bool looks = false, learns = false;  // search ahead; find out what it would bring
};

class Planner {
  public:
    // budget: null where nothing is evaluated ahead.
    Planner(BeamBudget* budget, int64_t beam, int64_t sentences) : budget_(budget), beam_(beam) {
        if (budget_) ++budget_->batches;
        while (sentences >> bits_) ++bits_;
    }

    explicit operator bool() const { return budget_; }

    // Of the next call.
    Plan plan(int64_t sentences) {
        Plan plan;
        if (!budget_) return plan;
        const double share = budget_->call_cost / static_cast<double>(sentences * beam_);
        const double least = 1.0 / (1.0 + share);
        const Mean& gain = budget_->gains[bits_];
        const int64_t alike = farthest(least);
        plan.most = budget_->most;
        plan.looks = alike >= 0 && value(gain) >= budget_->least_gain;
        plan.learns = ++budget_->calls % LEARN_AGAIN == 0 || (alike >= 0 && gain.weight < SURE);
        if (plan.looks || plan.learns) plan.alike = alike;
        // A text has one of the prefixes that a step needs. Without the others it saves no call.
        if (value(gain) >= TEXT_GAIN || plan.learns) {
            plan.piece = copied(least);
            plan.text = value(budget_->text) >= least ? plan.most : plan.piece;
        }
        if (budget_->prefixes_count) plan.prefix_cost = static_cast<double>(sentences) / budget_->call_cost;
        return plan;
    }

    // What became of a prefix that was thought to be needed.
    void observe(Why why, int64_t gap, bool used) {
        add(why == TEXT ? budget_->text : why == PIECE ? budget_->piece : budget_->alike[gap], used, 1.0, FORGET);
    }

    // What a call with a search ahead has saved, and what it cost, in plain calls.
    void gained(double saved, double cost) { add(budget_->gains[bits_], saved, cost, FORGET_GAIN); }

  private:
    // Each call learns until the gain is known, which SURE calls of a sentence tell; later one of LEARN_AGAIN does.
    static constexpr int64_t LEARN_AGAIN = 16;
    static constexpr double SURE = 40.0;
    // Of a search ahead, from which on texts are evaluated. Counted: 0.3 to 0.6 where they saved no call (UA-GEC, batches
    // of 8), 0.9 where they did.
    static constexpr double TEXT_GAIN = 0.75;
    // Weight of everything seen, per new observation.
    static constexpr double FORGET = 0.998, FORGET_GAIN = 0.995;

    // How many tokens of a text are worth it: each is needed if it is a copy, as those before it are.
    int64_t copied(double least) const {
        const double chance = value(budget_->piece);
        if (chance < least) return 0;
        if (chance >= 1.0) return budget_->most;
        return std::min(budget_->most, static_cast<int64_t>(std::log(least) / std::log(chance)));
    }

    int64_t farthest(double least) const {
        int64_t gap = LAST_GAP;
        while (gap >= 0 && value(budget_->alike[gap]) < least) --gap;
        return gap;
    }

    BeamBudget* budget_;
    const int64_t beam_;
    int64_t bits_ = 0;  // of the number of sentences of the batch
};

}  // namespace
