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

extern "C" {

// Size of the structures, to be compared with what the caller believes.
int64_t aggdec_search_layout() {
    return sizeof(Reader) + 1000 * (sizeof(BeamOptions) + sizeof(GreedyOptions) + sizeof(CopyOptions)) +
           1000000 * (sizeof(AskedView) + sizeof(FoundView));
}

Search* aggdec_beam(const BeamOptions* options) { return new BeamSearch(*options); }

Search* aggdec_greedy(const GreedyOptions* options) { return new GreedySearch(*options); }

void aggdec_search_free(Search* search) { delete search; }

// Whether a sentence is left; then what the model is to read.
int64_t aggdec_search_ask(Search* search, AskedView* view) {
    const Asked* asked = search->ask();
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

void aggdec_search_take(Search* search, float* logits, int64_t types) { search->take(logits, types); }

// Whether the search has come to its end; else the decoder needs more room: see aggdec_search_ask.
int64_t aggdec_search_run(Search* search, const Reader* reader) { return run(*search, *reader); }

void aggdec_search_found(Search* search, FoundView* view) {
    search->finish();
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
}

}  // extern "C"
