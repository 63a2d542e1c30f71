// Beam search that writes several words in each step (Algorithm 1 of Zhang et al. 2020), for a whole batch.
//
// fairseq_aggdec/search/interleaved/ has the same search in tensors. Sums are of doubles here. Letters: z slots of a
// step, W continuations of a hypothesis.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tables.h"

struct InterleavedOptions {
    BeamOptions beam;      // without n-grams, prefixes and texts
    int64_t step;          // z
    int64_t block;         // a slot sees whole blocks of so many slots, up to its own block
    int64_t directions;    // it sees every so many-th slot, so that its own is among them
    int64_t all_agree;     // behind </s> every slot of the step says </s> too, which counts in the score
    int64_t any_ending;    // every ending among the best continuations of a hypothesis counts
};

namespace {

class InterleavedSearch final : public TableSearch {
  public:
    explicit InterleavedSearch(const InterleavedOptions& options)
        : TableSearch(options.beam.rules, options.beam.sentences,
                      (options.any_ending ? 1 : 2) * options.beam.beam, options.beam.threads),
          options_(options), beam_(options.beam.beam), eos_(options.beam.rules.eos), sentences_(options.beam.sentences),
          slots_(options.step) {
        result.rounds.assign(sentences_.size(), 0);
    }

    void finish() override {
        for (size_t row = 0; row < sentences_.size(); ++row)
            for (const Line& line : sentences_[row].ended) {
                result.owners.push_back(static_cast<int64_t>(row));
                result.lengths.push_back(static_cast<int64_t>(line.tokens.size()));
                result.tokens.insert(result.tokens.end(), line.tokens.begin(), line.tokens.end());
                result.scores.insert(result.scores.end(), line.scores.begin(), line.scores.end());
                result.totals.push_back(line.total);
            }
    }

  protected:
    void write(WindowRequest& request) override {
        for (size_t row = 0; row < sentences_.size(); ++row) {
            Sentence& sentence = sentences_[row];
            request.starts.push_back(sentence.places);
            request.widths.push_back(static_cast<int64_t>(sentence.live.size()) * options_.step);
            for (Line& line : sentence.live) {
                line.places.push_back(sentence.places);
                sentence.places += options_.step;
                for (int64_t slot = 0; slot < options_.step; ++slot) {
                    const auto place = static_cast<int64_t>(request.tokens.size());
                    rules.change({place, static_cast<int64_t>(row), first_ + slot, nullptr}, request.changes);
                    request.wanted.push_back({place, eos_});
                    request.tokens.push_back(first_ ? line.tokens[first_ - options_.step + slot] : options_.beam.start);
                    request.depths.push_back(first_ + slot);
                }
            }
            request.end = std::max(request.end, sentence.places);
        }
        request.reach = first_ + options_.step;
        write_seen(request);
    }

    void read(int64_t, int64_t, const float*, const Tables& tables) override {
        int64_t place = 0;
        for (size_t row = 0; row < sentences_.size(); ++row) {
            Sentence& sentence = sentences_[row];
            if (sentence.live.empty()) continue;
            ++result.rounds[row];
            parts_.clear(), pool_.clear();
            for (size_t line = 0; line < sentence.live.size(); ++line)
                for (int64_t slot = 0; slot < options_.step; ++slot, ++place) {
                    const bool numbers = read_slot(row, slot, tables.row(place), tables.wanted[place]);
                    if (!numbers && result.broken < 0) result.broken = static_cast<int64_t>(row);
                    if (slot + 1 == options_.step) extend(sentence.live[line].total, line, tables.best);
                }
            advance(sentence);
        }
        first_ += options_.step;
    }

  private:
    // A hypothesis in the order of writing; `places` of the cache, where each step begins.
    struct Line {
        double total = 0.0;
        std::vector<int64_t> tokens, places;
        std::vector<float> scores;
    };

    struct Sentence {
        std::vector<Line> live{1}, ended;  // unfinished hypotheses, best first, and finished ones
        int64_t places = 0;                // taken in the cache
    };

    // What a slot may say, best first, and the end; -inf: impossible. agreed: what the end adds to one before it.
    struct Slot {
        std::vector<Choice> words;
        double end, agreed;
    };

    // A word behind others of its step, whose number is `before`; -1: it is the first.
    struct Part {
        double total;
        int64_t before;
        Choice word;
    };

    // A continuation of a hypothesis by the words up to a part.
    struct Extension {
        double total;
        size_t line;
        int64_t part;
    };

    void write_seen(WindowRequest& request) const {
        request.seen_bytes = (request.end + 7) / 8;
        request.seen.assign(request.tokens.size() * request.seen_bytes, 0);
        uint8_t* bits = request.seen.data();
        for (const Sentence& sentence : sentences_)
            for (const Line& line : sentence.live)
                for (int64_t slot = first_; slot < first_ + options_.step; ++slot, bits += request.seen_bytes)
                    for (int64_t key = slot % options_.directions; key / options_.block <= slot / options_.block;
                         key += options_.directions) {
                        const int64_t place = line.places[key / options_.step] + key % options_.step;
                        bits[place / 8] |= static_cast<uint8_t>(1 << place % 8);
                    }
    }

    // False where the model gave no numbers. end: the logit of </s>.
    bool read_slot(size_t sentence, int64_t number, const Row& table, float end) {
        Slot& slot = slots_[number];
        const auto row = static_cast<int64_t>(sentence);
        const bool last = rules.maximum.holds(row, first_ + number), free = last && options_.beam.rules.free_end;
        slot.words.clear();
        bool ends = last;
        for (int64_t i = 0; i < table.best; ++i) {
            const float value = table.log_prob(table.value(i));
            if (table.token(i) == eos_) ends = true;
            else if (!last && value > -INFINITY) slot.words.push_back({table.token(i), value});
        }
        const bool banned = rules.minimum.holds(row, first_ + number);
        slot.agreed = free ? 0.0 : banned ? -INFINITY : table.log_prob(end);
        slot.end = ends ? slot.agreed : -INFINITY;
        return free || !table.broken();
    }

    // Appends the W = `best` best continuations of a hypothesis to the pool. Behind </s> there is no word.
    void extend(double total, size_t line, int64_t best) {
        double agreed = 0.0;
        for (auto slot = slots_.rbegin(); options_.all_agree && slot != slots_.rend(); ++slot)
            slot->end += agreed, agreed += slot->agreed;
        const auto first = static_cast<int64_t>(pool_.size());
        level_.assign(1, {0.0, -1, {}});
        int64_t before = -1;  // the number of the first of the level, -1 at the root
        for (const Slot& slot : slots_) {
            next_.clear();
            for (size_t i = 0; i < level_.size(); ++i) {
                const int64_t number = before < 0 ? -1 : before + static_cast<int64_t>(i);
                if (slot.end > -INFINITY) {
                    pool_.push_back({level_[i].total + slot.end, line, static_cast<int64_t>(parts_.size())});
                    parts_.push_back({0.0, number, {eos_, slot.end}});
                }
                // Behind the i-th best of W sums, which (i + 1) (n + 1) - 1 others are not below the n-th word's.
                for (size_t n = 0; n < slot.words.size() && static_cast<int64_t>((i + 1) * (n + 1)) <= best; ++n)
                    next_.push_back({level_[i].total + slot.words[n].value, number, slot.words[n]});
            }
            keep_best(next_, 0, best);
            level_.swap(next_);
            before = static_cast<int64_t>(parts_.size());
            parts_.insert(parts_.end(), level_.begin(), level_.end());
        }
        for (size_t i = 0; i < level_.size(); ++i)
            pool_.push_back({level_[i].total, line, before + static_cast<int64_t>(i)});
        keep_best(pool_, first, best);
        for (size_t i = first; i < pool_.size(); ++i) pool_[i].total += total;
    }

    template <class T>
    static void keep_best(std::vector<T>& items, int64_t first, int64_t count) {
        std::stable_sort(items.begin() + first, items.end(), [](const T& a, const T& b) { return a.total > b.total; });
        if (static_cast<int64_t>(items.size()) > first + count) items.resize(first + count);
    }

    // Lines 9 to 17: takes up what has ended, goes on with the B best of the rest unless the sentence is done.
    void advance(Sentence& sentence) {
        keep_best(pool_, 0, static_cast<int64_t>(pool_.size()));
        const bool all = options_.any_ending || static_cast<int64_t>(pool_.size()) < beam_;
        const double least = all ? -INFINITY : pool_[beam_ - 1].total;
        std::vector<Line> live;
        for (const Extension& item : pool_) {
            const bool ended = parts_[item.part].word.token == eos_;
            const bool counts = item.total >= least && (options_.any_ending || count(sentence.ended) < beam_);
            if (ended && counts) sentence.ended.push_back(extended(sentence.live[item.line], item));
            else if (!ended && count(live) < beam_) live.push_back(extended(sentence.live[item.line], item));
        }
        if (count(sentence.ended) >= beam_) live.clear();
        sentence.live.swap(live);
    }

    static int64_t count(const std::vector<Line>& lines) { return static_cast<int64_t>(lines.size()); }

    Line extended(Line line, const Extension& item) const {
        line.total = item.total;
        for (int64_t part = item.part; part >= 0; part = parts_[part].before) {
            line.tokens.insert(line.tokens.begin() + first_, parts_[part].word.token);
            line.scores.insert(line.scores.begin() + first_, static_cast<float>(parts_[part].word.value));
        }
        return line;
    }

    const InterleavedOptions options_;
    const int64_t beam_, eos_;
    std::vector<Sentence> sentences_;
    int64_t first_ = 0;  // slot of the step
    // Of a hypothesis and of a sentence.
    std::vector<Slot> slots_;
    std::vector<Part> parts_, level_, next_;
    std::vector<Extension> pool_;
};

}  // namespace
