// Beam search of a batch that evaluates nothing ahead: every step needs the prefixes that are in the beam, no others.
//
// fairseq_aggdec/search/beam/rules.py has the rules in Python. All sums are of doubles, in the same order.

#pragma once

#include <cmath>

#include "loop.h"

extern "C" int64_t aggdec_best_tokens(const float* logits, int64_t rows, int64_t size, int64_t count,
                                      const int64_t* wanted, int64_t pad, float* out, int64_t threads);

// Generation options of a batch of B sentences.
struct BeamOptions {
    int64_t sentences, beam, eos, pad, start, threads;
    int64_t limit, floor;     // output index at which </s> is forced, and before which it is banned
    int64_t prefix_size;      // P
    const int64_t* prefixes;  // (B, P): tokens forced by the caller, padding where there is none
    const int64_t* lengths;   // (B): of the sources where outputs must have the same; null: they need not
};

namespace {

// A prefix: its last token, the prefix before that, its place in the cache, its log-probability in nats.
struct Node {
    int64_t parent, token, place;
    double total;
};

// A prefix and a token behind it.
struct Continuation {
    double total;
    int64_t node, token;
};

// A token that may follow a prefix, and its log-probability.
struct Choice {
    int64_t token;
    double value;
};

struct Hypotheses {
    std::vector<Node> nodes;
    std::vector<int64_t> active;        // unfinished hypotheses, best first
    std::vector<Continuation> endings;  // finished ones, in the order of finishing
    int64_t places = 0, depth = 0;      // evaluated prefixes; tokens of each unfinished one
    bool done = false;
};

class BeamSearch final : public Search {
  public:
    explicit BeamSearch(const BeamOptions& options)
        : options_(options), sentences_(options.sentences) {
        prefixes_.assign(options.prefixes, options.prefixes + options.sentences * options.prefix_size);
        if (options.lengths) lengths_.assign(options.lengths, options.lengths + options.sentences);
        found.rounds.assign(options.sentences, 0);
        for (Hypotheses& own : sentences_) {
            own.nodes.push_back({-1, options.start, 0, 0.0});
            own.active.push_back(0);
        }
    }

    void finish() override {
        for (int64_t row = 0; row < options_.sentences; ++row) {
            Hypotheses& own = sentences_[row];
            found.nodes += own.places;
            for (const Continuation& ending : own.endings) write_output(row, own.nodes, ending);
        }
        found.emitted.assign(found.drafted.size(), 1);
    }

  protected:
    void write(Asked& asked) override {
        wanted_.clear();
        for (Hypotheses& own : sentences_) {
            const int64_t width = own.done ? 0 : static_cast<int64_t>(own.active.size());
            asked.starts.push_back(own.places);
            asked.widths.push_back(width);
            if (own.done) continue;
            const int64_t row = &own - sentences_.data(), forced = forced_token(row, own.depth);
            for (const int64_t node : own.active) {
                own.nodes[node].place = own.places++;
                asked.tokens.push_back(own.nodes[node].token);
                asked.depths.push_back(own.depth);
                wanted_.push_back(forced >= 0 ? forced : options_.eos);
            }
            asked.end = std::max(asked.end, own.places);
            asked.reach = std::max(asked.reach, own.depth + 1);
        }
        asked.seen_bytes = (asked.end + 7) / 8;
        asked.seen.assign(asked.tokens.size() * asked.seen_bytes, 0);
        uint8_t* bits = asked.seen.data();
        for (const Hypotheses& own : sentences_) {
            if (own.done) continue;
            for (int64_t node : own.active) {
                for (; node >= 0; node = own.nodes[node].parent)
                    bits[own.nodes[node].place / 8] |= static_cast<uint8_t>(1 << own.nodes[node].place % 8);
                bits += asked.seen_bytes;
            }
        }
    }

    void decide(const Asked& asked, float* logits, int64_t types) override {
        const auto count = static_cast<int64_t>(asked.tokens.size());
        best_ = std::min(options_.beam + 1, types);
        tables_.resize(count * (2 * best_ + 1));
        must(aggdec_best_tokens(logits, count, types, best_, wanted_.data(), options_.pad, tables_.data(),
                                options_.threads));
        const float* tables = tables_.data();
        for (int64_t row = 0; row < options_.sentences; ++row) {
            Hypotheses& own = sentences_[row];
            if (own.done) continue;
            ++found.rounds[row];
            found.drafted.push_back(0);
            found.accepted.push_back(0);
            advance(row, own, tables);
            if (found.broken >= 0) return;
            tables += asked.widths[row] * (2 * best_ + 1);
        }
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

    // What may follow a prefix of a sentence, best first, by its row of what aggdec_best_tokens gives.
    void read_table(int64_t row, int64_t depth, const float* table, std::vector<Choice>& choices) const {
        const int64_t forced = forced_token(row, depth);
        choices.clear();
        if (forced >= 0) {
            choices.push_back({forced, table[2 * best_]});
        } else if (depth >= options_.limit) {
            choices.push_back({options_.eos, table[2 * best_]});
        } else {
            for (int64_t i = 0; i < best_; ++i)
                choices.push_back({static_cast<int64_t>(table[best_ + i]), table[i]});
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

    // One step of stock beam search.
    void advance(int64_t row, Hypotheses& own, const float* tables) {
        static thread_local std::vector<Continuation> pool;
        static thread_local std::vector<Choice> choices;
        pool.clear();
        double least = -INFINITY;
        bool ending = false;
        for (const int64_t node : own.active) {
            const double total = own.nodes[node].total;
            if (total <= least) break;  // no continuation scores more than its prefix
            ++found.used;
            if (tables[0] != tables[0]) {
                found.broken = row;
                return;
            }
            read_table(row, own.depth, tables, choices);
            tables += 2 * best_ + 1;
            const size_t known = pool.size();
            for (const Choice& choice : choices) ending |= choice.token == options_.eos;
            for (const Choice& choice : choices) {
                if (total + choice.value <= least) break;
                add(pool, {total + choice.value, node, choice.token});
            }
            if (pool.size() > known) least = cut(pool, ending);
        }
        settle(row, own, pool);
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

    // Ends hypotheses, and takes the others one token further.
    void settle(int64_t row, Hypotheses& own, std::vector<Continuation>& pool) {
        const auto beam = static_cast<size_t>(options_.beam);
        if (own.depth < options_.limit && forced_token(row, own.depth) == options_.eos && !pool.empty()) {
            // Where the caller forces </s>, stock ends as many copies of the best hypothesis.
            const Continuation best = pool.front();
            pool.assign(beam, best);
        }
        own.active.clear();
        for (size_t i = 0; i < pool.size(); ++i) {
            const Continuation& item = pool[i];
            if (item.token != options_.eos) {
                own.active.push_back(static_cast<int64_t>(own.nodes.size()));
                own.nodes.push_back({item.node, item.token, 0, item.total});
            } else if (i < beam && own.endings.size() < beam) {
                own.endings.push_back(item);
            }
        }
        ++own.depth;
        own.done = own.endings.size() == beam || own.active.empty();
    }

    void write_output(int64_t row, const std::vector<Node>& nodes, const Continuation& ending) {
        const size_t first = found.tokens.size();
        double after = ending.total;
        found.tokens.push_back(options_.eos);
        for (int64_t node = ending.node; node >= 0; node = nodes[node].parent) {
            found.scores.push_back(static_cast<float>(after - nodes[node].total));
            after = nodes[node].total;
            if (node > 0) found.tokens.push_back(nodes[node].token);
        }
        std::reverse(found.tokens.begin() + first, found.tokens.end());
        std::reverse(found.scores.begin() + first, found.scores.end());
        found.owners.push_back(row);
        found.lengths.push_back(static_cast<int64_t>(found.tokens.size() - first));
        found.totals.push_back(ending.total);
    }

    const BeamOptions options_;
    std::vector<int64_t> prefixes_, lengths_, wanted_;
    std::vector<Hypotheses> sentences_;
    std::vector<float> tables_;
    int64_t best_ = 0;  // tokens of a table
};

}  // namespace
