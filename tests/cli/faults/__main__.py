"""Prints docs/results/faults.md."""

from tests.cli.faults.page import page

print(page(), end="")
