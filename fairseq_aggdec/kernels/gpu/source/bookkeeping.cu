// The bookkeeping of the loop on a GPU, one launch where PyTorch's operators take dozens:
//
//   begin       what the verifier reads: the last token of each row, its draft, their positions
//   slots       what a drafter with mask slots reads, the twin of slot_window in drafters/slot_window.py
//   copy_block  drafts copied from texts, the twin of CopyBoard.block
//
// R rows of the grid, W slots of each, S sentences; sentence S is none and has ended. `room` is T, the columns of the
// tokens on the board. What ends an iteration is in vocabulary.cu.

#include "shared.h"

// A block for each row.
struct Begin {
    Int blocks, width, room;
    Int ragged;  // rows may have fewer tokens than W - 1, NO_DRAFT behind them
    Int waits;   // nothing is drafted in the first iteration
    const Int *numbers, *tokens, *owners;
    const Int *block;  // (R, W - 1)
    Int *window_tokens, *outputs, *length;  // (R, W), (R, W), (R,)
};

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) begin(const Begin p) {
    wait_for_earlier_kernels();
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
        p.window_tokens[row * p.width + slot] = used ? block[used - 1] : p.tokens[owner * p.room + base];
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
    Int *window_tokens, *places, *seen;  // (R, columns) each
    unsigned char* masked;               // (R, columns)
    Int* picked;                         // (R, size), among all columns
    Int* last;                           // (R,), the last token of each row
};

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) slots(const SlotWindow p) {
    wait_for_earlier_kernels();
    const Int row = blockIdx.x, owner = p.owners[row], first = row * p.columns;
    const Int* numbers = p.numbers + owner * COLUMNS;
    const Int base = numbers[ENDED] ? 0 : numbers[POSITION];
    const Int start = p.causal ? least(numbers[BEFORE], base) : 0;
    const Int prefix = base + p.shift - start, furthest = prefix + p.masks - 1;
    const Int block = p.causal ? furthest + 1 - p.size : 0;  // from here on all is seen
    for (Int i = threadIdx.x; i < p.columns; i += blockDim.x) {
        const Int used = least(i, furthest), place = start + used;
        const bool masked = used >= prefix;
        p.window_tokens[first + i] = masked ? p.pad : p.tokens[owner * p.room + place + 1 - p.shift];
        p.places[first + i] = place;
        p.seen[first + i] = used >= block ? start + least(p.columns - 1, furthest) : place;
        p.masked[first + i] = masked;
    }
    for (Int i = threadIdx.x; i < p.size; i += blockDim.x) p.picked[row * p.size + i] = first + furthest + 1 - p.size + i;
    if (threadIdx.x == 0) p.last[row] = p.tokens[owner * p.room + base];
}

// A block for each row.
struct CopyBlock {
    Int blocks, size, room;
    Int places, nobody;  // L; the sentence of texts that stands for none
    Int match;           // UNIQUE, LONGEST, RECENT or ALIGNED
    const Int *numbers, *tokens, *owners;
    const Int* texts;  // (S + 1, L + 1)
    Int* runs;         // (S + 1, L)
    Int* stands;       // (S + 1, 4): cursor, copied, guessed, count
    Int* block;        // (R, K)
};

enum Match { UNIQUE, LONGEST, RECENT, ALIGNED };  // as copying.h numbers them

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

// Read before the wait: nothing.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) copy_block(const CopyBlock p) {
    wait_for_earlier_kernels();
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
