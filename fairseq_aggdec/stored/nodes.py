"""Configurations of OmegaConf that may hold objects, as old checkpoints hold a namespace among the options.

OmegaConf < 2.1, which facebook's own fairseq asks for, refuses objects when a node is made. There a node is made empty
and takes the object afterwards.
"""

import copy
import inspect
from typing import Any

from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf
from omegaconf.base import Node

OBJECTS: dict[str, Any] = {"flags": {"allow_objects": True}}
REFUSES = "flags" not in inspect.signature(OmegaConf.create).parameters  # OmegaConf < 2.1
ALLOWED: dict[str, Any] = {} if REFUSES else OBJECTS  # what nodes are made with


def value_node(value: Any) -> AnyNode:
    """A node with any value."""
    if not REFUSES:
        return AnyNode(value, **OBJECTS)
    made = AnyNode(None)
    vars(made)["_val"] = value
    return made


def configuration(content: Any) -> Any:
    """Makes of plain dictionaries and lists what ``OmegaConf.create`` makes, with any objects in them.

    With OmegaConf < 2.1 it refuses keys that it does not know, as fairseq has it there.
    """
    if not REFUSES:
        return OmegaConf.create(content, **OBJECTS)
    made = _node(content)
    OmegaConf.set_struct(made, True)
    return made


def _node(content: Any) -> Any:
    if isinstance(content, Node):
        return copy.deepcopy(content)
    made: DictConfig | ListConfig
    if isinstance(content, dict):
        made = DictConfig({})
        vars(made)["_content"].update((key, _node(one)) for key, one in content.items())
        children = vars(made)["_content"].items()
    elif isinstance(content, list | tuple):
        made = ListConfig([])
        vars(made)["_content"].extend(map(_node, content))
        children = enumerate(vars(made)["_content"])
    else:
        return value_node(content)
    for key, one in children:
        vars(one)["_parent"] = made
        one._set_key(key)
    return made
