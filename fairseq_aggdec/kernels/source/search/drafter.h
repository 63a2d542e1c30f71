// Where drafts come from: a greedy search asks its drafter before each window, and tells it what became of the draft.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// The sentences of a batch as far as they are decoded.
struct Written {
    std::vector<std::vector<int64_t>> tokens;  // (B), of each sentence, start symbol first
    std::vector<int64_t> ends;                 // (B), the output index at which each is ended
    std::vector<int64_t> rows;                 // (R), the sentences that have not ended, rising

    // The output index of the next token.
    int64_t position(int64_t row) const { return static_cast<int64_t>(tokens[row].size()) - 1; }

    // How many tokens may be drafted.
    int64_t room(int64_t row) const { return ends[row] - position(row); }
};

// What is drafted behind the last token of each of R rows.
struct Draft {
    std::vector<int64_t> counts;   // (R)
    std::vector<int64_t> tokens;   // of all rows, one row after the other
    std::vector<int64_t> parents;  // which of its row each follows, counted from 1; 0: the last token. Empty: chains

    void clear() {
        for (auto* numbers : {&counts, &tokens, &parents}) numbers->clear();
    }

    // All tokens behind those of the rows before are the next row's.
    void end_row() {
        int64_t before = 0;
        for (const int64_t count : counts) before += count;
        counts.push_back(static_cast<int64_t>(tokens.size()) - before);
    }
};

// What became of a window, of each of its R rows.
struct Outcome {
    int64_t rows;
    const int64_t *drafted, *accepted, *emitted;
};

class Drafter {
  public:
    virtual ~Drafter() = default;

    // Drafts for all rows of a batch, at most its room for each. False: its owner in Python has to do something before.
    virtual bool draft(const Written& batch, Draft& draft) = 0;

    // Whether `read` is called.
    virtual bool reads_features() const { return false; }

    // The decoder's features (C) of the place that a row's last token comes from.
    virtual void read(int64_t, const float*) {}

    // What became of the last window, whose rows `batch` still has.
    virtual void observe(const Written&, const Outcome&) {}

    // So many rows are left.
    virtual void keep(int64_t) {}
};
