"""Prints the seed of the run."""

from __future__ import annotations

import pytest

from tests.fuzz import budget

SEED = budget.first_seed()  # before pytest starts its workers


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"fuzz: FUZZ_SEED={SEED} FUZZ_SECONDS={budget.seconds():g}")
