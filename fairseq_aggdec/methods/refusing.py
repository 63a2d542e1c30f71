"""Generation options that a method can honour: everything else is refused before a sentence is decoded."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask

from fairseq_aggdec.data.interleaving import Geometry
from fairseq_aggdec.engine.graphs.conditions import tf32_allowed
from fairseq_aggdec.engine.int8 import int8_available
from fairseq_aggdec.engine.precision import Precision
from fairseq_aggdec.methods.options.rule import Rule
from fairseq_aggdec.methods.options.settings import Settings
from fairseq_aggdec.models.lattice_transformer import MarkovDecoder
from fairseq_aggdec.search.acceptance import Acceptance, AtLeast, Distance, TopBeta, exact
from fairseq_aggdec.search.errors import asked_for, refusal, refuse, spelling

logger = logging.getLogger(__name__)


# Of fairseq's options those that ask for another search than stock beam search.
OTHER_SEARCHES = (
    "sampling",
    "diverse_beam_groups",
    "diversity_rate",
    "constraints",
    "lm_path",
    "retain_dropout",
)
GREEDY = dict.fromkeys(
    ("nbest", *OTHER_SEARCHES, "prefix_allowed_tokens_fn"),
    "it finds one greedy hypothesis; use --decoding stock",
) | {"nbest": "it finds one greedy hypothesis; use --decoding beam"}


def refuse_unsupported(args: Any, extra: Mapping[str, Any], decoding: str, named: str = "") -> None:
    """Raises ``ValueError`` with one sentence for an option that a method of one greedy hypothesis cannot honour.

    With ``--beam 1`` stock gives one hypothesis whatever ``--nbest`` says, and so does the method that ``--decoding
    beam``, which was ``named`` for, becomes.
    """
    reasons = {name: GREEDY[name] for name in GREEDY if (name, named) != ("nbest", "beam")}
    refuse(decoding, reasons, args, extra)
    size = getattr(args, "no_repeat_ngram_size", 0)
    if size < 0:
        raise ValueError(f"--no-repeat-ngram-size {size}: it must be at least 0")
    if getattr(args, "match_source_len", False) and getattr(args, "unkpen", 0) < 0:
        option = "--unkpen below 0 with --match-source-len"
        reason = "it lets <unk> outgrow the source in stock; use --decoding stock"
        raise ValueError(refusal(option, decoding, reason))


def refuse_senseless(args: Any) -> None:
    """Raises ``ValueError`` for a beam without hypotheses, and for numbers that make scores infinite."""
    beam = getattr(args, "beam", 5)
    if beam < 1:
        raise ValueError(f"--beam {beam}: it must be at least 1")
    for name in ("lenpen", "unkpen", "temperature", "lm_weight"):
        value = getattr(args, name, None) or 0.0
        never = name == "unkpen" and value == math.inf  # no <unk> at all, as in stock
        if not math.isfinite(value) and not never:
            raise ValueError(f"--{name.replace('_', '-')} {value}: it must be a finite number")


def refuse_no_batch(batch_size: int | None, max_tokens: int | None) -> None:
    """Raises ``ValueError`` for sizes below 1, which fairseq takes as any: a whole set would be one batch."""
    for option, size in ("--batch-size", batch_size), ("--max-tokens", max_tokens):
        if size is not None and size < 1:
            raise ValueError(f"{option} {size}: it must be at least 1")


def refuse_wide_beam(generator: Any) -> None:
    """Raises ``ValueError`` where the beam is so wide that stock's search may run out of continuations.

    To be asked when it has: it then fails an assertion of its own.
    """
    if not isinstance(generator, SequenceGenerator):
        return
    beam, types = generator.beam_size, len(generator.tgt_dict)
    if 2 * beam > types:
        raise ValueError(
            f"--beam {beam} is too wide for stock fairseq's search, which needs twice as many continuations and has "
            f"{types} types: use --beam {types // 2}"
        )


def refuse_missing_constraints(generator: Any, constraints: Any) -> None:
    """Raises ``ValueError`` where a generator searches under constraints and the sentences come without any."""
    search = getattr(generator, "search", None)
    if constraints is None and getattr(search, "supports_constraints", False):
        raise ValueError(
            "--constraints: these sentences have none; lines for fairseq-interactive may, each behind a tab"
        )


def other_searches(args: Any, extra: Mapping[str, Any]) -> Iterator[str]:
    """The given options that ask for another search than stock beam search, as they are spelt."""
    return map(spelling, asked_for((*OTHER_SEARCHES, "tokens_to_suppress"), args, extra))


def refuse_slots(models: Sequence[Any], decoding: str) -> None:
    """Raises ``ValueError`` where a model was not trained to write word by word, which only its own search can read.

    Such a model writes several words per step, or scores the edges of a lattice.
    """
    for model in models:
        if isinstance(model.decoder, MarkovDecoder):
            raise ValueError(
                f"a model of --arch lattice_transformer does not go with --decoding {decoding}: use --decoding lattice"
            )
        geometry = getattr(model.decoder, "geometry", Geometry())
        if geometry != Geometry():
            raise ValueError(
                f"a model with --directions {geometry.directions} --words-per-direction "
                f"{geometry.words_per_direction} does not go with --decoding {decoding}: use --decoding interleaved"
            )


def set_greedy_beam(args: Any, decoding: str) -> None:
    """Sets ``--beam`` to 1, which is what the method gives, and says so once."""
    beam = getattr(args, "beam", 5)
    if beam != 1:
        logger.info(
            "--decoding %s is greedy: --beam %d is taken as --beam 1; --decoding beam searches and drafts as well "
            "(--draft-from)",
            decoding,
            beam,
        )
    args.beam = 1


def refuse_own_generator(task: Any, decoding: str) -> None:
    """Raises ``ValueError`` where a task has a generator of its own, as it starts or ends its outputs otherwise."""
    classes = [
        one for one in type(task).__mro__ if not one.__module__.startswith("fairseq_aggdec.")
    ]
    build = next(vars(one)["build_generator"] for one in classes if "build_generator" in vars(one))
    if build is not FairseqTask.build_generator:
        reason = "its generator is its own; use beam, greedy or iad"
        raise ValueError(refusal(f"--task {task.kind}", decoding, reason))


def acceptance_rule(rule: Rule, first_number: int | None) -> Acceptance:
    """The function of ``--acceptance``; ``first_number``: the first symbol that is a number, None in a task without."""
    if rule.kind == "distance" and first_number is None:
        raise ValueError(
            "--acceptance distance needs a task whose symbols are numbers, such as super_resolution"
        )
    rules: dict[str, Callable[[], Acceptance]] = {
        "exact": lambda: exact,
        "top-beta": lambda: TopBeta(rule.top_beta, rule.tolerance),
        "top-k": lambda: TopBeta(rule.top_k),
        "distance": lambda: Distance(rule.epsilon, first_number or 0),
    }
    accept = rules[rule.kind]()
    return AtLeast(rule.min_block_size, accept) if rule.min_block_size > 1 else accept


def precision(cfg: Settings) -> Precision:
    """Tells how the options say that models compute.

    Raises:
        ValueError: ``--strict`` leaves no slot for a draft, or stands beside ``--int8``.
    """
    if cfg.strict and cfg.strict < 2:
        raise ValueError(f"--strict {cfg.strict}: it must be at least 2, or 0")
    if cfg.strict and cfg.int8_all:
        raise ValueError("--strict does not go with --int8, whose outputs agree without it")
    graphs, tf32 = not cfg.no_graphs, tf32_allowed()
    return Precision(not cfg.low_memory, cfg.int8_all, graphs, int(cfg.strict), tf32)


def announce(cfg: Settings, args: Any) -> None:
    """Says once what ``--no-repeat-ngram-size`` and ``--int8`` change."""
    size = getattr(args, "no_repeat_ngram_size", 0)
    if size > 0:
        logger.info(
            "--no-repeat-ngram-size %d is enforced here; stock fairseq without its CUDA extension ignores it, "
            "so outputs may differ from --decoding stock",
            size,
        )
    if cfg.int8_all:
        logger.info(
            "--int8: the output is that of the model in 8 bits, which says something else in some sentences"
        )
        if not int8_available():
            logger.warning("--int8 is slow here: the compiled kernels were not built")
