"""The decoding options of any configuration as one object: what is missing has its default, old names are folded in."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from fairseq_aggdec.methods.options.old_names import OLD_NAMES, fold
from fairseq_aggdec.methods.options.rule import Rule, read_rule
from fairseq_aggdec.methods.options.variants import VARIANTS, read_variants, typed

INT8 = ("none", "drafts", "all")


@dataclass
class Settings:
    """What the methods read, by the names of the options. :func:`read_settings` makes it.

    Attributes:
        draft_tokens, draft_tree: a number, ``auto`` or ``all``; None: nothing was said.
        acceptance: the rule with its parameters.
        int8: ``none``, ``drafts`` or ``all``; None: nothing was said.
        always_draft: a model drafts in every iteration where nothing is said of how much.
        eval_bleu: training decodes, to validate.
        said: an option that was given -> how it was spelt; keys of ``--variant`` are options here.
    """

    decoding: str = "beam"
    draft_from: str = "auto"
    draft_file: str | None = None
    drafter_path: str | None = None
    draft_tokens: str | None = None
    draft_tree: str | None = None
    acceptance: Rule = field(default_factory=Rule)
    int8: str | None = None
    strict: int = 0
    shortlist: int = 0
    lattice: str | None = None
    no_graphs: bool = False
    low_memory: bool = False
    iad_match: str = "aligned"
    draft_vocabulary: int = 0
    end_condition: str = "first"
    stop_rule: str = "stock"
    length_penalty: str = "fairseq"
    dedup: int = 0
    lattice_candidates: int = 64
    lattice_least_probability: float = 0.005
    lattice_length_window: int = 3
    lattice_smoothing: str = "interpolated"
    lattice_normalise: str = "candidates"
    lattice_search: str = "serial"
    always_draft: bool = False
    eval_bleu: bool = False
    said: dict[str, str] = field(default_factory=dict)

    @property
    def int8_all(self) -> bool:
        return self.int8 == "all"

    def spelt(self, name: str) -> str:
        """How an option was given, without its value: by its new name, or by an old one."""
        return self.said.get(name, spelling(name))

    def told(self, name: str) -> str:
        """How an option was given, with its value: ``--dedup -1``, ``--variant dedup=-1``."""
        spelt = self.spelt(name)
        between = "=" if spelt.startswith("--variant") else " "
        return f"{spelt}{between}{getattr(self, name)}"

    def options(self) -> dict[str, Any]:
        """Every option with its value; the acceptance as a text."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in INNER}
        return own | {"acceptance": str(self.acceptance)}


INNER = {"always_draft", "eval_bleu", "said"}
APART = {"acceptance", *(key.replace("-", "_") for key in VARIANTS)}  # texts say them
DEFAULTS = vars(Settings())


def spelling(name: str) -> str:
    """How an option, or a key of ``--variant``, is written on the command line."""
    dashed = name.replace("_", "-")
    return f"--variant {dashed}" if dashed in VARIANTS else f"--{dashed}"


def lookup(cfg: Any, name: str, default: Any = None) -> Any:
    """An option of a configuration of any kind: a mapping, a dataclass, a Namespace, one of OmegaConf."""
    if isinstance(cfg, dict):
        return cfg.get(name, default)
    return getattr(cfg, name, default)


def read_settings(cfg: Any, always_draft: bool = False) -> Settings:
    """The settings that a configuration says, by new or old names; settings are returned as they are.

    Args:
        always_draft: a model drafts in every iteration where nothing is said of how much.

    Raises:
        ValueError: a value that an option does not take, or two names of one option that contradict each other.
    """
    if isinstance(cfg, Settings):
        return cfg
    plain = Settings()
    settings = replace(
        plain, always_draft=always_draft, eval_bleu=bool(lookup(cfg, "eval_bleu")), said={}
    )
    for name in (one.name for one in fields(Settings) if one.name not in INNER):
        value = lookup(cfg, name)
        if name in APART or value is None or value == getattr(plain, name):
            continue
        if name == "int8":
            value = _int8(value)
        else:
            refuse_switch(name, value, f"{spelling(name)} {value}")
            value = typed(getattr(plain, name), value, f"{spelling(name)} {value}")
        if value != getattr(plain, name):
            setattr(settings, name, value)
            settings.said[name] = spelling(name)
    settings.acceptance, given_by_rule = read_rule(str(lookup(cfg, "acceptance") or "exact"))
    if settings.acceptance != Rule():
        settings.said["acceptance"] = "--acceptance"
    for key, value in read_variants(str(lookup(cfg, "variant") or "")).items():
        name = key.replace("-", "_")
        setattr(settings, name, value)
        settings.said[name] = spelling(name)
    given = {*settings.said, *given_by_rule}
    for old in OLD_NAMES:
        value = lookup(cfg, old.name)
        if value is not None and str(value) != str(old.default):
            fold(settings, old, value, given)
    return settings


def refuse_switch(name: str, value: Any, said: str) -> None:
    """Raises ``ValueError`` for true or false where an option takes a text; ``said``: how it was given."""
    if isinstance(value, bool) and name != "int8" and isinstance(DEFAULTS.get(name, 0), str | None):
        raise ValueError(f"{said}: it takes a number or a word in quotes, not True or False")


def _int8(value: Any) -> str | None:
    """``--int8`` was a switch: a checkpoint, a file or a caller may still say true or false."""
    text = str(value).lower()
    mode = {"true": "all", "1": "all", "false": None, "0": None}.get(text, text)
    if mode is not None and mode not in INT8:
        raise ValueError(f"--int8 {value}: choose {', '.join(INT8)}")
    return mode
