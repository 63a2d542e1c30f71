// The interface of whole searches: fairseq_aggdec/search/compiled/ calls it through ctypes.

#include "beam.h"
#include "greedy.h"
#include "interleaved.h"
#include "loop.h"
#include "timing.h"

// What a search asks for: see WindowRequest.
struct RequestView {
    int64_t rows, count, end, reach, seen_bytes, changed, wants, moved, pad, most;
    const int64_t *starts, *widths, *tokens, *depths;
    const void* seen;
    const Change* changes;
    const Pair* wanted;
    const Move* moves;
};

// What a search has found: see SearchResult.
struct ResultView {
    int64_t outputs, length, iterations, calls, nodes, used, broken;
    const int64_t *owners, *lengths, *tokens, *rounds, *emitted, *drafted, *accepted;
    const float* scores;
    const double* totals;
    double drafting;
};

// What became of a window: see Verdict.
struct VerdictView {
    int64_t count, places, gains, calls, channels, types;
    const int64_t *rows, *widths, *accepted, *emitted, *tokens, *parents, *choices, *where, *gained;
    const void *scores, *features, *logits;
};

// A drafter that is a model: see ModelDrafter. learned: (numbers).
struct ModelView {
    int64_t wanted, broken, numbers;
    const void* learned;
};

// The tree of a sentence of beam search: see BeamTree and SentenceSearch.
struct TreeView {
    int64_t nodes, steps, endings, calls, depth, done;
    const int64_t *parents, *tokens, *places, *node_calls, *reasons, *used;
    const double* totals;
    const int64_t *beams, *widths, *gains, *ended;
    const double* ended_totals;
};

namespace {

// The search that make() makes of a batch, null where there is no memory for it.
template <class F>
Search* made(const F& make) noexcept {
    try {
        return make();
    } catch (...) {
        return nullptr;
    }
}

std::unique_ptr<Drafter> drafter_of(const GreedyOptions& options) {
    if (options.copies) return std::make_unique<Copies>(*options.copies, options.sentences);
    if (options.slots) return std::make_unique<SlotDrafter>(*options.slots, options.sentences);
    if (options.heads) return std::make_unique<HeadDrafter>(*options.heads, options.sentences);
    if (options.outside) return std::make_unique<Outside>();
    return nullptr;
}

TableSearch& table(Search* search) { return *static_cast<TableSearch*>(search); }
BeamSearch& beam(Search* search) { return *static_cast<BeamSearch*>(search); }
GreedySearch& greedy(Search* search) { return *static_cast<GreedySearch*>(search); }

// A draft for the rows of a batch, as Python proposes it: false where it is none.
bool read_draft(const GreedySearch& search, const int64_t* counts, const int64_t* tokens, const int64_t* parents,
                Draft& draft) {
    const size_t rows = search.batch().rows.size();
    draft.counts.assign(counts, counts + rows);
    for (const int64_t count : draft.counts)
        for (int64_t n = 0; n < count; ++n, ++tokens) {
            if (*tokens < 0 || *tokens >= search.types()) return false;
            draft.tokens.push_back(*tokens);
            if (!parents) continue;
            if (*parents < 0 || *parents > n) return false;
            draft.parents.push_back(*parents++);
        }
    return true;
}

}  // namespace

// Numbers are NO_MEMORY where there is too little; the search can then only be freed.
extern "C" {

Search* aggdec_beam(const BeamOptions* options) {
    return made([&] { return new BeamSearch(*options); });
}

Search* aggdec_interleaved(const InterleavedOptions* options) {
    return made([&] { return new InterleavedSearch(*options); });
}

Search* aggdec_greedy(const GreedyOptions* options) {
    return made([&] { return new GreedySearch(*options, drafter_of(*options)); });
}

void aggdec_search_free(Search* search) { delete search; }

// Times calls as timing.h has it, at the begin of a batch. READY, or NO_ROOM or DRAFT as aggdec_search_run.
int64_t aggdec_greedy_price(Search* search, const Reader* readers, const Reading* how, CallPrice* price) {
    return tried([&] { return time_calls(greedy(search), readers, *how, *price); });
}

// Whether a sentence is left; then what the model is to read.
int64_t aggdec_search_ask(Search* search, RequestView* view) {
    const WindowRequest* request = nullptr;
    if (tried([&] { request = search->ask(); })) return NO_MEMORY;
    if (!request) return 0;
    *view = {static_cast<int64_t>(request->starts.size()), static_cast<int64_t>(request->tokens.size()), request->end,
             request->reach, request->seen_bytes, static_cast<int64_t>(request->changes.size()),
             static_cast<int64_t>(request->wanted.size()), static_cast<int64_t>(request->moves.size()),
             table(search).pad, table(search).most, request->starts.data(),
             request->widths.data(), request->tokens.data(), request->depths.empty() ? nullptr : request->depths.data(),
             request->seen.empty() ? nullptr : request->seen.data(), request->changes.data(), request->wanted.data(),
             request->moves.data()};
    return 1;
}

// Features (N, C), null where nothing drafts from them, and logits (N, V), which are changed meanwhile and then again what they were.
int64_t aggdec_search_take(Search* search, const float* features, float* logits, int64_t types) {
    return tried([&] { search->take(0, search->places(), features, logits, types); });
}

// DRAFT where Python has to be asked before the next window can be.
int64_t aggdec_search_draft(Search* search) { return tried([&] { return search->draft(); }); }

// Adds changes of the logits of the window by rules in Python, in the order of their places.
int64_t aggdec_search_change(Search* search, const Change* changes, int64_t count) {
    return tried([&] { search->change(changes, count); });
}

// Tables of the window that were made elsewhere, with `best` tokens each, the logits wanted beside them, and features (N, C),
// null where nothing drafts from them.
int64_t aggdec_search_tables(Search* search, float* tables, const float* wanted, int64_t best, const float* features) {
    return tried([&] { table(search).take_tables(tables, wanted, best, features); });
}

// The tree of a sentence, valid until the next call of this.
int64_t aggdec_beam_tree(Search* search, int64_t row, TreeView* view) {
    static thread_local BeamTree tree;
    if (tried([&] { beam(search).write_tree(row, tree); })) return NO_MEMORY;
    const SentenceSearch& sentence = beam(search).sentence(row);
    *view = {static_cast<int64_t>(tree.parents.size()), static_cast<int64_t>(sentence.widths.size()),
             static_cast<int64_t>(sentence.endings.size()), static_cast<int64_t>(sentence.gains.size()),
             sentence.depth, sentence.done,
             tree.parents.data(), tree.tokens.data(), tree.places.data(), tree.calls.data(), tree.reasons.data(),
             tree.used.data(), tree.totals.data(), sentence.beams.data(), sentence.widths.data(), sentence.gains.data(),
             tree.endings.data(), tree.ending_totals.data()};
    return 0;
}

// Why it came back, see loop.h; where the decoder needs more room, aggdec_search_ask says how much.
int64_t aggdec_search_run(Search* search, const Reader* readers, const Reading* how) {
    return tried([&] { return how->models ? run(*search, readers, *how) : run(greedy(search), *how); });
}

// Of greedy search: the verdict about each window is kept from now on.
void aggdec_greedy_watch(Search* search) { greedy(search).watched = true; }

int64_t aggdec_greedy_verdict(Search* search, VerdictView* view) {
    const Verdict& verdict = greedy(search).verdict();
    *view = {static_cast<int64_t>(verdict.rows.size()), static_cast<int64_t>(verdict.tokens.size()),
             static_cast<int64_t>(verdict.gained.size()), search->result.calls, greedy(search).channels(),
             greedy(search).types(), verdict.rows.data(), verdict.widths.data(), verdict.accepted.data(),
             verdict.emitted.data(), verdict.tokens.data(), verdict.parents.empty() ? nullptr : verdict.parents.data(),
             verdict.choices.data(), verdict.places.data(), verdict.gained.data(), verdict.scores.data(),
             verdict.features, verdict.logits};
    return 0;
}

// The sentences that have not ended, rising; returns their number.
int64_t aggdec_greedy_left(Search* search, int64_t* rows) {
    const std::vector<int64_t>& left = greedy(search).batch().rows;
    std::copy(left.begin(), left.end(), rows);
    return static_cast<int64_t>(left.size());
}

// Which tokens of the window are accepted (N), until its logits or tables are taken.
void aggdec_greedy_accept(Search* search, const uint8_t* stands) { greedy(search).accept(stands); }

// What Python drafts for the next window: tokens of each row that has not ended, of all rows; parents as in Draft, or
// null. 1: a token or a parent is none.
int64_t aggdec_greedy_propose(Search* search, const int64_t* counts, const int64_t* tokens, const int64_t* parents) {
    return tried([&] {
        Draft draft;
        if (!read_draft(greedy(search), counts, tokens, parents, draft)) return int64_t{1};
        static_cast<Outside*>(greedy(search).drafter())->answer(std::move(draft));
        return int64_t{0};
    });
}

// Where a model drafts: see ModelDrafter.
void aggdec_greedy_model(Search* search, ModelView* view) {
    const auto& drafter = *static_cast<ModelDrafter*>(greedy(search).drafter());
    *view = {drafter.wanted, drafter.broken, static_cast<int64_t>(drafter.learned.size()), drafter.learned.data()};
}

int64_t aggdec_search_result(Search* search, ResultView* view) {
    if (tried([&] { search->finish(); })) return NO_MEMORY;
    const SearchResult& result = search->result;
    *view = {static_cast<int64_t>(result.owners.size()), static_cast<int64_t>(result.tokens.size()),
             static_cast<int64_t>(result.drafted.size()), result.calls, result.nodes, result.used, result.broken,
             result.owners.data(), result.lengths.data(), result.tokens.data(), result.rounds.data(),
             result.emitted.data(), result.drafted.data(), result.accepted.data(), result.scores.data(),
             result.totals.data(), result.drafting};
    return 0;
}

}  // extern "C"
