// The prefixes that the beam search of one sentence has looked at, each once, and which of them are like which.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "rules.h"

namespace {

// A token that may follow a prefix, and its log-probability in nats.
struct Choice {
    int64_t token;
    double value;
};

// What may follow a prefix, best first; null: not known.
struct Table {
    const Choice* choices;
    int64_t count;
};

// Why a prefix is evaluated: the search waits for it; it begins a text; it goes on as a text does behind a copied
// token; the search ahead reads it over tables of prefixes that are alike.
enum Why : int64_t { AWAITED, TEXT, PIECE, ALIKE };

struct Node {
    int64_t parent, token, depth;
    int64_t child = -1, sibling = -1;  // the last of one token more; the one before it
    int64_t place = -1;                // in the cache; -1: not evaluated
    int64_t call = 0, shadow = 0;      // the call that evaluates it, and the one that would have; 0: none
    int64_t first = 0, choices = -1;   // its table; -1 choices: there is none yet
    int64_t same_token = -1;           // the node with this token that was evaluated before
    int64_t like = -1, liked_in = 0;   // a node that stands in for it, found in this call; -1: none does
    double total = NAN;                // log-probability in nats, once it was in the beam
    Why why = AWAITED;
    bool used = false, broken = false;  // the search has read its table; the model gave no numbers
};

class Prefixes {
  public:
    Prefixes(int64_t start, const Rules& rules) : rules_(&rules) {
        nodes.push_back({-1, start, 0});
        nodes[0].total = 0.0;
    }

    std::vector<Node> nodes;

    Node& operator[](int64_t node) { return nodes[node]; }
    const Node& operator[](int64_t node) const { return nodes[node]; }

    bool evaluated(int64_t node) const { return nodes[node].choices >= 0; }

    // The prefix of one token more, -1 where it was not looked at.
    int64_t below(int64_t node, int64_t token) const {
        int64_t child = nodes[node].child;
        while (child >= 0 && nodes[child].token != token) child = nodes[child].sibling;
        return child;
    }

    int64_t child(int64_t node, int64_t token) {
        const int64_t known = below(node, token);
        if (known >= 0) return known;
        const auto added = static_cast<int64_t>(nodes.size());
        nodes.push_back({node, token, nodes[node].depth + 1, -1, nodes[node].child});
        nodes[node].child = added;
        return added;
    }

    // Notes what follows a prefix.
    void note(int64_t node, const std::vector<Choice>& choices) {
        Node& prefix = nodes[node];
        prefix.first = keep(choices), prefix.choices = static_cast<int64_t>(choices.size());
        const auto [last, added] = last_of_.try_emplace(prefix.token, node);
        if (!added) prefix.same_token = last->second, last->second = node;
    }

    Table table(int64_t node) const {
        const Node& prefix = nodes[node];
        return prefix.choices < 0 ? Table{nullptr, 0} : Table{kept_.data() + prefix.first, prefix.choices};
    }

    // What is thought to follow a prefix: its table; that of one that is like it; else nothing.
    // Valid until the next call of this.
    Table predicted(int64_t node, int64_t call) {
        const int64_t other = like(node, call);
        if (other < 0) return {NOTHING, 0};
        const Table known = table(other);
        if (!rules_->read_lines() || other == node) return known;
        possible_.assign(known.choices, known.choices + known.count);
        banned(node, [&](int64_t token) {
            possible_.erase(std::remove_if(possible_.begin(), possible_.end(),
                                           [&](const Choice& choice) { return choice.token == token; }),
                            possible_.end());
        });
        return {possible_.empty() ? NOTHING : possible_.data(), static_cast<int64_t>(possible_.size())};
    }

    // Whether a prefix may be needed: its parent has keys and values, or will have them in this call.
    bool foreseen(int64_t node, int64_t call) {
        const int64_t parent = nodes[node].parent;
        return evaluated(parent) || (requested(parent, call) && like(parent, call) >= 0 && like(node, call) >= 0);
    }

    bool requested(int64_t node, int64_t call) const {
        return nodes[node].call == call || nodes[node].shadow == call;
    }

    // The tokens of a prefix, start symbol first; valid until the next call of this.
    const std::vector<int64_t>& line(int64_t node) {
        line_.clear();
        for (; node >= 0; node = nodes[node].parent) line_.push_back(nodes[node].token);
        std::reverse(line_.begin(), line_.end());
        return line_;
    }

    // f(token) for every token that would repeat an n-gram behind a prefix.
    template <class F>
    void banned(int64_t node, const F& f) {
        if (rules_->read_lines()) rules_->repeats.each(line(node), f);
    }

    bool repeats_ngram(int64_t node, int64_t token) {
        bool again = false;
        banned(node, [&](int64_t other) { again |= other == token; });
        return again;
    }

  private:
    // How far apart two prefixes that end in the same token may be for one to stand in for the other.
    static constexpr int64_t NEAR = 4;
    // A token may be everywhere: at most this many of its prefixes are looked at, the last evaluated first.
    static constexpr int64_t LOOKED_AT = 64;
    static constexpr Choice NOTHING[1] = {{0, 0.0}};

    int64_t keep(const std::vector<Choice>& choices) {
        const auto first = static_cast<int64_t>(kept_.size());
        kept_.insert(kept_.end(), choices.begin(), choices.end());
        if (kept_.empty()) kept_.push_back(NOTHING[0]);  // an empty table is not the null one
        return first;
    }

    // An evaluated prefix whose continuations are probably those of this one, -1 for none; looked for once in a call.
    int64_t like(int64_t node, int64_t call) {
        if (evaluated(node)) return node;
        if (nodes[node].liked_in != call) {
            const int64_t similar = find_like(node, like(nodes[node].parent, call));
            nodes[node].like = similar, nodes[node].liked_in = call;
        }
        return nodes[node].like;
    }

    // `above`: one that is like the parent. First its child with the same token; then, of the prefixes with this token
    // near the place where that would be, those behind the same token, then the nearest; then the best sibling.
    int64_t find_like(int64_t node, int64_t above) const {
        const Node& prefix = nodes[node];
        if (above >= 0) {
            const int64_t child = below(above, prefix.token);
            if (child >= 0 && evaluated(child)) return child;
        }
        bool behind_same = false;
        const int64_t depth = above < 0 ? prefix.depth : nodes[above].depth + 1;
        const int64_t same = nearest(prefix.token, nodes[prefix.parent].token, depth, behind_same);
        const bool known = above == prefix.parent;
        if (same >= 0 && (known || behind_same)) return same;
        if (!known) return -1;
        const Table siblings = table(above);
        for (int64_t i = 0; i < siblings.count; ++i) {
            const int64_t child = below(above, siblings.choices[i].token);
            if (child >= 0 && evaluated(child)) return child;
        }
        return -1;
    }

    // The evaluated prefix with a token that is nearest to a depth. Other tokens before it count as NEAR / 2 tokens
    // farther; of equally near ones the last evaluated wins.
    int64_t nearest(int64_t token, int64_t before, int64_t depth, bool& behind_same) const {
        const auto last = last_of_.find(token);
        int64_t best = -1, distance = 2 * NEAR + 2, left = LOOKED_AT;
        for (int64_t at = last == last_of_.end() ? -1 : last->second; at >= 0 && left; --left) {
            const Node& other = nodes[at];
            const int64_t off = std::abs(other.depth - depth);
            const bool same = other.parent >= 0 && nodes[other.parent].token == before;
            const int64_t away = 2 * off + (same ? 0 : NEAR);
            if (off <= NEAR && away < distance) distance = away, best = at, behind_same = same;
            at = other.same_token;
        }
        return best;
    }

    const Rules* rules_;
    std::vector<Choice> kept_, possible_;
    std::unordered_map<int64_t, int64_t> last_of_;  // token -> the node with it that was evaluated last
    std::vector<int64_t> line_;
};

}  // namespace
