// One hypothesis per sentence: drafts are verified, accepted and committed.
//
// tests/reference/greedy.py is the same search in Python.

#pragma once

#include <memory>
#include <numeric>

#include "copying.h"
#include "drafter.h"
#include "verification.h"
#include "model_drafter.h"
#include "tables.h"

// Generation options of a batch of B sentences.
struct GreedyOptions {
    RuleOptions rules;
    int64_t sentences, start, threads;
    Acceptance accept;
    int64_t slots_read, chains;  // of a row in a window (0: any number; a trusted drafter fills all of them); drafts are cut to one path
    int64_t channels;                              // of the decoder's features
    int64_t types;                                 // of the dictionary
    // What drafts: copies of texts, slots, heads, Python; at most one of these is given.
    const CopyOptions* copies;
    const SlotOptions* slots;
    const HeadOptions* heads;
    int64_t outside;
};

// What became of the last window: R rows, N places, M tokens that were emitted.
struct Verdict {
    std::vector<int64_t> rows;                        // (R), their sentences
    std::vector<int64_t> widths, accepted, emitted;   // (R)
    std::vector<int64_t> tokens, parents;             // (N); parents as in Draft, 0 for the first; empty: chains
    std::vector<int64_t> choices;                     // (N), the model's own behind each
    std::vector<int64_t> places, gained;              // (M), places are counted within the window
    std::vector<float> scores;                        // (M), log-probabilities in nats
    const float *features = nullptr, *logits = nullptr;  // (N, C); (N, V) where all was decided at once, else null
};

namespace {

class GreedySearch final : public TableSearch {
  public:
    // drafter: null: nothing is drafted.
    GreedySearch(const GreedyOptions& options, std::unique_ptr<Drafter> drafter)
        : TableSearch(options.rules, options.sentences, std::max<int64_t>(options.accept.beta, 1), options.threads),
          options_(options), scores_(options.sentences), drafter_(std::move(drafter)) {
        const int64_t rows = options.sentences;
        batch_.tokens.assign(rows, {options.start});
        batch_.ends.assign(options.rules.ends, options.rules.ends + rows);
        result.rounds.assign(rows, 0);
        for (int64_t row = 0; row < rows; ++row) batch_.rows.push_back(row);
    }

    int64_t draft() override {
        if (drafted_ || batch_.rows.empty() || options_.accept.trusts) return READY;
        draft_.clear();
        if (drafter_ && !drafter_->draft(batch_, draft_)) return DRAFT;
        draft_.counts.resize(batch_.rows.size(), 0);
        if (options_.chains && branches()) straighten();
        drafted_ = true;
        return READY;
    }

    Drafter* drafter() const { return drafter_.get(); }
    const Written& batch() const { return batch_; }
    int64_t slots_read() const { return options_.slots_read; }
    int64_t types() const { return options_.types; }
    int64_t channels() const { return options_.channels; }

    // Which tokens of the window are accepted, (N), kept by the caller until its logits are taken.
    void accept(const uint8_t* stands) { stands_ = stands; }

    // The last window and what became of it, until the next is asked for.
    const Verdict& verdict() const { return verdict_; }

    void finish() override {
        for (size_t row = 0; row < scores_.size(); ++row) {
            const std::vector<int64_t>& tokens = batch_.tokens[row];
            result.owners.push_back(static_cast<int64_t>(row));
            result.lengths.push_back(static_cast<int64_t>(scores_[row].size()));
            result.tokens.insert(result.tokens.end(), tokens.begin() + 1, tokens.end());
            result.scores.insert(result.scores.end(), scores_[row].begin(), scores_[row].end());
        }
    }

  protected:
    void write(WindowRequest& request) override {
        draft();
        widths_.clear(), above_.clear();
        decided_ = written_ = 0;
        request.starts.assign(scores_.size(), 0);
        request.widths.assign(scores_.size(), 0);
        request.moves.swap(moves_);
        if (options_.accept.trusts) write_slots(request);
        else write_draft(request);
        rule(request);
    }

    bool in_parts() const override { return true; }

    // Whole sentences, one at least.
    int64_t together(int64_t, int64_t most) const override {
        int64_t count = widths_[decided_];
        for (size_t i = decided_ + 1; i < widths_.size() && count + widths_[i] <= most; ++i) count += widths_[i];
        return count;
    }

    void read(int64_t first, int64_t count, const float* features, const Tables& tables) override {
        const size_t end = verify(first, count, tables);
        if (first == 0) verdict_.features = features, verdict_.logits = count == places() ? tables.logits : nullptr;
        const bool reads = drafter_ && drafter_->reads_features();
        for (; decided_ < end; ++decided_) {
            const int64_t last = written_ + emitted_[decided_] - 1;
            if (reads) drafter_->read(batch_.rows[decided_], features + (first + places_[last]) * options_.channels);
            for (; written_ <= last; ++written_) places_[written_] += first;
        }
        if (end == batch_.rows.size()) commit(request());
    }

  private:
    // Verifies the drafts of the next sentences, which have `count` places from `first` on; the sentence behind them.
    size_t verify(int64_t first, int64_t count, const Tables& tables) {
        size_t end = decided_;
        for (int64_t left = count; left > 0; left -= widths_[end++]) {}
        const auto rows = static_cast<int64_t>(end - decided_);
        for (auto* numbers : {&accepted_, &emitted_}) numbers->resize(batch_.rows.size());
        for (auto* numbers : {&places_, &gained_, &choices_}) numbers->resize(places());
        emitted_scores_.resize(places());
        part_above_.clear();
        if (!above_.empty())
            for (int64_t place = first; place < first + count; ++place) part_above_.push_back(above_[place] - first);
        const VerificationCall call{rows, widths_.data() + decided_, request().tokens.data() + first,
                             above_.empty() ? nullptr : part_above_.data(), tables, stands_,
                             options_.accept, options_.rules.pad, options_.rules.eos, accepted_.data() + decided_, emitted_.data() + decided_,
                             places_.data() + written_, gained_.data() + written_, emitted_scores_.data() + written_,
                             choices_.data() + first};
        Verification(call).run();
        stands_ = nullptr;
        return end;
    }

    void write_draft(WindowRequest& request) {
        const bool tree = branches();
        const int64_t *token = draft_.tokens.data(), *parent = draft_.parents.data();
        for (size_t i = 0; i < batch_.rows.size(); ++i) {
            const int64_t row = batch_.rows[i], count = draft_.counts[i];
            const auto root = static_cast<int64_t>(request.tokens.size());
            request.starts[row] = batch_.position(row);
            request.tokens.push_back(batch_.tokens[row].back());
            request.tokens.insert(request.tokens.end(), token, token + (tree ? count : possible(row, token, count)));
            if (options_.slots_read)
                request.tokens.resize(std::min<size_t>(request.tokens.size(), root + options_.slots_read));
            if (tree) {
                above_.push_back(root);
                for (int64_t n = 0; n < count; ++n) above_.push_back(root + parent[n]);
                parent += count;
            }
            token += count;
            request.widths[row] = static_cast<int64_t>(request.tokens.size()) - root;
            widths_.push_back(request.widths[row]);
            request.end = std::max(request.end, request.starts[row] + request.widths[row]);
        }
        request.reach = request.end;
        if (tree) write_tree(request);
    }

    // Whether two tokens of the draft follow the same one.
    bool branches() const {
        size_t n = 0;
        if (!draft_.parents.empty())
            for (const int64_t count : draft_.counts)
                for (int64_t place = 0; place < count; ++place, ++n)
                    if (draft_.parents[n] != place) return true;
        return false;
    }

    // Cuts the draft to the first path of each row.
    void straighten() {
        const Draft whole = draft_;
        draft_.clear();
        size_t n = 0;
        for (const int64_t count : whole.counts) {
            int64_t end = 0;
            for (int64_t place = 1; place <= count; ++place, ++n) {
                if (whole.parents[n] != end) continue;
                draft_.tokens.push_back(whole.tokens[n]);
                end = place;
            }
            draft_.end_row();
        }
    }

    // How many tokens of a chain stand before the first that would repeat an n-gram.
    int64_t possible(int64_t row, const int64_t* tokens, int64_t count) {
        if (!options_.rules.ngram) return count;
        line_ = batch_.tokens[row];
        for (int64_t n = 0; n < count; ++n) {
            if (rules.repeats.repeats(line_, tokens[n])) return n;
            line_.push_back(tokens[n]);
        }
        return count;
    }

    // The slots of a trusted drafter. Tokens that are not known are padding, which repeats no n-gram.
    void write_slots(WindowRequest& request) {
        const int64_t count = options_.slots_read;
        for (const int64_t row : batch_.rows) {
            request.starts[row] = batch_.position(row);
            request.widths[row] = count;
            widths_.push_back(count);
            request.tokens.push_back(batch_.tokens[row].back());
            request.tokens.insert(request.tokens.end(), count - 1, options_.rules.pad);
            request.end = std::max(request.end, request.starts[row] + count);
        }
        request.reach = request.end;
    }

    // Where each token stands in its sentence, and what it sees: all up to the last committed token, those of the draft
    // that lead to it, and itself.
    void write_tree(WindowRequest& request) const {
        const int64_t bytes = request.seen_bytes = (request.end + 7) / 8;
        request.seen.assign(request.tokens.size() * bytes, 0);
        request.reach = 0;
        uint8_t* seen = request.seen.data();
        int64_t place = 0;
        for (const int64_t row : batch_.rows) {
            const int64_t start = request.starts[row];
            for (int64_t slot = 0; slot < request.widths[row]; ++slot, ++place) {
                uint8_t* bits_of_place = seen + place * bytes;
                const int64_t parent = above_[place], at = start + slot;
                request.depths.push_back(slot ? request.depths[parent] + 1 : start);
                request.reach = std::max(request.reach, request.depths.back() + 1);
                if (slot) std::copy_n(seen + parent * bytes, bytes, bits_of_place);
                else std::fill_n(bits_of_place, start / 8, uint8_t{255});
                for (int64_t bit = slot ? at : start / 8 * 8; bit <= at; ++bit)
                    bits_of_place[bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
            }
        }
    }

    // How the rules change the logits of the window, and which logits the acceptance needs beside the best.
    void rule(WindowRequest& request) {
        const Acceptance& accept = options_.accept;
        const bool wants = accept.beta > 1 || accept.epsilon || accept.least || accept.outside, lines = rules.read_lines();
        int64_t place = 0;
        for (const int64_t row : batch_.rows)
            for (int64_t slot = 0; slot < request.widths[row]; ++slot, ++place) {
                if (lines) write_line(request, row, slot, place);
                const int64_t output = above_.empty() ? request.starts[row] + slot : request.depths[place];
                rules.change({place, row, output, &line_}, request.changes);
                const int64_t parent = !slot ? place : above_.empty() ? place - 1 : above_[place];
                if (wants) request.wanted.push_back({parent, request.tokens[place]});
            }
    }

    // The sentence up to a place of the window.
    void write_line(const WindowRequest& request, int64_t row, int64_t slot, int64_t place) {
        if (slot == 0) line_ = batch_.tokens[row];
        else if (!above_.empty() && above_[place] != place - 1) {
            const std::vector<int64_t>& before = batch_.tokens[row];
            line_.assign(before.begin(), before.end());
            path_.clear();
            for (int64_t node = above_[place]; node != place - slot; node = above_[node])
                path_.push_back(request.tokens[node]);
            line_.insert(line_.end(), path_.rbegin(), path_.rend());
        }
        if (slot) line_.push_back(request.tokens[place]);
    }

    // Appends what is emitted; sentences that have ended leave.
    void commit(const WindowRequest& request) {
        const int64_t *gained = gained_.data(), *place = places_.data();
        const float* scores = emitted_scores_.data();
        int64_t root = 0;
        const size_t first = result.drafted.size();
        moves_.clear();
        for (size_t i = 0; i < batch_.rows.size(); ++i) {
            const int64_t row = batch_.rows[i], count = emitted_[i], position = batch_.position(row);
            std::vector<int64_t>& tokens = batch_.tokens[row];
            tokens.insert(tokens.end(), gained, gained + count);
            scores_[row].insert(scores_[row].end(), scores, scores + count);
            // Keys and values of accepted tokens go where those of a sentence stand.
            for (int64_t n = 0; n < count; ++n)
                if (place[n] != root + n)
                    moves_.push_back({row, request.starts[row] + place[n] - root, request.starts[row] + n});
            gained += count, scores += count, place += count, root += widths_[i];
            if (options_.rules.free_end && position + count > batch_.ends[row]) scores_[row].back() = 0.0f;
            ++result.rounds[row];
            result.emitted.push_back(count);
            result.drafted.push_back(widths_[i] - !options_.accept.trusts);
            result.accepted.push_back(accepted_[i]);
        }
        if (watched) write_verdict(request);
        if (drafter_ && !options_.accept.trusts)
            drafter_->observe(batch_, {static_cast<int64_t>(batch_.rows.size()), result.drafted.data() + first,
                                       accepted_.data(), emitted_.data()});
        leave();
    }

    void write_verdict(const WindowRequest& request) {
        Verdict& verdict = verdict_;
        verdict.rows = batch_.rows;
        verdict.widths = widths_, verdict.accepted = accepted_, verdict.emitted = emitted_;
        verdict.tokens = request.tokens;
        for (size_t n = 1; options_.accept.trusts && n < verdict.tokens.size(); ++n)
            if (n % options_.slots_read) verdict.tokens[n] = choices_[n - 1];
        verdict.parents.clear();
        int64_t root = 0, emitted = 0;
        for (size_t i = 0; i < widths_.size(); root += widths_[i++]) {
            emitted += emitted_[i];
            for (int64_t n = 0; n < widths_[i] && !above_.empty(); ++n)
                verdict.parents.push_back(above_[root + n] - root);
        }
        verdict.choices = choices_;
        verdict.places.assign(places_.begin(), places_.begin() + emitted);
        verdict.gained.assign(gained_.begin(), gained_.begin() + emitted);
        verdict.scores.assign(emitted_scores_.begin(), emitted_scores_.begin() + emitted);
    }

    void leave() {
        const auto ended = [&](int64_t row) { return batch_.tokens[row].back() == options_.rules.eos; };
        batch_.rows.erase(std::remove_if(batch_.rows.begin(), batch_.rows.end(), ended), batch_.rows.end());
        if (drafter_) drafter_->keep(static_cast<int64_t>(batch_.rows.size()));
        drafted_ = false;
    }

  public:
    bool watched = false;  // somebody looks at the verdict

  private:
    Verdict verdict_;
    const GreedyOptions options_;
    Written batch_;
    std::vector<std::vector<float>> scores_;
    std::unique_ptr<Drafter> drafter_;
    Draft draft_;
    bool drafted_ = false;  // the draft of the next window is made
    std::vector<Move> moves_;
    // Of the window, and how many of its sentences are decided, with how many tokens. above_: which place each stands
    // behind, empty: the one before.
    size_t decided_ = 0;
    int64_t written_ = 0;
    std::vector<int64_t> widths_, above_, part_above_, accepted_, emitted_, choices_, places_, gained_, line_, path_;
    const uint8_t* stands_ = nullptr;  // see accept()
    std::vector<float> emitted_scores_;
};

// By the drafter, which is trusted and has slots. DRAFT where it needs room, or sources that are read.
inline int64_t run(GreedySearch& search, const Reading& how) {
    SlotDrafter& drafter = *static_cast<SlotDrafter*>(search.drafter());
    const int64_t size = search.slots_read();
    const auto read = [&](const WindowRequest&) { return drafter.slots(search.batch(), size); };
    const auto say = [&](const float* features, int64_t first, int64_t count) {
        return drafter.logits(search.batch(), features, first, count, size, how.types, how.temperature);
    };
    const int64_t why = run(search, how, read, say);
    return why == NO_ROOM ? DRAFT : why;
}

}  // namespace
