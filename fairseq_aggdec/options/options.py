"""fairseq's generation options, read from a generator, and the lengths that they allow the outputs of a batch."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from fairseq import utils
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor

# Room of the first cache beyond the source length, in target positions. The cache grows when an output is longer.
SPARE_POSITIONS = 16
ALIGNMENTS = {utils.extract_hard_alignment: "hard", utils.extract_soft_alignment: "soft"}


class LengthError(ValueError):
    """Lengths that an output of a sentence cannot have."""


@dataclass(frozen=True)
class Limits:
    """Lengths of the outputs of a batch, as output indices: the first token of an output has index 0.

    Attributes:
        ends: index at which ``</s>`` is forced, per sentence.
        floor: index before which ``</s>`` is banned (``--min-len``); forced prefix tokens lift it.
        exact: every output ends at its index of ``ends`` and not before (``--match-source-len``).
        capacity: target positions that the first cache needs room for.
    """

    ends: list[int]
    floor: int
    exact: bool
    capacity: int

    @property
    def longest(self) -> int:
        return max(self.ends)


@dataclass(frozen=True)
class Options:
    """Generation options, named as in ``SequenceGenerator``.

    Attributes:
        eos, pad, unk: special symbols; ``eos`` may be another than the dictionary's.
        beam_size: hypotheses of a search, ``max_len``: positions of the decoder.
        no_repeat_ngram_size: n-grams of this size occur at most once in an output; 0 for no limit.
        stripped: symbols that are left out when an output is printed, ``eos`` included.
        print_alignment: ``hard``, ``soft`` or None.
        retain_history: keep in the hypotheses what every iteration saw.
        own_rules: generation rules from outside the package, see :class:`~fairseq_aggdec.search.rules.OwnRule`.
    """

    eos: int
    pad: int
    unk: int
    beam_size: int
    max_len_a: float
    max_len_b: int
    max_len: int
    min_len: int
    normalize_scores: bool
    len_penalty: float
    unk_penalty: float
    temperature: float
    match_source_len: bool
    no_repeat_ngram_size: int
    stripped: frozenset[int]
    print_alignment: str | None
    retain_history: bool
    own_rules: tuple[Any, ...] = ()

    @classmethod
    def of(cls, generator: Any) -> Options:
        """The options of a ``SequenceGenerator``, stock's or ours, as its fields have them now."""
        attributes = vars(generator)  # nn.Module takes long to say that it lacks something
        size = attributes.get("no_repeat_ngram_size", 0)
        if blocker := generator.repeat_ngram_blocker:
            size = getattr(blocker, "no_repeat_ngram_size", size)
        return _options(
            *_stock_options(generator),
            size,
            frozenset(generator.symbols_to_strip_from_output),
            attributes.get("print_alignment")
            or ALIGNMENTS.get(attributes.get("extract_alignment")),
            attributes.get("retain_history", False),
            tuple(attributes.get("own_rules", ())),
        )

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments that give these options to one of our generators."""
        names = {*STOCK, "no_repeat_ngram_size", "retain_history"} - {"pad", "unk"}
        chosen = {name: getattr(self, name) for name in names}
        chosen["symbols_to_strip_from_output"] = set(self.stripped)
        return chosen | ({"print_alignment": self.print_alignment} if self.print_alignment else {})

    def limits(
        self, net_input: Mapping[str, Tensor], models: Sequence[Any], longest: int | None = None
    ) -> Limits:
        """The lengths that stock fairseq allows the outputs of a batch.

        Args:
            net_input: ``src_tokens`` (B, S), and ``src_lengths`` (B,) where they are known.
            models: whose positions ``--match-source-len`` may exceed.
            longest: of an output of another search than stock's, which ends longer ones there; None: stock's limit.

        Raises:
            LengthError: the maximum length is negative or below the minimum, or above the positions of a model.
        """
        source = net_input["src_tokens"]
        # Stock counts the padded width of the batch, so outputs can depend on it when max_len_a > 0.
        end = int(self.max_len_a * source.size(1) + self.max_len_b)
        ends = [min(end, self.max_len - 1 if longest is None else longest)] * source.size(0)
        if self.match_source_len:
            # Where the caller does not give the lengths, </s> does not count in stock.
            lengths = net_input.get("src_lengths")
            if lengths is None:
                lengths = (source.ne(self.eos) & source.ne(self.pad)).sum(1)
            ends = lengths.tolist()
            if longest is not None:
                ends = [min(length, longest) for length in ends]
            _check_positions(models, max(ends))
        most = max(ends)
        if self.min_len > most:
            raise LengthError(
                f"--min-len {self.min_len} is larger than the maximum length {most}, "
                "which --max-len-a, --max-len-b and the positions of the model set"
            )
        if most < 0:
            raise LengthError(
                f"--max-len-a and --max-len-b set the maximum length {most}: it must be at least 0"
            )
        capacity = min(most + 1, source.size(1) + SPARE_POSITIONS)
        return Limits(ends, self.min_len, self.match_source_len, capacity)

    def score(self, total: Any, length: float) -> Any:
        """Score by which hypotheses are ranked: the sum of their log-probabilities, divided unless
        ``--unnormalized``."""
        if not self.normalize_scores:
            return total
        try:
            divisor = length**self.len_penalty
        except OverflowError:  # in stock too
            divisor = math.inf
        if isinstance(total, float) and not SMALLEST <= divisor <= LARGEST:
            return float(
                torch.tensor(total, dtype=torch.float32) / divisor
            )  # as stock, in fp32: by 0, or by infinity
        return total / divisor


SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
# Fields that are attributes of every ``SequenceGenerator``: the first ones.
STOCK = tuple(field.name for field in fields(Options))[:-5]
_stock_options = operator.attrgetter(*STOCK)
# Each batch asks, and hardly ever something has changed.
_options = functools.lru_cache(typed=True)(Options)


def learned_positions(models: Sequence[Any]) -> int | None:
    """Number of positions of an output that all models have learned; None: none, and there is no last."""
    tables = (getattr(model.decoder, "embed_positions", None) for model in models)
    return min(
        (one.max_positions for one in tables if isinstance(one, LearnedPositionalEmbedding)),
        default=None,
    )


def _check_positions(models: Sequence[Any], longest: int) -> None:
    positions = learned_positions(models)
    if positions is not None and longest >= positions:
        raise LengthError(
            f"--match-source-len asks for an output of up to {longest} tokens and </s>, but the verifier has "
            f"learned {positions} positions only"
        )
