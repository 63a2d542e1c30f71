// Windows of a Transformer decoder, and whole sources for its encoder, on CPU in fp32, in 8 bits or in bfloat16.
//
// Every number that belongs to a token is computed from that token, its row's keys and the weights by the same
// operations in the same order, however many tokens and rows stand beside it and whatever thread does it. So a token
// verified in a window is, bit for bit, the token decoded alone. The 8-bit products add up integers, which is exact; those in
// bfloat16 round their inputs to that and add up in fp32; the rest is fp32. All in a fixed order.
//
// A plain C interface without the headers of Python or PyTorch: fairseq_aggdec/kernels/library.py calls it through
// ctypes and holds the same structures. Letters: N tokens, B rows, C channels, F hidden units, H heads, D = C / H.

#include <algorithm>
#include <functional>
#include <vector>

#include "activations.h"
#include "attention.h"
#include "best.h"
#include "drafts.h"
#include "heads.h"
#include "tables.h"
#include "processor.h"
#include "products.h"
#include "sizes.h"
#include "structs.h"
#include "vector.h"

#ifndef AGGDEC_DIGEST
#define AGGDEC_DIGEST "none"
#endif

using namespace aggdec;

namespace {

// What an encoder says of a batch; of the last it has read nothing.
enum { WHOLE, PADDED, UNREADABLE };

struct Token {
    int64_t row, slot, place;  // of the window, the last among all its tokens
};

bool is_slot(const Shape& shape, int64_t token) { return token < 0 || token == shape.mask; }

// A token, with its position and its copy of the source unless they are null, as what the first layer reads: x (C).
void embed(const Shape& shape, int64_t token, const float* position, const float* copy, float* x) {
    const int64_t channels = shape.channels;
    const Floats scale = same(static_cast<float>(shape.scale));
    const float* embedding = is_slot(shape, token) ? shape.slot : shape.embeddings + token * channels;
    for (int64_t i = 0; i < channels; i += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, channels - i));
        Floats y = embedding ? load(embedding + i, count) * scale : same(0.0f);
        if (copy) y = y + load(copy + i, count);
        if (position) y = y + load(position + i, count);
        store(x + i, y, count);
    }
    if (shape.first_norm.weight) normalise(shape.first_norm, x, channels, x);
}

// Where token n of a window stands in its sentence.
int64_t position(const Step& step, const std::vector<Token>& window, size_t n) {
    return step.depths ? step.depths[n] : step.starts[window[n].row] + window[n].slot;
}

// Everything of the sources of a row, as far as `mask` leaves it.
KeyView sources(const Step& step, int64_t row, const float* memory, int64_t channels, int64_t head, int32_t* places) {
    const float* mask = step.memory_mask ? step.memory_mask + row * step.memory_mask_row : nullptr;
    const float* keys = memory + row * step.memory_row;
    return seen({keys, keys + channels, step.memory_position, head, step.sources, nullptr}, mask, places);
}

// The embeddings of a row's source, each as far as its key looks like the query of a position: out (C).
void copy_source(const Shape& shape, const Step& step, int64_t row, int64_t position, float* out) {
    const int64_t channels = shape.channels;
    int32_t* places = scratch<int32_t, Scratch::PLACES>(step.sources);
    float* scores = scratch<float, Scratch::ATTENTION_SCORES>(step.sources);
    const KeyView all = sources(step, row, step.memory[shape.layers], channels, channels, places);
    if (all.count) attend_head_of(channels, step.queries + position * channels, all, 0, 1.0f, scores, out);
    else std::fill_n(out, channels, NAN);  // as in PyTorch
}

void embed(const Shape& shape, const Step& step, const std::vector<Token>& window, float* x) {
    const int64_t channels = shape.channels;
    float* copy = shape.copies ? scratch<float, Scratch::COPY>(channels) : nullptr;
    const bool at_once = step.positions && !shape.each_layer;
    for (size_t n = 0; n < window.size(); ++n) {
        const int64_t place = position(step, window, n);
        const bool copies = shape.copies && is_slot(shape, step.tokens[n]);
        if (copies) copy_source(shape, step, window[n].row, place, copy);
        embed(shape, step.tokens[n], at_once ? step.positions + place * channels : nullptr, copies ? copy : nullptr,
              x + n * channels);
    }
}

void add_positions(const Shape& shape, const Step& step, const std::vector<Token>& window, float* x) {
    for (size_t n = 0; n < window.size(); ++n, x += shape.channels) {
        const float* embedding = step.positions + position(step, window, n) * shape.channels;
        for (int64_t i = 0; i < shape.channels; ++i) x[i] += embedding[i];
    }
}

void feed_forward(const Layer& layer, const Shape& shape, float* x, int64_t tokens, float* inner,
                  int64_t threads) {
    const int64_t channels = shape.channels;
    const float* in = x;
    if (shape.pre_norm) {
        normalise_rows(layer.last_norm, x, tokens, channels, inner);
        in = inner;
    }
    float* hidden = scratch<float, Scratch::FEED_FORWARD>(tokens * layer.expand.outputs);
    product(layer.expand, in, tokens, hidden, nullptr, threads);
    activate(shape.activation, hidden, tokens * layer.expand.outputs, threads);
    product(layer.contract, hidden, tokens, x, x, threads);
    if (!shape.pre_norm) normalise_rows(layer.last_norm, x, tokens, channels, x);
}

// The last place, and one more, that a token sees of those before it in its row and of its own window.
int64_t view_end(const Step& step, const Token& token) {
    const int64_t start = step.starts[token.row];
    if (!step.causal) return step.end;
    if (step.blocks && token.slot >= step.blocks[token.row]) return start + step.widths[token.row];
    return start + token.slot + 1;
}

// What a token sees in the cache of a layer; `places` for as many numbers.
KeyView own_view(const Step& step, const Shape& shape, const Token& token, const float* cache,
                int32_t* places) {
    const int64_t channels = shape.channels;
    const float* keys = cache + token.row * step.cache_row;
    KeyView view{keys, keys + channels, 2 * channels, channels / shape.heads, step.end, nullptr};
    if (step.mask)
        return seen(view, step.mask + token.row * step.mask_row + token.slot * step.mask_slot, places);
    if (step.seen) return of_bits(view, step.seen + token.place * step.seen_bytes, places);
    view.count = view_end(step, token);
    return view;
}

// f(first, count) for tokens `begin` to `end`, up to QUERIES of one row at a time.
template <class F>
void by_rows(const std::vector<Token>& window, int64_t begin, int64_t end, const F& f) {
    for (int64_t first = begin; first < end;) {
        int count = 1;
        while (count < QUERIES && first + count < end && window[first + count].row == window[first].row)
            ++count;
        f(first, count);
        first += count;
    }
}

// Behind the keys and values of the last layer only what is wanted has to be worked out: its tokens, x (N, C) and queries
// (N, 3 C) are moved to the front.
void leave_wanted(const Step& step, int64_t channels, std::vector<Token>& window, float* x, float* wide) {
    size_t kept = 0;
    for (size_t n = 0; n < window.size(); ++n) {
        if (window[n].slot < step.widths[window[n].row] - step.wanted) continue;
        if (kept < n) {
            std::memcpy(x + kept * channels, x + n * channels, sizeof(float) * channels);
            std::memcpy(wide + 3 * kept * channels, wide + 3 * n * channels, sizeof(float) * channels);
        }
        window[kept++] = window[n];
    }
    window.resize(kept);
}

void decode_layer(const Layer& layer, const Shape& shape, const Step& step, bool last,
                  std::vector<Token>& window, float* x, float* cache, const float* memory) {
    const int64_t channels = shape.channels, threads = step.threads;
    int64_t tokens = static_cast<int64_t>(window.size());
    float* inner = scratch<float, Scratch::INNER>(tokens * channels);
    float* wide = scratch<float, Scratch::WIDE>(tokens * 3 * channels);
    const float* in = x;
    if (shape.pre_norm) {
        normalise_rows(layer.own_norm, x, tokens, channels, inner);
        in = inner;
    }
    product(layer.qkv, in, tokens, wide, nullptr, threads);
    for (int64_t n = 0; n < tokens; ++n) {
        const Token& token = window[n];
        float* to = cache + token.row * step.cache_row +
                    (step.starts[token.row] + token.slot) * 2 * channels;
        std::memcpy(to, wide + (3 * n + 1) * channels, sizeof(float) * 2 * channels);
    }
    if (last && step.wanted) {
        leave_wanted(step, channels, window, x, wide);
        tokens = static_cast<int64_t>(window.size());
    }
    const int64_t most = std::max(step.end, step.sources);  // places that a token may see
    share(tokens, threads, tokens * step.end * channels * 4, [&](int64_t begin, int64_t end) {
        int32_t* places = scratch<int32_t, Scratch::PLACES>(QUERIES * most);
        by_rows(window, begin, end, [&](int64_t first, int count) {
            KeyView views[QUERIES];
            for (int i = 0; i < count; ++i)
                views[i] = own_view(step, shape, window[first + i], cache, places + i * most);
            attend(wide + 3 * first * channels, 3 * channels, views, count, channels, shape.heads,
                   inner + first * channels, channels);
        });
    });
    product(layer.own_out, inner, tokens, x, x, threads);
    if (shape.pre_norm) normalise_rows(layer.cross_norm, x, tokens, channels, inner);
    else normalise_rows(layer.own_norm, x, tokens, channels, x);
    product(layer.cross_q, shape.pre_norm ? inner : x, tokens, wide, nullptr, threads);
    share(tokens, threads, tokens * step.sources * channels * 4, [&](int64_t begin, int64_t end) {
        int32_t* places = scratch<int32_t, Scratch::PLACES>(most);
        by_rows(window, begin, end, [&](int64_t first, int count) {
            KeyView views[QUERIES];
            std::fill(views, views + count,
                      sources(step, window[first].row, memory, channels, channels / shape.heads, places));
            attend(wide + first * channels, channels, views, count, channels, shape.heads,
                   inner + first * channels, channels);
        });
    });
    product(layer.cross_out, inner, tokens, x, x, threads);
    if (!shape.pre_norm) normalise_rows(layer.cross_norm, x, tokens, channels, x);
    feed_forward(layer, shape, x, tokens, inner, threads);
}

void decode(const Layer* layers, const Shape* shape, const Step* step, float* x) {
    thread_local std::vector<Token> window;
    window.clear();
    for (int64_t row = 0; row < step->rows; ++row)
        for (int64_t slot = 0; slot < step->widths[row]; ++slot)
            window.push_back({row, slot, static_cast<int64_t>(window.size())});
    const auto count = static_cast<int64_t>(window.size());
    float* out = x;
    if (step->wanted) x = scratch<float, Scratch::ALL_SLOTS>(count * shape->channels);
    if (step->tokens) embed(*shape, *step, window, x);
    for (int64_t l = 0; l < shape->layers; ++l) {
        if (shape->each_layer) add_positions(*shape, *step, window, x);
        decode_layer(layers[l], *shape, *step, l + 1 == shape->layers, window, x,
                     step->cache + l * step->cache_layer, step->memory[l]);
    }
    const auto left = static_cast<int64_t>(window.size());
    if (shape->end_norm.weight) normalise_rows(shape->end_norm, x, left, shape->channels, out);
    else if (out != x) std::copy_n(x, left * shape->channels, out);
}

// The tokens of a batch of sources that are no padding: where each stands, and its sentence among these.
struct Sentences {
    std::vector<int64_t> places, begins, ends;

    explicit Sentences(const Source& source) {
        for (int64_t row = 0, place = 0; row < source.rows; ++row) {
            const auto begin = static_cast<int64_t>(places.size());
            for (int64_t i = 0; i < source.length; ++i, ++place)
                if (source.tokens[place] != source.pad) places.push_back(place);
            const auto end = static_cast<int64_t>(places.size());
            begins.resize(end, begin), ends.resize(end, end);
            source.lengths[row] = static_cast<int32_t>(end - begin);
        }
    }
};

// Embeds a batch: `embeddings` of all tokens, and x (N, C) of those that are no padding. False, and nothing is written,
// where a token is none of the dictionary or has no position.
bool embed(const Shape& shape, const Source& source, const Sentences& of, float* x) {
    const int64_t channels = shape.channels, count = source.rows * source.length;
    const auto known = [&](int64_t token) { return token >= 0 && token < source.types; };
    if (!std::all_of(source.tokens, source.tokens + count, known)) return false;
    const int64_t longest = count ? *std::max_element(source.lengths, source.lengths + source.rows) : 0;
    if (source.positions && longest > source.reach) return false;
    for (int64_t n = 0; n < count; ++n)
        embed(shape, source.tokens[n], nullptr, nullptr, source.embeddings + n * channels);
    for (size_t n = 0; n < of.places.size(); ++n, x += channels) {
        std::copy_n(source.embeddings + of.places[n] * channels, channels, x);
        if (!source.positions) continue;
        const float* position = source.positions + (n - of.begins[n]) * channels;
        for (int64_t i = 0; i < channels; ++i) x[i] += position[i];
    }
    return true;
}

void encode_layers(const Layer* layers, const Shape* shape, const Sentences& of, int64_t rows, int64_t threads,
                   float* x) {
    const int64_t channels = shape->channels;
    const std::vector<int64_t>&begins = of.begins, &ends = of.ends;
    const int64_t tokens = static_cast<int64_t>(begins.size());
    for (int64_t l = 0; l < shape->layers; ++l) {
        const Layer& layer = layers[l];
        float* inner = scratch<float, Scratch::INNER>(tokens * channels);
        float* wide = scratch<float, Scratch::WIDE>(tokens * 3 * channels);
        if (shape->pre_norm) normalise_rows(layer.own_norm, x, tokens, channels, inner);
        product(layer.qkv, shape->pre_norm ? inner : x, tokens, wide, nullptr, threads);
        const int64_t work = tokens * channels * 4 * (tokens / std::max<int64_t>(rows, 1));
        share(tokens, threads, work, [&](int64_t begin, int64_t end) {
            for (int64_t first = begin; first < end;) {
                const int64_t left = std::min<int64_t>({QUERIES, end - first, ends[first] - first});
                const float* keys = wide + (3 * begins[first] + 1) * channels;
                const KeyView view{keys, keys + channels, 3 * channels, channels / shape->heads,
                                  ends[first] - begins[first], nullptr};
                KeyView views[QUERIES];
                std::fill(views, views + left, view);
                attend(wide + 3 * first * channels, 3 * channels, views, static_cast<int>(left),
                       channels, shape->heads, inner + first * channels, channels);
                first += left;
            }
        });
        product(layer.own_out, inner, tokens, x, x, threads);
        if (!shape->pre_norm) normalise_rows(layer.own_norm, x, tokens, channels, x);
        feed_forward(layer, *shape, x, tokens, inner, threads);
    }
    if (shape->end_norm.weight) normalise_rows(shape->end_norm, x, tokens, channels, x);
}

// What a decoder reads of sources (N, C_enc): keys and values of each layer, out (layers, count, 2C). places: where each
// token is among `count`, rising; the others get 0. Null: there are no others.
void read_source(const Layer* layers, int64_t many, const float* states, int64_t tokens, const int64_t* places,
                 int64_t count, float* out, int64_t threads) {
    for (int64_t l = 0; l < many; ++l) {
        const Product& read = layers[l].cross_kv;
        product(read, states, tokens, out, nullptr, threads, places);
        for (int64_t n = 0, place = 0; place < count; ++place, out += read.outputs)
            if (!places || (n < tokens && places[n] == place)) ++n;
            else std::fill_n(out, read.outputs, 0.0f);
    }
}

int64_t encode(const Layer* layers, const Shape* shape, const Source& source) {
    const Sentences of(source);
    const int64_t channels = shape->channels, count = source.rows * source.length;
    const auto tokens = static_cast<int64_t>(of.places.size());
    float* x = tokens == count ? source.states : scratch<float, Scratch::UNPADDED>(tokens * channels);
    if (source.embeddings) {
        if (!embed(*shape, source, of, x)) return UNREADABLE;
    } else if (x != source.states) {
        for (int64_t n = 0; n < tokens; ++n)
            std::copy_n(source.states + of.places[n] * channels, channels, x + n * channels);
    }
    encode_layers(layers, shape, of, source.rows, source.threads, x);
    if (source.readers)
        read_source(source.readers, source.reading, x, tokens, tokens == count ? nullptr : of.places.data(), count,
                    source.memory, source.threads);
    if (x == source.states) return WHOLE;
    std::fill_n(source.states, count * channels, 0.0f);
    for (int64_t n = 0; n < tokens; ++n)
        std::copy_n(x + n * channels, channels, source.states + of.places[n] * channels);
    return PADDED;
}

}  // namespace

// Functions that need memory give 0, or NO_MEMORY and nothing else; those that are told sizes also MISFIT.
extern "C" {

// What this file was compiled for, see processor.h.
int aggdec_instructions() { return compiled_for(); }

// A bit for each of the instructions that this processor can run, whatever this file was compiled for.
int aggdec_supported() { return supported(); }

// Of the sources of this library, see setup.py.
const char* aggdec_digest() { return AGGDEC_DIGEST; }

// Outputs whose weights are laid out side by side; a multiple of inputs, to which weights in 8 bits are padded.
int64_t aggdec_strip() { return STRIP; }
int64_t aggdec_depth() { return DEPTH; }

// How far the inputs of a pair in bfloat16 are apart.
int64_t aggdec_apart() { return APART; }

// Whether the parts of a product have these numbers of bytes, and layers fit each other: 0 or MISFIT, see sizes.h.
int64_t aggdec_check_product(const Product* p, int64_t weight, int64_t bias, int64_t scales, int64_t sums) {
    return fits(*p, weight, bias, scales, sums) ? 0 : MISFIT;
}
int64_t aggdec_check_layers(const Layer* layers, const Shape* shape) { return fit(layers, *shape) ? 0 : MISFIT; }

// x has `size` numbers, y has room for `room`: as many rows as that is.
int64_t aggdec_multiply(const Product* p, const float* x, int64_t size, float* y, int64_t room, int64_t threads) {
    if (p->inputs <= 0 || size < 0) return MISFIT;
    const int64_t rows = size / p->inputs;
    if (!times(rows, p->inputs, size) || !times(rows, p->outputs, room)) return MISFIT;
    return tried([&] { product(*p, x, rows, y, nullptr, threads); });
}

int64_t aggdec_product(const Product* p, const float* x, int64_t rows, float* y, int64_t threads) {
    return tried([&] { product(*p, x, rows, y, nullptr, threads); });
}

void aggdec_norm(const Norm* norm, const float* x, int64_t rows, int64_t size, float* y) {
    normalise_rows(*norm, x, rows, size, y);
}

void aggdec_activate(int64_t activation, float* x, int64_t count, int64_t threads) {
    activate(activation, x, count, threads);
}

// Of every row of x (N, V) the first place of its largest number; NaN counts as the largest.
void aggdec_largest(const float* x, int64_t rows, int64_t size, int64_t* places) {
    for (int64_t row = 0; row < rows; ++row) places[row] = first_largest(x + row * size, size);
}

// What block heads say, see heads.h.
int64_t aggdec_heads(const Heads* heads, const float* x, const int64_t* tokens, int64_t rows,
                     int64_t wanted, float* out, int64_t threads) {
    if (!fit(*heads, wanted)) return MISFIT;
    return tried([&] { spread(*heads, x, tokens, rows, wanted, out, threads); });
}

// The mean probabilities of several models, see best.h.
int64_t aggdec_average(float* logits, int64_t models, int64_t rows, int64_t types, int64_t threads) {
    return tried([&] { average(logits, models, rows, types, threads); });
}

// Copies keys and values of a cache as that of `Step`.
void aggdec_move(float* cache, int64_t layers, int64_t layer, int64_t row, int64_t size, const Move* moves,
                 int64_t count) {
    for (int64_t l = 0; l < layers; ++l, cache += layer)
        for (const Move* move = moves; move < moves + count; ++move) {
            float* of_row = cache + move->row * row;
            std::memcpy(of_row + move->to * size, of_row + move->from * size, sizeof(float) * size);
        }
}

// Whether all of `count` numbers of 4 bytes, each in its place, are what they were.
int64_t aggdec_same(const uint32_t* const* places, const uint32_t* numbers, int64_t count) {
    return std::equal(numbers, numbers + count, places,
                      [](uint32_t number, const uint32_t* place) { return number == *place; });
}

// A sum over `count` words in which no two places count alike: a word that changes always shows.
int64_t aggdec_checksum(const uint32_t* words, int64_t count) {
    uint64_t sum = 0;
    for (int64_t n = 0; n < count; ++n) sum += uint64_t(words[n]) * uint64_t(uint32_t(2 * n + 1));
    return int64_t(sum);
}

// Tables of the best tokens, see TableCall.
int64_t aggdec_tables(const TableCall* call) {
    return tried([&] { write_tables(*call); });
}

// What normalises the logits x (V), out (2), as in a table. largest: of them, which are no NaN; null: it is not known.
void aggdec_normalise(const float* x, int64_t types, const float* largest, float* out) {
    write_normaliser(x, types, largest, out);
}

// Trees of drafted tokens, see drafts.h.
int64_t aggdec_grow(const Proposer* proposer, const Slots* slots) {
    return tried([&] { grow(*proposer, *slots); });
}

// The layers of a decoder over the tokens of a window: x (N, C), in place, or out what is wanted of it.
int64_t aggdec_decode(const Layer* layers, const Shape* shape, const Step* step, float* x) {
    return tried([&] { decode(layers, shape, step, x); });
}

// The layers of an encoder over a batch of sources, and what a decoder reads of them: WHOLE, PADDED, or UNREADABLE where
// it cannot embed them.
int64_t aggdec_encode(const Layer* layers, const Shape* shape, const Source* source) {
    if (source->readers && !read(source->readers, source->reading, shape->channels)) return MISFIT;
    return tried([&] { return encode(layers, shape, *source); });
}

// See read_source: `count` tokens with `channels` numbers each, and room for `room` numbers.
int64_t aggdec_read_source(const Layer* layers, const Shape* shape, const float* states, int64_t count,
                           int64_t channels, float* out, int64_t room, int64_t threads) {
    if (!read(layers, shape->layers, channels) || !times(2 * shape->layers * shape->channels, count, room)) return MISFIT;
    return tried([&] { read_source(layers, shape->layers, states, count, nullptr, count, out, threads); });
}

}  // extern "C"
