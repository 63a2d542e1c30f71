"""The faults that ``scripts/mutants.py`` puts into the kernels of a CPU."""

from dataclasses import dataclass

LOSSLESS, BEAM, BOARD = (
    f"tests/equality/test_{name}.py" for name in ("lossless", "beam", "beam_on_device")
)
TREES, CACHED = (f"tests/equality/test_{name}.py" for name in ("trees", "cached_decoder"))
RULES, TABLES = "tests/equality/test_rule_cases.py", "tests/unit/test_beam_tables.py"
ACCEPTANCE = "tests/unit/test_acceptance.py"
KERNELS, SEARCHES = "tests/unit/test_kernels.py", "tests/unit/test_whole_searches.py"
CHOSEN = f"{KERNELS}::test_the_best_instructions_are_chosen"
BF16 = "tests/equality/test_bf16.py"
BATCHES = "tests/equality/test_whole_batches.py"
INTERLEAVED = ("tests/unit/test_interleaved_step.py", "tests/equality/test_interleaved_outputs.py")
COPIES = ("tests/unit/test_input_copy.py", "tests/equality/test_drafts_in_library.py")
SOURCE = "kernels/source/"


@dataclass(frozen=True)
class Mutant:
    """A fault: in ``file`` of the package ``old``, which stands there once, becomes ``new``."""

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = [
    Mutant(
        *("the bias of a product's last outputs is left out", f"{SOURCE}products.h"),
        "if (out.bias) sum = sum + load(out.bias + column, count);",
        "",
        (CHOSEN, f"{KERNELS}::test_products"),
    ),
    Mutant(
        *("ReLU makes 0 of a number that is none", f"{SOURCE}products.h"),
        "load(out.bias + column);\n        if (out.relu) sum = larger(same(0.0f), sum);",
        "load(out.bias + column);\n        if (out.relu) sum = larger(sum, same(0.0f));",
        (f"{KERNELS}::test_no_number_is_made_of_what_is_none",),
    ),
    Mutant(
        *("rows without padding are written side by side", f"{SOURCE}products.h"),
        "(out.places ? out.places[row] : row)",
        "row",
        (CACHED,),
    ),
    Mutant(
        *("halfway between two numbers of bfloat16 the upper one is taken", f"{SOURCE}products.h"),
        "bits + 0x7FFFu + (bits >> 16 & 1)",
        "bits + 0x8000u",
        (CHOSEN, f"{KERNELS}::test_products_in_bfloat16", BF16),
    ),
    Mutant(
        *("in 8 bits the zero of a row is forgotten", f"{SOURCE}products.h"),
        "raw_sums - all(x.zeros[row]) * load(p.sums + column)",
        "raw_sums",
        (CHOSEN, f"{KERNELS}::test_products"),
    ),
    Mutant(
        *("the last numbers of a norm's row do not count in its variance", f"{SOURCE}attention.h"),
        "rest = std::fma(x[i] - mean, x[i] - mean, rest);",
        "rest = 0.0f;",
        (f"{KERNELS}::test_norm",),
    ),
    Mutant(
        *("of every four keys the last is the third", f"{SOURCE}attention.h"),
        "std::min(j + 3, last)",
        "std::min(j + 2, last)",
        (CACHED,),
    ),
    Mutant(
        *("softmax does not take off the largest score", f"{SOURCE}attention.h"),
        "const Floats best = same(largest(most));",
        "const Floats best = same(0.0f * largest(most));",
        (CACHED,),
    ),
    Mutant(
        *("a query that sees nothing gets zeros", f"{SOURCE}attention.h"),
        "std::fill(out, out + channels, NAN);",
        "std::fill(out, out + channels, 0.0f);",
        (CACHED, "tests/equality/test_finite.py", LOSSLESS),
    ),
    Mutant(
        *("of equally good tokens a later one comes first", f"{SOURCE}best.h"),
        "values[at - 1] < value",
        "values[at - 1] <= value",
        (f"{KERNELS}::test_best_tokens", BEAM),
    ),
    Mutant(
        *("a number that is none is not the largest", f"{SOURCE}best.h"),
        "broken ? not_numbers(part) : equal(part, best)",
        "equal(part, best)",
        (f"{KERNELS}::test_the_first_of_the_largest",),
    ),
    Mutant(
        *("the sum of an ensemble is taken for the mean", f"{SOURCE}best.h"),
        "logarithm(sum) + least - of_number",
        "logarithm(sum) + least",
        ("tests/equality/test_ensembles.py", RULES),
    ),
    Mutant(
        *("beam search: ends take places of what goes on", f"{SOURCE}search/beam_rules.h"),
        "going_on += !ending || pool[i].token != eos_;",
        "going_on += 1;",
        (SEARCHES, BEAM),
    ),
    Mutant(
        *("beam search: an end behind the best counts", f"{SOURCE}search/beam_rules.h"),
        "else if (i < beam) result.ended",
        "else result.ended",
        (SEARCHES, BEAM),
    ),
    Mutant(
        *("beam search: a reward of <unk> is not foreseen", f"{SOURCE}search/beam_rules.h"),
        "prefix.total + bonus_ <= least",
        "prefix.total <= least",
        (SEARCHES, RULES),
    ),
    Mutant(
        *("beam search: positions by place in the cache", f"{SOURCE}search/beam.h"),
        "request.depths.push_back(node.depth);",
        "request.depths.push_back(node.place);",
        (BEAM,),
    ),
    Mutant(
        *("beam search: a token scores what its prefix does", f"{SOURCE}search/beam.h"),
        "static_cast<float>(after - tree[node].total)",
        "static_cast<float>(after)",
        (SEARCHES, BEAM),
    ),
    Mutant(
        *("beam search: what is told of a piece is told of texts", f"{SOURCE}search/beam_budget.h"),
        "why == TEXT ? budget_->text : why == PIECE ? budget_->piece",
        "why == PIECE ? budget_->text : why == TEXT ? budget_->piece",
        ("tests/unit/test_beam_search.py",),
    ),
    Mutant(
        *("beam search: more hypotheses end than were asked for", f"{SOURCE}search/sentence.h"),
        "if (static_cast<int64_t>(endings.size()) < beam_) endings.push_back(item);",
        "endings.push_back(item);",
        (SEARCHES, BEAM),
    ),
    Mutant(
        *("beam search: tables that are no numbers are read", f"{SOURCE}search/sentence.h"),
        "tree[node].broken = table.broken();",
        "tree[node].broken = false;",
        (SEARCHES, BEAM),
    ),
    Mutant(
        *("beam search: what is watched is evaluated", f"{SOURCE}search/sentence.h"),
        "if (lost || shadowing_) {",
        "if (lost) {",
        ("tests/unit/test_beam_search.py",),
    ),
    Mutant(
        *("copies: one of several places that are alike is unique", f"{SOURCE}search/copying.h"),
        "if (match == UNIQUE && first >= 0) return -1;",
        "",
        (SEARCHES, *COPIES),
    ),
    Mutant(
        *("copies: the text is followed once more where it was left", f"{SOURCE}search/copying.h"),
        "if (place > copied) later = place;",
        "if (place >= copied) later = place;",
        (SEARCHES, *COPIES),
    ),
    Mutant(
        *("copies: a draft that stood as a whole has one that fell", f"{SOURCE}search/copying.h"),
        "seen = stood + (accepted < drafted)",
        "seen = stood + 1.0",
        (SEARCHES, *COPIES),
    ),
    Mutant(
        *("interleaved: one continuation too few is looked at", f"{SOURCE}search/interleaved.h"),
        "static_cast<int64_t>((i + 1) * (n + 1)) <= best",
        "static_cast<int64_t>((i + 1) * (n + 1)) < best",
        INTERLEAVED,
    ),
    Mutant(
        *("interleaved: slots behind an end do not agree", f"{SOURCE}search/interleaved.h"),
        "slot->end += agreed, agreed += slot->agreed;",
        "slot->end += agreed;",
        INTERLEAVED,
    ),
    Mutant(
        *("interleaved: a slot sees those of the other direction", f"{SOURCE}search/interleaved.h"),
        "key += options_.directions) {",
        "key += 1) {",
        INTERLEAVED,
    ),
    Mutant(
        *(
            "interleaved: a hypothesis is worked on though all have ended",
            f"{SOURCE}search/interleaved.h",
        ),
        "if (count(sentence.ended) >= beam_) live.clear();",
        "if (count(sentence.ended) > beam_) live.clear();",
        INTERLEAVED,
    ),
    Mutant(
        *("drafts: a tree takes what does not pay", f"{SOURCE}drafts.h"),
        "chance * call.costs[count] <= expected * (call.costs[count + 1] - call.costs[count])",
        "chance <= 0.0",
        ("tests/unit/test_proposer.py",),
    ),
    Mutant(
        *("drafts: a path goes on behind its end", f"{SOURCE}drafts.h"),
        "best.slot + 1 < room && token != call.eos",
        "best.slot + 1 < room",
        ("tests/unit/test_proposer.py",),
    ),
    Mutant(
        *("greedy: a draft is cut behind the first repeated n-gram", f"{SOURCE}search/greedy.h"),
        "if (rules.repeats.repeats(line_, tokens[n])) return n;",
        "if (rules.repeats.repeats(line_, tokens[n])) return n + 1;",
        (SEARCHES, TREES, LOSSLESS),
    ),
    Mutant(
        *("greedy: a forced end scores what the model says", f"{SOURCE}search/greedy.h"),
        "if (options_.rules.free_end && position + count > batch_.ends[row])",
        "if (options_.rules.free_end && position + count > batch_.ends[row] + 1)",
        (SEARCHES, RULES),
    ),
    Mutant(
        *("greedy: keys of an accepted path stay where they were read", f"{SOURCE}search/greedy.h"),
        "if (place[n] != root + n)",
        "if (place[n] < root + n)",
        (SEARCHES, TREES),
    ),
    Mutant(
        *("greedy: a token of a tree sees its place, not its parent's", f"{SOURCE}search/greedy.h"),
        "if (slot) std::copy_n(seen + parent * bytes, bytes, bits_of_place);",
        "if (slot) std::copy_n(seen + (place - 1) * bytes, bytes, bits_of_place);",
        (SEARCHES, TREES),
    ),
    Mutant(
        *(
            "greedy: rules hold at the places of a tree, not at its depths",
            f"{SOURCE}search/greedy.h",
        ),
        "above_.empty() ? request.starts[row] + slot : request.depths[place]",
        "request.starts[row] + slot",
        (SEARCHES, TREES),
    ),
    Mutant(
        *("greedy: sentences that have ended stay", f"{SOURCE}search/greedy.h"),
        "return batch_.tokens[row].back() == options_.rules.eos; };",
        "return batch_.position(row) > batch_.ends[row]; };",
        (SEARCHES, LOSSLESS),
    ),
    Mutant(
        *("greedy: features are those of a window's first place", f"{SOURCE}search/greedy.h"),
        "features + (first + places_[last]) * options_.channels",
        "features + first * options_.channels",
        ("tests/equality/test_blockwise.py",),
    ),
    Mutant(
        *("greedy: a watch of a trusted drafter sees no drafts", f"{SOURCE}search/greedy.h"),
        "if (n % options_.slots_read) verdict.tokens[n] = choices_[n - 1];",
        "",
        ("tests/equality/test_drafter_alone.py",),
    ),
    Mutant(
        *(
            "verification: a token that rules force may be another",
            f"{SOURCE}search/verification.h",
        ),
        "const bool relaxed = free && (accept.beta > 1 || accept.epsilon > 0);",
        "const bool relaxed = accept.beta > 1 || accept.epsilon > 0;",
        (SEARCHES, ACCEPTANCE, RULES),
    ),
    Mutant(
        *(
            "verification: one token more than asked for stands in any case",
            f"{SOURCE}search/verification.h",
        ),
        "depth(first, place) + 1 < accept.least;",
        "depth(first, place) < accept.least;",
        (SEARCHES, ACCEPTANCE),
    ),
    Mutant(
        *("verification: a banned token stands", f"{SOURCE}search/verification.h"),
        "if (one->token == token) logit = one->value == NEVER ? NEVER : logit",
        "if (one->token == token) logit = one->value == NEVER ? logit : logit",
        (SEARCHES, ACCEPTANCE),
    ),
    Mutant(
        *(
            "verification: among equal ways of a tree the last counts",
            f"{SOURCE}search/verification.h",
        ),
        "(chosen == best.chosen && length >= best.length)",
        "(chosen == best.chosen && length > best.length)",
        (SEARCHES, TREES),
    ),
    Mutant(
        *(
            "verification: a longer way counts more than the verifier's own",
            f"{SOURCE}search/verification.h",
        ),
        "if (chosen > best.chosen || (chosen",
        "if ((chosen",
        (SEARCHES, TREES),
    ),
    Mutant(
        *("verification: emitting goes on behind the end", f"{SOURCE}search/verification.h"),
        "if (!next || token == call_.eos) return accepted;",
        "if (!next) return accepted;",
        (SEARCHES, LOSSLESS),
    ),
    Mutant(
        *(
            "verification: the penalty of a token is missing in its score",
            f"{SOURCE}search/verification.h",
        ),
        "(is_forced || one->value != NEVER))",
        "is_forced)",
        (SEARCHES, RULES),
    ),
    Mutant(
        *(
            "verification: a row is normalised by a token that rules have changed",
            f"{SOURCE}search/verification.h",
        ),
        "begins_[place] == begins_[place + 1] && x[call_.pad] <= row.value(0)",
        "x[call_.pad] <= row.value(0)",
        (SEARCHES, BATCHES),
    ),
    Mutant(
        *("loop: a change behind a forced token of its place counts", f"{SOURCE}search/loop.h"),
        "if (one.place == forced) continue;",
        "",
        ("tests/equality/test_own_rules.py",),
    ),
    Mutant(
        *("loop: a window goes behind the last position of a decoder", f"{SOURCE}search/loop.h"),
        "(!reader.positions || request.reach <= reader.positions)",
        "(!reader.positions || request.reach <= reader.positions + 1)",
        (BATCHES,),
    ),
    Mutant(
        *("loop: types beside a shortlist may be chosen", f"{SOURCE}search/loop.h"),
        "std::fill_n(logits, count * types, -INFINITY);",
        "std::fill_n(logits, count * types, 0.0f);",
        ("tests/equality/test_shortlist.py",),
    ),
    Mutant(
        *(
            "loop: the temperature of an ensemble is that of its first model",
            f"{SOURCE}search/loop.h",
        ),
        "std::for_each_n(logits, how.models * size, [&]",
        "std::for_each_n(logits, size, [&]",
        ("tests/equality/test_ensembles.py", RULES),
    ),
    Mutant(
        *("loop: each part of a window has the features of the first", f"{SOURCE}search/loop.h"),
        "project(readers[m], features + first * channels, count",
        "project(readers[m], features, count",
        ("tests/equality/test_whole_batches.py", SEARCHES, LOSSLESS),
    ),
    Mutant(
        *("loop: head 1 forgets the features that it adds to", f"{SOURCE}search/loop.h"),
        "head[i] = features[i] + head[i];",
        "head[i] = head[i];",
        ("tests/equality/test_drafts_in_library.py", "tests/equality/test_blockwise.py"),
    ),
    Mutant(
        *("loop: a search that is out of time does not come back", f"{SOURCE}search/loop.h"),
        ">= how.seconds) return TIME_UP;",
        ">= 1e9 + how.seconds) return TIME_UP;",
        (SEARCHES, "tests/unit/test_stopping.py", "tests/equality/test_whole_batches.py"),
    ),
]
