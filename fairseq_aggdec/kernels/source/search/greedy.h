// One hypothesis per sentence: drafts are verified, accepted and committed.
//
// fairseq_aggdec/search/greedy.py is the same search in Python, search/rules.py has the rules.

#pragma once

#include <memory>
#include <numeric>

#include "copying.h"
#include "loop.h"

extern "C" int64_t aggdec_judge(const Judgement* judgement);

// Generation options of a batch of B sentences, and the rule of acceptance as a Judgement has it.
struct GreedyOptions {
    int64_t sentences, start, pad, unk, eos;
    double unk_penalty;
    int64_t ngram, free_end;  // n-grams of this size occur once, 0: any; </s> scores 0 where the length forces it
    int64_t beta;
    double tolerance;
    const int64_t *ends, *floors, *strict_floors;  // (B), see search/state.py
    int64_t prefix_size;                           // P
    const int64_t* prefixes;                       // (B, P): tokens forced by the caller, padding where there is none
    const CopyOptions* copies;                     // null: nothing is drafted
};

namespace {

class GreedySearch final : public Search {
  public:
    explicit GreedySearch(const GreedyOptions& options)
        : options_(options), tokens_(options.sentences, {options.start}), scores_(options.sentences) {
        const int64_t rows = options.sentences;
        for (const int64_t* limits : {options.ends, options.floors, options.strict_floors})
            limits_.emplace_back(limits, limits + rows);
        prefixes_.assign(options.prefixes, options.prefixes + rows * options.prefix_size);
        found.rounds.assign(rows, 0);
        for (int64_t row = 0; row < rows; ++row) rows_.push_back(row);
        if (!options.copies) return;
        account_ = std::make_unique<CopyAccount>(*options.copies, rows);
        const int64_t* text = options.copies->texts;
        for (int64_t row = 0; row < rows; text += options.copies->sizes[row++])
            texts_.emplace_back(std::vector<int64_t>(text, text + options.copies->sizes[row]), options.copies->match);
    }

    void finish() override {
        for (size_t row = 0; row < tokens_.size(); ++row) {
            found.owners.push_back(static_cast<int64_t>(row));
            found.lengths.push_back(static_cast<int64_t>(scores_[row].size()));
            found.tokens.insert(found.tokens.end(), tokens_[row].begin() + 1, tokens_[row].end());
            found.scores.insert(found.scores.end(), scores_[row].begin(), scores_[row].end());
        }
    }

  protected:
    void write(Asked& asked) override {
        widths_.clear();
        decided_ = written_ = 0;
        asked.starts.assign(tokens_.size(), 0);
        asked.widths.assign(tokens_.size(), 0);
        for (const int64_t row : rows_) {
            const int64_t before = static_cast<int64_t>(asked.tokens.size());
            asked.starts[row] = static_cast<int64_t>(tokens_[row].size()) - 1;
            asked.tokens.push_back(tokens_[row].back());
            if (account_ && !account_->idle()) draft(row, asked.tokens);
            asked.widths[row] = static_cast<int64_t>(asked.tokens.size()) - before;
            widths_.push_back(asked.widths[row]);
            asked.end = std::max(asked.end, asked.starts[row] + asked.widths[row]);
        }
        asked.reach = asked.end;
    }

    // Whole sentences, one at least.
    int64_t together(int64_t, int64_t most) const override {
        int64_t count = widths_[decided_];
        for (size_t i = decided_ + 1; i < widths_.size() && count + widths_[i] <= most; ++i) count += widths_[i];
        return count;
    }

    void decide(const Asked& asked, int64_t first, int64_t count, float* logits, int64_t types) override {
        size_t end = decided_;
        for (int64_t left = count; left > 0; left -= widths_[end++]) {}
        const auto rows = static_cast<int64_t>(end - decided_);
        find_hidden(asked, first, end);
        for (auto* numbers : {&accepted_, &emitted_}) numbers->resize(rows_.size());
        for (auto* numbers : {&places_, &gained_}) numbers->resize(places());
        emitted_scores_.resize(places());
        const Judgement call{rows, types, widths_.data() + decided_, asked.tokens.data() + first, nullptr, logits,
                             options_.pad, options_.unk, options_.eos, options_.unk_penalty, banned_.data(),
                             forced_.data(), static_cast<int64_t>(banned_.size()),
                             static_cast<int64_t>(forced_.size()), accepted_.data() + decided_,
                             emitted_.data() + decided_, places_.data() + written_, gained_.data() + written_,
                             emitted_scores_.data() + written_, options_.beta, options_.tolerance};
        must(aggdec_judge(&call));
        written_ += std::accumulate(call.emitted, call.emitted + rows, int64_t{0});
        decided_ = end;
        if (end == rows_.size()) commit();
    }

  private:
    // Appends what is drafted for a sentence, up to the first token that would repeat an n-gram.
    void draft(int64_t row, std::vector<int64_t>& tokens) {
        const size_t first = tokens.size();
        const int64_t position = static_cast<int64_t>(tokens_[row].size()) - 1;
        const int64_t limit = account_->plan(row, std::min(limits_[0][row] - position, texts_[row].size()));
        if (limit) texts_[row].follow(tokens_[row]);
        texts_[row].copy(limit, tokens);
        if (!options_.ngram) return;
        line_ = tokens_[row];
        for (size_t i = first; i < tokens.size(); ++i) {
            bool again = false;
            repeats(line_, options_.ngram, [&](int64_t token) { again |= token == tokens[i]; });
            if (again) return tokens.resize(i);
            line_.push_back(tokens[i]);
        }
    }

    // The tokens that positions must have, and those that they must not, from place `first` and the next sentence to
    // `end` on; places are counted from there.
    void find_hidden(const Asked& asked, int64_t first, size_t end) {
        banned_.clear();
        forced_.clear();
        int64_t place = 0;
        for (size_t i = decided_; i < end; ++i) {
            const int64_t row = rows_[i];
            line_ = tokens_[row];
            for (int64_t slot = 0; slot < asked.widths[row]; ++slot, ++place) {
                if (slot) line_.push_back(asked.tokens[first + place]);
                hide(row, asked.starts[row] + slot, place);
            }
        }
    }

    void hide(int64_t row, int64_t output, int64_t place) {
        const int64_t size = options_.prefix_size, eos = options_.eos;
        if (output >= limits_[0][row]) {
            forced_.push_back({place, eos});
        } else if (output < size && prefixes_[row * size + output] != options_.pad) {
            forced_.push_back({place, prefixes_[row * size + output]});
        }
        // A prefix column lifts the minimum length for every row, also where that row's own prefix is free.
        if (output < limits_[2][row] || (output >= size && output < limits_[1][row])) banned_.push_back({place, eos});
        if (options_.ngram)
            repeats(line_, options_.ngram, [&](int64_t token) { banned_.push_back({place, token}); });
    }

    // Appends what is emitted; sentences that have ended leave.
    void commit() {
        const int64_t* gained = gained_.data();
        const float* scores = emitted_scores_.data();
        size_t staying = 0;
        for (size_t i = 0; i < rows_.size(); ++i) {
            const int64_t row = rows_[i], count = emitted_[i];
            const int64_t position = static_cast<int64_t>(tokens_[row].size()) - 1;
            tokens_[row].insert(tokens_[row].end(), gained, gained + count);
            scores_[row].insert(scores_[row].end(), scores, scores + count);
            gained += count, scores += count;
            if (options_.free_end && position + count > limits_[0][row]) scores_[row].back() = 0.0f;
            ++found.rounds[row];
            found.emitted.push_back(count);
            found.drafted.push_back(widths_[i] - 1);
            found.accepted.push_back(accepted_[i]);
            if (account_) account_->observe(row, found.drafted.back(), accepted_[i]);
            if (tokens_[row].back() != options_.eos) rows_[staying++] = row;
        }
        rows_.resize(staying);
        if (account_) account_->keep(static_cast<int64_t>(staying));
    }

    const GreedyOptions options_;
    std::vector<std::vector<int64_t>> limits_;  // ends, floors, strict floors
    std::vector<int64_t> prefixes_;
    std::vector<std::vector<int64_t>> tokens_;  // of each sentence, start symbol first
    std::vector<std::vector<float>> scores_;
    std::vector<int64_t> rows_;                 // the sentences that have not ended
    std::unique_ptr<CopyAccount> account_;      // null: nothing is drafted
    std::vector<CopyText> texts_;               // of each sentence, if anything is drafted
    // Of the window, and how many of its sentences are decided, with how many tokens.
    size_t decided_ = 0;
    int64_t written_ = 0;
    std::vector<int64_t> widths_, accepted_, emitted_, places_, gained_, line_;
    std::vector<Pair> banned_, forced_;
    std::vector<float> emitted_scores_;
};

}  // namespace
