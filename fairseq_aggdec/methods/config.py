"""The decoding options as fairseq takes them: a class of its configuration, flags of the command line."""

import argparse
from dataclasses import field, make_dataclass
from typing import Any, Optional, get_type_hints

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II

from fairseq_aggdec.methods.options.reading import INT8
from fairseq_aggdec.methods.options.settings import OPTIONS, VARIANTS, Settings
from fairseq_aggdec.models.options import add_flags, option

TYPES = get_type_hints(Settings) | {"acceptance": str}


def _declared() -> list[tuple[str, Any, Any]]:
    """Name, type and field of every option, in the forms that fairseq reads: ``Optional``, enumerations of choices."""
    declared: list[tuple[str, Any, Any]] = []
    for name, one in OPTIONS.items():
        metadata = dict(one.metadata)
        choices, const = metadata.pop("choices", None), metadata.pop("const", None)
        kind = ChoiceEnum(list(choices)) if choices else TYPES[name]
        if kind == str | None:
            kind = Optional[str]
        if const is not None:
            metadata["argparse_const"] = const
        default = "exact" if name == "acceptance" else one.default
        declared.append((name, kind, option(default, **metadata)))
    keys = "KEY=VALUE[,KEY=VALUE]: a printed variant of one paper. Keys, explained in docs/options.md: "
    declared.append(
        ("variant", Optional[str], option(None, keys + ", ".join(VARIANTS), "KEY=VALUE"))
    )
    # fairseq's own flag, which its generation ignores; no help text, so that fairseq makes no second flag of it.
    declared.insert(1, ("bf16", bool, field(default=II("common.bf16"))))
    return declared


DecodingConfig: Any = make_dataclass(
    "DecodingConfig",
    _declared(),
    bases=(FairseqDataclass,),
    namespace={
        "__module__": __name__,
        "__doc__": "How ``fairseq-generate`` and its relatives decode.",
    },
)


class Int8Action(argparse.Action):
    """``--int8`` alone means all, in front of the data folder too."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        mode = values if values in INT8 else self.const
        setattr(namespace, self.dest, mode)
        if mode == values:
            return
        data = next((one for one in parser._actions if one.dest == "data"), None)
        if data is None or getattr(namespace, "data", None) is not None:
            parser.error(f"--int8 {values}: choose {', '.join(INT8)}")
        else:  # argparse took the folder for the value of the option
            data.required, namespace.data = False, values


class JoinAction(argparse.Action):
    """An option that may be given several times: its texts are joined by commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


ACTIONS = {"int8": Int8Action, "variant": JoinAction}


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of :class:`DecodingConfig` to a parser, in a group of their own."""
    group = parser.add_argument_group("decoding by fairseq_aggdec")
    add_flags(group, DecodingConfig, whole=True)
    for action in group._group_actions:
        if action.dest in ACTIONS:
            action.__class__ = ACTIONS[action.dest]
