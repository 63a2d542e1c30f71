// Stock fairseq's rules of beam search over small tables; tests/plain_beam_search.py has them in Python.
//
// All sums are of doubles, in the same order.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "prefixes.h"

// Generation options of a batch of B sentences.
struct BeamOptions {
    int64_t sentences, beam, eos, pad, unk, start, threads;
    double unk_penalty;
    int64_t ngram;            // n-grams of this size occur once, 0: any
    int64_t limit, floor;     // output index at which </s> is forced, and before which it is banned
    int64_t prefix_size;      // P
    const int64_t* prefixes;  // (B, P): tokens forced by the caller, padding where there is none
    const int64_t* lengths;   // (B): of the sources where outputs must have the same; null: they need not
    const int64_t *texts, *sizes;  // what outputs may resemble, see CopyOptions; null: nothing is known
    int64_t match;                 // as CopyOptions has it
    struct BeamBudget* budget;     // null: nothing is evaluated before the search asks for it
};

namespace {

// A prefix and its log-probability in nats.
struct Scored {
    double total;
    int64_t node;
};

// A prefix and a token behind it.
struct Continuation {
    double total;
    int64_t node, token;
};

// What one step decides: continuations of the next step and those that end here, best first; or why it cannot.
struct BeamStep {
    std::vector<Continuation> going_on, ended;
    int64_t read = 0;              // how many prefixes, best first, were needed
    std::vector<int64_t> missing;  // those whose tables are needed and are not there: nothing is decided
};

class BeamRules {
  public:
    explicit BeamRules(const BeamOptions& options)
        : options_(options), bonus_(std::max(0.0, -options.unk_penalty)) {
        prefixes_.assign(options.prefixes, options.prefixes + options.sentences * options.prefix_size);
        if (options.lengths) lengths_.assign(options.lengths, options.lengths + options.sentences);
    }

    // The token whose log-probability a table needs beside the best ones.
    int64_t wanted(int64_t row, int64_t depth) const {
        const int64_t forced = forced_token(row, depth);
        return forced < 0 ? options_.eos : forced;
    }

    bool ends(const Choice& choice) const { return choice.token == options_.eos; }

    // What may follow a prefix of a sentence, best first, by its row of what aggdec_best_tokens gives.
    void read_table(int64_t row, int64_t depth, const float* table, int64_t best,
                    std::vector<Choice>& choices) const {
        const int64_t forced = forced_token(row, depth);
        choices.clear();
        if (forced >= 0) {
            choices.push_back({forced, table[2 * best]});
        } else if (depth >= options_.limit) {
            choices.push_back({options_.eos, table[2 * best]});
        } else {
            for (int64_t i = 0; i < best; ++i)
                choices.push_back({static_cast<int64_t>(table[best + i]), table[i]});
            if (depth < options_.floor && depth >= options_.prefix_size) without_end(choices);
        }
        if (!lengths_.empty()) {
            // Stock gives a forced end the log-probability 0, beside whatever else may come.
            without_end(choices);
            if (depth >= lengths_[row]) {
                const auto below = std::find_if(choices.begin(), choices.end(),
                                                [](const Choice& choice) { return !(choice.value > 0.0); });
                choices.insert(below, {options_.eos, 0.0});
            }
        }
        while (!choices.empty() && choices.back().value == -INFINITY) choices.pop_back();
    }

    // One step of stock beam search. table: of a node.
    template <class F>
    void step(int64_t row, int64_t depth, const std::vector<Scored>& active, const F& table, BeamStep& found) const {
        std::vector<Continuation>& pool = found.going_on;
        pool.clear(), found.ended.clear(), found.missing.clear();
        found.read = 0;
        double least = -INFINITY;
        bool ending = false;
        for (const Scored& prefix : active) {
            if (prefix.total + bonus_ <= least) break;  // no continuation scores more
            const Table known = table(prefix.node);
            if (!known.choices) {
                found.missing.push_back(prefix.node);
                continue;
            }
            ++found.read;
            const size_t before = pool.size();
            for (int64_t i = 0; i < known.count; ++i) ending |= known.choices[i].token == options_.eos;
            for (int64_t i = 0; i < known.count; ++i) {
                const double total = prefix.total + known.choices[i].value;
                if (total <= least) break;
                add(pool, {total, prefix.node, known.choices[i].token});
            }
            if (pool.size() > before) least = cut(pool, ending);
        }
        settle(row, depth, ending, found);
    }

  private:
    // The token that the caller wants at an output index, -1 for none; at the limit </s> goes first.
    int64_t forced_token(int64_t row, int64_t depth) const {
        if (depth >= std::min(options_.prefix_size, options_.limit)) return -1;
        const int64_t token = prefixes_[row * options_.prefix_size + depth];
        return token == options_.pad ? -1 : token;
    }

    void without_end(std::vector<Choice>& choices) const {
        choices.erase(std::remove_if(choices.begin(), choices.end(),
                                     [&](const Choice& choice) { return choice.token == options_.eos; }),
                      choices.end());
    }

    // Keeps continuations in the order of their scores; of equal ones the earlier comes first.
    static void add(std::vector<Continuation>& pool, const Continuation& item) {
        auto at = pool.end();
        while (at != pool.begin() && (at - 1)->total < item.total) --at;
        pool.insert(at, item);
    }

    // Drops all behind the `beam` best that go on; the least score that counts.
    double cut(std::vector<Continuation>& pool, bool ending) const {
        int64_t going_on = 0;
        for (size_t i = 0; i < pool.size(); ++i) {
            going_on += !ending || pool[i].token != options_.eos;
            if (going_on == options_.beam) {
                pool.resize(i + 1);
                return pool.back().total;
            }
        }
        return -INFINITY;
    }

    // Parts what ends from what goes on.
    void settle(int64_t row, int64_t depth, bool ending, BeamStep& found) const {
        std::vector<Continuation>& pool = found.going_on;
        const auto beam = static_cast<size_t>(options_.beam);
        if (depth < options_.limit && forced_token(row, depth) == options_.eos) {
            // Where the caller forces </s>, stock ends as many copies of the best hypothesis.
            if (!pool.empty()) found.ended.assign(beam, pool.front());
            pool.clear();
            return;
        }
        if (!ending) return;
        size_t kept = 0;
        for (size_t i = 0; i < pool.size(); ++i) {
            if (pool[i].token != options_.eos) pool[kept++] = pool[i];
            else if (i < beam) found.ended.push_back(pool[i]);
        }
        pool.resize(kept);
    }

    const BeamOptions options_;
    const double bonus_;
    std::vector<int64_t> prefixes_, lengths_;
};

}  // namespace
