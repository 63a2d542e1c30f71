"""Which GPU a worker takes, what it is started with, and that generators forget."""

from __future__ import annotations

import argparse
import os
import pickle
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import submitit

from fairseq_aggdec.cli import fairseq_commands, main
from fairseq_aggdec.drafters.copy.input_copy import InputCopyDrafter
from fairseq_aggdec.jobs import ray_tasks, workers
from fairseq_aggdec.jobs.job import BulkError
from fairseq_aggdec.jobs.workers import Worker
from fairseq_aggdec.ray import Translate
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
    drafter.draft_length.total.add(1000, 1000)
    workers.forget(drafter)
    assert drafter.draft_length.total.weight < 3
    workers.forget(object())  # stock fairseq's generator has nothing to forget


@pytest.fixture(scope="module")
def translate() -> Translate:
    folder = ROOT / "checkpoints" / "ua_gec"
    options: dict[str, Any] = {"decoding": "iad", "spm": folder / "spm.model"}
    return Translate(folder / "checkpoint.pt", folder, column="said", **options)


def test_a_function_from_batch_to_batch(translate: Translate) -> None:
    """Columns by name, or a data frame of pandas; the other columns stay."""
    batch = {"said": ["Я знаю що ти тут .", "Це добре ."], "id": [1, 2]}
    found = translate(batch)
    assert found.pop("output").tolist() == ["Я знаю , що ти тут .", "Це добре ."]
    assert found == batch

    class Frame(dict[str, Any]):
        def assign(self, **columns: Any) -> Frame:
            return Frame({**self, **columns})

    framed = translate(Frame(batch))
    assert isinstance(framed, Frame) and framed["output"][1] == "Це добре ."


@pytest.mark.parametrize(
    ("batch", "error", "said"),
    [
        ({"text": ["a"]}, ValueError, "there is no column 'said' in the batch: it has text"),
        ({"said": ["a", None]}, TypeError, "sentence 1"),
        (["a"], TypeError, "a batch is a dictionary of columns or a pandas frame, no list"),
    ],
)
def test_batches_that_are_refused(
    batch: Any, error: type[Exception], said: str, translate: Translate
) -> None:
    with pytest.raises(error, match=said):
        translate(batch)


def test_what_ray_is_asked_for() -> None:
    """Without Ray here: a GPU for each where there are any, what the user names, and new starts after kills."""
    ray: Any = mock.MagicMock()
    ray.exceptions.RayTaskError = type("RayTaskError", (Exception,), {"cause": OSError("no\nfile")})
    ray.exceptions.RayError = type("RayError", (Exception,), {})
    ray.is_initialized.return_value = False
    ray.cluster_resources.return_value = {"CPU": 8, "GPU": 4}
    args = parsed("--launcher", "ray", "--workers", "3", "--resources", "num_cpus=2")
    argv = ["aggdec-generate", "DATA", "--launcher", "ray"]
    with mock.patch.dict(sys.modules, ray=ray), mock.patch.object(sys, "argv", argv):
        workers.launch(args, "aggdec-generate", "logs")
        ray.remote.assert_called_once_with(
            num_gpus=1, max_retries=ray_tasks.RETRIES, max_calls=1, num_cpus=2
        )
        (worker, folder), _ = ray.remote.return_value.return_value.remote.call_args
        assert worker.arguments == ["DATA", "--launcher", "ray", "--launcher", "here"]
        assert folder == os.getcwd() and pickle.loads(pickle.dumps(worker)) == worker
        ray.get.side_effect = [None, ray.exceptions.RayTaskError(), ray.exceptions.RayError("gone")]
        with pytest.raises(BulkError, match="2 of 3 workers failed: no file; once"):
            workers.launch(args, "aggdec-generate", "logs")
        assert ray.shutdown.call_count == 2


@pytest.mark.parametrize("rank", ["x", "-1", "1.5"])
def test_a_number_of_a_process_that_is_none_is_refused(rank: str) -> None:
    """On a machine without a GPU too, where it chooses nothing."""
    with pytest.raises(ValueError, match=f"^LOCAL_RANK={rank}: it must be the number"):
        workers.local_rank({"LOCAL_RANK": rank})
    assert workers.local_rank({"SLURM_LOCALID": "3"}) == 3 and workers.local_rank({}) == 0


@pytest.mark.parametrize("rank", ["x", "-1"])
def test_every_command_refuses_a_number_that_is_none(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it imports fairseq, which cannot be imported then."""
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(fairseq_commands, "import_module", None)
    for command in (
        fairseq_commands.generate,
        fairseq_commands.interactive,
        fairseq_commands.train,
        lambda: main.run_tool("doctor", []),
    ):
        assert command() == 2
        assert f"error: LOCAL_RANK={rank}: it must be the number" in capsys.readouterr().err


def test_a_number_that_chooses_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "7")
    monkeypatch.setattr(workers, "set_up_log", lambda level: None)
    with caplog.at_level("INFO", "fairseq_aggdec"):
        workers.begin(cpu=True)
    assert "the number of this process, 7, is ignored" in caplog.text
