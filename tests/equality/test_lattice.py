"""Lattice decoding against a slow, plain one: the model's own forward for every pair of candidates, all paths tried."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_aggdec.engine.plain.support import parts_gap
from fairseq_aggdec.lattice.candidates import CandidateModel
from fairseq_aggdec.lattice.scoring import EdgeScorer
from fairseq_aggdec.models.lattice_transformer import ORDERS
from fairseq_aggdec.search.errors import NonFiniteError
from tests.random_models import random_tables
from tests.support import generation_options, make_batch, make_model, make_task

PAD, EOS, UNK = 1, 2, 3
VARIANTS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"decoder_normalize_before": True},
    "learned positions": {"decoder_learned_pos": True},
    "two layers": {"decoder_layers": 2, "layernorm_embedding": True},
}


def lattice_model(seed: int = 1, **options: Any) -> Any:
    return make_model(make_task(), seed, "lattice_transformer", **({"decoder_layers": 1} | options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "lattice"
    task = make_task()
    random_tables().save(path, task.source_dictionary, task.target_dictionary, {"command": "test"})
    return path


def build(models: list[Any], folder: Path, task_options: dict[str, Any], **options: Any) -> Any:
    chosen: dict[str, Any] = {
        "lattice": str(folder),
        "lattice_candidates": 5,
        "lattice_length_window": 1,
        "lattice_least_probability": 0.0,
    }
    task = make_task("lattice", **(chosen | task_options))
    return task, task.build_generator(models, generation_options(**options))


def decode(
    models: list[Any],
    sample: dict[str, Any],
    folder: Path,
    *,
    task_options: Any = None,
    **options: Any,
) -> list[list[dict[str, Any]]]:
    task, generator = build(models, folder, task_options or {}, **options)
    found: list[list[dict[str, Any]]] = task.inference_step(generator, models, sample)
    return found


SOURCES = [[5, 9, 12], [30, 31], [7, 8, 20, 21]]


def plain_edges(
    model: Any, net_input: dict[str, Any], tokens: torch.Tensor, normalise: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of candidates (T, N) of one sentence, each history through the model's own forward."""
    positions, count = tokens.shape
    encoder_out = model.encoder(**net_input)

    def log_probs(previous: list[int], wanted: torch.Tensor) -> torch.Tensor:
        logits = model.decoder(torch.tensor([previous]), encoder_out=encoder_out)[0][0, -1]
        if normalise == "vocabulary":
            return logits.log_softmax(-1)[wanted]
        there = wanted != PAD
        return logits[wanted] - logits[wanted[there]].logsumexp(0)

    first = log_probs([EOS], tokens[0])
    edges = torch.zeros(positions - 1, count, count)
    for t, i in itertools.product(range(positions - 1), range(count)):
        if tokens[t, i] != PAD:  # what a position reads must not be padding, which has no position
            filler = [EOS, *[6] * t]  # what stands before the last token does not matter
            edges[t, i] = log_probs([*filler, int(tokens[t, i])], tokens[t + 1])
    return first, edges


@pytest.mark.parametrize("normalise", ["candidates", "vocabulary"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_edge_scores_are_the_models(variant: dict[str, Any], normalise: Any) -> None:
    model = lattice_model(**variant)
    assert parts_gap(model.decoder) is None
    sample = make_batch(SOURCES)
    candidates = random_tables().lattice(sample["net_input"]["src_tokens"], 5, window=1)
    scorer = EdgeScorer([model], normalise)
    with torch.no_grad():
        scorer.start(sample["net_input"])
        first, edges = scorer.scores(candidates, EOS)
        for row, source in enumerate(SOURCES):
            one = make_batch([source])["net_input"]
            expected = plain_edges(model, one, candidates.tokens[row], normalise)
            unary, allowed = candidates.scores(first, edges)
            wanted, steps = candidates.scores(
                expected[0].expand_as(first), expected[1].expand_as(edges)
            )
            torch.testing.assert_close(unary[row], wanted[row], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(allowed[row], steps[row], atol=1e-4, rtol=1e-4)


def all_texts(
    models: list[Any], source: list[int], folder: Path, length_window: int = 1
) -> list[tuple[float, list[int]]]:
    """Every path of a sentence's lattice with its mean log-probability, best first."""
    sample = make_batch([source])
    lattice = CandidateModel.open(
        folder, make_task().source_dictionary, make_task().target_dictionary
    )
    grid = lattice.lattice(
        sample["net_input"]["src_tokens"], 5, "interpolated", window=length_window
    )
    tokens = grid.tokens[0]
    parts = [plain_edges(model, sample["net_input"], tokens, "candidates") for model in models]
    first = torch.stack([part[0] for part in parts]).logsumexp(0) - math.log(len(models))
    edges = torch.stack([part[1] for part in parts]).logsumexp(0) - math.log(len(models))
    shortest, longest = int(grid.lengths.shortest), int(grid.lengths.longest)
    found = []
    for length in range(shortest, longest + 1):
        for path in itertools.product(range(5), repeat=length):
            text = [int(tokens[t, i]) for t, i in enumerate(path)]
            if EOS in text or PAD in text:
                continue
            end = tokens[length].tolist().index(EOS)
            score = float(first[path[0]])
            for t, (i, j) in enumerate(itertools.pairwise([*path, end])):
                score += float(edges[t, i, j])
            found.append((score, [*text, EOS]))
    return sorted(found, key=lambda item: -item[0])


@pytest.mark.parametrize("count", [1, 3])
def test_the_best_paths_of_all(folder: Path, count: int) -> None:
    models, sample = [lattice_model()], make_batch(SOURCES)
    with torch.no_grad():
        found = decode(models, sample, folder, nbest=count, unnormalized=True)
        for source, hypotheses in zip(SOURCES, found, strict=True):
            expected = all_texts(models, source, folder)[:count]
            assert [h["tokens"].tolist() for h in hypotheses] == [text for _, text in expected]
            for hypothesis, (score, _) in zip(hypotheses, expected, strict=True):
                assert float(hypothesis["score"]) == pytest.approx(score, abs=1e-3)
                assert float(hypothesis["positional_scores"].sum()) == pytest.approx(
                    score, abs=1e-3
                )


@pytest.mark.parametrize("least", [0.02, 0.1, 1.0])
def test_unlikely_candidates_are_left_out(folder: Path, least: float) -> None:
    """Nothing else changes: the scores of what is left are those of a lattice that never had the others."""
    sample = make_batch(SOURCES)
    lattice = random_tables().lattice(
        sample["net_input"]["src_tokens"], 8, "interpolated", window=1
    )
    pruned = lattice.pruned(least)
    for row, t in itertools.product(range(len(SOURCES)), range(lattice.tokens.size(1))):
        nodes = zip(
            lattice.tokens[row, t].tolist(), lattice.log_probabilities[row, t].tolist(), strict=True
        )
        there = [(token, value) for token, value in nodes if value > -math.inf]
        best = max((v for token, v in there if token not in (EOS, PAD)), default=0.0)
        expected = [
            token for token, v in there if token in (EOS, PAD) or v == best or math.exp(v) >= least
        ]
        kept = pruned.tokens[row, t][pruned.nodes[row, t]].tolist()
        assert kept == expected
    assert pruned.tokens.size(2) <= lattice.tokens.size(2)
    found = decode(
        [lattice_model()], sample, folder, task_options={"lattice_least_probability": least}
    )
    assert all(hypotheses[0]["tokens"][-1] == EOS for hypotheses in found)


def test_ensembles_average_probabilities(folder: Path) -> None:
    models, sample = [lattice_model(1), lattice_model(2)], make_batch(SOURCES)
    with torch.no_grad():
        found = decode(models, sample, folder)
        for source, (best,) in zip(SOURCES, found, strict=True):
            score, text = all_texts(models, source, folder)[0]
            assert best["tokens"].tolist() == text
            assert float(best["score"]) == pytest.approx(score / len(text), abs=1e-4)


def test_batches_do_not_matter(folder: Path) -> None:
    models = [lattice_model()]
    together = decode(models, make_batch(SOURCES), folder)
    for source, (best,) in zip(SOURCES, together, strict=True):
        ((alone,),) = decode(models, make_batch([source]), folder)
        assert best["tokens"].tolist() == alone["tokens"].tolist()
        torch.testing.assert_close(best["score"], alone["score"])


def test_options(folder: Path) -> None:
    models, sample = [lattice_model()], make_batch(SOURCES)

    def texts(task_options: dict[str, Any] | None = None, **options: Any) -> list[list[int]]:
        found = decode(models, sample, folder, task_options=task_options, **options)
        return [best["tokens"].tolist() for (best,) in found]

    usual = texts()
    assert all(len(text) - 1 <= 3 for text in texts(max_len_b=3))
    assert all(len(text) - 1 >= 4 for text in texts(min_len=4))
    assert [len(text) for text in texts(match_source_len=True)] == [
        len(source) + 2 for source in SOURCES
    ]
    exact = texts({"lattice_length_window": 0})
    assert [len(text) - 1 for text in exact] == [len(source) for source in SOURCES]
    one = texts({"lattice_candidates": 1, "lattice_length_window": 0})
    assert [len(text) - 1 for text in one] == [len(source) for source in SOURCES]
    assert not any(UNK in text for text in texts(unkpen=100.0))
    assert texts(temperature=1.0) == texts(beam=60) == usual  # more than there are types


def test_of_one_candidate_no_model_is_asked(folder: Path) -> None:
    """A model that is all NaN changes neither the words, which are the likeliest ones, nor their scores."""
    model = lattice_model()
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    sample = make_batch(SOURCES)
    one = {"lattice_candidates": 1, "lattice_length_window": 0}
    task, generator = build([model], folder, one)
    found = task.inference_step(generator, [model], sample)
    assert (task.counters.sentences, task.counters.iterations) == (len(SOURCES), len(SOURCES))
    source = sample["net_input"]["src_tokens"]
    lengths = generator._lengths(source)
    tables = CandidateModel.open(folder, task.source_dictionary, task.target_dictionary)
    lattice = tables.lattice(source, 1, "interpolated", lengths)
    for row, (best,) in enumerate(found):
        text = best["tokens"]
        assert text.tolist() == lattice.tokens[row, : len(text), 0].tolist()
        own = lattice.log_probabilities[row, : len(text), 0]
        torch.testing.assert_close(best["positional_scores"], own)
        torch.testing.assert_close(best["score"], own.sum() / len(text))
    with pytest.raises(NonFiniteError):
        decode([model], sample, folder, task_options={"lattice_candidates": 3})


def test_counters_count_one_iteration_per_sentence(folder: Path) -> None:
    task, generator = build([lattice_model()], folder, {})
    found = task.inference_step(generator, [], make_batch(SOURCES))
    assert (task.counters.sentences, task.counters.iterations, task.counters.calls) == (3, 3, 1)
    assert task.counters.tokens == sum(len(best["tokens"]) for (best,) in found)


# -- the order of the scorer


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("order", list(ORDERS))
def test_a_token_depends_on_no_more_than_the_order_says(order: str, layers: int) -> None:
    model = lattice_model(decoder_layers=layers, markov_order=order, dropout=0.0).train()
    tokens = torch.tensor([[EOS, *range(5, 14)]])
    other = tokens.clone()
    other[0, 4] = 30
    net_input = make_batch([[5, 6, 7]])["net_input"]
    reaches = set()
    with torch.no_grad():
        for update in range(12):
            model.set_num_updates(update)
            outputs = [model(**net_input, prev_output_tokens=t)[0][0] for t in (tokens, other)]
            changed = (outputs[0] - outputs[1]).abs().amax(1) > 1e-6
            reached = changed.nonzero().flatten().tolist()
            assert reached[0] == 4
            reaches.add(len(reached))
        model.eval()
        outputs = [model(**net_input, prev_output_tokens=t)[0][0] for t in (tokens, other)]
        changed = (outputs[0] - outputs[1]).abs().amax(1) > 1e-6
    assert reaches == ({1} if order == "2" else {1, 2})
    assert changed.nonzero().flatten().tolist() == [4]  # bigrams at decoding


@pytest.mark.parametrize(
    "option",
    ["sampling", "prefix_size", "no_repeat_ngram_size", "retain_dropout", "print_alignment"],
)
def test_what_cannot_be_honoured_is_refused(option: str, folder: Path) -> None:
    name = option.replace("_", "-")
    with pytest.raises(ValueError, match=f"^--{name} does not go with --decoding lattice"):
        build([lattice_model()], folder, {}, **{option: 1})
