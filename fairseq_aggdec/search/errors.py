"""Why a search stops or refuses: scores that are not finite numbers, options that it cannot honour.

Decoding stops and names sentence and model, instead of writing nonsense.

NaN counts as the largest number when a token is chosen, so a model with damaged weights decodes as if nothing were
wrong. The check reads the scores of the emitted tokens, which are on the host at the end of a batch: a log-softmax over
a row with one NaN or +inf is NaN. The weights are searched for the reason only when something is wrong.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fairseq_aggdec.kernels.mapped import give_back

BROKEN = "its weight {} holds NaN or infinity: its training went wrong or the file is damaged"


class NonFiniteError(ValueError):
    """A sentence whose scores are not finite numbers.

    Args:
        row: of the batch; None: some row.
        message: for the user.
    """

    def __init__(self, row: int | None, message: str = ""):
        super().__init__(message or f"row {row} of the batch: scores that are not finite numbers")
        self.row = row


def check_scores(totals: Iterable[float]) -> None:
    """Refuses the first row whose token scores, of which this is the sum, are not all finite.

    Raises:
        NonFiniteError: without names, which :func:`explained` adds.
    """
    # A sum of numbers is a number only if all of them are.
    for row, total in enumerate(totals):
        if not math.isfinite(total):
            raise NonFiniteError(row)


def check_best(hypotheses: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Refuses hypotheses of stock search whose best of a sentence has scores that are not finite; one transfer.

    A score of -inf is no fault: with ``--match-source-len`` stock gives it to outputs that are too long.
    """
    totals = [ranked[0]["positional_scores"].sum() for ranked in hypotheses]
    check_scores(torch.stack(totals).tolist() if totals else ())


def check_tokens(types: int, **named_rows: Iterable[Sequence[int]]) -> None:
    """Refuses tokens that a target dictionary of ``types`` types does not have.

    Args:
        named_rows: rows of tokens, by the name under which the caller gave them.

    Raises:
        ValueError: with that name.
    """
    for name, rows in named_rows.items():
        for row in rows:
            if row and not 0 <= min(row) <= max(row) < types:
                token = min(row) if min(row) < 0 else max(row)
                raise ValueError(
                    f"{name}: the target dictionary has no token {token}, only 0 to {types - 1}"
                )


def explained(
    row: int | None, sample: Mapping[str, Any], models: Sequence[nn.Module], names: Sequence[str]
) -> NonFiniteError:
    """The error of a row with the sentence's number in its set, the model's file and the reason.

    Args:
        row: of the sample.
        sample: a batch; that of ``fairseq-interactive`` has no numbers.
        models: that decoded.
        names: how each was given; fewer than models: not known.
    """
    name, reason = " and ".join(names) or "the model", None
    for place, model in enumerate(models):
        if weight := broken_weight(model):
            name = names[place] if len(names) == len(models) else name
            reason = BROKEN.format(weight)
            break
    if reason is None:
        half = any(
            weight.dtype is torch.float16 for model in models for weight in model.parameters()
        )
        reason = "its weights are finite, but numbers grow too large on the way" + (
            "; take --bf16 or fp32 instead of --fp16" if half else ""
        )
    where = _place(row, sample)
    return NonFiniteError(
        row, f"{where}: {name} gives scores that are not finite numbers; {reason}"
    )


def _place(row: int | None, sample: Mapping[str, Any]) -> str:
    if "id" not in sample:
        return "a sentence of a batch" if row is None else f"sentence {row} of a batch"
    numbers = sample["id"].tolist()
    if row is None and len(numbers) > 1:
        return f"one of the sentences {min(numbers)} to {max(numbers)}"
    return f"sentence {numbers[row or 0]}"


def broken_weight(model: nn.Module) -> str | None:
    """The name of the first weight that holds NaN or infinity, None for a model that is well."""
    for name, weight in model.named_parameters():
        numbers = weight.detach()
        # A sum of numbers is a number only if all of them are, but it may be too large.
        if not (numbers.sum().isfinite() or numbers.isfinite().all()):
            return name
        give_back(numbers)
    return None


# Options that ask for something above these values only.
UNSET = {"nbest": 1, "diverse_beam_groups": 0, "diversity_rate": -1.0}
ARGUMENTS = ("prefix_allowed_tokens_fn", "tokens_to_suppress")  # of a call, no options


def asked_for(names: Iterable[str], args: Any, extra: Mapping[str, Any]) -> Iterator[str]:
    """Names those of fairseq's generation options that ask for something.

    Args:
        args: fairseq's generation options (any of them may be missing, as with ``--eval-bleu-args``).
        extra: what ``fairseq-generate`` and its relatives hand to the generator beside them (the language model).
    """
    for name in names:
        value = getattr(args, name, None)
        if value is None:
            value = extra.get("lm_model" if name == "lm_path" else name)
        if value is not None and (value > UNSET[name] if name in UNSET else bool(value)):
            yield name


def spelling(name: str) -> str:
    """Tells how an option, or an argument of a call, is written."""
    return name if name in ARGUMENTS else "--" + name.replace("_", "-")


def refusal(option: str, decoding: str, reason: str) -> str:
    return f"{option} does not go with --decoding {decoding}: {reason}"


def refuse(decoding: str, reasons: Mapping[str, str], args: Any, extra: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` with one sentence for the first option that ``decoding`` cannot honour.

    Args:
        reasons: name of an option -> why not.
        args, extra: as for :func:`asked_for`.
    """
    for name in asked_for(reasons, args, extra):
        raise ValueError(refusal(spelling(name), decoding, reasons[name]))
