// Searches decide from tables: the best tokens of each place of their window.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "loop.h"
#include "rules.h"

extern "C" {
int64_t aggdec_tables(const TableCall* call);
void aggdec_normalise(const float* x, int64_t types, const float* largest, float* out);
}

namespace {

// The table of one place, see TableCall.
struct Row {
    float* numbers;
    int64_t best;

    float value(int64_t i) const { return numbers[i]; }
    int64_t token(int64_t i) const { return static_cast<int64_t>(numbers[best + i]); }
    float first() const { return numbers[2 * best]; }  // the logit of the first token without changes
    float log_prob(float logit) const { return logit - numbers[2 * best + 1] - numbers[2 * best + 2]; }
    bool broken() const { return std::isnan(numbers[2 * best + 2]); }
};

// Tables of N places of a window, with K = `best` tokens each.
struct Tables {
    float* rows;            // (N, 2 K + 3), see TableCall
    const float* wanted;    // (N): logits that the window wants beside
    int64_t best;
    const Change* changes;  // (C): of these places, by the rules
    int64_t changed;        // C
    const float* logits = nullptr;  // (N, V) they were made from; null: these are elsewhere
    int64_t types = 0;              // V
    bool normalised = true;         // false: the last two numbers of a table are still to be read from the logits

    Row row(int64_t place) const { return {rows + place * (2 * best + 3), best}; }
};

class TableSearch : public Search {
  public:
    // most: how many tokens a table has, but for a smaller vocabulary.
    TableSearch(const RuleOptions& options, int64_t sentences, int64_t most, int64_t threads)
        : rules(options, sentences), pad(options.pad), most(most), threads_(threads) {}

    // Goes on with tables of the whole window that were made elsewhere, and its features (N, C), if anything reads them.
    void take_tables(float* rows, const float* wanted, int64_t best, const float* features) {
        const std::vector<Change>& changes = request().changes;
        read(0, places(), features, {rows, wanted, best, changes.data(), static_cast<int64_t>(changes.size())});
        taken();
    }

    const Rules rules;
    const int64_t pad, most;

  protected:
    // Tables of `count` places from place `first` on; where the search takes parts of a window, of these.
    virtual void read(int64_t first, int64_t count, const float* features, const Tables& tables) = 0;

    // Whether a window is read in parts, without what normalises the tables.
    virtual bool in_parts() const { return false; }

    int64_t together(int64_t first, int64_t most) const override {
        const int64_t left = places() - first, parts = (left + most - 1) / most;
        return (left + parts - 1) / parts;
    }

    void decide(int64_t first, int64_t count, const float* features, float* logits, int64_t types) override {
        const WindowRequest& request = this->request();
        const int64_t size = std::min(most, types), start = in_parts() ? 0 : first;
        const auto place_of = [](const Change& one, int64_t place) { return one.place < place; };
        const auto begin = std::lower_bound(request.changes.begin(), request.changes.end(), first, place_of);
        const auto end = std::lower_bound(begin, request.changes.end(), first + count, place_of);
        changes_.assign(begin, end), pairs_.clear();
        for (Change& change : changes_) change.place -= first;
        if (!request.wanted.empty())
            pairs_.assign(request.wanted.begin() + first, request.wanted.begin() + first + count);
        for (Pair& pair : pairs_) pair.place -= first;
        tables_.resize((start + count) * (2 * size + 3)), values_.resize(start + pairs_.size());
        const bool lazy = in_parts() && size == 1;
        const TableCall call{logits, count, types, size, pad, threads_, !lazy, static_cast<int64_t>(changes_.size()),
                             changes_.data(), static_cast<int64_t>(pairs_.size()), pairs_.data(),
                             tables_.data() + start * (2 * size + 3), values_.data() + start};
        must(aggdec_tables(&call));
        if (in_parts())
            read(first, count, features, {tables_.data(), values_.data(), size, changes_.data(), call.changed, logits,
                                          types, !lazy});
        else if (first + count == places()) take_whole(size);
    }

  private:
    void take_whole(int64_t size) {
        const std::vector<Change>& changes = request().changes;
        read(0, places(), nullptr,
             {tables_.data(), values_.data(), size, changes.data(), static_cast<int64_t>(changes.size())});
    }

    const int64_t threads_;
    std::vector<float> tables_, values_;
    std::vector<Change> changes_;
    std::vector<Pair> pairs_;
};

}  // namespace
