"""Which GPU a worker takes, and that generators forget."""

from __future__ import annotations

import os
from unittest import mock

import pytest

from fairseq_aggdec.cli import fairseq_commands, main
from fairseq_aggdec.drafters.copy.input_copy import InputCopyDrafter
from fairseq_aggdec.jobs import workers
from tests.support import make_dictionary


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
    ):
        workers.begin(cpu=True)
        set_device.assert_not_called()
        workers.begin(cpu=False)
        set_device.assert_called_once_with(chosen)


def test_drafters_forget() -> None:
    dictionary = make_dictionary()
    drafter = InputCopyDrafter(dictionary, dictionary, "aligned")
    drafter.draft_length.total.add(1000, 1000)
    workers.forget(drafter)
    assert drafter.draft_length.total.weight < 3
    workers.forget(object())  # stock fairseq's generator has nothing to forget


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
