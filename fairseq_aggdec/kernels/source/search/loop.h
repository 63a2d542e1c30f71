// THE loop over a whole batch: a search asks, the model reads a window, the search takes the logits.
//
// Letters: B sentences, N tokens of a window, C channels,
// V types.

#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "../structs.h"
#include "../threads.h"

extern "C" {
int64_t aggdec_product(const Product* p, const float* x, int64_t rows, float* y, int64_t threads);
int64_t aggdec_decode(const Layer* layers, const Shape* shape, const Step* step, float* x);
void aggdec_move(float* cache, int64_t layers, int64_t layer, int64_t row, int64_t size, const Move* moves,
                 int64_t count);
int64_t aggdec_average(float* logits, int64_t models, int64_t rows, int64_t types, int64_t threads);
}

// A decoder that has taken up a batch.
struct Reader {
    const Layer* layers;
    const Shape* shape;
    Step* step;                 // what is seen beside a window is there; the rest is written here
    const Product* vocabulary;
    const int64_t* shortlist;   // which types the vocabulary has, and no others can be chosen; null: all
    const Product *expand, *contract;  // what head 1 of a model with block heads adds to the features; null: nothing
    int64_t places, positions;  // of each row of the cache; of the table of positions, 0: there is none
};

// How windows are read by models over the same batch, whose mean probabilities count; by a trusted drafter where there is none.
struct Reading {
    int64_t models, types;
    double temperature;       // divides the logits
    double seconds;           // after which the caller is asked whether to go on
    int64_t most;             // logits, about, that are decided together: they are read while they are in the cache
};

// The window that a search asks for. A sentence that has ended has the width 0.
struct WindowRequest {
    std::vector<int64_t> starts, widths;  // (B)
    std::vector<int64_t> tokens;          // (N)
    std::vector<int64_t> depths;          // (N): positions in the sentence; empty: those of the places
    std::vector<uint8_t> seen;            // (N, seen_bytes): bits of the places that each sees; empty: all up to itself
    int64_t seen_bytes, end, reach;       // end: of the places; reach: of the positions
    std::vector<Move> moves;              // to be made before the window is read
    std::vector<Change> changes;  // of logits, by the rules, in the order of places
    std::vector<Pair> wanted;     // (N): a place and a token, whose logit is wanted beside the tables; empty: none is

    void clear() {
        for (auto* numbers : {&starts, &widths, &tokens, &depths}) numbers->clear();
        seen.clear(), moves.clear(), changes.clear(), wanted.clear();
        seen_bytes = end = reach = 0;
    }
};

// What a search has found: O outputs of T tokens in all, I iterations of sentences in all.
struct SearchResult {
    std::vector<int64_t> owners, lengths, tokens;  // (O): the sentence, tokens with the last </s>; (T)
    std::vector<float> scores;                     // (T): log-probabilities in nats
    std::vector<double> totals;                    // (O): their sums as the search has them
    std::vector<int64_t> rounds;                   // (B): iterations
    std::vector<int64_t> emitted, drafted, accepted;  // (I): tokens of each iteration
    int64_t calls = 0, nodes = 0, used = 0;        // calls of the decoder; prefixes evaluated and needed
    int64_t broken = -1;                           // a sentence with scores that are no numbers
    double drafting = 0.0;                         // seconds that drafts took
};

// Why a run came back: the decoder has too little room for the window that is asked for; the search has come to its
// end; its time is up, and nothing is wrong; what drafts has to be asked in Python. READY: it goes on.
enum { NO_ROOM, ENDED, TIME_UP, DRAFT, READY };

class Search {
  public:
    virtual ~Search() = default;

    // Makes the draft of the next window, once: DRAFT where Python has to be asked before it can, else READY.
    virtual int64_t draft() { return READY; }

    // Null when all sentences have ended or one is broken. The same window until its logits are taken.
    const WindowRequest* ask() {
        if (result.broken >= 0) return nullptr;
        if (!asking_) {
            request_.clear();
            write(request_);
            asking_ = true;
        }
        return request_.tokens.empty() ? nullptr : &request_;
    }

    // Adds changes of the window that was asked for, in the order of their places; none counts where a token is forced.
    void change(const Change* changes, int64_t count) {
        std::vector<Change> both;
        std::merge(request_.changes.begin(), request_.changes.end(), changes, changes + count, std::back_inserter(both),
                   [](const Change& one, const Change& other) { return one.place < other.place; });
        request_.changes.clear();
        int64_t forced = -1;
        for (const Change& one : both) {
            if (one.place == forced) continue;
            if (one.value == INFINITY) forced = one.place;
            request_.changes.push_back(one);
        }
    }

    // Of the window that was asked for.
    int64_t places() const { return static_cast<int64_t>(request_.tokens.size()); }

    // How many places of the window, about `most`, are decided together from place `first` on.
    virtual int64_t together(int64_t first, int64_t most) const = 0;

    // Features (N, C) of the window, and logits (count, V) from place `first` on. The places come in their order.
    void take(int64_t first, int64_t count, const float* features, float* logits, int64_t types) {
        decide(first, count, features, logits, types);
        if (first + count == places()) taken();
    }

    // Writes the outputs into `result`.
    virtual void finish() = 0;

    SearchResult result;

  protected:
    virtual void write(WindowRequest& request) = 0;
    virtual void decide(int64_t first, int64_t count, const float* features, float* logits, int64_t types) = 0;

    const WindowRequest& request() const { return request_; }

    // The search knows what the model says of its window.
    void taken() {
        asking_ = false;
        ++result.calls;
    }

  private:
    WindowRequest request_;
    bool asking_ = false;
};

// Whether a decoder has room for a window.
inline bool fits(const Reader& reader, const WindowRequest& request) {
    return request.end <= reader.places && (!reader.positions || request.reach <= reader.positions);
}

// The features (N, C) of a window.
inline void read(const Reader& reader, const WindowRequest& request, float* features) {
    Step& step = *reader.step;
    step.rows = static_cast<int64_t>(request.starts.size());
    step.starts = request.starts.data(), step.widths = request.widths.data();
    step.tokens = request.tokens.data();
    step.depths = request.depths.empty() ? nullptr : request.depths.data();
    step.seen = request.seen.empty() ? nullptr : request.seen.data();
    step.seen_bytes = request.seen_bytes, step.end = request.end;
    aggdec_move(step.cache, reader.shape->layers, step.cache_layer, step.cache_row, 2 * reader.shape->channels,
                request.moves.data(), static_cast<int64_t>(request.moves.size()));
    must(aggdec_decode(reader.layers, reader.shape, &step, features));
}

// What the vocabulary reads of features (N, C).
inline const float* projected(const Reader& reader, const float* features, int64_t count) {
    if (!reader.expand) return features;
    const int64_t size = count * reader.shape->channels, threads = reader.step->threads;
    float* hidden = scratch<float, Scratch::WINDOW_HIDDEN>(count * reader.expand->outputs);
    float* head = scratch<float, Scratch::WINDOW_HEAD>(size);
    must(aggdec_product(reader.expand, features, count, hidden, threads));
    must(aggdec_product(reader.contract, hidden, count, head, threads));
    for (int64_t i = 0; i < size; ++i) head[i] = features[i] + head[i];
    return head;
}

// Features (count, C) -> logits (count, V), -inf of types that are not on the shortlist.
inline void project(const Reader& reader, const float* features, int64_t count, int64_t types, float* logits) {
    const Product& vocabulary = *reader.vocabulary;
    features = projected(reader, features, count);
    if (!reader.shortlist) return must(aggdec_product(&vocabulary, features, count, logits, reader.step->threads));
    float* listed = scratch<float, Scratch::LISTED_LOGITS>(count * vocabulary.outputs);
    must(aggdec_product(&vocabulary, features, count, listed, reader.step->threads));
    std::fill_n(logits, count * types, -INFINITY);
    for (int64_t n = 0; n < count; ++n, logits += types)
        for (int64_t i = 0; i < vocabulary.outputs; ++i) logits[reader.shortlist[i]] = *listed++;
}

// What all models say of a window whose features (N, C) of each lie one behind the other: logits (count, V) from place
// `first` on.
inline float* joint_logits(const Reader* readers, const Reading& how, const float* features, int64_t places,
                           int64_t first, int64_t count) {
    const int64_t size = count * how.types;
    float* logits = scratch<float, Scratch::WINDOW_LOGITS>(how.models * size);
    const auto divisor = static_cast<float>(how.temperature);
    for (int64_t m = 0; m < how.models; ++m) {
        const int64_t channels = readers[m].shape->channels;
        project(readers[m], features + first * channels, count, how.types, logits + m * size);
        features += places * channels;
    }
    if (how.temperature != 1.0)
        std::for_each_n(logits, how.models * size, [&](float& logit) { logit /= divisor; });
    if (how.models > 1) must(aggdec_average(logits, how.models, count, how.types, readers->step->threads));
    return logits;
}

// Python sees signals only between calls of this, so it comes back after `how.seconds` and one window at least.
// read(request): the features (N, C) of a window, null where there is too little room; say(features, first, count): the
// logits (count, V) of its places from `first` on.
template <class Read, class Say>
int64_t run(Search& search, const Reading& how, const Read& read, const Say& say) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    const int64_t most = std::max<int64_t>(1, how.most / (how.types * std::max<int64_t>(1, how.models)));
    for (;;) {
        const auto now = Clock::now();
        const int64_t why = search.draft();
        search.result.drafting += std::chrono::duration<double>(Clock::now() - now).count();
        if (why != READY) return why;
        const WindowRequest* request = search.ask();
        if (!request) return ENDED;
        const float* features = read(*request);
        if (!features) return NO_ROOM;
        const int64_t count = search.places();
        for (int64_t first = 0, some; first < count; first += some) {
            some = search.together(first, most);
            search.take(first, some, features, say(features, first, some), how.types);
        }
        if (std::chrono::duration<double>(Clock::now() - begin).count() >= how.seconds) return TIME_UP;
    }
}

// By several models.
inline int64_t run(Search& search, const Reader* readers, const Reading& how) {
    const Reader* end = readers + how.models;
    int64_t channels = 0;
    std::for_each(readers, end, [&](const Reader& reader) { channels += reader.shape->channels; });
    const auto read_all = [&](const WindowRequest& request) -> const float* {
        if (!std::all_of(readers, end, [&](const Reader& reader) { return fits(reader, request); })) return nullptr;
        const int64_t count = search.places();
        float* features = scratch<float, Scratch::WINDOW_FEATURES>(count * channels);
        float* model_features = features;
        for (const Reader* reader = readers; reader != end; model_features += count * reader++->shape->channels)
            read(*reader, request, model_features);
        return features;
    };
    const auto say = [&](const float* features, int64_t first, int64_t count) {
        return joint_logits(readers, how, features, search.places(), first, count);
    };
    return run(search, how, read_all, say);
}
