"""Old names of options, which still work everywhere: on command lines, in files, in Python and in checkpoints."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fairseq_aggdec.methods.options.kinds import kind_of
from fairseq_aggdec.methods.options.rule import LEAST, PARAMETERS, check_least
from fairseq_aggdec.methods.options.variants import VARIANTS, typed, variant_value

if TYPE_CHECKING:
    from fairseq_aggdec.methods.options.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OldName:
    """An option as it was called before, with ``_`` for ``-``; its default; how it is given ``now``."""

    name: str
    default: Any
    now: str


OLD_NAMES: tuple[OldName, ...] = (
    OldName("block_size", None, "--draft-tokens N"),
    OldName("iad_draft_length", "auto", "--draft-tokens N"),
    OldName("draft_nodes", None, "--draft-tree N"),
    OldName("top_beta", 3, "--acceptance top-beta:RANK"),
    OldName("tolerance", 1.0, "--acceptance top-beta:RANK:NATS"),
    OldName("top_k", 2, "--acceptance top-k:RANK"),
    OldName("epsilon", 2, "--acceptance distance:N"),
    OldName("min_block_size", 1, "--acceptance min:TOKENS"),
    OldName("draft_int8", False, "--int8 drafts"),
    OldName("no_weight_packing", False, "--low-memory"),
    *(
        OldName(key.replace("-", "_"), variant.default, f"--variant {key}=VALUE")
        for key, variant in VARIANTS.items()
    ),
)


def fold(settings: Settings, old: OldName, value: Any, given: set[str]) -> None:
    """Takes an old name's value over into the settings.

    Args:
        given: the new options, and parameters of ``--acceptance``, that were given themselves.
    """
    said = "--" + old.name.replace("_", "-")
    if old.default is False and not typed(False, value, f"{said} {value}"):
        return
    logger.debug("%s is now %s", said, old.now)
    if old.name in LEAST:
        _fold_rule(settings, old.name, value, said, given)
        return
    name, new = _today(settings, old, value, said)
    if name is None:
        settings.said[old.name] = said  # no method reads it here
        return
    if name in given and getattr(settings, name) != new:
        if old.name == "block_size" and settings.eval_bleu:
            return  # in training --block-size is an option of the architecture
        raise ValueError(
            f"{said} {value} contradicts {settings.told(name)}: give {settings.spelt(name)} only"
        )
    setattr(settings, name, new)
    settings.said[name] = said


def _today(settings: Settings, old: OldName, value: Any, said: str) -> tuple[str | None, Any]:
    """The setting that an old name sets, with its value; None where nothing reads the option."""
    kind, heads = kind_of(settings.decoding), settings.draft_from == "heads"
    match old.name:
        case "block_size":
            return ("draft_tokens" if kind.model_drafts or heads else None), str(value)
        case "iad_draft_length":
            return (None if kind.model_drafts or heads else "draft_tokens"), str(value)
        case "draft_nodes":
            return "draft_tree", str(value)
        case "draft_int8":
            return "int8", "all" if settings.int8 == "all" else "drafts"
        case "no_weight_packing":
            return "low_memory", True
    return old.name, variant_value(old.name.replace("_", "-"), value, f"{said} {value}")


def _fold_rule(settings: Settings, name: str, value: Any, said: str, given: set[str]) -> None:
    """Takes a parameter of the acceptance rule over."""
    rule = settings.acceptance
    number = typed(getattr(rule, name), value, f"{said} {value}")
    check_least(name, number, f"{said} {value}: it")
    if name in given and getattr(rule, name) != number:
        raise ValueError(f"{said} {value} contradicts --acceptance {rule}: give --acceptance only")
    settings.acceptance = replace(rule, **{name: number})
    if name == "min_block_size" or name in PARAMETERS[rule.kind]:
        settings.said.setdefault("acceptance", said)
    else:
        settings.said[name] = said  # the rule does not read it
