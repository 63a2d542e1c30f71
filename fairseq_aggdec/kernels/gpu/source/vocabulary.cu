// What the bookkeeping of the loop on a GPU finds in the logits of a vocabulary, in the precision that they have:
//
//   ban      tokens that would repeat an n-gram are hidden
//   look     what each part of a position's logits comes to
//   verify   what each position emits, what of a draft is accepted, log-probabilities; what of that counts is written
//            to the board
//   largest  the likeliest token of each position
//
// R rows of the grid, W slots of each, S sentences; sentence S is none and has ended. `room` is T, the columns of the
// tokens on the board. A position's V logits are read in P parts, by as many blocks: few positions have many parts.

#pragma once

#include "shared.h"

constexpr int MOST_VERDICTS = 128, MOST_PLACES = 4096;

// What has been seen of the logits of a position.
struct Seen {
    float best;  // of those that no rule changes
    int at;      // its token
    float most;  // of all
    float sum;   // of exp(logit - most)
    int ahead;   // tokens that no rule changes and that are likelier than the drafted one
};

// Of `look`, with a block for each part of a position, of `ban`, with one for each position, and of `verify`, with one for
// each row.
struct VerificationCall {
    Int blocks, width, room, parts;
    Int types, prefix;  // V, the length of the forced prefixes
    Int precision;      // of the logits
    Int pad, unk, eos;
    double unk_penalty;
    Int free_end;
    Int ngram;  // n-grams of this size occur once, 0: any number of times
    Int sure;   // so many tokens are gained at least, if drafted; -1: nobody verifies, all that is chosen stands
    Int beta;   // 0: only the verifier's choice is accepted
    double tolerance;
    const Int *owners, *forced;   // (R,), (S + 1, prefix + 1)
    void* logits;                 // (R W, V)
    const Int *window_tokens, *outputs;  // (R, W) each
    const Int* length;            // (R,), or none: nothing was drafted
    Seen* seen;                   // (R W, P), from look to verify
    Seen* hidden;                 // (R W,), from ban to verify, or none
    Int *numbers, *tokens;
    float* scores;  // each has room for 8 bytes
    Int *emitted, *drafted, *stood, *flags;
    const unsigned short* features;  // (R W, C) in units of 2 bytes, or none
    unsigned short* kept;            // (S + 1, C)
    Int units;                       // C in units of 2 bytes
};

__device__ inline Seen nothing_seen(Int types) { return {-INFINITY, (int)types, -INFINITY, 0, 0}; }

struct JoinSeen {
    __device__ Seen operator()(Seen a, const Seen& b) const {
        if (goes_before(b.best, b.at, a.best, a.at)) {
            a.best = b.best;
            a.at = b.at;
        }
        a.ahead += b.ahead;
        if (b.sum != 0) {  // else nothing but -inf was seen
            const float most = a.most < b.most ? b.most : a.most;
            a.sum = b.sum * expf(b.most - most) + (a.sum == 0 ? 0 : a.sum * expf(a.most - most));
            a.most = most;
        }
        return a;
    }
};

__device__ inline Int drafted_behind(const VerificationCall& p, Int place, Int row) {
    return p.length && p.sure >= 0 && place - row * p.width < p.length[row] ? p.window_tokens[place + 1] : NO_DRAFT;
}

// Adds the logits of a group to what was seen; drafted_logit: of the drafted token, or more than any.
__device__ inline void look_at(Seen& seen, const Row& logits, Int group, float drafted_logit, Int pad, Int unk, Int eos) {
    float x[8];
    const int first = (int)logits.read(group, x);
    add_exponentials(x, seen.most, seen.sum);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int token = first + i;
        if (x[i] <= seen.best && x[i] <= drafted_logit) continue;
        if (token == pad || token == unk || token == eos) continue;
        seen.ahead += x[i] > drafted_logit;
        if (goes_before(x[i], token, seen.best, seen.at)) {
            seen.best = x[i];
            seen.at = token;
        }
    }
}

#ifndef PARTS_ONLY  // logits.cu takes what is above
// The only token that may be written at an output index, padding where there is none.
__device__ inline Int forced_at(const VerificationCall& p, Int owner, Int output) {
    const bool over = output >= p.numbers[owner * COLUMNS + END];
    return over ? p.eos : p.forced[owner * (p.prefix + 1) + least(output, p.prefix)];
}

// What a row's output begins with, its draft included.
struct Output {
    const Int *tokens, *window_tokens;
    Int base;  // the index of the first token of the window

    __device__ Int operator[](Int i) const { return i < base ? tokens[i] : window_tokens[i - base]; }
};

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(FEWER_THREADS) ban(const VerificationCall p) {
    __shared__ unsigned char same[MOST_PLACES];
    wait_for_earlier_kernels();
    const Int place = blockIdx.x, row = blockIdx.x / (unsigned)p.width, owner = p.owners[row], last = p.outputs[place];
    Seen hidden = nothing_seen(p.types);
    if (!p.numbers[owner * COLUMNS + ENDED] && forced_at(p, owner, last) == p.pad) {
        const Row logits(p.logits, p.precision, place, p.types);
        const Output output{p.tokens + owner * p.room, p.window_tokens + row * p.width, p.outputs[row * p.width]};
        // Where the tokens before the next one have been before.
        for (Int i = threadIdx.x; i < last; i += blockDim.x) {
            bool alike = i >= p.ngram - 2;
            for (Int back = 0; alike && back < p.ngram - 1; ++back) alike = output[i - back] == output[last - back];
            same[i] = alike;
        }
        __syncthreads();
        for (Int i = threadIdx.x; i < last; i += blockDim.x) {
            const Int token = output[i + 1];
            bool first = same[i] && token != p.pad;
            for (Int j = 0; first && j < i; ++j) first = !same[j] || output[j + 1] != token;
            if (!first) continue;
            const float x = logits[token];
            hidden = JoinSeen()(hidden, Seen{-INFINITY, (int)p.types, x, x == -INFINITY ? 0.0f : 1.0f, 0});
            const Int at = place * p.types + token;
            if (p.precision == IN_FP32) ((float*)p.logits)[at] = -INFINITY;
            else ((unsigned short*)p.logits)[at] = p.precision == IN_FP16 ? 0xfc00 : 0xff80;  // -inf
        }
    }
    hidden = joined(hidden, JoinSeen());
    if (threadIdx.x == 0) p.hidden[place] = hidden;
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(FEWER_THREADS) look(const VerificationCall p) {
    wait_for_earlier_kernels();
    const unsigned parts = (unsigned)p.parts, place = blockIdx.x / parts, part = blockIdx.x % parts;
    const unsigned row = place / (unsigned)p.width;
    // To ask takes as long as to read what few positions have.
    if (parts == 1 && p.numbers[p.owners[row] * COLUMNS + ENDED]) return;
    const Row logits(p.logits, p.precision, place, p.types);
    float drafted_logit = INFINITY;
    if (p.beta > 1) {
        const Int token = drafted_behind(p, place, row);
        if (token != NO_DRAFT) drafted_logit = logits[token] - (token == p.unk ? (float)p.unk_penalty : 0);
    }
    Seen seen = nothing_seen(p.types);
    const unsigned groups = (unsigned)logits.groups(), each = (groups + parts - 1) / parts;
    const Int end = least(groups, (part + 1) * each);
    for (Int group = (Int)part * each + threadIdx.x; group < end; group += blockDim.x) {
        look_at(seen, logits, group, drafted_logit, p.pad, p.unk, p.eos);
    }
    seen = joined(seen, JoinSeen());
    if (threadIdx.x == 0) p.seen[blockIdx.x] = seen;
}

// What the positions of a row come to.
struct Verdict {
    Int chosen[MOST_VERDICTS];
    bool accepted[MOST_VERDICTS];
    float said[MOST_VERDICTS];  // log-probabilities
};

__device__ inline void decide(const VerificationCall& p, Int row, Int slot, Verdict& verdict) {
    const Int place = row * p.width + slot, owner = p.owners[row];
    const Int* numbers = p.numbers + owner * COLUMNS;
    const Row logits(p.logits, p.precision, place, p.types);
    Seen seen = nothing_seen(p.types);
    for (Int part = threadIdx.x % LANES; part < p.parts; part += LANES) seen = JoinSeen()(seen, p.seen[place * p.parts + part]);
    seen = joined_lanes(seen, JoinSeen());
    if (threadIdx.x % LANES != 0) return;
    if (p.hidden) seen = JoinSeen()(seen, p.hidden[place]);
    const Int output = p.outputs[place], token = drafted_behind(p, place, row), forced = forced_at(p, owner, output);
    const bool no_end = output < numbers[STRICT_FLOOR] || (output >= p.prefix && output < numbers[FLOOR]);
    const float penalty = (float)p.unk_penalty;
    // What the rules make of some tokens.
    const float unknown = logits[p.unk] - penalty, end = no_end ? -INFINITY : logits[p.eos];
    float drafted_logit = token == NO_DRAFT || token == p.pad ? -INFINITY : logits[token];
    if (token == p.unk) drafted_logit = unknown;
    if (token == p.eos) drafted_logit = end;
    seen = JoinSeen()(seen, Seen{unknown, (int)p.unk, 0, 0, unknown > drafted_logit});
    seen = JoinSeen()(seen, Seen{end, (int)p.eos, 0, 0, end > drafted_logit});
    // Where nothing may be chosen, all are as likely.
    const Int choice = forced != p.pad ? forced : seen.best == -INFINITY ? 0 : seen.at;
    bool stands = token == choice;
    if (forced == p.pad && drafted_logit > -INFINITY) {
        const bool near = p.beta > 1 && seen.ahead < p.beta && seen.best - drafted_logit <= (float)p.tolerance;
        stands = stands || near || slot + 1 < p.sure;
    }
    const Int emitted = stands ? token : choice;
    const bool known = emitted == seen.at && emitted != p.unk && seen.best > -INFINITY;
    float score = (known ? seen.best : logits[emitted]) - seen.most - logf(seen.sum);
    if (emitted == p.unk && penalty != 0) score -= penalty;
    if (p.free_end && output >= numbers[END]) score = 0;
    verdict.chosen[slot] = emitted;
    verdict.accepted[slot] = stands || p.sure < 0;
    verdict.said[slot] = score;
}

__device__ inline void commit(const VerificationCall& p, Int row, bool over, const Verdict& verdict) {
    const Int owner = p.owners[row], nowhere = p.room - 1;
    Int* numbers = p.numbers + owner * COLUMNS;
    const Int position = numbers[POSITION], rounds = numbers[ROUNDS];
    Int stood = p.width, end = p.width;  // the first that is not accepted, the first </s>
    if (!over) {
        for (Int slot = threadIdx.x; slot < p.width; slot += blockDim.x) {
            if (!verdict.accepted[slot]) stood = least(stood, slot);
            if (verdict.chosen[slot] == p.eos) end = least(end, slot);
        }
    }
    stood = joined(stood, Least());
    end = joined(end, Least());
    const Int count = over ? 0 : least(least(stood, end), p.width - 1) + 1;
    for (Int slot = threadIdx.x; slot < count; slot += blockDim.x) {
        const Int at = owner * p.room + least(position + 1 + slot, nowhere);
        p.tokens[at] = verdict.chosen[slot];
        p.scores[2 * at] = verdict.said[slot];
    }
    if (p.features && !over) {
        const Int from = row * p.width + least(stood, p.width - 1);
        for (Int i = threadIdx.x; i < p.units; i += blockDim.x) p.kept[owner * p.units + i] = p.features[from * p.units + i];
    }
    if (threadIdx.x != 0) return;
    const Int turn = owner * p.room + least(rounds, nowhere);
    if (!over) {
        p.emitted[turn] = count;
        if (p.length) {
            p.drafted[turn] = p.length[row];
            p.stood[turn] = least(stood, count);
        }
    }
    const bool ended = over || end < count;
    // Rows without a sentence all write the numbers that are there.
    numbers[BEFORE] = position;
    numbers[POSITION] = position + count;
    numbers[ENDED] = ended;
    numbers[ROUNDS] = rounds + !over;
    p.flags[row] = ended ? ~(position + count) : position + count;
}

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(FEWER_THREADS, 1) verify(const VerificationCall p) {
    __shared__ Verdict verdict;
    wait_for_earlier_kernels();
    const Int row = blockIdx.x;
    const bool over = p.numbers[p.owners[row] * COLUMNS + ENDED] != 0;  // else launched in vain
    if (!over) {  // a warp decides about a position
        for (Int slot = threadIdx.x / LANES; slot < p.width; slot += blockDim.x / LANES) decide(p, row, slot, verdict);
    }
    __syncthreads();
    commit(p, row, over, verdict);
}

// A block for each position.
struct Largest {
    Int blocks, types, precision;
    const void* logits;  // (N, V)
    Int* tokens;         // (N,)
};

struct Leader {
    float best;
    int at;
};

struct JoinLeaders {
    __device__ Leader operator()(const Leader& a, const Leader& b) const { return goes_before(b.best, b.at, a.best, a.at) ? b : a; }
};

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) largest(const Largest p) {
    wait_for_earlier_kernels();
    const Row logits(p.logits, p.precision, blockIdx.x, p.types);
    Leader leader{-INFINITY, (int)p.types};
    for (Int group = threadIdx.x; group < logits.groups(); group += blockDim.x) {
        float x[8];
        const int first = (int)logits.read(group, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (!(x[i] <= leader.best)) leader = JoinLeaders()(leader, Leader{x[i], first + i});
        }
    }
    leader = joined(leader, JoinLeaders());
    // Of nothing but -inf the first.
    if (threadIdx.x == 0) p.tokens[blockIdx.x] = leader.best == -INFINITY ? 0 : leader.at;
}
#endif
