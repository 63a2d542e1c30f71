// Generation rules of stock fairseq: each is a class that says how it changes the logits at a place of a window, from what
// is written before that place. All searches ask them; only the tables of a window apply what they say.
//
// fairseq_aggdec/search/rules.py has the same rules in tensors; tests/rule_cases.py tries both.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "../structs.h"

// Generation options of a batch of B sentences.
struct RuleOptions {
    int64_t pad, unk, eos;
    double unk_penalty;
    int64_t ngram;                                 // n-grams of this size occur once, 0: any
    int64_t free_end;                              // </s> scores 0 where the length forces it
    const int64_t *ends, *floors, *strict_floors;  // (B), see search/state.py
    int64_t prefix_size;                           // P
    const int64_t* prefixes;                       // (B, P): tokens forced by the caller, padding where there is none
};

namespace {

// A place of a window as a rule reads it. output: the index of the token that is chosen there; line: the tokens before it,
// start symbol first, where a rule needs them.
struct Spot {
    int64_t place, row, output;
    const std::vector<int64_t>* line;
};

class Rule {
  public:
    virtual ~Rule() = default;

    // Appends how logits change at a place. True: a token is forced, and no later rule counts.
    virtual bool change(const Spot& spot, std::vector<Change>& changes) const = 0;

    // Whether it reads the tokens before a place.
    virtual bool reads_line() const { return false; }
};

// <unk> scores less, or more.
class UnknownWord final : public Rule {
  public:
    explicit UnknownWord(const RuleOptions& options) : unk_(options.unk), penalty_(options.unk_penalty) {}

    bool change(const Spot& spot, std::vector<Change>& changes) const override {
        changes.push_back({spot.place, unk_, -penalty_});
        return false;
    }

  private:
    const int64_t unk_;
    const double penalty_;
};

// </s> is forced at the maximum length.
class MaximumLength final : public Rule {
  public:
    MaximumLength(const RuleOptions& options, int64_t sentences)
        : eos_(options.eos), ends_(options.ends, options.ends + sentences) {}

    bool holds(int64_t row, int64_t output) const { return output >= ends_[row]; }

    bool change(const Spot& spot, std::vector<Change>& changes) const override {
        if (!holds(spot.row, spot.output)) return false;
        changes.push_back({spot.place, eos_, INFINITY});
        return true;
    }

  private:
    const int64_t eos_;
    const std::vector<int64_t> ends_;
};

// The caller's tokens are forced.
class ForcedPrefix final : public Rule {
  public:
    ForcedPrefix(const RuleOptions& options, int64_t sentences)
        : pad_(options.pad), size_(options.prefix_size),
          tokens_(options.prefixes, options.prefixes + sentences * options.prefix_size) {}

    // The token at an output index, -1: none.
    int64_t token(int64_t row, int64_t output) const {
        const int64_t token = output < size_ ? tokens_[row * size_ + output] : pad_;
        return token == pad_ ? -1 : token;
    }

    bool change(const Spot& spot, std::vector<Change>& changes) const override {
        const int64_t forced = token(spot.row, spot.output);
        if (forced >= 0) changes.push_back({spot.place, forced, INFINITY});
        return forced >= 0;
    }

  private:
    const int64_t pad_, size_;
    const std::vector<int64_t> tokens_;
};

// </s> is banned before the minimum length.
class MinimumLength final : public Rule {
  public:
    MinimumLength(const RuleOptions& options, int64_t sentences)
        : eos_(options.eos), free_from_(options.prefix_size), floors_(options.floors, options.floors + sentences),
          strict_(options.strict_floors, options.strict_floors + sentences) {}

    // A prefix column lifts the minimum length for every row, also where that row's own prefix is free.
    bool holds(int64_t row, int64_t output) const {
        return output < strict_[row] || (output >= free_from_ && output < floors_[row]);
    }

    bool change(const Spot& spot, std::vector<Change>& changes) const override {
        if (holds(spot.row, spot.output)) changes.push_back({spot.place, eos_, -INFINITY});
        return false;
    }

  private:
    const int64_t eos_, free_from_;
    const std::vector<int64_t> floors_, strict_;
};

// What would repeat an n-gram is banned.
class NoRepeats final : public Rule {
  public:
    explicit NoRepeats(int64_t ngram) : ngram_(ngram) {}

    // f(token) for each token that would repeat an n-gram behind a line, start symbol first.
    template <class F>
    void each(const std::vector<int64_t>& line, const F& f) const {
        if (!ngram_) return;
        const auto size = static_cast<int64_t>(line.size()), context = ngram_ - 1;
        const auto last = line.end() - std::min(context, size);
        for (int64_t end = std::max<int64_t>(context, 1); end < size; ++end)
            if (std::equal(last, line.end(), line.begin() + end - context)) f(line[end]);
    }

    bool repeats(const std::vector<int64_t>& line, int64_t token) const {
        bool again = false;
        each(line, [&](int64_t other) { again |= other == token; });
        return again;
    }

    bool change(const Spot& spot, std::vector<Change>& changes) const override {
        each(*spot.line, [&](int64_t token) { changes.push_back({spot.place, token, -INFINITY}); });
        return false;
    }

    bool reads_line() const override { return true; }

  private:
    const int64_t ngram_;
};

// The rules of a batch, in stock's order.
class Rules {
  public:
    Rules(const RuleOptions& options, int64_t sentences)
        : maximum(options, sentences), prefix(options, sentences), minimum(options, sentences), repeats(options.ngram),
          unknown_(options) {
        if (options.unk_penalty != 0.0) rules_.push_back(&unknown_);
        rules_.insert(rules_.end(), {&maximum, &prefix, &minimum});
        if (options.ngram) rules_.push_back(&repeats);
    }
    Rules(const Rules&) = delete;

    // Appends how logits change at a place.
    void change(const Spot& spot, std::vector<Change>& changes) const {
        for (const Rule* rule : rules_)
            if (rule->change(spot, changes)) return;
    }

    bool read_lines() const {
        return std::any_of(rules_.begin(), rules_.end(), [](const Rule* rule) { return rule->reads_line(); });
    }

    const MaximumLength maximum;
    const ForcedPrefix prefix;
    const MinimumLength minimum;
    const NoRepeats repeats;

  private:
    const UnknownWord unknown_;
    std::vector<const Rule*> rules_;
};

}  // namespace
