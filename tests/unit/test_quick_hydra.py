"""``tests/quick_hydra.py``: the configuration of a command is the one that hydra composes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any
from unittest import mock

import hydra
import pytest
from fairseq import options
from fairseq.dataclass import utils
from omegaconf import OmegaConf

from tests.cli.commands import PLUGIN

TRAIN = ["data", "--arch", "transformer", "--optimizer", "adam", "--lr-scheduler", "inverse_sqrt"]
pytestmark = pytest.mark.skipif(
    not hasattr(hydra, "compose"), reason="hydra < 1.1 composes as it is"
)
COMMANDS: list[tuple[Any, list[str]]] = [
    (options.get_generation_parser, ["a b", "--path", "n='x'=1", *PLUGIN, "--decoding", "iad"]),
    (options.get_training_parser, [*TRAIN, "--lr", "0.1", "--adam-betas", "(0.9, 0.99)"]),
]


def parts(config: Any) -> dict[str, Any]:
    """Every group, with the kinds and types of its values."""
    found: dict[str, Any] = {}
    for name in config:
        group = config[name]
        if isinstance(group, Namespace) or not OmegaConf.is_config(group):
            found[name] = group
        else:
            nodes = {key: group._get_node(key) for key in group}
            found[name] = {key: (type(node), node._metadata, node) for key, node in nodes.items()}
    return found


@pytest.mark.parametrize(("parser", "arguments"), COMMANDS)
def test_it_is_what_hydra_composes(parser: Any, arguments: list[str]) -> None:
    given = options.parse_args_and_arch(parser(), arguments)
    real = {"compose": hydra.compose, "initialize": hydra.initialize}
    assert utils.compose is not hydra.compose
    with mock.patch.multiple(utils, **real), pytest.warns(UserWarning, match="deprecated"):
        expected = utils.convert_namespace_to_omegaconf(given)
    for _ in range(2):
        found = utils.convert_namespace_to_omegaconf(given)
        assert found == expected
        assert parts(found) == parts(expected)
        assert found._metadata == expected._metadata


def test_an_override_that_hydra_refuses_is_refused() -> None:
    given = options.parse_args_and_arch(options.get_generation_parser(), ["data", "--path", "m"])
    given.tokenizer = "moses"
    with pytest.raises(Exception, match=r"Error merging override tokenizer\.source_lang=null"):
        utils.convert_namespace_to_omegaconf(given)
