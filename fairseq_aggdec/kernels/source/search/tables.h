// Searches that decide from tables: the best tokens of each place of their window.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "beam_rules.h"
#include "loop.h"

extern "C" int64_t aggdec_best_tokens(float* logits, int64_t rows, int64_t size, int64_t count, const int64_t* wanted,
                                      int64_t pad, int64_t unk, double unk_penalty, const Pair* banned,
                                      int64_t pairs, float* out, int64_t threads);

namespace {

class TableSearch : public Search {
  public:
    // most: how many tokens a table has, but for a smaller vocabulary.
    TableSearch(const BeamOptions& options, int64_t most) : options_(options), most_(most) {}

    // Goes on with what aggdec_best_tokens gives of the window: (N, 2 best + 1).
    void take_tables(const float* tables, int64_t best) {
        read(tables, best);
        taken();
    }

  protected:
    virtual void read(const float* tables, int64_t best) = 0;

    int64_t together(int64_t first, int64_t most) const override {
        const int64_t left = places() - first, parts = (left + most - 1) / most;
        return (left + parts - 1) / parts;
    }

    void decide(const Asked& asked, int64_t first, int64_t count, const float*, float* logits, int64_t types) override {
        const int64_t best = std::min(most_, types), size = 2 * best + 1;
        tables_.resize(places() * size);
        std::vector<Pair> banned;
        for (const Pair& pair : asked.banned)
            if (pair.place >= first && pair.place < first + count) banned.push_back({pair.place - first, pair.token});
        must(aggdec_best_tokens(logits, count, types, best, asked.needed.data() + first, options_.pad, options_.unk,
                                options_.unk_penalty, banned.data(), static_cast<int64_t>(banned.size()),
                                tables_.data() + first * size, options_.threads));
        if (first + count == places()) read(tables_.data(), best);
    }

  private:
    const BeamOptions options_;
    const int64_t most_;
    std::vector<float> tables_;
};

}  // namespace
