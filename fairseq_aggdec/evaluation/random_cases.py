"""Cases for an audit without end: a number -> models of some shape, sentences, options together, and what decodes them.

A case is a function of its number alone, so that a run can be split, go on, and repeat one case.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fairseq import options
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_aggdec.evaluation import equality, nbest_equality
from fairseq_aggdec.evaluation.forced_drafts import KINDS, ForcedDrafter
from fairseq_aggdec.evaluation.random_models import (
    make_dictionary,
    make_model,
    random_sources,
)
from fairseq_aggdec.evaluation.session import Session, generation_parser
from fairseq_aggdec.tasks.translation_aggdec import TranslationAggdecTask

SENTENCES = 120
# Scores may differ by so many times what rounding does to stock's own, where that is much.
ROUNDINGS = 4
# Of each option its values; the first is fairseq's own. A flag is True or False.
VALUES: dict[str, tuple[Any, ...]] = {
    "--min-len": (1, 3),
    "--max-len-b": (30, 12, 6),
    "--unkpen": (0, 1, -0.5),
    "--temperature": (1, 0.7, 1.5),
    "--prefix-size": (0, 1, 2),
    "--lenpen": (1, 0.6, 1.4),
    "--unnormalized": (False, True),
}


@dataclass(frozen=True)
class Case:
    """What is decoded, and how.

    Attributes:
        seed: the number that all comes from.
        shape: of the models, as fairseq names it. models: in the ensemble.
        options: of the command line. left_pad: of the sources.
        batch_size, draft_length, beam: of this case's decodings.
    """

    seed: int
    shape: dict[str, Any] = field(default_factory=dict)
    models: int = 1
    options: tuple[str, ...] = ()
    left_pad: bool = True
    batch_size: int = 8
    draft_length: int = 5
    beam: int = 4

    @classmethod
    def of(cls, seed: int) -> Case:
        chosen = random.Random(seed)
        heads = chosen.choice((1, 2, 4))
        width = heads * chosen.choice((4, 8))
        shape: dict[str, Any] = {}
        for side in ("encoder", "decoder"):
            shape |= {
                f"{side}_layers": chosen.randint(1, 3),
                f"{side}_embed_dim": width,
                f"{side}_ffn_embed_dim": chosen.choice((8, 16, 32)),
                f"{side}_attention_heads": heads,
                f"{side}_normalize_before": chosen.random() < 0.5,
                f"{side}_learned_pos": chosen.random() < 0.3,
            }
        shape["activation_fn"] = chosen.choice(("relu", "gelu"))
        shape["share_decoder_input_output_embed"] = chosen.random() < 0.5
        given: list[str] = []
        for option, values in VALUES.items():
            value = chosen.choice(values) if chosen.random() < 0.5 else values[0]
            if value is True:
                given.append(option)
            elif value is not False:
                given.append(f"{option}={value}")
        return cls(
            seed,
            shape,
            models=chosen.choice((1, 1, 2)),
            options=tuple(given),
            left_pad=chosen.random() < 0.5,
            batch_size=chosen.choice((1, 8, 8, 32, 32, 32, 120, 120, 120, 120)),
            draft_length=chosen.choice((1, 2, 5, 10, 25)),
            beam=chosen.randint(2, 6),
        )


class RandomSession(Session):
    """A session whose models and sentences are a case's, not files."""

    def __init__(self, case: Case):
        given = ["data", "--path", "none", "--cpu", *case.options]
        given += ["--source-lang", "src", "--target-lang", "tgt"]
        self.args: Namespace = options.parse_args_and_arch(generation_parser(None), given)
        self.cfg = convert_namespace_to_omegaconf(self.args)
        self.cuda = False
        dictionary = make_dictionary()
        self.task = TranslationAggdecTask(self.cfg.task, dictionary, dictionary)
        self.models = [
            make_model(self.task, case.seed * 2 + number, **case.shape)
            for number in range(case.models)
        ]
        for model in self.models:
            model.prepare_for_inference_(self.cfg)
        sources, targets = (_sentences(case.seed * 2 + side, dictionary) for side in (0, 1))
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


def _sentences(seed: int, dictionary: Any) -> list[Any]:
    rows = random_sources(seed, SENTENCES)
    texts = (" ".join(dictionary[token] for token in row) for row in rows)
    return [dictionary.encode_line(text, add_if_not_exist=False).long() for text in texts]


def audits(case: Case) -> Iterator[tuple[str, equality.Audit]]:
    """Every method's name and its comparison with stock fairseq, in the same batches."""
    session = RandomSession(case)
    size, limit = case.batch_size, SENTENCES
    margin, tolerance = equality.TIE_MARGIN["fp32"], equality.SCORE_TOLERANCE["fp32"]
    expected = equality.decode_all(session, "stock", size, limit)
    outputs = {sentence: found[0]["tokens"].tolist() for sentence, found in expected.items()}
    sentences = session.sentences(limit)
    for name in ("greedy", "iad", *KINDS):
        drafter, method = None, name
        if name in KINDS:
            types = len(session.task.target_dictionary)
            drafter, method = ForcedDrafter(name, case.draft_length, types, outputs), "greedy"
        found = equality.decode_all(session, method, size, limit, drafter)
        result = equality.audit(session, sentences, expected, found, margin, tolerance)
        if result.score_errors:
            tolerance = max(tolerance, ROUNDINGS * rounding(session, expected, size))
            result = equality.audit(session, sentences, expected, found, margin, tolerance)
        yield name, result
    beam = nbest_equality.audit(session, size, case.beam, limit, margin, tolerance)
    if beam.score_errors and tolerance == equality.SCORE_TOLERANCE["fp32"]:
        tolerance = max(tolerance, ROUNDINGS * rounding(session, expected, size))
        beam = nbest_equality.audit(session, size, case.beam, limit, margin, tolerance)
    yield "beam", beam


def rounding(session: Session, expected: dict[int, list[Any]], size: int) -> float:
    """By how much stock's own scores in fp32 are off those of the same models in fp64, at most, in nats.

    Norms of four numbers that hardly differ turn the last bit into a ten-thousandth.
    """
    try:
        for model in session.models:
            model.double()
        exact = equality.decode_all(session, "stock", size, SENTENCES)
    finally:
        for model in session.models:
            model.float()
    scores = (
        (found[0]["positional_scores"], exact[sentence][0]["positional_scores"])
        for sentence, found in expected.items()
        if found[0]["tokens"].tolist() == exact[sentence][0]["tokens"].tolist()
    )
    return max(((own - wanted).abs().max().item() for own, wanted in scores), default=0.0)
