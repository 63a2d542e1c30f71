"""fairseq-hydra-train with models that declare their options as flags: its configuration as the namespace they read.

fairseq hands such a model the bare keys of the YAML file; what the model's own options are it loses on the way to the
Transformer. On the command line it hands over a namespace, which keeps them.
"""

import argparse
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

PACKAGE = __name__.split(".", maxsplit=1)[0]
PLAIN = (bool, dict, float, int, list, str, type(None))


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
