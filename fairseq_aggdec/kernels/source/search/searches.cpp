// The interface of whole searches: fairseq_aggdec/search/compiled/ calls it through ctypes.

#include "beam.h"
#include "greedy.h"
#include "loop.h"

// What a search asks for: see Asked.
struct AskedView {
    int64_t rows, count, end, reach, seen_bytes;
    const int64_t *starts, *widths, *tokens, *depths;
    const uint8_t* seen;
};

// What a search has found: see Found.
struct FoundView {
    int64_t outputs, length, iterations, calls, nodes, used, broken;
    const int64_t *owners, *lengths, *tokens, *rounds, *emitted, *drafted, *accepted;
    const float* scores;
    const double* totals;
};

namespace {

// A search of a batch, null where there is no memory for it.
template <class Kind, class Options>
Search* made(const Options* options) noexcept {
    try {
        return new Kind(*options);
    } catch (...) {
        return nullptr;
    }
}

}  // namespace

// Numbers are NO_MEMORY where there is too little; the search can then only be freed.
extern "C" {

// Size of the structures, to be compared with what the caller believes.
int64_t aggdec_search_layout() {
    return sizeof(Reader) + 1000 * (sizeof(BeamOptions) + sizeof(GreedyOptions) + sizeof(CopyOptions)) +
           1000000 * (sizeof(AskedView) + sizeof(FoundView));
}

Search* aggdec_beam(const BeamOptions* options) { return made<BeamSearch>(options); }

Search* aggdec_greedy(const GreedyOptions* options) { return made<GreedySearch>(options); }

void aggdec_search_free(Search* search) { delete search; }

// Whether a sentence is left; then what the model is to read.
int64_t aggdec_search_ask(Search* search, AskedView* view) {
    const Asked* asked = nullptr;
    if (tried([&] { asked = search->ask(); })) return NO_MEMORY;
    if (!asked) return 0;
    *view = {static_cast<int64_t>(asked->starts.size()),
             static_cast<int64_t>(asked->tokens.size()),
             asked->end,
             asked->reach,
             asked->seen_bytes,
             asked->starts.data(),
             asked->widths.data(),
             asked->tokens.data(),
             asked->depths.empty() ? nullptr : asked->depths.data(),
             asked->seen.empty() ? nullptr : asked->seen.data()};
    return 1;
}

int64_t aggdec_search_take(Search* search, float* logits, int64_t types) {
    return tried([&] { search->take(logits, types); });
}

// Why it came back, see loop.h; where the decoder needs more room, aggdec_search_ask says how much.
int64_t aggdec_search_run(Search* search, const Reader* reader) {
    return tried([&] { return run(*search, *reader); });
}

int64_t aggdec_search_found(Search* search, FoundView* view) {
    if (tried([&] { search->finish(); })) return NO_MEMORY;
    const Found& found = search->found;
    *view = {static_cast<int64_t>(found.owners.size()),
             static_cast<int64_t>(found.tokens.size()),
             static_cast<int64_t>(found.drafted.size()),
             found.calls,
             found.nodes,
             found.used,
             found.broken,
             found.owners.data(),
             found.lengths.data(),
             found.tokens.data(),
             found.rounds.data(),
             found.emitted.data(),
             found.drafted.data(),
             found.accepted.data(),
             found.scores.data(),
             found.totals.data()};
    return 0;
}

}  // extern "C"
