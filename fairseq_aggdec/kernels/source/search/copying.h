// Drafts that are copied from a text for each sentence, and how long they are.
//
// fairseq_aggdec/drafters/copy/copy_text.py and budget/copy_account.py are the same in Python.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

// Texts of a batch of B sentences, and what is known of how often copies stand.
struct CopyOptions {
    const int64_t *texts, *sizes;  // tokens, one text after the other, start symbol first; (B) how many each has
    int64_t match;                 // which occurrence counts: 0 unique, 1 longest, 2 recent, 3 aligned
    int64_t fixed, most;           // whether every draft has `most` tokens; the longest draft
    int64_t probing, unknown;      // first drafts are short; because it did not pay before, or because nothing is known
    double step_cost;              // of an iteration beside its tokens, in tokens
    double accepted, checked;      // of all texts so far
};

namespace {

// A text to copy from, and how far the output has followed it.
class CopyText {
  public:
    CopyText(std::vector<int64_t> tokens, int64_t match)
        : tokens_(std::move(tokens)), match_(match), runs_(tokens_.size()) {}

    int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

    // Appends the text from where the output stands on, at most `limit` tokens, up to one that is never drafted.
    void copy(int64_t limit, std::vector<int64_t>& draft) const {
        if (cursor_ < 0) return;
        const int64_t end = cursor_ + 1 + std::min(limit, size() - cursor_ - 1);
        for (int64_t i = cursor_ + 1; i < end && tokens_[i] >= 0; ++i) draft.push_back(tokens_[i]);
    }

    // Finds where the output, start symbol included, stands now.
    void follow(const std::vector<int64_t>& output) {
        const auto length = static_cast<int64_t>(output.size()), gained = length - followed_;
        const int64_t before = cursor_;
        followed_ = length;
        if (gained == 0) return;
        if (before >= 0) {
            const int64_t most = std::min(gained, size() - before - 1);
            int64_t alike = 0;
            while (alike < most && tokens_[before + 1 + alike] == output[length - gained + alike]) ++alike;
            if (alike == gained) {
                cursor_ = before + gained;
                guessed_ = false;
                return;
            }
            copied_ = before + alike;
        }
        for (; read_ < length; ++read_)  // only where a draft has failed: many never do
            for (int64_t place = size() - 1; place >= 0; --place)
                runs_[place] = tokens_[place] == output[read_] ? (place ? runs_[place - 1] : 0) + 1 : 0;
        cursor_ = occurrence();
        if (match_ == ALIGNED && cursor_ < 0 && before >= 0) cursor_ = replaced(before);
        else guessed_ = false;
    }

  private:
    static constexpr int64_t UNIQUE = 0, LONGEST = 1, ALIGNED = 3;

    // Where the longest suffix of the output that occurs in the text ends there, -1 for nowhere.
    int64_t occurrence() const {
        const int64_t longest = *std::max_element(runs_.begin(), runs_.end());
        if (longest == 0) return -1;
        int64_t first = -1, later = -1;
        for (int64_t place = size() - 1; place >= 0; --place) {
            if (runs_[place] != longest) continue;
            if (match_ == UNIQUE && first >= 0) return -1;
            first = place;
            if (place > copied_) later = place;
        }
        return match_ == LONGEST || later < 0 ? first : later;
    }

    // Where the output stands if its last token replaced the rejected one.
    int64_t replaced(int64_t cursor) {
        const bool inserted = guessed_ && copied_ == cursor;
        const int64_t place = inserted ? cursor : copied_ + 1;
        guessed_ = place + 1 < size();
        return guessed_ ? place : -1;
    }

    std::vector<int64_t> tokens_;
    int64_t match_, cursor_ = 0, copied_ = 0;  // the token that the output stands at, and the last that it has copied
    bool guessed_ = false;                     // the cursor stands where a token was replaced, as nothing says otherwise
    int64_t followed_ = 1, read_ = 0;          // tokens of the output that were followed, and that `runs_` tells of
    std::vector<int64_t> runs_;                // how many tokens up to each place are those that the output ends with
};

// How long copies are: as long as is worth their cost, by the chances of their tokens.
class CopyAccount {
  public:
    CopyAccount(const CopyOptions& options, int64_t rows) : options_(options), rows_(rows), alive_(rows) { weigh(); }

    bool idle() const { return idle_; }

    int64_t plan(int64_t row, int64_t room) const {
        if (options_.fixed) return std::min(options_.most, room);
        const Share& own = rows_[row];
        if ((options_.probing || options_.unknown) && own.checked == 0.0) return std::min(PROBE_LENGTH, room);
        const double chance = (own.accepted + WEIGHT_OF_ALL * mean()) / (own.checked + WEIGHT_OF_ALL);
        return worthwhile(chance, room);
    }

    void observe(int64_t row, int64_t drafted, int64_t accepted) {
        if (!drafted) return;
        const auto stood = static_cast<double>(accepted), seen = stood + (accepted < drafted);
        rows_[row].accepted += stood, rows_[row].checked += seen;
        options_.accepted += stood, options_.checked += seen;
    }

    // So many sentences are left.
    void keep(int64_t rows) {
        if (rows == alive_) return;
        alive_ = rows;
        weigh();
    }

  private:
    // As copy_account.py and chances.py have them.
    static constexpr int64_t PROBE_LENGTH = 4, LONG = 64;
    static constexpr double MARGIN = 0.1, WEIGHT_OF_ALL = 10.0;

    struct Share {
        double accepted = 0.0, checked = 0.0;
    };

    double mean() const { return options_.accepted / options_.checked; }

    double fixed_cost() const { return 1.0 + options_.step_cost / static_cast<double>(std::max<int64_t>(1, alive_)); }

    void weigh() { idle_ = !options_.fixed && alive_ > 1 && !options_.probing && worthwhile(mean(), LONG) == 0; }

    int64_t worthwhile(double chance, int64_t room) const {
        const double cost = fixed_cost();
        const int64_t length = best_length(chance, cost, room);
        double expected = 0.0;
        for (int64_t place = 0; place <= length; ++place) expected += std::pow(chance, static_cast<double>(place));
        return expected * cost >= (1 + MARGIN) * (cost + static_cast<double>(length)) ? length : 0;
    }

    static int64_t best_length(double chance, double cost, int64_t room) {
        double expected = 1.0, gain = 1.0;
        for (int64_t length = 0; length < room; ++length) {
            gain *= chance;
            if (gain * (cost + static_cast<double>(length)) <= expected) return length;
            expected += gain;
        }
        return std::max<int64_t>(room, 0);
    }

    CopyOptions options_;
    std::vector<Share> rows_;
    int64_t alive_;
    bool idle_ = false;
};

}  // namespace
