// Which drafted tokens stand where only the verifier's own choices do, and what the emitted tokens score.
//
// fairseq_aggdec/decoding/loop.py and rules.py do the same in PyTorch's operators.

#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "best.h"
#include "threads.h"

using namespace aggdec;

// One of the N places of a window, and a token there.
struct Pair {
    int64_t place, token;
};

// A call. Letters: R rows, N places of their windows, row after row, V types.
struct Judgement {
    int64_t rows, types;
    const int64_t* widths;            // (R)
    const int64_t* tokens;            // (N), what was read
    const int64_t* above;             // (N), which place each stands behind; null: the one before
    float* logits;                    // (N, V), changed meanwhile
    int64_t pad, unk, eos;
    double unk_penalty;
    const Pair *banned, *forced;      // in order of their places
    int64_t banned_count, forced_count;
    int64_t *accepted, *emitted;      // (R), out: how many drafted tokens stand, and how many are emitted
    int64_t *places, *gained;         // (N), out: where the emitted tokens come from, and which they are
    float* scores;                    // (N), out: their log-probabilities
};

namespace {

constexpr float NEVER = -INFINITY;

// The choice of one place: pairs are those of this place and others behind it, and are gone when it was made.
int64_t choose(const Judgement& call, int64_t place, const Pair*& banned, const Pair*& forced) {
    const Pair *banned_end = call.banned + call.banned_count, *forced_end = call.forced + call.forced_count;
    float* x = call.logits + place * call.types;
    const Pair* first = banned;
    while (banned < banned_end && banned->place == place) ++banned;
    int64_t given = -1;
    for (; forced < forced_end && forced->place == place; ++forced) given = forced->token;
    if (given >= 0) return given;
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

// The place behind `place`, before `end`, at which its choice was drafted; 0 where there is none.
int64_t drafted_behind(const Judgement& call, const int64_t* choices, int64_t place, int64_t end) {
    for (int64_t next = place + 1; next < end; ++next) {
        const int64_t above = call.above ? call.above[next] : next - 1;
        if (above == place && call.tokens[next] == choices[place]) return next;
        if (!call.above) break;
    }
    return 0;
}

void judge(const Judgement& call) {
    const Pair *banned = call.banned, *forced = call.forced;
    int64_t first = 0, out = 0;
    const int64_t count = std::accumulate(call.widths, call.widths + call.rows, int64_t{0});
    int64_t* choices = scratch<int64_t, 15>(count);  // the verifier's own
    for (int64_t row = 0; row < call.rows; ++row) {
        const int64_t end = first + call.widths[row], begin = out;
        for (int64_t place = first; place < end; ++place)
            choices[place] = choose(call, place, banned, forced);
        int64_t place = first, stands = 0;
        for (;;) {
            const int64_t choice = choices[place], next = drafted_behind(call, choices, place, end);
            call.places[out] = place;
            call.gained[out] = choice;
            call.scores[out++] = score(call, place, choice);
            if (next) ++stands;
            if (!next || choice == call.eos) break;
            place = next;
        }
        call.accepted[row] = stands;
        call.emitted[row] = out - begin;
        first = end;
    }
}

}  // namespace
