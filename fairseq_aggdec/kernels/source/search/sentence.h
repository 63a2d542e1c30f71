// The beam search of one sentence over a tree of prefixes: it stops where a prefix has not been evaluated, asks for that
// one, and for those that it will probably need next.
//
// Drafting is the same search run ahead. Where a prefix has no table yet, the table of a prefix that is like it stands
// in. Every prefix whose table the search ahead reads is requested if that is probably worth it, in the order of steps.
// So what is drafted are not texts, one per hypothesis, but whatever the search will look at.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "beam_budget.h"
#include "beam_rules.h"
#include "copying.h"
#include "prefixes.h"

namespace {

class SentenceSearch {
  public:
    SentenceSearch(int64_t row, const BeamOptions& options, const BeamRules& rules, const Rules& generation,
                   Planner& planner)
        : row_(row), beam_(options.beam), limit_(options.limit), rules_(&rules), planner_(&planner),
          tree(options.start, generation) {
        active.push_back({0.0, 0});
        beams.push_back(0);
        widths.push_back(1);
        missing_.push_back(0);
    }

    void resemble(std::vector<int64_t> text, int64_t match) {
        text_ = std::make_unique<CopyPaths>(std::move(text), match);
    }

    // Appends the prefixes to evaluate, parents first: what the search waits for, then what it will probably need.
    void request(const Plan& plan, std::vector<int64_t>& wanted) {
        ++calls;
        plan_ = plan;
        first_ = wanted.size();
        looked_ = false;
        for (const int64_t node : missing_) {
            tree[node].call = calls;
            wanted.push_back(node);
        }
        if (depth == 0) {
            if (text_) draft_text(wanted);
        } else {
            if (text_ && (plan.piece || plan.learns)) draft_piece(wanted);
            if (plan.alike >= 0 || plan.learns) look_ahead(wanted);
        }
        requested_ = static_cast<int64_t>(wanted.size() - first_);
    }

    // Takes up the table of a prefix that was requested.
    void receive(int64_t node, const Row& table) {
        static thread_local std::vector<Choice> choices;
        choices.clear();
        tree[node].broken = table.broken();  // what was evaluated in vain does no harm
        if (!tree[node].broken) rules_->read_table(row_, tree[node].depth, table, choices);
        tree.note(node, choices);
    }

    // Searches on as far as tables go; false: the model gave no numbers where the search needs them.
    bool advance() {
        const int64_t before = depth;
        while (!done) {
            rules_->step(row_, depth, active, [&](int64_t node) { return tree.table(node); }, step_);
            if (!step_.missing.empty()) {
                missing_ = step_.missing;
                break;
            }
            if (!note_read()) return false;
            grow();
        }
        gains.push_back(depth - before);
        if (*planner_) learn();
        return true;
    }

  private:
    const int64_t row_, beam_, limit_;
    const BeamRules* rules_;
    Planner* planner_;

  public:
    Prefixes tree;
    std::vector<Scored> active;         // unfinished hypotheses, best first
    std::vector<Continuation> endings;  // finished ones, in the order of finishing
    std::vector<int64_t> beams, widths;  // the active prefixes of each step; how many these are
    std::vector<int64_t> gains;         // by how many tokens the hypotheses grew after each call
    int64_t depth = 0, calls = 0;       // tokens of each unfinished one; calls so far
    int64_t places = 0, used = 0;       // prefixes that were evaluated, and those that were needed
    bool done = false;

  private:
    // A prefix that was thought to be needed, and how many nats behind the best hypothesis.
    struct Guess {
        int64_t node, gap;
        Why why;
    };

    // What a call that was not made would have brought.
    struct Shadow {
        int64_t call = 0, gain = 0, requested = 0;
        double prefix_cost = 0.0;
    };

    void request_ahead(int64_t node, Why why, std::vector<int64_t>& wanted) {
        tree[node].call = calls, tree[node].why = why;
        wanted.push_back(node);
    }

    // Appends the beginnings of the text. Of all that are not requested it becomes known whether they are needed.
    void draft_text(std::vector<int64_t>& wanted) {
        draft_.clear();
        text_->beginning(std::min(plan_.most, limit_), draft_);
        draft(0, plan_.text, TEXT, wanted);
    }

    // Goes on behind a node as the draft does, as far as no n-gram is repeated: the first `most` prefixes are requested.
    void draft(int64_t node, int64_t most, Why why, std::vector<int64_t>& wanted) {
        for (const int64_t token : draft_) {
            if (tree.repeats_ngram(node, token)) return;
            node = tree.child(node, token);
            if (tree.evaluated(node) || tree[node].call == calls) continue;
            if (most-- > 0) request_ahead(node, why, wanted);
            waiting_.push_back({node, 0, why});
        }
    }

    // Appends what follows in the text behind the best hypothesis, as far as tables lead along it.
    void draft_piece(std::vector<int64_t>& wanted) {
        int64_t node = active[0].node, left = std::max<int64_t>(plan_.piece, 1);
        for (Table table = tree.table(node); left && table.choices; table = tree.table(node)) {
            if (!table.count || rules_->ends(table.choices[0])) return;
            const int64_t below = tree.child(node, table.choices[0].token);
            if (!tree.evaluated(below) && tree[below].call != calls) break;
            node = below, --left;
        }
        const auto room = plan_.most - static_cast<int64_t>(wanted.size() - first_);
        left = std::min({left, limit_ - tree[node].depth, room});
        if (left <= 0) return;
        draft_.clear();
        text_->behind(tree, node, left, draft_);
        draft(node, plan_.piece, PIECE, wanted);
    }

    // Searches on over predicted tables; appends the prefixes that it needs and that are worth it.
    //
    // A prefix can be requested only if its parent was evaluated or requested. So the search ahead ends when no
    // hypothesis has such a parent: no later one can have it.
    void look_ahead(std::vector<int64_t>& wanted) {
        looked_ = plan_.alike >= 0 && plan_.looks;
        left_ = plan_.most - static_cast<int64_t>(wanted.size() - first_);
        shadowing_ = plan_.alike >= 0 && !plan_.looks && !shadow_.call;
        if (!shadowing_ && !plan_.looks) plan_.alike = -1;
        if (shadowing_) shadow_ = {calls, 0, static_cast<int64_t>(wanted.size() - first_), plan_.prefix_cost};
        ahead_ = active;
        auto ended = static_cast<int64_t>(endings.size());
        for (int64_t at = depth; !ahead_.empty() && ended < beam_ && at <= limit_; ++at) {
            rules_->step(row_, at, ahead_, [&](int64_t node) { return tree.predicted(node, calls); }, step_);
            for (int64_t i = 0; i < step_.read; ++i)
                if (!consider(ahead_[i].node, ahead_[0].total - ahead_[i].total, wanted)) return;
            if (!leads_on()) return;
            ended += static_cast<int64_t>(step_.ended.size());
            ahead_.clear();
            for (const Continuation& item : step_.going_on)
                ahead_.push_back({item.total, tree.child(item.node, item.token)});
        }
    }

    bool leads_on() const {
        return std::any_of(step_.going_on.begin(), step_.going_on.end(), [&](const Continuation& item) {
            return tree.evaluated(item.node) || tree.requested(item.node, calls);
        });
    }

    // Requests a prefix that the search ahead reads, if that is worth it; false where there is no room for it.
    bool consider(int64_t node, double behind, std::vector<int64_t>& wanted) {
        if (tree.evaluated(node) || tree.requested(node, calls)) return true;
        if (!tree.foreseen(node, calls)) return true;
        const auto gap = static_cast<int64_t>(std::min(static_cast<double>(LAST_GAP), behind));
        const bool worth = gap <= plan_.alike;
        if (worth && left_ <= 0) return false;
        waiting_.push_back({node, gap, ALIKE});
        if (!worth) return true;
        --left_;
        // Behind a prefix that is not evaluated nothing can be.
        const int64_t parent = tree[node].parent;
        const bool lost = !tree.evaluated(parent) && tree[parent].call != calls;
        if (lost || shadowing_) {
            tree[node].shadow = calls;
            ++shadow_.requested;
        } else {
            request_ahead(node, ALIKE, wanted);
        }
        return true;
    }

    // Takes up which tables the step has read.
    bool note_read() {
        bool shadowed = shadow_.call, numbers = true;
        for (int64_t i = 0; i < step_.read; ++i) {
            Node& node = tree[active[i].node];
            node.used = true;
            numbers &= !node.broken;
            shadowed &= node.call <= shadow_.call || node.shadow == shadow_.call;
        }
        used += step_.read;
        if (shadowed) ++shadow_.gain;
        else if (shadow_.call) close_shadow();
        return numbers;
    }

    void grow() {
        for (const Continuation& item : step_.ended)
            if (static_cast<int64_t>(endings.size()) < beam_) endings.push_back(item);
        active.clear();
        for (const Continuation& item : step_.going_on) {
            const int64_t node = tree.child(item.node, item.token);
            tree[node].total = item.total;
            active.push_back({item.total, node});
            beams.push_back(node);
        }
        widths.push_back(static_cast<int64_t>(active.size()));
        ++depth;
        done = static_cast<int64_t>(endings.size()) == beam_ || active.empty();
    }

    // Tells the budget what has become known: which prefixes were needed, what a search ahead has saved.
    void learn() {
        size_t kept = 0;
        for (const Guess& guess : waiting_) {
            const Node& node = tree[guess.node];
            if (node.depth >= depth && !done) {
                waiting_[kept++] = guess;
                continue;
            }
            if (guess.why != PIECE) planner_->observe(guess.why, guess.gap, node.used);
            // A token is a copy as the one before is: where that was none, nothing is learned.
            if ((guess.why == PIECE || guess.why == TEXT) && tree[node.parent].used)
                planner_->observe(PIECE, 0, node.used);
        }
        waiting_.resize(kept);
        if (looked_) gained(gains.back(), requested_, plan_.prefix_cost);
        if (done && shadow_.call) close_shadow();
    }

    void close_shadow() {
        gained(shadow_.gain, shadow_.requested, shadow_.prefix_cost);
        shadow_.call = 0;
    }

    // A plain call evaluates what the search waits for and takes it on by one token.
    void gained(int64_t tokens, int64_t requested, double prefix_cost) {
        const double needed = static_cast<double>(used) / static_cast<double>(std::max<int64_t>(1, depth));
        planner_->gained(static_cast<double>(tokens) * (1.0 + prefix_cost * needed),
                         1.0 + prefix_cost * static_cast<double>(requested));
    }

    std::unique_ptr<CopyPaths> text_;  // null: nothing is known
    std::vector<int64_t> missing_;     // prefixes that the search waits for
    std::vector<Guess> waiting_;       // until it is known what became of them
    Shadow shadow_;                    // call 0: there is none
    // Of the last call.
    Plan plan_;
    size_t first_ = 0;
    int64_t requested_ = 0, left_ = 0;
    bool looked_ = false, shadowing_ = false;
    BeamStep step_;
    std::vector<Scored> ahead_;
    std::vector<int64_t> draft_;
};

}  // namespace
