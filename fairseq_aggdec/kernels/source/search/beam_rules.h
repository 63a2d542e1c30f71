// Stock fairseq's rules of beam search over small tables; tests/plain_beam_search.py has them in Python.
//
// All sums are of doubles, in the same order.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "prefixes.h"
#include "tables.h"

// A batch of B sentences.
struct BeamOptions {
    RuleOptions rules;
    int64_t sentences, beam, start, threads;
    int64_t limit;                 // the longest output, which is the end of all of them
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
    BeamRules(const BeamOptions& options, const Rules& rules)
        : options_(options), rules_(rules), eos_(options.rules.eos), bonus_(std::max(0.0, -options.rules.unk_penalty)) {
        const int64_t* lengths = options.rules.strict_floors;
        if (options.rules.free_end) lengths_.assign(lengths, lengths + options.sentences);
    }

    bool ends(const Choice& choice) const { return choice.token == eos_; }

    // What may follow a prefix of a sentence, best first, by its table.
    void read_table(int64_t row, int64_t depth, const Row& table, std::vector<Choice>& choices) const {
        const bool forced = rules_.maximum.holds(row, depth) || rules_.prefix.token(row, depth) >= 0;
        choices.clear();
        for (int64_t i = 0; i < (forced ? 1 : table.best); ++i)
            choices.push_back({table.token(i), table.log_prob(table.value(i))});
        if (!lengths_.empty()) {
            // Stock gives a forced end the log-probability 0, beside whatever else may come.
            without_end(choices);
            if (depth >= lengths_[row]) {
                const auto below = std::find_if(choices.begin(), choices.end(),
                                                [](const Choice& choice) { return !(choice.value > 0.0); });
                choices.insert(below, {eos_, 0.0});
            }
        }
        while (!choices.empty() && choices.back().value == -INFINITY) choices.pop_back();
    }

    // One step of stock beam search. table: of a node.
    template <class F>
    void step(int64_t row, int64_t depth, const std::vector<Scored>& active, const F& table, BeamStep& result) const {
        std::vector<Continuation>& pool = result.going_on;
        pool.clear(), result.ended.clear(), result.missing.clear();
        result.read = 0;
        double least = -INFINITY;
        bool ending = false;
        for (const Scored& prefix : active) {
            if (prefix.total + bonus_ <= least) break;  // no continuation scores more
            const Table known = table(prefix.node);
            if (!known.choices) {
                result.missing.push_back(prefix.node);
                continue;
            }
            ++result.read;
            const size_t before = pool.size();
            for (int64_t i = 0; i < known.count; ++i) ending |= known.choices[i].token == eos_;
            for (int64_t i = 0; i < known.count; ++i) {
                const double total = prefix.total + known.choices[i].value;
                if (total <= least) break;
                add(pool, {total, prefix.node, known.choices[i].token});
            }
            if (pool.size() > before) least = cut(pool, ending);
        }
        settle(row, depth, ending, result);
    }

  private:
    void without_end(std::vector<Choice>& choices) const {
        choices.erase(std::remove_if(choices.begin(), choices.end(),
                                     [&](const Choice& choice) { return choice.token == eos_; }),
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
            going_on += !ending || pool[i].token != eos_;
            if (going_on == options_.beam) {
                pool.resize(i + 1);
                return pool.back().total;
            }
        }
        return -INFINITY;
    }

    // Parts what ends from what goes on.
    void settle(int64_t row, int64_t depth, bool ending, BeamStep& result) const {
        std::vector<Continuation>& pool = result.going_on;
        const auto beam = static_cast<size_t>(options_.beam);
        if (!rules_.maximum.holds(row, depth) && rules_.prefix.token(row, depth) == eos_) {
            // Where the caller forces </s>, stock ends as many copies of the best hypothesis.
            if (!pool.empty()) result.ended.assign(beam, pool.front());
            pool.clear();
            return;
        }
        if (!ending) return;
        size_t kept = 0;
        for (size_t i = 0; i < pool.size(); ++i) {
            if (pool[i].token != eos_) pool[kept++] = pool[i];
            else if (i < beam) result.ended.push_back(pool[i]);
        }
        pool.resize(kept);
    }

    const BeamOptions options_;
    const Rules& rules_;
    const int64_t eos_;
    const double bonus_;
    std::vector<int64_t> lengths_;
};

}  // namespace
