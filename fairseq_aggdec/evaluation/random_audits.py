"""What decodes a case, and what that is compared with: stock fairseq, and in 8 bits our own greedy decoding."""

from __future__ import annotations

import functools
import random
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fairseq import options
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_aggdec.api.session import Hypothesis, Session, generation_parser
from fairseq_aggdec.audit import equality, nbest_equality
from fairseq_aggdec.audit.forced_drafts import KINDS, ForcedDrafter
from fairseq_aggdec.budget.block_size import FixedBlockSize, NodeBudget
from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.nar import NarDrafter
from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.evaluation.random_cases import Case
from fairseq_aggdec.evaluation.random_models import (
    make_dictionary,
    make_model,
    random_sources,
)
from fairseq_aggdec.search.drafter import Drafter
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask
from fairseq_aggdec.windows.draft import Proposing

# Scores may differ by so many times what rounding does to stock's own, where that is much.
ROUNDINGS = 4
# They decode a part of the sentences, as beam search does: their trees grow a path at a time, in Python.
SLOW = ("gad tree", "blockwise tree")
Found = dict[int, list[Hypothesis]]
Named = Iterator[tuple[str, equality.Audit]]


class CaseSession(Session):
    """A session that decodes as a case says.

    Attributes:
        case: see :class:`~fairseq_aggdec.evaluation.random_cases.Case`.
        nar: a random non-autoregressive drafter.
    """

    case: Case

    def _make_drafter(self) -> None:
        self.nar = make_model(self.task, self.case.seed, "nar_drafter", **self.case.drafter)

    @contextmanager
    def given(self, **chosen: Any) -> Iterator[None]:
        """Options of the plugin, for a while."""
        before = {name: self.task.cfg[name] for name in chosen}
        self.task.cfg.update(chosen)
        try:
            yield
        finally:
            self.task.cfg.update(before)

    def drafters(self, outputs: Mapping[int, list[int]]) -> Iterator[tuple[str, Drafter]]:
        """All that drafts for the loop; ``outputs`` are what it will write."""
        case, types = self.case, len(self.task.target_dictionary)
        for kind in KINDS:
            yield kind, ForcedDrafter(kind, case.draft_length, types, outputs)
        proposing = Proposing(case.types, case.draft_int8 and int8_available())
        for name, nodes in (("", None), (" tree", NodeBudget(case.nodes))):
            yield f"gad{name}", NarDrafter(self.nar, proposing=proposing, nodes=nodes)
            if case.heads:
                size = FixedBlockSize(case.heads["block_size"] - 1)
                yield f"blockwise{name}", BlockwiseHeadsDrafter(size, proposing, nodes)


class RealSession(CaseSession):
    """A trained model and some sentences of its test set; options, batches and drafts are the case's."""

    def __init__(self, case: Case):
        assert case.real is not None
        data, path = case.real
        # Not by the length of the source: that is the longest of a batch, and methods have batches of several sizes.
        usual = [option.replace("--max-len-b=12", "--max-len-b=100") for option in case.options]
        given = [data, "--path", path, "--cpu", *usual]
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
        given = ["data", "--path", "none", "--cpu", *case.options]
        given += ["--source-lang", "src", "--target-lang", "tgt"]
        self.args: Namespace = options.parse_args_and_arch(generation_parser(None), given)
        self.cfg = convert_namespace_to_omegaconf(self.args)
        self.cuda, self.case = False, case
        dictionary = make_dictionary()
        self.task = TranslationAggdecTask(self.cfg.task, dictionary, dictionary)
        arch = "blockwise_transformer" if case.heads else "transformer"
        self.models = [
            make_model(self.task, case.seed * 2 + number, arch, **case.shape, **case.heads)
            for number in range(case.models)
        ]
        for model in self.models:
            model.prepare_for_inference_(self.cfg)
        self._make_drafter()
        sources, targets = (self._sentences(case.seed * 2 + side) for side in (0, 1))
        self.dataset = LanguagePairDataset(
            sources,
            [len(row) for row in sources],
            dictionary,
            targets,
            [len(row) for row in targets],
            dictionary,
            left_pad_source=case.left_pad,
        )
        self.order = self.dataset.ordered_indices().tolist()

    def _sentences(self, seed: int) -> list[Any]:
        dictionary = self.task.source_dictionary
        rows = random_sources(seed, self.case.sentences, self.case.longest)
        texts = (" ".join(dictionary[token] for token in row) for row in rows)
        return [dictionary.encode_line(text, add_if_not_exist=False).long() for text in texts]


def audits(case: Case) -> Named:
    """Every method's name and its comparison, in the same batches."""
    session: CaseSession = RealSession(case) if case.real else RandomSession(case)
    yield from against_stock(session)
    with session.given(int8=True):
        for name, found in in_8_bits(session):
            yield f"int8 {name}", found


def against_stock(session: CaseSession) -> Named:
    size, limit = session.case.batch_size, session.case.sentences
    margin, tolerance = equality.TIE_MARGIN["fp32"], equality.SCORE_TOLERANCE["fp32"]
    expected = equality.decode_all(session, "stock", size, limit)

    @functools.cache
    def wider() -> float:
        return max(tolerance, ROUNDINGS * rounding(session, expected))

    for name, wanted, found in decoded(session, expected):
        result = equality.audit(session, list(wanted), wanted, found, margin, tolerance)
        if result.score_errors:
            result = equality.audit(session, list(wanted), wanted, found, margin, wider())
        yield name, result
    for name, result in beams(session, "stock", margin, tolerance):
        if result.score_errors:
            result = dict(beams(session, "stock", margin, wider()))[name]
        yield name, result


def in_8_bits(session: CaseSession) -> Named:
    """Bit for bit what our own search finds with nothing drafted; greedy decoding itself in batches of another size."""
    size, limit = session.case.batch_size, session.case.sentences
    expected = equality.decode_all(session, "greedy", size // 3 + 2, limit)
    for name, wanted, found in decoded(session, expected):
        yield name, equality.audit(session, list(wanted), wanted, found, 0.0, 0.0)
    yield from beams(session, "beam", 0.0, 0.0)


def decoded(session: CaseSession, expected: Found) -> Iterator[tuple[str, Found, Found]]:
    """What every method of the loop should find and what it finds."""
    size, limit = session.case.batch_size, session.case.sentences
    for method in ("greedy", "iad"):
        yield method, expected, equality.decode_all(session, method, size, limit)
    outputs = {sentence: found[0]["tokens"].tolist() for sentence, found in expected.items()}
    for name, drafter in session.drafters(outputs):
        part = session.case.part if name in SLOW else limit
        wanted = {sentence: expected[sentence] for sentence in session.sentences(part)}
        yield name, wanted, equality.decode_all(session, "greedy", size, part, drafter)


def beams(session: CaseSession, oracle: str, margin: float, tolerance: float) -> Named:
    """The n-best lists of our search, with what each kind of draft does for it."""
    size, beam, limit = session.case.batch_size, session.case.beam, session.case.part
    expected = nbest_equality.decode_all(session, size, beam, limit, oracle)
    kinds = ["source"] + ["heads"] * bool(session.case.heads)
    if oracle == "stock":
        kinds.append("none")
    for kind in kinds:
        with session.given(draft_from=kind):
            yield (
                f"beam, {kind}",
                nbest_equality.audit(session, size, beam, limit, margin, tolerance, expected),
            )


def rounding(session: CaseSession, expected: Found) -> float:
    """By how much stock's own scores in fp32 are off those of the same models in fp64, at most, in nats.

    Norms of four numbers that hardly differ turn the last bit into a ten-thousandth.
    """
    size, limit = session.case.batch_size, session.case.sentences
    try:
        for model in session.models:
            model.double()
        exact = equality.decode_all(session, "stock", size, limit)
    finally:
        for model in session.models:
            model.float()
    scores = (
        (found[0]["positional_scores"], exact[sentence][0]["positional_scores"])
        for sentence, found in expected.items()
        if found[0]["tokens"].tolist() == exact[sentence][0]["tokens"].tolist()
    )
    return max(((own - wanted).abs().max().item() for own, wanted in scores), default=0.0)
