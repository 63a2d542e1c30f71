// Which drafted tokens stand, the verifier's own choices or others among its best, and what the emitted tokens score.
//
// fairseq_aggdec/search/acceptance.py and verification/ do the same in tensors.

#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "../threads.h"
#include "tables.h"

namespace {

constexpr float NEVER = -INFINITY;

// Asks which drafts of whole rows of a window are accepted. Letters: R rows, N places, row after row.
struct VerificationCall {
    int64_t rows;
    const int64_t* widths;  // (R)
    const int64_t* tokens;  // (N), what was read
    const int64_t* above;   // (N), which place each stands behind; null: the one before
    Tables tables;          // of the N places; wanted: of each token the logit where it is drafted
    const uint8_t* stands;  // (N), whether each drafted token is accepted, as Python says; null: by `accept`
    Acceptance accept;
    int64_t pad, eos;
    int64_t *accepted, *emitted;  // (R), out: how many drafted tokens stand, and how many are emitted
    int64_t *places, *gained;     // (N), out: where the emitted tokens come from, and which they are
    float* scores;                // (N), out: their log-probabilities
    int64_t* choices;             // (N), out: the model's own tokens
};

// How the drafted tokens of a place go on: the node behind it to go on with, 0 for none, whether that is the verifier's
// own choice, and how many stand one behind the other from there on.
struct Way {
    int64_t node = 0, length = 0;
    bool chosen = false;
};

class Verification {
  public:
    explicit Verification(const VerificationCall& call) : call_(call) {}

    void run() {
        int64_t first = 0, out = 0;
        const int64_t count = std::accumulate(call_.widths, call_.widths + call_.rows, int64_t{0});
        find_changes(count);
        stands_ = scratch<uint8_t, Scratch::ACCEPTED>(count);
        ways_ = scratch<Way, Scratch::WAYS>(count);
        for (int64_t place = 0; place < count; ++place) call_.choices[place] = call_.tables.row(place).token(0);
        for (int64_t row = 0; row < call_.rows; ++row) {
            const int64_t end = first + call_.widths[row], begin = out;
            for (int64_t place = first; place < end; ++place) mark(first, place, end);
            find_ways(first, end);
            const int64_t accepted = emit(first, end, out);
            call_.emitted[row] = out - begin;
            call_.accepted[row] = call_.accept.trusts ? call_.emitted[row] : accepted;
            first = end;
        }
    }

  private:
    int64_t above(int64_t place) const { return call_.above ? call_.above[place] : place - 1; }

    // Where the changes of each place begin.
    void find_changes(int64_t count) {
        static thread_local std::vector<const Change*> begins;
        begins.clear();
        const Change *change = call_.tables.changes, *end = change + call_.tables.changed;
        for (int64_t place = 0; change != end && place <= count; ++place) {
            begins.push_back(change);
            while (change != end && change->place == place) ++change;
        }
        begins.resize(count + 1, end);
        begins_ = begins.data();
    }

    // Whether the rules force the token of a place.
    bool forced(int64_t place) const {
        return begins_[place] != begins_[place + 1] && (begins_[place + 1] - 1)->value == INFINITY;
    }

    // The logit of a drafted token at the place that it stands behind, as the rules change it.
    float drafted(int64_t node, int64_t place) const {
        const int64_t token = call_.tokens[node];
        if (token == call_.pad) return NEVER;
        float logit = call_.tables.wanted[node];
        for (const Change* one = begins_[place]; one != begins_[place + 1]; ++one)
            if (one->token == token) logit = one->value == NEVER ? NEVER : logit + static_cast<float>(one->value);
        return logit;
    }

    // Whether a drafted token whose logit is given stands for the choice of a place.
    bool near(int64_t place, int64_t token, float logit) const {
        const Acceptance& accept = call_.accept;
        const int64_t choice = call_.choices[place];
        if (!(logit > NEVER)) return false;
        if (choice >= accept.first_number && token >= accept.first_number && std::abs(choice - token) <= accept.epsilon)
            return true;
        const Row row = call_.tables.row(place);
        if (accept.beta <= 1 || !(row.value(0) - logit <= static_cast<float>(accept.tolerance))) return false;
        return !(row.value(row.best - 1) > logit);
    }

    // How many drafted tokens lead to a place, those behind the place of the last committed token.
    int64_t depth(int64_t first, int64_t place) const {
        if (!call_.above) return place - first;
        int64_t count = 0;
        for (; place != first; place = call_.above[place]) ++count;
        return count;
    }

    // Says of each of the nodes behind a place, which are before `end`, whether it stands there. first: of the row.
    void mark(int64_t first, int64_t place, int64_t end) {
        const Acceptance& accept = call_.accept;
        const bool free = !forced(place);
        const bool sure = free && accept.least && depth(first, place) + 1 < accept.least;
        const bool relaxed = free && (accept.beta > 1 || accept.epsilon > 0);
        for (int64_t next = place + 1; next < end; ++next) {
            if (above(next) == place) stands_[next] = call_.stands ? call_.stands[next] : stands(next, place, sure, relaxed);
            if (!call_.above) break;
        }
    }

    bool stands(int64_t node, int64_t place, bool sure, bool relaxed) const {
        const int64_t token = call_.tokens[node];
        if (token == call_.choices[place]) return true;
        if (!sure && !relaxed) return false;
        const float logit = drafted(node, place);
        return (sure && logit > NEVER) || (relaxed && near(place, token, logit));
    }

    // The ways on from the places of a row: where several nodes follow one, the verifier's own choice, else the node from
    // which most others are reached.
    void find_ways(int64_t first, int64_t end) {
        std::fill(ways_ + first, ways_ + end, Way{});
        for (int64_t node = end - 1; node > first; --node) {
            if (!stands_[node]) continue;
            const int64_t parent = above(node), length = ways_[node].length + 1;
            const bool chosen = call_.tokens[node] == call_.choices[parent];
            Way& best = ways_[parent];
            if (chosen > best.chosen || (chosen == best.chosen && length >= best.length)) best = {node, length, chosen};
        }
    }

    // Emits what stands of a row, and the verifier's own token behind it; how many drafted tokens these are.
    int64_t emit(int64_t place, int64_t end, int64_t& out) {
        for (int64_t accepted = 0;;) {
            const bool trusts = call_.accept.trusts;
            const int64_t next = trusts ? (place + 1 < end ? place + 1 : 0) : ways_[place].node;
            const int64_t token = next && !trusts ? call_.tokens[next] : call_.choices[place];
            call_.places[out] = place;
            call_.gained[out] = token;
            call_.scores[out++] = score(place, token, next);
            if (next) ++accepted;
            if (!next || token == call_.eos) return accepted;
            place = next;
        }
    }

    // node: which has the token; 0: none does.
    float score(int64_t place, int64_t token, int64_t node) const {
        const Row row = normalised(place);
        const bool chosen = token == call_.choices[place], is_forced = forced(place);
        float log_prob = row.log_prob(chosen ? row.first() : call_.tables.wanted[node]);
        for (const Change* one = begins_[place]; one != begins_[place + 1]; ++one)
            if (one->token == token && one->value != INFINITY && (is_forced || one->value != NEVER))
                log_prob += static_cast<float>(one->value);
        return log_prob;
    }

    Row normalised(int64_t place) const {
        const Tables& tables = call_.tables;
        const Row row = tables.row(place);
        if (tables.normalised) return row;
        const float* x = tables.logits + place * tables.types;
        // Without changes the first is the largest, unless padding is.
        const bool known = begins_[place] == begins_[place + 1] && x[call_.pad] <= row.value(0);
        aggdec_normalise(x, tables.types, known ? row.numbers : nullptr, row.numbers + 2 * row.best + 1);
        return row;
    }

    const VerificationCall& call_;
    const Change* const* begins_ = nullptr;
    uint8_t* stands_ = nullptr;
    Way* ways_ = nullptr;
};

}  // namespace
