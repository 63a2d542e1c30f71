// Which drafted tokens stand, the verifier's own choices or others among its best, and what the emitted tokens score.
//
// fairseq_aggdec/search/acceptance.py and rules.py do the same in PyTorch's operators.

#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "best.h"
#include "structs.h"
#include "threads.h"

using namespace aggdec;

namespace {

constexpr float NEVER = -INFINITY;

// How the drafted tokens of a place go on: the node behind it to go on with, 0 for none, whether that is the verifier's
// own choice, and how many stand one behind the other from there on.
struct Way {
    int64_t node = 0, length = 0;
    bool own = false;
};

int64_t above(const Judgement& call, int64_t place) { return call.above ? call.above[place] : place - 1; }

// Whether a token stands for a choice by the logits of a place, -inf for tokens that must not be written.
bool near(const Judgement& call, const float* x, int64_t choice, int64_t token) {
    const Acceptance& accept = call.accept;
    const float own = x[token];
    if (!(own > NEVER)) return false;
    if (choice >= accept.first_number && token >= accept.first_number && std::abs(choice - token) <= accept.epsilon)
        return true;
    if (accept.beta <= 1 || !(x[choice] - own <= static_cast<float>(accept.tolerance))) return false;
    int64_t better = 0;
    for (int64_t type = 0; type < call.types; ++type) better += x[type] > own;
    return better < accept.beta;
}

// How many drafted tokens lead to a place, those behind the place of the last committed token.
int64_t depth(const Judgement& call, int64_t first, int64_t place) {
    if (!call.above) return place - first;
    int64_t count = 0;
    for (; place != first; place = call.above[place]) ++count;
    return count;
}

// Says of each of the nodes behind a place, which are before `end`, whether it stands there. first: of the row; x: null
// where the choice is forced.
void mark(const Judgement& call, const float* x, int64_t first, int64_t place, int64_t end, int64_t choice,
          uint8_t* stands) {
    const Acceptance& accept = call.accept;
    const bool sure = x && accept.least && depth(call, first, place) + 1 < accept.least;
    const bool relaxed = x && (accept.beta > 1 || accept.epsilon > 0);
    for (int64_t next = place + 1; next < end; ++next) {
        const int64_t token = call.tokens[next];
        if (above(call, next) == place)
            stands[next] = call.stands ? call.stands[next]
                                       : token == choice || (sure && x[token] > NEVER) ||
                                             (relaxed && near(call, x, choice, token));
        if (!call.above) break;
    }
}

// The choice of one place, and which nodes behind it stand: pairs are those of this place and others behind it, and are
// gone when it was made.
int64_t choose(const Judgement& call, int64_t row, int64_t place, int64_t end, const Pair*& banned, const Pair*& forced,
               uint8_t* stands) {
    const Pair *banned_end = call.banned + call.banned_count, *forced_end = call.forced + call.forced_count;
    float* x = call.logits + place * call.types;
    const Pair* first = banned;
    while (banned < banned_end && banned->place == place) ++banned;
    int64_t given = -1;
    for (; forced < forced_end && forced->place == place; ++forced) given = forced->token;
    if (given >= 0) {
        mark(call, nullptr, row, place, end, given, stands);
        return given;
    }
    const float pad = x[call.pad], unk = x[call.unk];
    x[call.pad] = NEVER;
    if (call.unk_penalty != 0.0) x[call.unk] = unk - static_cast<float>(call.unk_penalty);
    thread_local std::vector<float> kept;
    kept.clear();
    for (const Pair* pair = first; pair < banned; ++pair) {
        kept.push_back(x[pair->token]);
        x[pair->token] = NEVER;
    }
    const int64_t choice = first_largest(x, call.types);
    mark(call, x, row, place, end, choice, stands);
    // In reverse: a token may be banned twice.
    for (size_t i = kept.size(); i-- > 0;) x[first[i].token] = kept[i];
    if (call.unk_penalty != 0.0) x[call.unk] = unk;
    x[call.pad] = pad;
    return choice;
}

float score(const Judgement& call, int64_t place, int64_t token) {
    const float* x = call.logits + place * call.types;
    const Normaliser norm = normaliser(x, call.types);
    const float own = x[token] - norm.best - norm.log_sum;
    const bool penalised = call.unk_penalty != 0.0 && token == call.unk;
    return penalised ? own - static_cast<float>(call.unk_penalty) : own;
}

// The ways on from the places of a row: where several nodes follow one, the verifier's own choice, else the node from
// which most others are reached.
void find_ways(const Judgement& call, const int64_t* choices, const uint8_t* stands, int64_t first, int64_t end, Way* ways) {
    std::fill(ways + first, ways + end, Way{});
    for (int64_t node = end - 1; node > first; --node) {
        if (!stands[node]) continue;
        const int64_t parent = above(call, node), length = ways[node].length + 1;
        const bool own = call.tokens[node] == choices[parent];
        Way& best = ways[parent];
        if (own > best.own || (own == best.own && length >= best.length)) best = {node, length, own};
    }
}

void judge(const Judgement& call) {
    const Pair *banned = call.banned, *forced = call.forced;
    int64_t first = 0, out = 0;
    const int64_t count = std::accumulate(call.widths, call.widths + call.rows, int64_t{0});
    int64_t* choices = call.choices;
    uint8_t* stands = scratch<uint8_t, Scratch::ACCEPTED>(count);
    Way* ways = scratch<Way, Scratch::WAYS>(count);
    for (int64_t row = 0; row < call.rows; ++row) {
        const int64_t end = first + call.widths[row], begin = out;
        for (int64_t place = first; place < end; ++place)
            choices[place] = choose(call, first, place, end, banned, forced, stands);
        find_ways(call, choices, stands, first, end, ways);
        int64_t place = first, accepted = 0;
        for (;;) {
            const bool alone = call.accept.alone;
            const int64_t next = alone ? (place + 1 < end ? place + 1 : 0) : ways[place].node;
            const int64_t token = next && !alone ? call.tokens[next] : choices[place];
            call.places[out] = place;
            call.gained[out] = token;
            call.scores[out++] = score(call, place, token);
            if (next) ++accepted;
            if (!next || token == call.eos) break;
            place = next;
        }
        call.emitted[row] = out - begin;
        call.accepted[row] = call.accept.alone ? call.emitted[row] : accepted;
        first = end;
    }
}

}  // namespace
