"""Any configuration as :class:`Settings`: what is missing has its default, a wrong value is told in one sentence."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairseq_aggdec.methods.options.rule import read_rule
from fairseq_aggdec.methods.options.settings import OPTIONS, VARIANTS, Settings, spelling

INT8 = ("none", "drafts", "all")
SWITCHES = {"true": True, "1": True, "false": False, "0": False}


def lookup(cfg: Any, name: str, default: Any = None) -> Any:
    """An option of a configuration of any kind: a mapping, a dataclass, a Namespace, one of OmegaConf."""
    if isinstance(cfg, dict):
        return cfg.get(name, default)
    return getattr(cfg, name, default)


def read_settings(cfg: Any, always_draft: bool = False) -> Settings:
    """The settings that a configuration says; settings are returned as they are.

    Args:
        always_draft: a model drafts in every iteration where nothing is said of how much.

    Raises:
        ValueError: a value that an option does not take.
    """
    if isinstance(cfg, Settings):
        return cfg
    plain = Settings()
    looked_up = {name: lookup(cfg, name) for name in OPTIONS}
    settings = {
        name: value_of(name, value)
        for name, value in looked_up.items()
        if name != "acceptance" and value is not None
    }
    settings["acceptance"] = read_rule(str(looked_up["acceptance"] or "exact"))
    variants = read_variants(str(lookup(cfg, "variant") or ""))
    said = {name for name, value in settings.items() if value != getattr(plain, name)}
    settings |= {key.replace("-", "_"): value for key, value in variants.items()}
    said |= {key.replace("-", "_") for key in variants}
    eval_bleu = bool(lookup(cfg, "eval_bleu"))
    return replace(
        plain, **settings, always_draft=always_draft, eval_bleu=eval_bleu, said=frozenset(said)
    )


def value_of(name: str, value: Any) -> Any:
    """A value of an option in the option's type; ``ValueError`` where it does not take the value."""
    if name == "int8":
        return _int8(value)
    refuse_switch(name, value, f"{spelling(name)} {value}")
    return typed(OPTIONS[name].default, value, f"{spelling(name)} {value}")


def refuse_switch(name: str, value: Any, said: str) -> None:
    """Raises ``ValueError`` for true or false where an option takes a text; ``said``: how it was given."""
    takes_text = name in OPTIONS and isinstance(OPTIONS[name].default, str | None)
    if isinstance(value, bool) and name != "int8" and takes_text:
        raise ValueError(f"{said}: it takes a number or a word in quotes, not True or False")


def _int8(value: Any) -> str | None:
    """``--int8`` alone is a switch: a file or a caller may say true or false."""
    text = str(value).lower()
    mode = {"true": "all", "1": "all", "false": None, "0": None}.get(text, text)
    if mode is not None and mode not in INT8:
        raise ValueError(f"--int8 {value}: choose {', '.join(INT8)}")
    return mode


def read_variants(text: str) -> dict[str, Any]:
    """The values that a text such as ``dedup=2,stop-rule=any`` gives, by key; of several for one key the last.

    Raises:
        ValueError: a key or a value that there is not; the message lists the right ones.

    >>> read_variants("dedup=2, stop-rule=any")
    {'dedup': 2, 'stop-rule': 'any'}
    """
    variants: dict[str, Any] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in VARIANTS:
            raise ValueError(
                f"--variant {item}: give key=value with a key of {', '.join(VARIANTS)}"
            )
        variant = VARIANTS[key]
        if variant.choices and value not in variant.choices:
            raise ValueError(f"--variant {item}: choose {' or '.join(variant.choices)}")
        variants[key] = typed(variant.default, value, f"--variant {item}")
    return variants


def joined(values: Mapping[str, Any]) -> str:
    """The text that :func:`read_variants` reads as these values."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def typed(default: Any, value: Any, said: str) -> Any:
    """A value, of whatever type, in the type of the default; a text where that is None.

    Args:
        said: how it was given, for the message of a ``ValueError``.
    """
    kind = type(default)
    try:
        if kind is bool:
            return SWITCHES[str(value).lower()]
        if kind not in (int, float):
            return str(value)
        number = kind(value)
        if kind is int and isinstance(value, float) and number != value:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"{said}: give {wanted}") from None
    return number
