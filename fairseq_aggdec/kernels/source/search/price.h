// What calls cost: of the verifier by the places of its window, of a drafter by its slots. In any one unit.
//
// fairseq_aggdec/budget/price.py is the same in Python.

#pragma once

#include <cstdint>

// Costs between two points are on the line through them, and so are those before the first and behind the last two.
struct CallPrice {
    int64_t count;                // points, at least 2
    double places[6], costs[6];   // rising places of a window, and what a call of the verifier costs
    double draft, slot;           // a call of the drafter, and each slot of each row in it
};

namespace {

inline double call_cost(const CallPrice& price, double places) {
    int64_t i = 0;
    while (i + 2 < price.count && price.places[i + 1] < places) ++i;
    const double slope = (price.costs[i + 1] - price.costs[i]) / (price.places[i + 1] - price.places[i]);
    return price.costs[i] + slope * (places - price.places[i]);
}

// Of an iteration that drafts `nodes` tokens for each of `rows` sentences from `slots` slots.
inline double draft_cost(const CallPrice& price, double rows, double nodes, double slots) {
    return call_cost(price, rows * (1.0 + nodes)) + price.draft + price.slot * rows * slots;
}

}  // namespace
