"""Random models, options and methods against stock fairseq: every difference is a tie."""

from __future__ import annotations

from tests.fuzz import budget, run
from tests.fuzz.cases import Case


def test_random_cases() -> None:
    records = []
    with run.quietly():
        for seed in budget.seeds():
            case = Case.of(seed)
            records.append(run.decode(case))
            assert not run.bugs(records[-1]), (
                f"{run.command(case)}\n{run.table(records[-1:])}\n{records[-1].get('error', '')}"
            )
    print(run.table(records))
