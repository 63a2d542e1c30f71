"""Batches that the compiled library decodes alone: what is put onto a generator counts, and mistakes are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fairseq_aggdec.api.calls import Call, generator_of_call
from fairseq_aggdec.cli.refusals import refusal
from fairseq_aggdec.engine.packed_decoder import TokenEmbedding
from fairseq_aggdec.kernels.library import (
    HeadsStruct,
    SourceStruct,
    StepStruct,
    kernels,
)
from fairseq_aggdec.methods.shared.texts import GivenTexts
from fairseq_aggdec.options import options as limits
from fairseq_aggdec.search.acceptance import TopBeta
from fairseq_aggdec.search.compiled import reader
from fairseq_aggdec.search.compiled.searches import (
    BeamOptionsStruct,
    GreedyOptionsStruct,
    RuleOptionsStruct,
    WholeSearch,
    address,
)
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.windows.transfer import int64_array
from tests.support import (
    assert_same,
    generation_options,
    make_batch,
    make_model,
    make_task,
    random_sources,
    stock,
    trained_copier,
)

pytestmark = pytest.mark.skipif(kernels() is None, reason="no compiled kernels")
METHODS = ("greedy", "iad", "beam")
HUGE = 1 << 50  # of anything: more than there are addresses
SAMPLE = make_batch(random_sources(3, 4, longest=15))


@pytest.fixture(scope="module")
def copier() -> Any:
    return trained_copier()[1]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each run of a whole search in the library came back with."""
    search = WholeSearch("greedy", options_of(1))
    plain, found = search.library.aggdec_search_run, []

    def run(*arguments: Any) -> int:
        found.append(plain(*arguments))
        return found[-1]

    monkeypatch.setattr(search.library, "aggdec_search_run", run)
    return found


def options_of(sentences: int) -> GreedyOptionsStruct:
    limits = int64_array([5])
    rules = RuleOptionsStruct(pad=1, unk=3, eos=2)
    rules.ends = rules.floors = rules.strict_floors = address(limits)
    options = GreedyOptionsStruct(rules, sentences, 2, 1)
    options.kept = limits  # alive
    return options


def beam_options_of(sentences: int, beam: int) -> BeamOptionsStruct:
    options = BeamOptionsStruct(options_of(sentences).rules, sentences, beam, 2, 1, 5)
    options.kept = limits = int64_array([5])
    options.rules.ends = options.rules.floors = options.rules.strict_floors = address(limits)
    return options


def built(method: str, model: Any, **options: Any) -> tuple[Any, Any]:
    """A task and its generator."""
    task = make_task(method)
    options = {"beam": 3 if method == "beam" else 1} | options
    generator = task.build_generator([model], generation_options(**options))
    generator.ahead = False  # of beam search
    return task, generator


def found_by(task: Any, generator: Any, model: Any, prefix: Any = None) -> list[dict[str, Any]]:
    ranked = task.inference_step(generator, [model], SAMPLE, prefix_tokens=prefix)
    return [hypotheses[0] for hypotheses in ranked]


@pytest.mark.parametrize("method", METHODS)
def test_python_is_asked_between_windows(
    copier: Any, method: str, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it handles signals; what is found does not depend on how often."""
    task, generator = built(method, copier)
    expected = found_by(task, generator, copier)
    calls, whole = task.counters.calls, len(runs)
    assert 1 <= whole < calls
    monkeypatch.setattr(reader, "PAUSE", 0.0)
    task, generator = built(method, copier)
    found = found_by(task, generator, copier)
    assert len(runs) - whole > task.counters.calls == calls
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine["tokens"], other["tokens"])
        assert torch.equal(mine["positional_scores"], other["positional_scores"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram_size": 2, "unkpen": 1.0, "min_len": 4}])
def test_logits_are_decided_in_parts(
    copier: Any, method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large window has more logits than fit into the cache; what is found does not depend on the parts."""
    task, generator = built(method, copier, **options)
    expected = found_by(task, generator, copier)
    for places in (1, 3):
        monkeypatch.setattr(reader, "TOGETHER", places * len(task.target_dictionary))
        task, generator = built(method, copier, **options)
        found = found_by(task, generator, copier)
        for mine, other in zip(found, expected, strict=True):
            assert torch.equal(mine["tokens"], other["tokens"])
            assert torch.equal(mine["positional_scores"], other["positional_scores"])


def test_the_next_batch_takes_the_memory_of_the_last(copier: Any) -> None:
    task, generator = built("greedy", copier)
    places = set()
    for _ in range(2):
        found_by(task, generator, copier)
        places.add(generator.verifier.members[0].decoder.cache.memory.data_ptr())
    assert len(places) == 1


def test_a_cache_that_has_grown_serves_the_next_batch(
    copier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of fewer sentences: fresh memory of the system is slow to touch."""
    source = SAMPLE["net_input"]["src_tokens"]
    monkeypatch.setattr(limits, "SPARE_POSITIONS", 2 - source.size(1))  # room for two tokens
    task, generator = built("greedy", copier)
    expected = found_by(task, generator, copier)
    cache = generator.verifier.members[0].decoder.cache
    grown = cache.entries.data_ptr()
    monkeypatch.setattr(cache, "_keep_room", None)  # is called where a cache grows
    for mine, other in zip(found_by(task, generator, copier), expected, strict=True):
        assert torch.equal(mine["positional_scores"], other["positional_scores"])
    assert cache.entries.data_ptr() == grown
    generator.generate([copier], {"net_input": {"src_tokens": source[:2]}})
    assert cache.entries.data_ptr() == grown


def test_a_signal_ends_a_batch(copier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that raises comes through, and the generator decodes the next batch."""
    task, generator = built("greedy", copier)
    search = WholeSearch("greedy", options_of(1))

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(search.library, "aggdec_search_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found_by(task, generator, copier)
    assert_same(found_by(task, generator, copier), stock([copier], SAMPLE))


def decode() -> None:
    widths = int64_array([1])
    step = StepStruct(rows=1, widths=address(widths), wanted=1, threads=1)
    shape = int64_array([0, HUGE] + [0] * 20)  # layers, channels
    kernels().aggdec_decode(None, address(shape), address(step), None)


def encode() -> None:
    tokens, lengths, shape = (
        int64_array([5, 1]),
        int64_array([0]),
        int64_array([0, HUGE] + [0] * 20),
    )
    source = SourceStruct(rows=1, length=2, pad=1, threads=1)
    source.tokens, source.lengths = map(address, (tokens, lengths))
    kernels().aggdec_encode(None, address(shape), address(source))


def heads() -> None:
    call = HeadsStruct()
    call.expand.inputs = call.expand.outputs = 8
    kernels().aggdec_heads(address(call), None, None, HUGE, 1, None, 1)


def whole() -> None:
    """The library has no room for the logits of one window."""
    embeddings = torch.zeros(8, 8)
    shape, product, step = (
        int64_array([0, 8] + [0] * 8 + [embeddings.data_ptr()] + [0] * 11),
        int64_array([8, HUGE] + [0] * 8),
        StepStruct(),
    )
    struct = reader.ReaderStruct(None, *map(address, (shape, step, product)), places=99)
    WholeSearch("greedy", options_of(1)).run(struct, reader.ReadingStruct(1, HUGE, 1.0))


def beam_take() -> None:
    search = WholeSearch("beam", beam_options_of(1, HUGE))
    assert search.ask() is not None
    search.library.aggdec_search_take(search.handle, None, None, HUGE)


@pytest.mark.parametrize(
    "call",
    [
        decode,
        encode,
        heads,
        whole,
        beam_take,
        lambda: WholeSearch("greedy", options_of(1 << 61)),
        lambda: WholeSearch("beam", beam_options_of(1 << 61, 1)),
    ],
)
def test_too_little_memory_is_an_error_of_python(call: Callable[[], None]) -> None:
    """What C++ throws ended the process."""
    with pytest.raises(MemoryError, match="take smaller ones") as found:
        call()
    assert refusal(found.value) == str(found.value)


def test_too_little_memory_in_a_thread(copier: Any) -> None:
    """An exception in a thread of its own ends the process wherever it would be caught."""
    task, generator = built("greedy", copier)
    found_by(task, generator, copier)
    layers = generator.verifier.members[0].decoder.compiled
    kept = [int64_array([value] * len(SAMPLE["id"])) for value in (0, 1, 4)]
    step, (starts, widths, tokens) = layers.step, map(address, kept)
    step.rows, step.threads, step.wanted, step.causal = len(SAMPLE["id"]), 2, 0, True
    step.starts, step.widths, step.tokens, step.end = starts, widths, tokens, HUGE
    step.depths = step.seen = None
    out = torch.empty(step.rows, layers.channels)
    with pytest.raises(MemoryError):
        layers.library.aggdec_decode(*layers.addresses, out.data_ptr())


def test_acceptance_of_an_heir(copier: Any, runs: list[int]) -> None:
    class Nothing(TopBeta):
        def __call__(self, logits: Any, choices: Any, drafted: Any, /) -> Any:
            return torch.zeros_like(drafted, dtype=torch.bool)

    task, generator = built("iad", copier)
    generator.accept = Nothing(3)
    found_by(task, generator, copier)
    assert task.counters.drafted > task.counters.accepted == len(runs) == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("token", [-1, 1000])
def test_tokens_that_the_dictionary_lacks(copier: Any, method: str, token: int) -> None:
    """They were read from beyond the embedding."""
    task, generator = built(method, copier)
    with pytest.raises(ValueError, match=f"prefix_tokens: .* no token {token}, only 0 to"):
        found_by(task, generator, copier, torch.tensor([[5], [1], [token], [5]]))
    with pytest.raises(ValueError, match=f"bos_token: .* no token {token}, only 0 to"):
        generator.generate([copier], SAMPLE, bos_token=token)


@pytest.mark.parametrize("method", ["iad", "beam"])
def test_drafts_that_the_dictionary_lacks(copier: Any, method: str) -> None:
    task, generator = built(method, copier)
    texts = GivenTexts(task.settings, task.target_dictionary)
    view = generator_of_call(generator, Call(), texts, None)
    drafts = [[5, 6], [7, 1000], [], [-1, 5]]  # -1: never drafted
    with pytest.raises(ValueError, match=r"drafts: .* no token 1000, only 0 to"):
        task.inference_step(view, [copier], SAMPLE | {"drafts": drafts})


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_a_negative_maximum_length(copier: Any, method: str) -> None:
    """Stock gives no hypothesis, and of smaller ones errors."""
    task, generator = built(method, copier, max_len_b=-1, min_len=-3)
    with pytest.raises(ValueError, match="maximum length -1: it must be at least 0"):
        found_by(task, generator, copier)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_beam_without_hypotheses(copier: Any, ahead: bool) -> None:
    """All tokens but </s> are impossible, and that is banned: stock fails as well."""
    model = make_model(make_task(), 3)
    task, generator = built("beam", model, min_len=3)
    generator.ahead = ahead
    project = model.decoder.output_projection
    bias = torch.full((len(task.target_dictionary),), -torch.inf)
    bias[task.target_dictionary.eos()] = 0.0
    plain = torch.nn.Linear(project.in_features, project.out_features)
    plain.weight, plain.bias = project.weight, torch.nn.Parameter(bias)
    model.decoder.output_projection = plain
    with pytest.raises(NonFiniteError):
        found_by(task, generator, model)


def test_a_broken_search_asks_no_more() -> None:
    search = WholeSearch("beam", beam_options_of(1, 2))
    assert search.ask() is not None
    search.take(torch.full((1, 9), torch.nan))
    assert search.ask() is None
    found = search.result()
    assert (found.broken, found.calls, found.nodes) == (0, 1, 1)


@pytest.mark.parametrize("method", METHODS)
def test_no_window_reads_behind_the_table_of_positions(
    method: str, copier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that are none stand behind what was asked for."""
    whole = TokenEmbedding.positions
    asked: list[int] = []

    def short(embedding: TokenEmbedding, count: int) -> torch.Tensor:
        asked.append(count)
        table = whole(embedding, 64).clone()
        table[count:] = torch.nan
        return table[:count]

    expected = found_by(*built(method, copier), copier)
    monkeypatch.setattr(TokenEmbedding, "positions", short)
    assert_same(found_by(*built(method, copier), copier), expected)
    assert len(set(asked)) > 3


@pytest.mark.parametrize("method", METHODS)
def test_a_banned_token_may_be_more_likely_than_a_float_tells(method: str) -> None:
    """Its logit is some hundreds above what is left, and counts in the probabilities as in stock."""
    model = make_model(make_task(), 1)
    model.decoder.output_projection.weight.data.mul_(400)
    model.decoder.output_projection.weight.data[2] *= 2
    options = {"min_len": 9, "beam": 3 if method == "beam" else 1}
    found, expected = (
        found_by(*built(kind, model, **options), model) for kind in (method, "stock")
    )
    for ours, stocks in zip(found, expected, strict=True):
        assert ours["tokens"].tolist() == stocks["tokens"].tolist()
        scores = ours["positional_scores"]
        torch.testing.assert_close(scores, stocks["positional_scores"], atol=1e-2, rtol=1e-4)
    assert min(one["positional_scores"].min().item() for one in expected) < -100
