"""Options of the plugin's models: their defaults, and the way to them from fairseq-hydra-train.

The models declare their options as flags. Of a YAML file fairseq hands such a model the bare keys; what the model's own
options are it loses on the way to the Transformer. On the command line it hands over a namespace, which keeps them.
"""

import argparse
from dataclasses import field, fields
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

PACKAGE = __name__.split(".", maxsplit=1)[0]
PLAIN = (bool, dict, float, int, list, str, type(None))


def option(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:
    """A field of a class of options, of which fairseq makes a flag."""
    return field(default=default, metadata={"help": help, "metavar": metavar, **more})


def add_flags(parser: Any, options: type[FairseqDataclass], whole: bool = False) -> None:
    """Adds the flags of a class of options to a parser or a group.

    Args:
        whole: what is not given and has no default but None or False has that; else it is missing, so that an
            architecture can fill it in.
    """
    gen_parser_from_dataclass(parser, options())
    declared = options.__dataclass_fields__
    for action in parser._actions:
        if action.dest in declared:
            action.metavar = declared[action.dest].metadata.get("metavar") or action.metavar
            if not whole and (action.default is None or action.default is False):
                action.default = argparse.SUPPRESS


def set_defaults(args: argparse.Namespace, **values: Any) -> None:
    """Gives options the values that hold where nothing was said."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def fill_in(args: argparse.Namespace, options: type[FairseqDataclass]) -> None:
    """Gives the options of a class their defaults where nothing was said."""
    set_defaults(args, **{one.name: one.default for one in fields(options) if one.name != "_name"})


def set_sizes(
    args: argparse.Namespace, layers: tuple[int, int], width: int, hidden: int, heads: int
) -> None:
    """Sizes of encoder and decoder where they were not given: layers, widths of embeddings and feed-forward layers,
    heads."""
    for side, count in zip(("encoder", "decoder"), layers, strict=True):
        sizes = {"layers": count, "embed_dim": width, "ffn_embed_dim": hidden}
        sizes["attention_heads"] = heads
        set_defaults(args, **{f"{side}_{name}": size for name, size in sizes.items()})


def as_namespace(cfg: Any) -> Any:
    """The options of one of the plugin's models; whatever else is given comes back as it is.

    Args:
        cfg: of a model, as ``FairseqTask.build_model`` gets it.
    """
    name = getattr(cfg, "_name", None)
    model = ARCH_MODEL_REGISTRY.get(name)
    if not isinstance(cfg, DictConfig) or model is None or name in MODEL_DATACLASS_REGISTRY:
        return cfg
    if not model.__module__.startswith(f"{PACKAGE}."):
        return cfg
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    model.add_args(parser)
    options: Any = OmegaConf.to_container(cfg, resolve=True)
    return parser.parse_args([], argparse.Namespace(**options))


def keep_options(cfg: Any, args: Any) -> None:
    """Writes what building the model has set into the configuration, which is what checkpoints hold."""
    if args is not cfg:
        with open_dict(cfg):
            cfg.update(
                {name: value for name, value in vars(args).items() if isinstance(value, PLAIN)}
            )
