"""What decodes a case, and what that is compared with.

In fp32 the oracle is stock fairseq, in 8 bits and under ``--strict`` our own search with nothing drafted, bit for bit.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from fairseq import options
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.sequence_generator import SequenceGenerator

from fairseq_aggdec.api.session import Hypothesis, Session, generation_parser
from fairseq_aggdec.audit import equality, nbest_equality
from fairseq_aggdec.budget.draft_length import DraftLength, NodeBudget
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask
from scripts.forced_drafts import KINDS, ForcedDrafter
from tests.fuzz.cases import Case
from tests.random_models import (
    make_dictionary,
    make_model,
    random_sources,
)
from tests.rule_cases import WorkingBlocker
from tests.support import trained_copier

# Scores may differ by so many times what rounding does to stock's own, where that is much.
ROUNDINGS = 4
# Of a large case these decode a part of the sentences, as beam search does: they grow trees a path at a time in Python.
SLOW = ("gad tree", "blockwise tree")
Found = dict[int, list[Hypothesis]]
Named = Iterator[tuple[str, equality.Audit]]
Make = Callable[[], Drafter]


class CaseSession(Session):
    """A session that decodes as a case says.

    Attributes:
        case: see :class:`~tests.fuzz.cases.Case`.
        nar: a random non-autoregressive drafter.
    """

    case: Case

    def _make_drafter(self) -> None:
        self.nar = make_model(self.task, self.case.seed, "nar_drafter", **self.case.drafter)

    def generator(self, decoding: str, beam: int = 1) -> tuple[Any, Counters]:
        """As the session's; stock blocks repeated n-grams on CPU too."""
        generator, counters = super().generator(decoding, beam)
        # Where our own search has left it to stock, it blocks them already.
        stocks = type(generator) is SequenceGenerator
        if stocks and isinstance(generator.repeat_ngram_blocker, NGramRepeatBlock):
            generator.repeat_ngram_blocker = WorkingBlocker(generator.repeat_ngram_blocker)
        return generator, counters

    @contextmanager
    def given(self, **chosen: Any) -> Iterator[None]:
        """Options of the plugin, for a while."""
        before = {name: self.task.cfg[name] for name in chosen}
        self.task.cfg.update(chosen)
        try:
            yield
        finally:
            self.task.cfg.update(before)

    @contextmanager
    def in_precision(self, dtype: torch.dtype) -> Iterator[None]:
        """Models of another precision, for a while."""
        before = self.models, self.nar
        self.models = [copy.deepcopy(model).to(dtype) for model in self.models]
        self.nar = copy.deepcopy(self.nar).to(dtype)
        try:
            yield
        finally:
            self.models, self.nar = before

    def drafters(
        self, outputs: Callable[[], Mapping[int, list[int]]]
    ) -> Iterator[tuple[str, Make]]:
        """All that drafts for the loop; ``outputs`` are what it will write."""
        case, types = self.case, len(self.task.target_dictionary)
        for kind in KINDS:
            yield (
                kind,
                lambda kind=kind: ForcedDrafter(kind, case.draft_length, types, outputs()),
            )
        int8 = case.draft_int8 and int8_available()
        for name, nodes in (("", None), (" tree", NodeBudget(case.nodes))):
            yield (
                f"gad{name}",
                lambda nodes=nodes: NarDrafter(self.nar, int8=int8, nodes=nodes),
            )
            if case.heads:
                size = case.heads["block_size"] - 1
                yield (
                    f"blockwise{name}",
                    lambda nodes=nodes, size=size: BlockwiseHeadsDrafter(
                        DraftLength(size), int8, nodes
                    ),
                )


class RealSession(CaseSession):
    """A trained model and some sentences of its test set; options, batches and drafts are the case's."""

    def __init__(self, case: Case):
        assert case.real is not None
        data, path = case.real
        # Not by the length of the source: that is the longest of a batch, and methods have batches of several sizes.
        case = replace(case, options=case.options | {"max_len_a": 0.0, "max_len_b": 100})
        given = [data, "--path", path, "--cpu", *case.command_line]
        super().__init__(generation_parser(None), given)
        heads = getattr(self.models[0].decoder, "heads", None)
        self.case = replace(
            case, models=1, heads={} if heads is None else {"block_size": heads.block_size}
        )
        self._make_drafter()
        count = min(case.sentences, len(self.order))
        chosen = set(random.Random(case.seed).sample(self.order, count))
        self.order = [sentence for sentence in self.order if sentence in chosen]


class RandomSession(CaseSession):
    """Models and sentences are made from the case's number, too."""

    def __init__(self, case: Case):
        self.args, usual = _usual()
        self.cfg = Namespace(
            generation=copy.deepcopy(usual.generation),
            task=copy.deepcopy(usual.task),
            **{name: usual[name] for name in ("common", "common_eval", "dataset")},
        )
        self.cfg.generation.update(case.options)
        self.cuda, self.case = False, case
        source, target = (make_dictionary([f"w{i}" for i in range(words)]) for words in case.words)
        self.task = TranslationAggdecTask(self.cfg.task, source, target)
        self.models = [self._model(case.seed * 3 + number) for number in range(case.models)]
        self._make_drafter()
        sources, targets = (
            self._sentences(dictionary, case.seed * 2 + side)
            for side, dictionary in enumerate((source, target))
        )
        self.dataset = LanguagePairDataset(
            sources,
            [len(row) for row in sources],
            source,
            targets,
            [len(row) for row in targets],
            target,
            left_pad_source=case.left_pad,
        )
        self.order = self.dataset.ordered_indices().tolist()

    def _model(self, seed: int) -> Any:
        case = self.case
        if case.copier:
            return copier()
        model = make_model(self.task, seed, case.arch, **case.shape, **case.heads)
        if case.output_bias:
            projection = model.decoder.output_projection
            projection.bias = torch.nn.Parameter(torch.randn(projection.out_features) * 0.3)
        model.prepare_for_inference_(self.cfg)
        return model

    def _sentences(self, dictionary: Any, seed: int) -> list[Any]:
        """Words of random sources, in a smaller dictionary again and again."""
        words = len(dictionary) - dictionary.nspecial
        rows = random_sources(seed, self.case.sentences, self.case.longest)
        return [
            torch.tensor([*(4 + (token - 4) % words for token in row), dictionary.eos()])
            for row in rows
        ]


@functools.cache
def copier() -> Any:
    """One for all cases, which change nothing of it."""
    return trained_copier()[1]


@functools.cache
def _usual() -> tuple[Namespace, Any]:
    """Parsed arguments and their configuration, which takes fairseq longer than to decode a case."""
    given = ["data", "--path", "none", "--cpu", "--source-lang", "src", "--target-lang", "tgt"]
    args = options.parse_args_and_arch(generation_parser(None), given)
    return args, convert_namespace_to_omegaconf(args)


def audits(case: Case) -> Named:
    """Every wanted method's name and its comparison, in the same batches."""
    session: CaseSession = RealSession(case) if case.real else RandomSession(case)
    yield from against_stock(session)
    if case.unusual:
        return
    with session.given(int8=True):
        yield from in_8_bits(session)
    dtype = getattr(torch, case.dtype)
    with session.given(strict=case.strict), session.in_precision(dtype):
        yield from strictly(session)


class StockFailsError(Exception):
    """Stock fairseq cannot decode a case itself, so there is nothing to compare with."""


def against_stock(session: CaseSession) -> Named:
    size, limit = session.case.batch_size, session.case.sentences
    margin, tolerance = equality.TIE_MARGIN["fp32"], equality.SCORE_TOLERANCE["fp32"]

    @functools.cache
    def expected() -> Found:
        try:
            return equality.decode_all(session, "stock", size, limit)
        except Exception as error:
            raise StockFailsError(f"{type(error).__name__} in stock: {error}") from error

    @functools.cache
    def wider(beam: int = 0) -> float:
        return max(tolerance, ROUNDINGS * rounding(session, beam))

    expected()  # first: what stock cannot decode is no fault of ours, which may leave the same to it
    for name, wanted, found in decoded(session, expected):
        result = equality.audit(session, list(wanted), wanted, found, margin, tolerance)
        if result.score_errors:
            result = equality.audit(session, list(wanted), wanted, found, margin, wider())
        yield name, result
    for name, result in beams(session, "stock", margin, tolerance):
        if result.score_errors:
            result = dict(beams(session, "stock", margin, wider(session.case.beam)))[name]
        yield name, result


def in_8_bits(session: CaseSession) -> Named:
    """Bit for bit what our own search finds with nothing drafted, greedy decoding in batches of another size."""
    size = session.case.batch_size
    if not session.cfg.generation.max_len_a:
        size = size // 3 + 2
    yield from _to_the_bit(session, "int8 ", size)
    # A beam as large as the vocabulary is stock's alone, which has no 8 bits: that is refused.
    if session.case.beam < len(session.task.target_dictionary) - 1:
        yield from beams(session, "beam", 0.0, 0.0, "int8 ")


def strictly(session: CaseSession) -> Named:
    """Bit for bit what greedy decoding finds with the same ``--strict`` in the same batches."""
    yield from _to_the_bit(session, "strict ", session.case.batch_size)


def _to_the_bit(session: CaseSession, kind: str, size: int) -> Named:
    case = session.case

    @functools.cache
    def expected(limit: int = case.sentences) -> Found:
        return equality.decode_all(session, "greedy", size, limit)

    for name, wanted, found in decoded(session, expected, kind):
        if len(wanted) < case.sentences:  # in the same batches
            wanted = expected(case.part)
        yield name, equality.audit(session, list(wanted), wanted, found, 0.0, 0.0)


def decoded(
    session: CaseSession, expected: Callable[[], Found], kind: str = ""
) -> Iterator[tuple[str, Found, Found]]:
    """What each wanted method of the loop should find and what it finds."""
    case = session.case
    size, limit = case.batch_size, case.sentences
    for method, chosen in (("greedy", {}), ("iad", case.copying)):
        if case.wants(kind + method):
            with session.given(**chosen):
                found = equality.decode_all(session, method, size, limit)
            yield kind + method, expected(), found

    def outputs() -> dict[int, list[int]]:
        return {sentence: found[0]["tokens"].tolist() for sentence, found in expected().items()}

    for method, drafter in session.drafters(outputs):
        if case.wants(kind + method):
            part = case.part if method in SLOW else limit
            wanted = {sentence: expected()[sentence] for sentence in session.sentences(part)}
            found = equality.decode_all(session, "greedy", size, part, drafter())
            yield kind + method, wanted, found


def beams(
    session: CaseSession, oracle: str, margin: float, tolerance: float, kind: str = ""
) -> Named:
    """The n-best lists of our search, with what each kind of draft does for it."""
    case = session.case
    size, beam, limit = case.batch_size, case.beam, case.part
    drafts = ["source"] + ["none"] * (oracle == "stock")
    wanted = [draft for draft in drafts if case.wants(f"{kind}beam, {draft}")]
    if not wanted:
        return
    expected = nbest_equality.decode_all(session, size, beam, limit, oracle)
    for draft in wanted:
        with session.given(draft_from=draft):
            yield (
                f"{kind}beam, {draft}",
                nbest_equality.audit(session, size, beam, limit, margin, tolerance, expected),
            )


def rounding(session: CaseSession, beam: int = 0) -> float:
    """By how much stock's own scores in fp32 are off those of the same models in fp64, at most, in nats.

    Norms of four numbers that hardly differ turn the last bit into a ten-thousandth.

    Args:
        beam: all hypotheses of this beam are looked at; 0: those of greedy search.
    """
    case = session.case

    def decoded() -> dict[int, Any]:
        """Sentence -> hypotheses."""
        if not beam:
            return equality.decode_all(session, "stock", case.batch_size, case.sentences)
        found = nbest_equality.decode_all(session, case.batch_size, beam, case.part)
        return {sentence: lists[0] for sentence, lists in found.items()}

    rough = decoded()
    try:
        for model in session.models:
            model.double()
        exact = decoded()
    finally:
        for model in session.models:
            model.float()
    pairs = (zip(rough[sentence], exact[sentence], strict=False) for sentence in rough)
    errors = (
        (own["positional_scores"] - wanted["positional_scores"]).abs().max().item()
        for own, wanted in itertools.chain.from_iterable(pairs)
        if own["tokens"].tolist() == wanted["tokens"].tolist()
    )
    return max(errors, default=0.0)
