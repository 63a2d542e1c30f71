// The structures of the interface that several files read; fairseq_aggdec/kernels/library.py holds the same.

#pragma once

#include <cstdint>

// y = activation(x W^T + b). Weights are padded with zeros to whole panels of 64 outputs, and lie in strips of P = STRIP.
// fp32: (O / P, K, P). 8 bits: (O / P, K / 4, P, 4), K padded with zeros to a multiple of DEPTH, with the scale and the sum
// of each output's weights. bfloat16: (O / P, K / 2, P, 2), K padded to a multiple of 32. Of each 32 inputs the first of a
// pair is in the upper half of a word, the second follows it aggdec_apart() inputs later.
struct Product {
    int64_t inputs, outputs;
    const void* weight;
    const float* bias;     // (O), none: null
    const float* scales;   // (O / 64 * 64), 8 bits only
    const int32_t* sums;   // (O / 64 * 64), 8 bits only
    int64_t relu, bf16;
};

struct Norm {
    const float *weight, *bias;
    double epsilon;
};

struct Layer {
    Norm own_norm, cross_norm, last_norm;
    Product qkv, own_out, cross_q, cross_kv, cross_out, expand, contract;
};

// What all layers of a stack have in common, and what surrounds them.
struct Shape {
    int64_t layers, channels, heads, pre_norm;
    Norm first_norm, end_norm;  // of embeddings and of the last layer's output; weight null: none
    const float* embeddings;    // (V, C)
    const float* slot;          // (C), of tokens below 0, which are a drafter's mask slots; null: nothing
    int64_t copies;             // a slot reads a copy of the source as well, see Step
    int64_t mask;               // a token that is read as a slot; below 0: none
    int64_t each_layer;         // positions are added before every layer instead of once
    double scale;               // of embeddings
    int64_t activation;         // of the expanded features
};

// A window of a decoder: `widths[b]` tokens of row b, which stand at positions `starts[b]` and on.
struct Step {
    int64_t rows, end, threads;
    const int64_t *starts, *widths;
    const int64_t* tokens;   // (N), null: x holds their embeddings
    const float* positions;  // (reach, C) or null: is added to embeddings
    const float* queries;    // (reach, C): what a slot that copies the source asks it, by its position
    const int64_t* depths;   // (N), where each token stands among `positions`; null: at its place
    float* cache;  // (layers, B, positions, 2C), the window's keys and values are written
    int64_t cache_layer, cache_row;  // strides
    // What a token sees. -inf or 0 for each place, (B or 1, W, end); else the bits of places, (N, seen_bytes), lowest first; else the
    // places up to itself, and from slot `blocks[b]` on its row's whole window; else, if not `causal`, all up to end.
    const float* mask;
    int64_t mask_row, mask_slot;
    const uint8_t* seen;
    int64_t seen_bytes, causal;
    const int64_t* blocks;  // (B) or null
    // Of each layer: keys and values (B, S, 2C), any strides but of 2C. Where slots copy the source one more: what they
    // compare their queries with, and embeddings.
    float* const* memory;
    int64_t memory_row, memory_position, sources;
    const float* memory_mask;  // -inf or 0, (B, S), or null
    int64_t memory_mask_row;
    int64_t wanted;  // how many last tokens of each row are decoded; 0: all, as where tokens are not embedded here
};

// A batch of sources for an encoder.
struct Source {
    int64_t rows, length, pad, types, threads;
    const int64_t* tokens;   // (B, S)
    const float* positions;  // (reach, C) or null: the n-th is added to the n-th token of a row that is no padding
    int64_t reach;
    float* embeddings;  // (B, S, C), out, without positions; null: states holds what the layers read
    float* states;      // (B, S, C), out; 0 at padding
    int32_t* lengths;   // (B), out: without padding
    const Layer* readers;  // layers of a decoder that reads the sources, or null
    int64_t reading;       // how many
    float* memory;         // what they read, out: see read_source
};

// Keys and values of a row that are copied from one place of the cache to another.
struct Move {
    int64_t row, from, to;
};

// One of the N places of a window, and a token there.
struct Pair {
    int64_t place, token;
};

// How a rule changes the logit of a token at a place: by a number of nats; -inf bans the token, +inf forces it.
struct Change {
    int64_t place, token;
    double value;
};

// Which drafted tokens are accepted beside the model's own choices: search/acceptance.py has the rules.
struct Acceptance {
    int64_t beta;          // among this number of best (0: only the choices) ...
    double tolerance;      // ... if it is at most this many nats behind the best
    int64_t epsilon, first_number;  // a number at most this far from the choice, numbers being types from the first on
    int64_t least;         // tokens that an iteration gains in any case, as far as drafted
    int64_t trusts;        // nobody verifies: the drafter reads the windows, and its choices at all places are gained
    int64_t outside;       // Python says which drafted tokens are accepted
};

// Asks for tables of the best tokens. Letters: R rows of logits, V types, K tokens of a table, C changes, W wanted logits.
struct TableCall {
    float* logits;  // (R, V), which are what they were when the call returns
    int64_t rows, types, best, pad, threads;
    int64_t normalise;      // 0: the last two numbers of a table are not written
    int64_t changed;        // C
    const Change* changes;  // (C), in the order of their places, which count rows of the logits
    int64_t wanted;         // W
    const Pair* pairs;      // (W): rows and tokens
    // (R, 2 K + 3), out: logits as the rules change them, best first; tokens as numbers; the logit of the first without
    // changes; the largest logit and the logarithm of the sum of the exponentials above it. A forced token is the first.
    // Where a logit is NaN, so is the first.
    float* tables;
    float* values;  // (W), out: logits without changes; -inf for padding
};

// How the tokens of a slot are scored. Letters: R rows, K slots, M candidates, C channels, V types.
struct Proposer {
    Product vocabulary;          // to the first types of the dictionary, or all
    // To a few directions that features vary in, and from these to the same types, whose likeliest are then scored.
    // Null weights: not known yet.
    Product directions, narrow;
    const float *weight, *bias;  // (V, C), and (V) or null: what scores a candidate that was told the one before it
    Product read_slot, write;    // the chain
    const float* heard;          // (V, C), what it hears of each token; null: there is no chain
    int64_t candidates;          // M, at most MOST_CANDIDATES
};

// A call: features of slots in, a tree of at most `nodes` tokens for every row out.
struct Slots {
    int64_t rows, slots, threads;
    const float* features;          // (R, K, C)
    const int64_t *last, *room;     // (R): the token before the first slot, how many slots may be filled
    const float *slopes, *shifts;   // (K): of the logit of a token's chance
    int64_t nodes, eos, branches;
    const double* costs;            // (nodes + 1) of an iteration with so many; null: nodes cost nothing
    double trust;                   // how many times its chance a token is accepted
    int64_t *tokens, *parents;      // (R, nodes), out; parents counted from 1, 0 is the last token
    double* chances;                // (R, nodes), out: logarithms
    int64_t* counts;                // (R), out
};

// Block heads, see heads.h. Letters: R rows, H heads, J hidden units of each, C channels, V types.
struct Heads {
    Product expand;         // C to H J, with ReLU
    Product contract;       // H J to H C, where every head reads all hidden units; null weight: each reads its own
    int64_t hidden;         // J
    const float* weights;   // (H, J, C)
    const float* biases;    // (H, C)
    const float* heard;     // (V, C), what heads hear of a token; null: nothing
};
