// How long calls take on this processor, at the begin of a batch, whose cache they may write: nothing stands in it yet.

#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <vector>

#include "greedy.h"
#include "loop.h"
#include "price.h"

namespace {

// Every call is made at least so often, then until the time is up: one that finds weights and memory cold, one that counts.
constexpr int LEAST_TURNS = 2, MOST_TURNS = 20, WARMING_CALLS = 2;
// Slots of drafts that are timed: two numbers, of which one is the most of usual drafts.
constexpr int64_t FEW_SLOTS = 2, MANY_SLOTS = 8;

// Seconds: of the processor where one thread computes, so that what else runs on a machine has no say; else of the clock.
inline double now(bool alone) {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec time;
    if (alone && !clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time))
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
#endif
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A window of one sentence of the batch, of the start symbol again and again.
inline WindowRequest window_of(int64_t sentences, int64_t start, int64_t width) {
    WindowRequest request;
    request.clear();
    request.starts.assign(sentences, 0), request.widths.assign(sentences, 0);
    request.widths.front() = width;
    request.tokens.assign(width, start);
    request.end = request.reach = width;
    return request;
}

// What all models say of a window, as `run` reads it.
inline void read_and_say(const Reader* readers, const Reading& how, const WindowRequest& request) {
    const auto count = static_cast<int64_t>(request.tokens.size());
    int64_t channels = 0;
    for (int64_t m = 0; m < how.models; ++m) channels += readers[m].shape->channels;
    float* features = scratch<float, Scratch::WINDOW_FEATURES>(count * channels);
    float* model_features = features;
    for (int64_t m = 0; m < how.models; model_features += count * readers[m++].shape->channels)
        read(readers[m], request, model_features);
    joint_logits(readers, how, features, count, 0, count);
}

// Writes what calls cost, the least of several in seconds, in turns: of the models for the places that `price` has, and of
// the drafter if the search has one that is a model. Its time is over after how.seconds, but for a few turns.
inline int64_t time_calls(GreedySearch& search, const Reader* readers, const Reading& how, CallPrice& price) {
    const auto rows = static_cast<int64_t>(search.batch().tokens.size());
    const int64_t start = search.batch().tokens.front().front();
    std::vector<WindowRequest> windows;
    for (int64_t i = 0; i < price.count; ++i) {
        windows.push_back(window_of(rows, start, static_cast<int64_t>(price.places[i])));
        for (int64_t m = 0; m < how.models; ++m)
            if (!fits(readers[m], windows.back())) return NO_ROOM;
    }
    auto* drafter = dynamic_cast<ModelDrafter*>(search.drafter());
    const int64_t most = drafter ? std::min(MANY_SLOTS, drafter->most_slots()) : 0, few = std::min(FEW_SLOTS, most);
    if (drafter && !drafter->rehearse(search.batch(), most)) return DRAFT;
    const bool alone = readers->step->threads == 1;
    const auto seconds_of = [&](const auto& f) {
        const double begin = now(alone);
        f();
        return now(alone) - begin;
    };
    double of_few = INFINITY, of_many = INFINITY, all = 0.0;
    std::fill_n(price.costs, price.count, INFINITY);
    const auto keep_least = [&](double& cost, const auto& f) { cost = std::min(cost, seconds_of(f)); };
    for (int turn = 0; turn < LEAST_TURNS || (turn < MOST_TURNS && all < how.seconds); ++turn)
        all += seconds_of([&] {
            // A search without drafts reads the same weights again and again: what fits into the cache stays there. Larger
            // windows and drafts push it out, and these calls bring it back.
            for (int i = 0; i < WARMING_CALLS; ++i) read_and_say(readers, how, windows.front());
            for (int64_t i = 0; i < price.count; ++i)
                keep_least(price.costs[i], [&] { read_and_say(readers, how, windows[i]); });
            if (!drafter) return;
            // With the window behind a draft, which waits for the weights that the draft has pushed out.
            keep_least(of_few, [&] { drafter->rehearse(search.batch(), few), read_and_say(readers, how, windows[1]); });
            keep_least(of_many, [&] { drafter->rehearse(search.batch(), most), read_and_say(readers, how, windows[1]); });
        });
    // More places never cost less: what was disturbed is mended by the others.
    for (int64_t i = price.count - 1; i > 0; --i) price.costs[i - 1] = std::min(price.costs[i - 1], price.costs[i]);
    price.draft = price.slot = 0.0;
    if (!drafter) return READY;
    of_many = std::max(0.0, of_many - price.costs[1]);
    of_few = std::min(std::max(0.0, of_few - price.costs[1]), of_many);
    if (most > few) price.slot = (of_many - of_few) / static_cast<double>(most - few);
    price.draft = std::max(0.0, of_few - price.slot * static_cast<double>(few));
    return READY;
}

}  // namespace
