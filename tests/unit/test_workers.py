"""How ``tests/conftest.py`` shares the tests among workers."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest


@pytest.fixture
def units(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Any:
    (maker,) = (
        one.function
        for one in pytestconfig.hook.pytest_xdist_make_scheduler.get_hookimpls()
        if one.plugin_name.endswith("tests/conftest.py")
    )
    config = Mock()
    config.getvalue.return_value = ["popen"] * 2
    return maker(config=config, log=Mock())


def test_the_tests_of_a_file_share_a_worker(units: Any) -> None:
    """What a fixture of a module makes is made once."""
    names = ["tests/unit/test_a.py::test_1", "tests/unit/test_a.py::test_2[x::y]"]
    assert {units._split_scope(name) for name in names} == {"tests/unit/test_a.py"}
    names = [
        f"tests/strict/test_{file}.py::test_{x}" for file in ("device", "counts") for x in "12"
    ]
    assert len({units._split_scope(name) for name in names}) == 3
