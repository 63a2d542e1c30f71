// Beam search of a batch: each sentence over its own tree of prefixes, all of them in the same calls of the decoder.
//
// fairseq_aggdec/search/beam/ has the same search in Python, where nothing is evaluated ahead.

#pragma once

#include "sentence.h"
#include "tables.h"

// The tree of a sentence: N prefixes, S steps, C calls, E endings.
struct BeamTree {
    std::vector<int64_t> parents, tokens, places, calls, reasons, used;  // (N), see Node
    std::vector<double> totals;                                          // (N)
    std::vector<int64_t> endings;       // (E): prefixes
    std::vector<double> ending_totals;  // (E)
};

namespace {

class BeamSearch final : public TableSearch {
  public:
    explicit BeamSearch(const BeamOptions& options)
        : TableSearch(options.rules, options.sentences, options.beam + 1, options.threads), options_(options),
          rules_(options, rules),
          planner_(options.budget, options.beam, options.sentences) {
        result.rounds.assign(options.sentences, 0);
        sentences_.reserve(options.sentences);
        for (int64_t row = 0; row < options.sentences; ++row)
            sentences_.emplace_back(row, options, rules_, rules, planner_);
        if (!options.texts || !options.budget) return;
        const int64_t* text = options.texts;
        for (int64_t row = 0; row < options.sentences; text += options.sizes[row++])
            if (options.sizes[row]) sentences_[row].resemble({text, text + options.sizes[row]}, options.match);
    }

    const SentenceSearch& sentence(int64_t row) const { return sentences_[row]; }

    void write_tree(int64_t row, BeamTree& view) const {
        const SentenceSearch& sentence = sentences_[row];
        view = {};
        for (const Node& node : sentence.tree.nodes) {
            view.parents.push_back(node.parent);
            view.tokens.push_back(node.token);
            view.places.push_back(node.place);
            view.calls.push_back(node.call);
            view.reasons.push_back(node.why);
            view.used.push_back(node.used);
            view.totals.push_back(node.total);
        }
        for (const Continuation& ending : sentence.endings) {
            view.endings.push_back(ending.node);
            view.ending_totals.push_back(ending.total);
        }
    }

    void finish() override {
        for (int64_t row = 0; row < options_.sentences; ++row) {
            const SentenceSearch& sentence = sentences_[row];
            result.rounds[row] = sentence.calls;
            result.used += sentence.used;
            count_calls(sentence);
            for (const Continuation& ending : sentence.endings) write_output(row, sentence.tree, ending);
        }
    }

  protected:
    void write(WindowRequest& request) override {
        nodes_.clear(), rows_.clear();
        const auto left = std::count_if(sentences_.begin(), sentences_.end(),
                                        [](const SentenceSearch& sentence) { return !sentence.done; });
        if (left) plan_ = planner_.plan(left);
        for (int64_t row = 0; row < options_.sentences; ++row) {
            SentenceSearch& sentence = sentences_[row];
            const size_t before = nodes_.size();
            request.starts.push_back(sentence.places);
            if (!sentence.done) sentence.request(plan_, nodes_);
            rows_.resize(nodes_.size(), row);
            request.widths.push_back(static_cast<int64_t>(nodes_.size() - before));
            for (size_t i = before; i < nodes_.size(); ++i) ask_for(row, nodes_[i], request);
        }
        request.seen_bytes = (request.end + 7) / 8;
        write_seen(request);
    }

    void read(int64_t, int64_t, const float*, const Tables& tables) override {
        for (size_t i = 0; i < nodes_.size(); ++i)
            sentences_[rows_[i]].receive(nodes_[i], tables.row(static_cast<int64_t>(i)));
        for (int64_t row = 0; row < options_.sentences; ++row) {
            if (sentences_[row].done || sentences_[row].advance()) continue;
            result.broken = row;
            return;
        }
    }

  private:
    // Gives a prefix the next place in the cache of its row.
    void ask_for(int64_t row, int64_t number, WindowRequest& request) {
        SentenceSearch& sentence = sentences_[row];
        Node& node = sentence.tree[number];
        node.place = sentence.places++;
        const auto at = static_cast<int64_t>(request.tokens.size());
        request.tokens.push_back(node.token);
        request.depths.push_back(node.depth);
        request.end = std::max(request.end, sentence.places);
        request.reach = std::max(request.reach, node.depth + 1);
        rules.change({at, row, node.depth, rules.read_lines() ? &sentence.tree.line(number) : nullptr},
                     request.changes);
    }

    // Every prefix sees those that it begins with, and itself.
    void write_seen(WindowRequest& request) const {
        request.seen.assign(nodes_.size() * request.seen_bytes, 0);
        uint8_t* bits = request.seen.data();
        for (size_t i = 0; i < nodes_.size(); ++i, bits += request.seen_bytes) {
            const Prefixes& tree = sentences_[rows_[i]].tree;
            for (int64_t node = nodes_[i]; node >= 0; node = tree[node].parent)
                bits[tree[node].place / 8] |= static_cast<uint8_t>(1 << tree[node].place % 8);
        }
    }

    // What each call of a sentence has brought.
    void count_calls(const SentenceSearch& sentence) {
        const size_t first = result.drafted.size();
        result.drafted.resize(first + sentence.calls, 0);
        result.accepted.resize(first + sentence.calls, 0);
        result.emitted.insert(result.emitted.end(), sentence.gains.begin(), sentence.gains.end());
        result.emitted.resize(first + sentence.calls, 0);  // a broken sentence lacks the last
        for (const Node& node : sentence.tree.nodes) {
            if (node.place < 0) continue;
            ++result.nodes;
            if (node.why == AWAITED) continue;
            ++result.drafted[first + node.call - 1];
            result.accepted[first + node.call - 1] += node.used;
        }
    }

    void write_output(int64_t row, const Prefixes& tree, const Continuation& ending) {
        const size_t first = result.tokens.size();
        double after = ending.total;
        result.tokens.push_back(options_.rules.eos);
        for (int64_t node = ending.node; node >= 0; node = tree[node].parent) {
            result.scores.push_back(static_cast<float>(after - tree[node].total));
            after = tree[node].total;
            if (node > 0) result.tokens.push_back(tree[node].token);
        }
        std::reverse(result.tokens.begin() + first, result.tokens.end());
        std::reverse(result.scores.begin() + first, result.scores.end());
        result.owners.push_back(row);
        result.lengths.push_back(static_cast<int64_t>(result.tokens.size() - first));
        result.totals.push_back(ending.total);
    }

    const BeamOptions options_;
    const BeamRules rules_;
    Planner planner_;
    std::vector<SentenceSearch> sentences_;
    // Of the window.
    Plan plan_;
    std::vector<int64_t> nodes_, rows_;  // (N): prefixes and their sentences
};

}  // namespace
