// Drafts that are copied from a text for each sentence, and how long they are.
//
// Greedy search follows one output in each text, beam search the prefixes of a tree. drafters/copy/copy_on_device.py follows
// texts on a device, and budget/copy_length.py says how much is drafted there.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drafter.h"
#include "price.h"

// Texts of a batch of B sentences, and what is known of how often copies stand.
struct CopyOptions {
    const int64_t *texts, *sizes;  // tokens, one text after the other, start symbol first; (B) how many each has
    int64_t match;                 // which occurrence counts: 0 unique, 1 longest, 2 recent, 3 aligned
    int64_t fixed, most;           // whether every draft has `most` tokens; the longest draft
    int64_t probing, unknown;      // first drafts are short; because it did not pay before, or because nothing is known
    CallPrice price;
    double accepted, checked;      // of all texts so far
};

namespace {

// Of each place of a text how many tokens up to it are those that an output ends with.
using Runs = std::vector<int64_t>;

// The output is one token longer.
inline void follow(const std::vector<int64_t>& text, int64_t token, Runs& runs) {
    for (size_t place = text.size(); place-- > 0;)
        runs[place] = text[place] == token ? (place ? runs[place - 1] : 0) + 1 : 0;
}

constexpr int64_t UNIQUE = 0, LONGEST = 1, ALIGNED = 3;

// Where the longest suffix of an output that occurs in the text ends there, -1 for nowhere. copied: the last token that
// the output has copied.
inline int64_t occurrence(const Runs& runs, int64_t match, int64_t copied) {
    const int64_t longest = *std::max_element(runs.begin(), runs.end());
    if (longest == 0) return -1;
    int64_t first = -1, later = -1;
    for (auto place = static_cast<int64_t>(runs.size()) - 1; place >= 0; --place) {
        if (runs[place] != longest) continue;
        if (match == UNIQUE && first >= 0) return -1;
        first = place;
        if (place > copied) later = place;
    }
    return match == LONGEST || later < 0 ? first : later;
}

// Appends a text from behind a token on, at most `limit` tokens, up to one that is never drafted.
inline void copy_from(const std::vector<int64_t>& text, int64_t cursor, int64_t limit, std::vector<int64_t>& draft) {
    if (cursor < 0) return;
    const int64_t end = cursor + 1 + std::min(limit, static_cast<int64_t>(text.size()) - cursor - 1);
    for (int64_t i = cursor + 1; i < end && text[i] >= 0; ++i) draft.push_back(text[i]);
}

// Where an output stands in a text.
struct Place {
    int64_t cursor = 0, copied = 0;  // the token that it stands at, -1 for none; the last that it has copied
    bool guessed = false;            // the cursor stands where a token was replaced, as nothing says otherwise
    Runs runs;                       // empty: the output is the text up to the cursor
};

// A text to copy from.
class CopyText {
  public:
    CopyText(std::vector<int64_t> tokens, int64_t match) : tokens_(std::move(tokens)), match_(match) {}

    int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

    // Appends the text from a place on.
    void copy(const Place& from, int64_t limit, std::vector<int64_t>& draft) const {
        copy_from(tokens_, from.cursor, limit, draft);
    }

    // Where an output stands after one token more.
    Place step(const Place& before, int64_t token) const {
        const int64_t cursor = before.cursor;
        const bool follows = cursor >= 0 && cursor + 1 < size() && tokens_[cursor + 1] == token;
        if (follows && before.runs.empty()) return {cursor + 1, before.copied, false, {}};
        Runs runs = before.runs;
        if (runs.empty()) {  // only where a draft has failed: many never do
            runs.assign(tokens_.size(), 0);
            for (int64_t read = 0; read <= cursor; ++read) follow(tokens_, tokens_[read], runs);
        }
        follow(tokens_, token, runs);
        if (follows) return {cursor + 1, before.copied, false, std::move(runs)};
        const int64_t copied = cursor < 0 ? before.copied : cursor;
        const int64_t next_cursor = occurrence(runs, match_, copied);
        if (match_ != ALIGNED || next_cursor >= 0 || cursor < 0) return {next_cursor, copied, false, std::move(runs)};
        // The token replaced the rejected one, or was put before it where the one before replaced it.
        const int64_t replaced = before.guessed ? cursor : copied + 1;
        const bool inside = replaced + 1 < size();
        return {inside ? replaced : -1, copied, inside, std::move(runs)};
    }

  private:
    std::vector<int64_t> tokens_;
    int64_t match_;
};

// A text to copy from, and where the prefixes of a tree stand in it. A prefix is placed once, from where the one that is
// a token shorter stands.
class CopyPaths {
  public:
    CopyPaths(std::vector<int64_t> tokens, int64_t match) : text_(std::move(tokens), match) { places_[0] = {}; }

    // Appends what outputs may begin with.
    void beginning(int64_t limit, std::vector<int64_t>& draft) const { text_.copy({}, limit, draft); }

    // Appends the text from where a prefix stands on. tree: of nodes with a parent and a token.
    template <class Tree>
    void behind(const Tree& tree, int64_t node, int64_t limit, std::vector<int64_t>& draft) {
        text_.copy(place(tree, node), limit, draft);
    }

  private:
    template <class Tree>
    const Place& place(const Tree& tree, int64_t node) {
        const auto known = places_.find(node);
        if (known != places_.end()) return known->second;
        Place next = text_.step(place(tree, tree[node].parent), tree[node].token);
        return places_[node] = std::move(next);
    }

    CopyText text_;
    std::unordered_map<int64_t, Place> places_;  // by node
};

// How long copies are: as long as is worth their cost, by the chances of their tokens.
class CopyAccount {
  public:
    CopyAccount(const CopyOptions& options, int64_t rows) : options_(options), rows_(rows), alive_(rows) { weigh(); }

    bool idle() const { return idle_; }

    int64_t plan(int64_t row, int64_t room) const {
        if (options_.fixed) return std::min(options_.most, room);
        const Share& share = rows_[row];
        if ((options_.probing || options_.unknown) && share.checked == 0.0) return std::min(PROBE_LENGTH, room);
        const double chance = (share.accepted + WEIGHT_OF_ALL * mean()) / (share.checked + WEIGHT_OF_ALL);
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
    // As copy_length.py has them.
    static constexpr int64_t PROBE_LENGTH = 4, LONG = 64;
    static constexpr double MARGIN = 0.1, WEIGHT_OF_ALL = 10.0;

    struct Share {
        double accepted = 0.0, checked = 0.0;
    };

    double mean() const { return options_.accepted / options_.checked; }

    // Of an iteration that drafts so many tokens for each sentence.
    double cost(int64_t length) const {
        const auto rows = static_cast<double>(std::max<int64_t>(1, alive_));
        return call_cost(options_.price, rows * static_cast<double>(1 + length));
    }

    void weigh() { idle_ = !options_.fixed && alive_ > 1 && !options_.probing && worthwhile(mean(), LONG) == 0; }

    int64_t worthwhile(double chance, int64_t room) const {
        const int64_t length = best_length(chance, room);
        double expected = 0.0;
        for (int64_t place = 0; place <= length; ++place) expected += std::pow(chance, static_cast<double>(place));
        return expected * cost(0) >= (1 + MARGIN) * cost(length) ? length : 0;
    }

    int64_t best_length(double chance, int64_t room) const {
        double expected = 1.0, gain = 1.0;
        for (int64_t length = 0; length < room; ++length) {
            gain *= chance;
            if (gain * cost(length) <= expected * (cost(length + 1) - cost(length))) return length;
            expected += gain;
        }
        return std::max<int64_t>(room, 0);
    }

    CopyOptions options_;
    std::vector<Share> rows_;
    int64_t alive_;
    bool idle_ = false;
};

// Drafts what the text of each sentence goes on with.
class Copies final : public Drafter {
  public:
    Copies(const CopyOptions& options, int64_t rows) : account_(options, rows), places_(rows), followed_(rows, 1) {
        const int64_t* text = options.texts;
        for (int64_t row = 0; row < rows; text += options.sizes[row++])
            texts_.emplace_back(std::vector<int64_t>(text, text + options.sizes[row]), options.match);
    }

    bool draft(const Written& batch, Draft& draft) override {
        for (const int64_t row : batch.rows) {
            if (!account_.idle()) copy(batch, row, draft.tokens);
            draft.end_row();
        }
        return true;
    }

    void observe(const Written& batch, const Outcome& outcome) override {
        for (int64_t i = 0; i < outcome.rows; ++i)
            account_.observe(batch.rows[i], outcome.drafted[i], outcome.accepted[i]);
    }

    void keep(int64_t rows) override { account_.keep(rows); }

  private:
    void copy(const Written& batch, int64_t row, std::vector<int64_t>& draft) {
        const int64_t limit = account_.plan(row, std::min(batch.room(row), texts_[row].size()));
        const auto& output = batch.tokens[row];
        if (!limit) return;
        for (int64_t& at = followed_[row]; at < static_cast<int64_t>(output.size()); ++at)
            places_[row] = texts_[row].step(places_[row], output[at]);
        texts_[row].copy(places_[row], limit, draft);
    }

    CopyAccount account_;
    std::vector<CopyText> texts_;    // of each sentence
    std::vector<Place> places_;      // where it stands
    std::vector<int64_t> followed_;  // tokens of its output that are followed
};

}  // namespace
