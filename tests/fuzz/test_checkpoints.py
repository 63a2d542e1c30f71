"""Random checkpoints in a process of their own: none ends it, none makes anything but data."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.cli.commands import ROOT
from tests.fuzz import budget


def test_no_checkpoint_ends_the_process() -> None:
    command = [sys.executable, "-m", "tests.fuzz.pickles", str(budget.first_seed())]
    done = subprocess.run(
        [*command, str(budget.seconds())], cwd=ROOT, capture_output=True, text=True
    )
    said = f"{done.stdout[-300:]} {done.stderr[-2000:]}"
    assert done.returncode == 0, f"{' '.join(command)} ends with {done.returncode}: {said}"
    found = re.search(r"(\d+) streams: .*'loaded': (\d+)", done.stdout)
    assert found is not None and int(found[2]) > int(found[1]) / 20, said
