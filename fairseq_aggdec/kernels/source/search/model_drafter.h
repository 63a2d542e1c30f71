// Drafters that are models: the slots of a non-autoregressive drafter, and the block heads of the verifier.
//
// fairseq_aggdec/drafters/nar.py and blockwise_heads.py do the same in Python.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../threads.h"
#include "../structs.h"
#include "draft_budget.h"
#include "drafter.h"
#include "loop.h"

extern "C" {
int64_t aggdec_grow(const Proposer* proposer, const Slots* slots);
int64_t aggdec_heads(const Heads* heads, const float* x, const int64_t* tokens, int64_t rows, int64_t wanted, float* out,
                     int64_t threads);
}

// What all of them have. The caller keeps it, and changes it where `draft` has given false.
struct ModelOptions {
    const Layer* layers;        // of the drafter, or those behind heads; null: there are none
    const Shape* shape;
    Step* step;                 // what is seen beside a window is there
    int64_t places, positions;  // of each row of the cache; of the table of positions, 0: there is none
    int64_t ready;              // whether the drafter has read the sources
    const Proposer* proposer;
    DraftBudget* budget;
    int64_t channels, eos, threads;
    int64_t learning;  // of how many slots the features are kept, to learn from
};

// A drafter of B sentences with slots.
struct SlotOptions {
    ModelOptions model;
    int64_t longest;        // output that the drafter reads, -1: it cannot read the sources
    int64_t shift, causal;  // slots predict the next token; prefixes are read once
};

// Block heads.
struct HeadOptions {
    ModelOptions model;
    const Heads* heads;
    const float* opening;  // (C), features before an output begins; null: there are none
};

namespace {

class ModelDrafter : public Drafter {
  public:
    explicit ModelDrafter(const ModelOptions& options) : options_(options), plan_(*options.budget) {}

    bool draft(const Written& batch, Draft& draft) override {
        const int64_t size = plan_.size(static_cast<int64_t>(batch.rows.size()));
        plan_rows(batch, broken ? 0 : size);
        if (std::all_of(room_.begin(), room_.end(), [](int64_t room) { return room <= 0; })) {
            draft.counts.assign(batch.rows.size(), 0);
            return true;
        }
        const int64_t slots = plan_.slots(size);
        if (!read_slots(batch, slots)) return false;
        keep_features(slots);
        if (broken) {
            draft.counts.assign(batch.rows.size(), 0);
            return true;
        }
        grow(batch, slots, draft);
        return true;
    }

    // Slots that a draft may have.
    int64_t most_slots() const { return std::min(options_.budget->size, options_.budget->nodes); }

    // Drafts from so many slots of the first row, to be timed; nothing is learned. False as `draft`.
    bool rehearse(const Written& batch, int64_t slots) {
        const double depth = options_.budget->depth;
        rows_.assign(1, batch.rows.front()), room_.assign(1, slots);
        if (!read_slots(batch, slots)) return false;
        Draft forgotten;
        grow(batch, slots, forgotten);
        options_.budget->depth = depth;
        return true;
    }

    void observe(const Written&, const Outcome& outcome) override {
        int64_t drafted = 0, emitted = 0;
        for (int64_t i = 0; i < outcome.rows; ++i) drafted += outcome.drafted[i], emitted += outcome.emitted[i];
        plan_.observe(outcome.rows, drafted, emitted, hoped_);
    }

    int64_t wanted = 0;          // places of a row, where there was too little room
    bool broken = false;         // features are no finite numbers: nothing is drafted any more
    std::vector<float> learned;  // (N, C), features to learn from

  protected:
    // Fills rows_, those that are read, and room_, the slots that may be filled behind each.
    virtual void plan_rows(const Written& batch, int64_t size) = 0;

    // Fills features_ (rows_, slots, C) behind the rows; false: there is too little room, or sources are not read.
    virtual bool read_slots(const Written& batch, int64_t slots) = 0;

    const ModelOptions& options_;
    DraftPlan plan_;
    std::vector<int64_t> rows_, room_, last_;
    std::vector<float> features_;

  private:
    // Slots of a draft that are learned from: most trees do not reach further.
    static constexpr int64_t FIRST_SLOTS = 5;

    void keep_features(int64_t slots) {
        const int64_t channels = options_.channels;
        const size_t size = rows_.size() * slots * channels;
        float sum = 0.0f;  // NaN where one of them is no finite number
        for (size_t i = 0; i < size; ++i) sum += 0.0f * features_[i];
        broken = sum != sum;
        const int64_t each = std::min(slots, FIRST_SLOTS) * channels;
        if (static_cast<int64_t>(learned.size()) >= options_.learning * channels) return;
        for (size_t i = 0; i < rows_.size(); ++i) {
            const float* row_features = features_.data() + i * slots * channels;
            learned.insert(learned.end(), row_features, row_features + each);
        }
    }

    void grow(const Written& batch, int64_t slots, Draft& draft) {
        const DraftBudget& budget = plan_.budget();
        const auto rows = static_cast<int64_t>(rows_.size());
        last_.clear();
        for (const int64_t row : rows_) last_.push_back(batch.tokens[row].back());
        slopes_.assign(slots, 1.0f), shifts_.assign(slots, 0.0f);
        tokens_.resize(rows * budget.nodes), parents_.resize(rows * budget.nodes);
        chances_.resize(rows * budget.nodes), counts_.resize(rows);
        const Slots call{rows, slots, options_.threads, features_.data(), last_.data(), room_.data(), slopes_.data(),
                         shifts_.data(), budget.nodes, options_.eos, budget.branches,
                         plan_.costs(static_cast<int64_t>(batch.rows.size()), slots), plan_.trust(), tokens_.data(),
                         parents_.data(), chances_.data(), counts_.data()};
        must(aggdec_grow(options_.proposer, &call));
        int64_t depths = 0, trees = 0, read = 0;
        hoped_ = 0.0;
        for (const int64_t row : batch.rows) {
            const bool has = read < rows && rows_[read] == row;
            const int64_t count = has ? counts_[read] : 0;
            const int64_t* row_parents = parents_.data() + read * budget.nodes;
            draft.counts.push_back(count);
            depths_.assign(1, 0);
            int64_t depth = 0;
            for (int64_t n = 0; n < count; ++n) {
                draft.tokens.push_back(tokens_[read * budget.nodes + n]);
                hoped_ += std::exp(chances_[read * budget.nodes + n]);
                if (budget.branches) draft.parents.push_back(row_parents[n]);
                depths_.push_back(depths_[row_parents[n]] + 1);
                depth = std::max(depth, depths_.back());
            }
            // A tree that fills its last slot may have gone on.
            depths += depth + (depth == slots && slots < most_slots());
            trees += count > 0;
            read += has;
        }
        if (trees) plan_.reached(static_cast<double>(depths) / static_cast<double>(trees));
    }

    std::vector<int64_t> tokens_, parents_, counts_, depths_;
    std::vector<double> chances_;
    double hoped_ = 0.0;  // tokens of the draft that are accepted by its own probabilities
    std::vector<float> slopes_, shifts_;
};

// The slots of a drafter behind what is committed: its window is what was committed since the last draft, and the slots.
class SlotDrafter final : public ModelDrafter {
  public:
    SlotDrafter(const SlotOptions& options, int64_t rows)
        : ModelDrafter(options.model), slots_(options), cached_(rows, 0) {}

    // The features (R, size, C) of the slots behind all rows of a batch, null where Python has to do something before.
    const float* slots(const Written& batch, int64_t size) {
        rows_ = batch.rows;
        return read_slots(batch, size) ? features_.data() : nullptr;
    }

    // What these say from place `first` on, whole rows: logits (count, V). With a chain, of each slot behind the token
    // that it chooses before.
    float* logits(const Written& batch, const float* features, int64_t first, int64_t count, int64_t size,
                  int64_t types, double temperature) {
        const Proposer& proposer = *options_.proposer;
        features += first * options_.channels;
        if (proposer.heard) features = chained(batch, features, first / size, count / size, size);
        float* logits = scratch<float, Scratch::WINDOW_LOGITS>(count * types);
        must(aggdec_product(&proposer.vocabulary, features, count, logits, options_.threads));
        const auto divisor = static_cast<float>(temperature);
        if (temperature != 1.0) std::for_each_n(logits, count * types, [&](float& logit) { logit /= divisor; });
        return logits;
    }

  protected:
    void plan_rows(const Written& batch, int64_t size) override {
        rows_.clear(), room_.clear();
        for (const int64_t row : batch.rows) {
            if (batch.position(row) > slots_.longest) continue;
            rows_.push_back(row);
            room_.push_back(std::min(size, batch.room(row)));
        }
    }

    bool read_slots(const Written& batch, int64_t slots) override {
        write_window(batch, slots);
        wanted = end_;
        if (!options_.ready || end_ > options_.places || (options_.positions && end_ > options_.positions))
            return false;
        Step& step = *options_.step;
        step.rows = static_cast<int64_t>(starts_.size());
        step.starts = starts_.data(), step.widths = widths_.data(), step.blocks = blocks_.data();
        step.tokens = window_.data(), step.depths = nullptr;
        step.mask = nullptr, step.seen = nullptr;
        step.causal = 1, step.wanted = slots, step.end = end_, step.threads = options_.threads;
        features_.resize(std::max(features_.size(), rows_.size() * slots * options_.channels));
        must(aggdec_decode(options_.layers, options_.shape, &step, features_.data()));
        if (slots_.causal)
            for (const int64_t row : rows_) cached_[row] = batch.position(row);
        return true;
    }

  private:
    // Features of the slots of some rows, told the tokens that the chain chooses before them.
    const float* chained(const Written& batch, const float* features, int64_t row, int64_t rows, int64_t size) {
        const Proposer& proposer = *options_.proposer;
        const int64_t channels = options_.channels, count = rows * size;
        std::vector<int64_t> last, room(rows, size), tokens(count), parents(count), counts(rows);
        for (int64_t i = row; i < row + rows; ++i) last.push_back(batch.tokens[rows_[i]].back());
        const std::vector<float> slopes(size, 1.0f), shifts(size, 0.0f);
        std::vector<double> chances(count);
        const Slots call{rows, size, options_.threads, features, last.data(), room.data(), slopes.data(), shifts.data(),
                         size, -1, 0, nullptr, 1.0, tokens.data(), parents.data(), chances.data(), counts.data()};
        must(aggdec_grow(&proposer, &call));
        chained_.resize(count * channels), hidden_.resize(count * channels);
        must(aggdec_product(&proposer.read_slot, features, count, hidden_.data(), options_.threads));
        for (int64_t n = 0; n < count; ++n) {
            const float* heard = proposer.heard + (n % size ? tokens[n - 1] : last[n / size]) * channels;
            float* hidden = hidden_.data() + n * channels;
            for (int64_t c = 0; c < channels; ++c) hidden[c] = std::max(heard[c] + hidden[c], 0.0f);
        }
        must(aggdec_product(&proposer.write, hidden_.data(), count, chained_.data(), options_.threads));
        for (int64_t i = 0; i < count * channels; ++i) chained_[i] = features[i] + chained_[i];
        return chained_.data();
    }

    static constexpr int64_t MASK_SLOT = -1;  // as Shape has it

    void write_window(const Written& batch, int64_t slots) {
        const auto all = cached_.size();
        starts_.assign(all, 0), widths_.assign(all, 0), blocks_.assign(all, 0);
        window_.clear();
        end_ = 0;
        for (const int64_t row : rows_) {
            const std::vector<int64_t>& tokens = batch.tokens[row];
            const int64_t length = batch.position(row), start = std::min(cached_[row], length);
            starts_[row] = start;
            // With a shift </s> stands in the place of the start symbol, else nothing does.
            for (int64_t at = start; at < length + slots_.shift; ++at)
                window_.push_back(slots_.shift ? (at ? tokens[at] : options_.eos) : tokens[at + 1]);
            window_.insert(window_.end(), slots - slots_.shift, MASK_SLOT);
            widths_[row] = length - start + slots;
            if (slots_.causal) blocks_[row] = length - start;
            end_ = std::max(end_, start + widths_[row]);
        }
    }

    const SlotOptions& slots_;
    std::vector<int64_t> cached_;  // of each sentence, tokens whose keys and values stand in the cache for good
    std::vector<int64_t> starts_, widths_, blocks_, window_;
    std::vector<float> chained_, hidden_;
    int64_t end_ = 0;
};

// Heads 2 to k of the verifier, from its features of the place that a row's last token comes from.
class HeadDrafter final : public ModelDrafter {
  public:
    HeadDrafter(const HeadOptions& options, int64_t rows)
        : ModelDrafter(options.model), heads_(options), sentences_(rows), known_(options.opening != nullptr),
          read_(rows * options.model.channels) {
        for (int64_t row = 0; row < rows && known_; ++row) read(row, options.opening);
    }

    bool reads_features() const override { return true; }

    void read(int64_t row, const float* features) override {
        std::copy_n(features, options_.channels, read_.data() + row * options_.channels);
        known_ = true;
    }

  protected:
    void plan_rows(const Written& batch, int64_t size) override {
        rows_ = batch.rows;
        room_.clear();
        for (const int64_t row : rows_) room_.push_back(known_ ? std::min(size, batch.room(row)) : 0);
    }

    bool read_slots(const Written& batch, int64_t slots) override {
        if (!options_.ready) return false;
        const int64_t channels = options_.channels;
        const auto rows = static_cast<int64_t>(rows_.size());
        inputs_.clear(), chosen_.clear();
        for (const int64_t row : rows_) {
            inputs_.insert(inputs_.end(), read_.begin() + row * channels, read_.begin() + (row + 1) * channels);
            chosen_.push_back(batch.tokens[row].back());
        }
        features_.resize(std::max<size_t>(features_.size(), rows * slots * channels));
        must(aggdec_heads(heads_.heads, inputs_.data(), chosen_.data(), rows, slots, features_.data(), options_.threads));
        if (options_.layers) run_layers(slots);
        return true;
    }

  private:
    // The layers that heads pass through, as if they were a sentence of `slots` tokens.
    void run_layers(int64_t slots) {
        Step& step = *options_.step;
        starts_.assign(sentences_, 0), widths_.assign(sentences_, 0);
        for (const int64_t row : rows_) widths_[row] = slots;
        step.cache_row = slots * 2 * options_.channels;
        step.cache_layer = sentences_ * step.cache_row;
        cache_.resize(std::max<size_t>(cache_.size(), options_.shape->layers * step.cache_layer));
        step.cache = cache_.data();
        step.rows = sentences_, step.starts = starts_.data(), step.widths = widths_.data();
        step.tokens = step.depths = step.blocks = nullptr;
        step.positions = nullptr, step.mask = nullptr, step.seen = nullptr;
        step.causal = 1, step.wanted = 0, step.end = slots, step.threads = options_.threads;
        must(aggdec_decode(options_.layers, options_.shape, &step, features_.data()));
    }

    const HeadOptions& heads_;
    const int64_t sentences_;
    bool known_;               // features are known
    std::vector<float> read_;  // (B, C)
    std::vector<float> inputs_, cache_;
    std::vector<int64_t> chosen_, starts_, widths_;
};

// Whatever Python proposes.
class Outside final : public Drafter {
  public:
    bool draft(const Written&, Draft& draft) override {
        if (!answered_) return false;
        answered_ = false;
        draft = std::move(draft_);
        return true;
    }

    void answer(Draft draft) {
        draft_ = std::move(draft);
        answered_ = true;
    }

  private:
    Draft draft_;
    bool answered_ = false;
};

}  // namespace
