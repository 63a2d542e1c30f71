"""Stock fairseq's rules of beam search over small tables on the host; ``beam_rules.h`` of the kernels has the same.

What ``SequenceGenerator._generate`` and ``BeamSearch.step`` decide from (beam, V) log-probabilities they decide from
the beam + 1 best of each hypothesis, and the log-probability of one more token: ``</s>``, or the one that is forced.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from fairseq_aggdec.search.rules import end_banned, forced_token

# The best continuations of a prefix, best first: tokens and their log-probabilities in nats.
Table = tuple[Sequence[int], Sequence[float]]


@dataclass(frozen=True)
class SentenceRules:
    """Generation options as they bear on one sentence.

    Attributes:
        eos: ``</s>``.
        beam: hypotheses.
        limit: output index at which ``</s>`` is forced (the maximum length; stock counts the padded width of a batch).
        floor: output index before which ``</s>`` is banned (``--min-len``), unless prefix tokens are forced there.
        prefix: output tokens forced by the caller (``--prefix-size``), ``pad`` where a position is free.
        pad: padding.
        bonus: the largest log-probability that a token may have, above 0 where ``<unk>`` is rewarded (``--unkpen``).
        source_length: of the source with ``</s>`` where the output must match it (``--match-source-len``), else None.
    """

    eos: int
    beam: int
    limit: int
    floor: int = 0
    prefix: Sequence[int] = ()
    pad: int = 1
    bonus: float = 0.0
    source_length: int | None = None

    def forced(self, depth: int) -> int | None:
        """The only token that may be written at an output index; None: the model chooses."""
        return forced_token(depth, self.limit, self.prefix, self.pad, self.eos)

    def wanted(self, depth: int) -> int:
        """The token whose log-probability a table at ``depth`` needs beside the best ones."""
        forced = self.forced(depth)
        return self.eos if forced is None else forced

    def read(self, depth: int, row: Sequence[float]) -> Table | None:
        """What may follow a prefix of ``depth`` tokens; None where the model gave no numbers.

        Args:
            row: of :func:`~fairseq_aggdec.search.beam.tables.best_tokens`.
        """
        count = len(row) // 2
        if math.isnan(row[0]):
            return None
        return self.table(depth, [int(token) for token in row[count:-1]], row[:count], row[-1])

    def table(
        self, depth: int, tokens: Sequence[int], log_probs: Sequence[float], wanted: float
    ) -> Table:
        """What may follow a prefix of ``depth`` tokens.

        Args:
            tokens, log_probs: the beam + 1 best of the model, best first.
            wanted: log-probability of :meth:`wanted`.
        """
        forced = self.forced(depth)
        if forced is not None:
            tokens, log_probs = [forced], [wanted]
        elif end_banned(depth, self.floor, 0, len(self.prefix)):
            tokens, log_probs = without(self.eos, tokens, log_probs)
        if self.source_length is not None:
            # Stock gives a forced end the log-probability 0, beside whatever else may come.
            tokens, log_probs = without(self.eos, tokens, log_probs)
            if depth >= self.source_length:
                tokens, log_probs = _with_free_end(self.eos, tokens, log_probs)
        if log_probs and log_probs[-1] == -math.inf:
            possible = sum(value > -math.inf for value in log_probs)
            tokens, log_probs = tokens[:possible], log_probs[:possible]
        return tokens, log_probs


def without(
    token: int, tokens: Sequence[int], log_probs: Sequence[float]
) -> tuple[list[int], list[float]]:
    """A table less one token."""
    pairs = [pair for pair in zip(tokens, log_probs, strict=True) if pair[0] != token]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _with_free_end(
    eos: int, tokens: Sequence[int], log_probs: Sequence[float]
) -> tuple[list[int], list[float]]:
    """A table and ``</s>`` of log-probability 0, behind what ``--unkpen`` lifts above that."""
    above = sum(value > 0.0 for value in log_probs)
    return (
        [*tokens[:above], eos, *tokens[above:]],
        [*log_probs[:above], 0.0, *log_probs[above:]],
    )


# (sum of log-probabilities in nats, prefix)
Prefix = tuple[float, int]
# (sum of log-probabilities in nats, prefix, the token that follows)
Continuation = tuple[float, int, int]


class BeamStep(NamedTuple):
    """What one step of the search decides, or why it cannot.

    Attributes:
        going_on: the continuations of the next step, best first, at most ``beam``.
        ended: those that end here, best first.
        read: prefixes whose tables were needed.
        missing: prefixes whose tables are needed and are not there; nothing is decided then.
    """

    going_on: list[Continuation]
    ended: list[Continuation]
    read: list[int]
    missing: list[int]


def step(
    active: Sequence[Prefix],
    table: Callable[[int], Table | None],
    depth: int,
    rules: SentenceRules,
) -> BeamStep:
    """One step of stock beam search.

    Stock takes the 2 * beam best continuations. ``</s>`` counts among the first ``beam`` of them; elsewhere it neither
    ends a hypothesis nor goes on. The first ``beam`` others go on, so nothing behind these decides anything, and as
    no continuation scores more than its prefix, a prefix that scores less than the last of them needs no table.

    Args:
        active: the unfinished hypotheses, best first.
        table: of a prefix, None where it is not known.
        depth: tokens of each prefix.
        rules: generation options.
    """
    pool: list[Continuation] = []
    least, ending = -math.inf, False
    read, missing = [], []
    for score, node in active:
        if score + rules.bonus <= least:
            break
        known = table(node)
        if known is None:
            missing.append(node)
            continue
        read.append(node)
        grown, (tokens, log_probs) = len(pool), known
        ending = ending or rules.eos in tokens
        for token, log_prob in zip(tokens, log_probs, strict=True):
            total = score + log_prob
            if total <= least:
                break
            pool.append((total, node, token))
        if len(pool) > grown:
            least = _cut(pool, rules, ending)
    beam = rules.beam
    if depth < rules.limit and rules.forced(depth) == rules.eos:
        # Where the caller forces </s>, stock ends as many copies of the best hypothesis.
        return BeamStep([], pool[:1] * beam, read, missing)
    if not ending:
        return BeamStep(pool, [], read, missing)
    going_on = [item for item in pool if item[2] != rules.eos]
    return BeamStep(going_on, [item for item in pool[:beam] if item[2] == rules.eos], read, missing)


_score = itemgetter(0)


def _cut(pool: list[Continuation], rules: SentenceRules, ending: bool) -> float:
    """Sorts continuations and drops all behind the ``beam`` best that go on; returns the least score that counts.

    Of equal ones that of the earlier hypothesis comes first.

    Args:
        ending: whether the pool may hold ``</s>``; if it holds none, counting is not needed.
    """
    pool.sort(key=_score, reverse=True)
    if len(pool) < rules.beam:
        return -math.inf
    if not ending:
        del pool[rules.beam :]
        return pool[-1][0]
    going_on = 0
    for index, item in enumerate(pool):
        going_on += item[2] != rules.eos
        if going_on == rules.beam:
            del pool[index + 1 :]
            return item[0]
    return -math.inf
