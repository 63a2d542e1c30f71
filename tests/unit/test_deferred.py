"""fairseq is imported without scikit-learn and SciPy, and computes with them where it did."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

COUNT = "sum(name.split('.')[0] in ('sklearn', 'scipy') for name in sys.modules)"
CASES = {
    "imported first": "import sys, fairseq_aggdec, fairseq",
    "by a command": "import sys, fairseq_aggdec.cli.main, fairseq_cli.generate",
}
SCORES = """
import numpy
from fairseq.criterions.sentence_prediction import acc_and_f1, pearson_and_spearman
from fairseq.tasks.audio_classification import sklearn_metrics
a, b = numpy.array([1, 0, 1, 1]), numpy.array([1, 1, 1, 0])
curve = [x.tolist() for x in sklearn_metrics.roc_curve(a, b)]
print(acc_and_f1(a, b), pearson_and_spearman(a, b), curve[:2])
from sklearn.metrics import f1_score
from scipy.stats import pearsonr
print(type(f1_score).__name__, type(pearsonr).__name__)
"""


@functools.cache
def output_of(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", CASES.values(), ids=list(CASES))
def test_scores_are_those_of_the_modules(program: str) -> None:
    ours = output_of(f"{program}\nprint({COUNT}){SCORES}")
    assert ours == "0\n" + output_of(f"import fairseq{SCORES}")


def test_modules_that_are_there_are_left_alone() -> None:
    program = "import sys, sklearn.metrics as there, fairseq_aggdec, fairseq"
    told = "from fairseq.tasks.audio_classification import sklearn_metrics as found"
    assert output_of(f"{program}\n{told}\nprint(found is there)") == "True\n"


def test_modules_that_ask_for_them_meanwhile_hear_that_they_are_there() -> None:
    program = "from fairseq_aggdec.startup.deferred import deferred_modules\nfrom importlib.util import find_spec\n"
    told = "with deferred_modules():\n    print(find_spec('sklearn') is not None, find_spec('scipy.stats') is not None)"
    assert output_of(program + told) == "True True\n"
