"""The equality audit: every sentence decoded by stock fairseq (beam 1) and by a method, compared token by token.

The oracle is stock ``SequenceGenerator``, which shares no code with the loop. A difference is a *tie* when the verifier
itself hardly prefers one of the two tokens, recomputed in fp32 by a full forward pass over the common prefix; otherwise
it is a *BUG*.
"""

import copy
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_aggdec.api.session import Hypothesis, Session
from fairseq_aggdec.search.drafter import Drafter

# Largest margin, in nats, that rounding may explain. In half precision the bounds are a few units in the last place of
# a logit, stated and not measured: there a tie says only that the margin is that small. TF32 keeps as many bits of what
# is multiplied as fp16.
TIE_MARGIN = {"fp32": 1e-4, "tf32": 0.05, "fp16": 0.05, "bf16": 0.4}
SCORE_TOLERANCE = {"fp32": 1e-4, "tf32": 0.05, "fp16": 0.05, "bf16": 0.4}

TIE, BUG, MISSING = "tie", "BUG", "missing"


@dataclass
class Difference:
    """A sentence whose outputs differ.

    Attributes:
        sentence: index in the data set.
        position: output index of the first difference.
        stock, method: the two tokens there, as symbols.
        margin: how much the verifier prefers the one it prefers, nats, in fp32.
        verdict: ``tie`` or ``BUG``.
    """

    sentence: int
    position: int
    stock: str
    method: str
    margin: float
    verdict: str


@dataclass
class Audit:
    """Outcome of one comparison.

    Attributes:
        sentences: in the data set.
        equal: token for token.
        differences: the others that both decoded.
        missing: sentences that stock or the method did not decode exactly once.
        score_error: largest difference of a positional score among equal sentences, nats.
        score_errors: equal sentences with a positional score off by more than the tolerance.
    """

    sentences: int
    equal: int = 0
    differences: list[Difference] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    score_error: float = 0.0
    score_errors: int = 0

    @property
    def ties(self) -> int:
        return sum(difference.verdict == TIE for difference in self.differences)

    @property
    def bugs(self) -> int:
        """Differences that rounding does not explain, wrong scores, and missing sentences."""
        unexplained = sum(difference.verdict == BUG for difference in self.differences)
        return unexplained + len(self.missing) + self.score_errors


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token that differs, None for equal sequences; a missing token differs from any."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def samples(
    session: Session, batch_size: int, limit: int | None, name: str
) -> Iterator[dict[str, Any]]:
    """The batches of an audit, with a progress bar.

    The whole set goes through the task's own batching, so that a sentence it loses is missed.
    """
    batches = (
        session.task_batches(batch_size) if limit is None else session.batches(batch_size, limit)
    )
    return iter(tqdm(batches, desc=name, unit="batch", leave=False, disable=None))


def decode_all(
    session: Session,
    decoding: str,
    batch_size: int,
    limit: int | None,
    drafter: Drafter | None = None,
) -> dict[int, list[Hypothesis]]:
    """Sentence -> its hypotheses (one, if all is well); ``drafter`` takes the place of the method's own."""
    generator, _ = session.generator(decoding)
    if drafter is not None:
        generator.drafter = drafter
    decoded: dict[int, list[Hypothesis]] = {}
    for sample in samples(session, batch_size, limit, f"{decoding}, batch {batch_size}"):
        hypotheses = session.decode(generator, sample)
        for sentence, hypothesis in zip(sample["id"].tolist(), hypotheses, strict=True):
            kept = {key: hypothesis[key].cpu() for key in ("tokens", "positional_scores")}
            decoded.setdefault(sentence, []).append(kept)
    return decoded


def audit(
    session: Session,
    sentences: Sequence[int],
    expected: dict[int, list[Hypothesis]],
    decoded: dict[int, list[Hypothesis]],
    tie_margin: float,
    score_tolerance: float,
) -> Audit:
    """Compares a method's hypotheses with those of stock fairseq.

    Args:
        sentences: every sentence that both had to decode, exactly once.
    """
    result = Audit(sentences=len(sentences))
    for sentence in sorted({*sentences, *expected, *decoded}):
        if not len(expected.get(sentence, ())) == len(decoded.get(sentence, ())) == 1:
            result.missing.append(sentence)
            continue
        reference, hypothesis = expected[sentence][0], decoded[sentence][0]
        left, right = reference["tokens"].tolist(), hypothesis["tokens"].tolist()
        position = first_difference(left, right)
        if position is None:
            result.equal += 1
            compare_scores(result, [reference], [hypothesis], score_tolerance)
        else:
            difference = explain(session, sentence, left, right, position, tie_margin)
            result.differences.append(difference)
    return result


def compare_scores(
    result: Audit, theirs: Sequence[Hypothesis], mine: Sequence[Hypothesis], tolerance: float
) -> None:
    """Compares scores of hypotheses with the same tokens."""
    gap = max(
        (a["positional_scores"] - b["positional_scores"]).abs().max().item()
        for a, b in zip(theirs, mine, strict=True)
    )
    result.score_error = max(result.score_error, gap)
    result.score_errors += not gap <= tolerance  # NaN counts


def explain(
    session: Session,
    sentence: int,
    stock: list[int],
    method: list[int],
    position: int,
    tie_margin: float,
) -> Difference:
    """Classes a difference by the verifier's own preference between the two tokens."""
    symbols = session.task.target_dictionary
    if position >= min(len(stock), len(method)):  # one ended without </s>
        return Difference(sentence, position, "", "", math.inf, BUG)
    a, b = stock[position], method[position]
    log_probs = next_log_probs(session, sentence, stock[:position])
    log_probs[symbols.unk()] -= session.cfg.generation.unkpen
    matched = getattr(session.cfg.generation, "match_source_len", False)
    if matched and position >= len(session.dataset[sentence]["source"]):
        log_probs[symbols.eos()] = (
            0.0  # stock's for a forced end: a token of probability 1 ties with it
        )
    margin = abs(log_probs[a] - log_probs[b]).item()
    verdict = TIE if margin < tie_margin else BUG
    return Difference(sentence, position, symbols[a], symbols[b], margin, verdict)


@torch.no_grad()
def next_log_probs(session: Session, sentence: int, prefix: Sequence[int]) -> Tensor:
    """(V,) log-probabilities after ``prefix``, averaged over the ensemble, in fp32 on the models' own full forward."""
    sample = session.dataset.collater([session.dataset[sentence]])
    eos = session.task.target_dictionary.eos()
    previous = torch.tensor([[eos, *prefix]])
    net_input = sample["net_input"]
    outputs = []
    for model in session.models:
        exact = _in_fp32(model)
        output = exact(net_input["src_tokens"], net_input["src_lengths"], previous)
        logits = (output[0][:, -1:] / session.cfg.generation.temperature, output[1])
        outputs.append(exact.get_normalized_probs(logits, log_probs=True)[0, 0].float())
    return torch.logsumexp(torch.stack(outputs), 0) - math.log(len(outputs))


@functools.lru_cache(maxsize=8)
def _in_fp32(model: Any) -> Any:
    """The model itself where it is fp32 on CPU, else a copy that is."""
    parameter = next(model.parameters())
    if parameter.dtype is torch.float32 and parameter.device.type == "cpu":
        return model
    return copy.deepcopy(model).float().cpu()
