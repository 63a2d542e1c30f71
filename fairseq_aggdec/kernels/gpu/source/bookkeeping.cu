// The bookkeeping of the loop on a GPU, one launch where PyTorch's operators take dozens:
//
//   begin       what the verifier reads: the last token of each row, its draft, their positions
//   slots       what a drafter with mask slots reads, the twin of slot_window in drafters/slot_window.py
//   copy_block  drafts copied from texts, the twin of CopyBoard.block
//   judge       what each position emits, what of a draft is accepted, log-probabilities
//   commit      what of that counts, written to the board
//   beam_step   the candidates of a beam: which end, which go on; the twin of BeamBoard._choose
//
// R rows of the grid, W slots of each, S sentences; sentence S is none and has ended. `room` is T, the columns of the
// tokens on the board.

#include "shared.h"

constexpr Int NO_DRAFT = -1;
// Columns of the board's numbers, see search/board.py.
constexpr int POSITION = 0, BEFORE = 1, ENDED = 2, ROUNDS = 3, END = 4, FLOOR = 5, STRICT_FLOOR = 6, COLUMNS = 7;

// A block for each row.
struct Begin {
    Int blocks, width, room;
    Int ragged;  // rows may have fewer tokens than W - 1, NO_DRAFT behind them
    Int waits;   // nothing is drafted in the first iteration
    const Int *numbers, *tokens, *owners;
    const Int *block;  // (R, W - 1)
    Int *shown, *outputs, *length;  // (R, W), (R, W), (R,)
};

extern "C" __global__ void __launch_bounds__(MOST_THREADS) begin(const Begin p) {
    const Int row = blockIdx.x, owner = p.owners[row], size = p.width - 1;
    const Int* numbers = p.numbers + owner * COLUMNS;
    const Int base = numbers[ENDED] ? 0 : numbers[POSITION];
    const bool idle = numbers[ENDED] || (p.waits && numbers[ROUNDS] == 0);
    const Int* block = p.block + row * size;
    Int length = idle ? 0 : least(numbers[END] - base, size);
    if (p.ragged && size) {
        Int drafted = 0;
        for (Int i = threadIdx.x; i < size; i += blockDim.x) drafted += block[i] != NO_DRAFT;
        length = least(length, joined(drafted, Sum()));
    }
    for (Int slot = threadIdx.x; slot < p.width; slot += blockDim.x) {
        const Int used = least(slot, length);
        p.shown[row * p.width + slot] = used ? block[used - 1] : p.tokens[owner * p.room + base];
        p.outputs[row * p.width + slot] = base + used;
    }
    if (threadIdx.x == 0) p.length[row] = length;
}

// A block for each row.
struct SlotWindow {
    Int blocks, columns, room;
    Int shift, masks, size;  // tokens before the first, mask slots, drafted tokens
    Int causal, pad;
    const Int *numbers, *tokens, *owners;
    Int *given, *places, *seen;  // (R, columns) each
    unsigned char* masked;       // (R, columns)
    Int* picked;                 // (R, size), among all columns
    Int* end;                    // (R,), the last token of each row
};

extern "C" __global__ void __launch_bounds__(MOST_THREADS) slots(const SlotWindow p) {
    const Int row = blockIdx.x, owner = p.owners[row], first = row * p.columns;
    const Int* numbers = p.numbers + owner * COLUMNS;
    const Int base = numbers[ENDED] ? 0 : numbers[POSITION];
    const Int start = p.causal ? least(numbers[BEFORE], base) : 0;
    const Int prefix = base + p.shift - start, last = prefix + p.masks - 1;
    const Int block = p.causal ? last + 1 - p.size : 0;  // from here on all is seen
    for (Int i = threadIdx.x; i < p.columns; i += blockDim.x) {
        const Int used = least(i, last), place = start + used;
        const bool masked = used >= prefix;
        p.given[first + i] = masked ? p.pad : p.tokens[owner * p.room + place + 1 - p.shift];
        p.places[first + i] = place;
        p.seen[first + i] = used >= block ? start + least(p.columns - 1, last) : place;
        p.masked[first + i] = masked;
    }
    for (Int i = threadIdx.x; i < p.size; i += blockDim.x) p.picked[row * p.size + i] = first + last + 1 - p.size + i;
    if (threadIdx.x == 0) p.end[row] = p.tokens[owner * p.room + base];
}

// A block for each row.
struct CopyBlock {
    Int blocks, size, room;
    Int places, nobody;  // L; the sentence of texts that stands for none
    Int match;           // LONGEST, UNIQUE, RECENT or ALIGNED
    const Int *numbers, *tokens, *owners;
    const Int* texts;  // (S + 1, L + 1)
    Int* runs;         // (S + 1, L)
    Int* stands;       // (S + 1, 4): cursor, copied, guessed, count
    Int* block;        // (R, K)
};

enum Match { LONGEST, UNIQUE, RECENT, ALIGNED };

// The runs after `gained` new tokens of an output, of which `position` is the last; returns the longest.
__device__ inline Int follow_runs(const CopyBlock& p, const Int* text, const Int* output, Int* runs, Int position,
                                  Int gained) {
    Int longest = 0;
    // From the last place to the first: a place reads what stood there or at places before it.
    for (Int top = p.places; top > 0; top -= blockDim.x) {
        const Int place = top - 1 - threadIdx.x;
        Int run = 0;
        if (place >= 0) {
            while (run < gained && place >= run && text[place - run] == output[position - run]) ++run;
            if (run == gained && place >= gained) run += runs[place - gained];
        }
        __syncthreads();
        if (place >= 0) runs[place] = run;
        longest = longest < run ? run : longest;
    }
    return joined(longest, Most());
}

// Where the longest suffix of the output that occurs in the text ends, by the rule of `match`; L for nowhere.
__device__ inline Int place_of(const CopyBlock& p, const Int* runs, Int longest, Int copied) {
    const Int nowhere = p.places;
    Int first = nowhere, next = nowhere, count = 0;
    if (longest > 0) {
        for (Int place = threadIdx.x; place < p.places; place += blockDim.x) {
            if (runs[place] != longest) continue;
            first = least(first, place);
            if (place > copied) next = least(next, place);
            ++count;
        }
    }
    first = joined(first, Least());
    if (p.match == LONGEST) return first;
    if (p.match == UNIQUE) return joined(count, Sum()) == 1 ? first : nowhere;
    next = joined(next, Least());
    return next == nowhere ? first : next;
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS) copy_block(const CopyBlock p) {
    const Int row = blockIdx.x, owner = p.owners[row], sentence = least(owner, p.nobody), nowhere = p.places;
    const Int* numbers = p.numbers + owner * COLUMNS;
    const Int *text = p.texts + sentence * (p.places + 1), *output = p.tokens + owner * p.room;
    Int* stands = p.stands + sentence * 4;
    const Int before = numbers[BEFORE], gained = numbers[POSITION] - before;
    const Int count = stands[3];
    Int cursor = stands[0], copied = stands[1], guessed = stands[2];
    // How many of the new tokens are those of the text behind the cursor.
    Int stood = gained;
    for (Int i = threadIdx.x; i < gained; i += blockDim.x) {
        if (text[least(cursor + 1 + i, nowhere)] != output[before + 1 + i]) stood = least(stood, i);
    }
    stood = joined(stood, Least());
    Int longest = 0;
    if (gained > 0) longest = follow_runs(p, text, output, p.runs + sentence * p.places, before + gained, gained);
    if (stood == gained) {
        cursor += gained;
        if (p.match == ALIGNED) guessed = 0;
    } else {
        if (cursor != nowhere) copied = cursor + stood;
        Int place = place_of(p, p.runs + sentence * p.places, longest, copied);
        if (p.match == ALIGNED) {
            const Int replaced = guessed && copied == cursor ? cursor : copied + 1;
            guessed = place == nowhere && cursor != nowhere && replaced + 1 < count;
            if (guessed) place = replaced;
        }
        cursor = place;
    }
    Int most = p.size;  // tokens before the first that is none
    for (Int i = threadIdx.x; i < p.size; i += blockDim.x) {
        if (text[least(cursor + 1 + i, nowhere)] == NO_DRAFT) most = least(most, i);
    }
    most = joined(most, Least());
    for (Int i = threadIdx.x; i < p.size; i += blockDim.x) {
        p.block[row * p.size + i] = i < most ? text[least(cursor + 1 + i, nowhere)] : NO_DRAFT;
    }
    if (threadIdx.x == 0) {
        stands[0] = cursor;
        stands[1] = copied;
        stands[2] = guessed;
    }
}

// Of `judge`, with a block for each position, and of `commit`, with one for each row.
struct Judgement {
    Int blocks, width, room;
    Int types, prefix;   // V, P
    Int pad, unk, eos;
    double unk_penalty;
    Int free_end;
    Int beta;  // 0: only the own choice is accepted
    double tolerance;
    const Int *owners, *forced;  // (R,), (S + 1, P + 1)
    const float* logits;         // (R W, V)
    const Int *shown, *outputs;  // (R, W) each
    const Int* length;           // (R,), or none: nothing was drafted
    Int *chosen, *accepted;      // (R, W) each, from judge to commit
    float* said;                 // (R, W), log-probabilities
    Int *numbers, *tokens;
    float* scores;  // each has room for 8 bytes
    Int *emitted, *drafted, *stood, *flags;
    const unsigned short* features;  // (R W, C) in units of 2 bytes, or none
    unsigned short* kept;            // (S + 1, C)
    Int units;                       // C in units of 2 bytes
};

// What a thread has seen of the logits of a position.
struct Seen {
    float best;   // of what may be chosen
    int at;       // its token
    float most;   // of all
    float sum;    // of exp(logit - most)
    int ahead;    // tokens that may be chosen and are likelier than the drafted one
};

// Whether a logit is larger than another, or as large and the first: NaN is the largest, as in Tensor.max.
__device__ inline bool goes_before(float a, int at, float b, int other) {
    if (a != a) return b == b || at < other;
    return a > b || (a == b && at < other);
}

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

// The rules of one position.
struct Ruled {
    Int pad, unk, banned;
    float unk_penalty;

    __device__ float operator()(float logit, Int token) const {
        if (token == pad || token == banned) return -INFINITY;
        return token == unk ? logit - unk_penalty : logit;
    }
};

__device__ inline void commit_row(const Judgement& p, Int row) {
    const Int owner = p.owners[row], nowhere = p.room - 1;
    Int* numbers = p.numbers + owner * COLUMNS;
    const Int position = numbers[POSITION], rounds = numbers[ROUNDS];
    const bool over = numbers[ENDED] != 0;
    const Int *chosen = p.chosen + row * p.width, *accepted = p.accepted + row * p.width;
    Int stood = p.width, end = p.width;  // the first that is not accepted, the first </s>
    if (!over) {
        for (Int slot = threadIdx.x; slot < p.width; slot += blockDim.x) {
            if (!accepted[slot]) stood = least(stood, slot);
            if (chosen[slot] == p.eos) end = least(end, slot);
        }
    }
    stood = joined(stood, Least());
    end = joined(end, Least());
    const Int count = over ? 0 : least(least(stood, end), p.width - 1) + 1;
    for (Int slot = threadIdx.x; slot < count; slot += blockDim.x) {
        const Int at = owner * p.room + least(position + 1 + slot, nowhere);
        p.tokens[at] = chosen[slot];
        p.scores[2 * at] = p.said[row * p.width + slot];
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

extern "C" __global__ void __launch_bounds__(MOST_THREADS) commit(const Judgement p) { commit_row(p, blockIdx.x); }

extern "C" __global__ void __launch_bounds__(MOST_THREADS) judge(const Judgement p) {
    const Int place = blockIdx.x, row = place / p.width, slot = place - row * p.width, owner = p.owners[row];
    const Int* numbers = p.numbers + owner * COLUMNS;
    if (numbers[ENDED]) {  // launched in vain
        if (p.width == 1) commit_row(p, row);
        return;
    }
    const float* logits = p.logits + place * p.types;
    const Int output = p.outputs[place];
    const Int token = p.length && slot < p.length[row] ? p.shown[place + 1] : NO_DRAFT;
    const Int given = output >= numbers[END] ? p.eos : p.forced[owner * (p.prefix + 1) + least(output, p.prefix)];
    const bool no_end = output < numbers[STRICT_FLOOR] || (output >= p.prefix && output < numbers[FLOOR]);
    const Ruled ruled{p.pad, p.unk_penalty != 0 ? p.unk : -1, no_end ? p.eos : -1, (float)p.unk_penalty};
    const float own = token == NO_DRAFT ? -INFINITY : ruled(logits[token], token);
    Seen seen{-INFINITY, (int)p.types, -INFINITY, 0, 0};
    for (Int i = threadIdx.x; i < p.types; i += blockDim.x) {
        const float logit = logits[i], x = ruled(logit, i);
        if (goes_before(x, (int)i, seen.best, seen.at)) {
            seen.best = x;
            seen.at = (int)i;
        }
        seen.ahead += x > own;
        if (logit > seen.most) {
            seen.sum *= expf(seen.most - logit);
            seen.most = logit;
        }
        if (logit != -INFINITY) seen.sum += expf(logit - seen.most);
    }
    seen = joined(seen, JoinSeen());
    if (threadIdx.x == 0) {
        const Int choice = given != p.pad ? given : seen.at;
        bool stands = token == choice;
        if (given == p.pad && p.beta > 1 && own > -INFINITY) {
            stands = stands || (seen.ahead < p.beta && seen.best - own <= (float)p.tolerance);
        }
        const Int emitted = stands ? token : choice;
        float score = logits[emitted] - seen.most - logf(seen.sum);
        if (p.unk_penalty != 0 && emitted == p.unk) score -= (float)p.unk_penalty;
        if (p.free_end && output >= numbers[END]) score = 0;
        p.chosen[place] = emitted;
        p.accepted[place] = stands;
        p.said[place] = score;
    }
    if (p.width == 1) commit_row(p, row);  // where thread 0 alone reads what it has written
}

constexpr int MOST_BEAM = 32;

// A block for each row: a sentence of W hypotheses, each with K continuations, of which the last is </s>. The board is
// that of search/beam/board.py.
struct BeamStep {
    Int blocks, width, each, eos, pad, prefix;
    Int length, places, end;  // T; places of a mask, of which `end` count
    Int bytes, room;          // of a number of a mask; columns of `written`, 0 where there is none
    const Int* clock;
    const float* values;  // (R, W, K - 1)
    const Int* tokens;    // (R, W, K - 1)
    const float* ends;    // (R, W), of </s>
    const Int* forced;    // (R, 1), or none
    const Int* lengths;   // of the sources where outputs must match them, or none
    Int* last;                  // (R, W), the tokens of the hypotheses
    double* sums;
    Int *rounds, *count, *flags, *words, *parents;
    double* totals;
    Int* nodes;
    double* finished;
    void* sight;
    Int* written;
};

// What a continuation adds to its hypothesis.
__device__ inline float gain_of(const BeamStep& p, Int row, Int continuation) {
    const Int slot = row * p.width + continuation / p.each, at = continuation % p.each, others = p.each - 1;
    const Int depth = p.clock[0], limit = p.clock[1], floor = p.clock[2];
    if (at < others) return depth < limit ? p.values[slot * others + at] : -INFINITY;
    if (p.lengths) return depth >= p.lengths[row] ? 0 : -INFINITY;
    const Int given = p.forced ? p.forced[row] : p.pad;
    const bool banned = (given != p.pad && given != p.eos) || (depth < floor && depth >= p.prefix);
    return banned ? -INFINITY : p.ends[slot];
}

// Column by column: what hypothesis i has there becomes what its parent had. So no thread reads what another writes.
template <typename Number>
__device__ void follow_parents(Number* rows, const Int* parents, Int width, Int stride, Int columns) {
    Number column[MOST_BEAM];
    for (Int at = threadIdx.x; at < columns; at += blockDim.x) {
        for (Int i = 0; i < width; ++i) column[i] = rows[parents[i] * stride + at];
        for (Int i = 0; i < width; ++i) rows[i * stride + at] = column[i];
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS) beam_step(const BeamStep p) {
    __shared__ double scores[MOST_BEAM * (MOST_BEAM + 1)];
    __shared__ Int ranked[2 * MOST_BEAM], parents[MOST_BEAM], words[MOST_BEAM];
    const Int row = blockIdx.x, width = p.width, size = width * p.each, first = row * width, depth = p.clock[0];
    double* sums = p.sums + first;
    for (Int i = threadIdx.x; i < size; i += blockDim.x) {
        const double sum = sums[i / p.each], score = sum + (double)gain_of(p, row, i);
        scores[i] = sum > -INFINITY && score > -INFINITY ? score : -INFINITY;  // no NaN: that has no rank
    }
    __syncthreads();
    for (Int i = threadIdx.x; i < size; i += blockDim.x) {
        Int rank = 0;
        for (Int j = 0; j < size; ++j) rank += scores[j] > scores[i] || (scores[j] == scores[i] && j < i);
        if (rank < 2 * width) ranked[rank] = i;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool copies = p.forced && p.forced[row] == p.eos, active = sums[0] > -INFINITY;
        bool broken = false;
        for (Int slot = 0; slot < width; ++slot) broken = broken || (sums[slot] > -INFINITY && p.ends[first + slot] != p.ends[first + slot]);
        Int count = p.count[row], going_on = 0;
        double left[MOST_BEAM];
        for (Int rank = 0; rank < 2 * width; ++rank) {
            const Int at = ranked[copies ? 0 : rank], parent = at / p.each, others = p.each - 1;
            const bool ends = at % p.each == others;
            if (!ends && going_on < width) {
                words[going_on] = p.tokens[(first + parent) * others + at % p.each];
                parents[going_on] = parent;
                left[going_on++] = scores[at];
            } else if (ends && rank < width && count < width && scores[at] > -INFINITY) {
                ++count;
                p.nodes[row * (width + 1) + count] = depth * width + parent;
                p.finished[row * (width + 1) + count] = scores[at];
            }
        }
        for (; going_on < width; ++going_on) {
            words[going_on] = p.eos;
            parents[going_on] = 0;
            left[going_on] = -INFINITY;
        }
        const bool on = count < width && left[0] > -INFINITY && !broken;
        p.count[row] = broken ? -1 : count;
        p.rounds[row] += active;
        p.flags[row] = on ? p.rounds[row] : ~p.rounds[row];
        for (Int slot = 0; slot < width; ++slot) {
            const Int at = (row * p.length + depth) * width + slot;
            p.last[first + slot] = p.words[at] = words[slot];
            p.parents[at] = parents[slot];
            sums[slot] = p.totals[at] = on ? left[slot] : -INFINITY;
        }
    }
    __syncthreads();
    const Int mask = first * p.places;
    if (p.bytes == 2) {
        follow_parents((unsigned short*)p.sight + mask, parents, width, p.places, p.end);
    } else {
        follow_parents((unsigned*)p.sight + mask, parents, width, p.places, p.end);
    }
    if (!p.room) return;
    Int* written = p.written + first * p.room;
    follow_parents(written, parents, width, p.room, depth + 1);
    for (Int slot = threadIdx.x; slot < width; slot += blockDim.x) written[slot * p.room + depth + 1] = words[slot];
}
