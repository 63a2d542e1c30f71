"""Which GPU a worker takes, what it is started with, and that generators forget."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import submitit

from fairseq_aggdec.drafters.copy.input_copy import InputCopyDrafter
from fairseq_aggdec.jobs import workers
from fairseq_aggdec.jobs.job import BulkError
from fairseq_aggdec.jobs.workers import Worker
from tests.support import make_dictionary

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("environment", "gpus", "chosen"),
    [
        ({}, 4, 0),
        ({"LOCAL_RANK": "3", "RANK": "11"}, 4, 3),  # torchrun
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, 4, 1),  # srun, all GPUs visible
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, 1, 0),  # srun --gpus-per-task=1
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, 1, 0),
        ({"LOCAL_RANK": "5"}, 4, 1),  # more processes than GPUs
    ],
)
def test_the_gpu_of_a_worker(environment: dict[str, str], gpus: int, chosen: int) -> None:
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.device_count", return_value=gpus),
        mock.patch("torch.cuda.set_device") as set_device,
        mock.patch("signal.signal"),
    ):
        workers.begin(cpu=True)
        set_device.assert_not_called()
        workers.begin(cpu=False)
        set_device.assert_called_once_with(chosen)


def parsed(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    workers.add_options(parser)
    return parser.parse_args(given)


def test_what_slurm_is_asked_for() -> None:
    """Without Slurm here: what submitit is told, and that its jobs begin again where they were stopped."""
    job: Any = mock.Mock(**{"exception.return_value": None})
    executor = mock.MagicMock(**{"submit.return_value": job})
    args = parsed(
        "--launcher", "slurm", "--workers", "3", "--slurm", "slurm_partition=gpu", "mem_gb=8"
    )
    argv = ["aggdec distill", "DATA", "--launcher", "slurm"]
    with (
        mock.patch.object(submitit, "AutoExecutor", return_value=executor) as made,
        mock.patch.object(sys, "argv", argv),
    ):
        workers.launch(args, "aggdec distill", "logs")
        assert made.call_args.kwargs["cluster"] == "slurm"
        executor.update_parameters.assert_called_once_with(
            name="aggdec-distill", slurm_partition="gpu", mem_gb=8
        )
        assert executor.submit.call_count == 3
        worker = pickle.loads(pickle.dumps(executor.submit.call_args.args[0]))
        assert worker.arguments == ["DATA", "--launcher", "slurm", "--launcher", "here"]
        again = worker.checkpoint()
        assert isinstance(again, submitit.helpers.DelayedSubmission)
        assert again.function == worker
        job.exception.return_value = RuntimeError()
        with pytest.raises(BulkError, match="3 of 3 workers failed"):
            workers.launch(args, "aggdec distill", "logs")


@pytest.mark.parametrize("text", ["slurm_partition", "=gpu", ""])
def test_settings_are_pairs(text: str) -> None:
    with pytest.raises(BulkError, match="give KEY=VALUE"):
        workers.setting(text)


def test_a_worker_that_is_refused_fails() -> None:
    worker = Worker("aggdec-generate", ["DATA"], {"LOCAL_RANK": "2", "NOT_THERE": None})
    with (
        mock.patch("fairseq_aggdec.cli.fairseq_commands.generate", return_value=2),
        mock.patch.object(sys, "argv", []),
        mock.patch.dict(os.environ),
    ):
        with pytest.raises(RuntimeError, match="ended with status 2"):
            worker()
        assert sys.argv == ["aggdec-generate", "DATA"]
        assert os.environ["LOCAL_RANK"] == "2"


def test_drafters_forget() -> None:
    dictionary = make_dictionary()
    drafter = InputCopyDrafter(dictionary, dictionary, "aligned")
    drafter.account.chances.total.add(1000, 1000)
    workers.forget(drafter)
    assert drafter.account.chances.total.weight < 3
    workers.forget(object())  # stock fairseq's generator has nothing to forget


def test_the_example_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/bulk.md: ten lines for another engine."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "bulk.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    batch = {"text": ["Я знаю що ти тут .", "Це добре ."], "id": [1, 2]}
    output = ["Я знаю , що ти тут .", "Це добре ."]
    assert names["Translate"]()(batch) == {**batch, "output": output}
