"""Training on several devices: two processes of fairseq learn what one learns from both batches.

Half precision, which fairseq trains on accelerators only, is held by the tests of each loss, on models that are cast.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shlex
import socket
from pathlib import Path

import pytest
import torch
from fairseq_cli import train

from fairseq_aggdec.stored.loading import load_checkpoint
from tests.cli.commands import MODEL, PLUGIN, run

WORDS, ROWS, UPDATES = 20, 16, 4
SMOOTHED = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1"
BLOCKWISE = (
    "--arch blockwise_transformer --block-size 3 --head-hidden-dim 16 --criterion blockwise_loss"
)
DRAFTER = "--arch nar_drafter --block-size 4 --criterion glancing_loss --glancing-updates 4"
CASES = {
    "blockwise, mean": f"{BLOCKWISE} --head-loss mean",
    "blockwise, drawn": f"{BLOCKWISE} --head-loss sample --head-layout per-head",
    "drafter": DRAFTER,
    "drafter, chain": f"{DRAFTER} --slot-predicts next --slot-chain --prefix-attention causal",
    "interleaved": f"--arch interleaved_transformer --directions 2 --words-per-direction 2 {SMOOTHED}",
    "lattice": f"--arch lattice_transformer {SMOOTHED}",
}
TRAINING = shlex.split(
    f"--optimizer adam --lr 0.01 --clip-norm 1 --cpu --seed 3 --num-workers 0 --max-update {UPDATES} "
    "--no-progress-bar --disable-validation --no-epoch-checkpoints --log-format json --log-interval 1 "
    "--source-lang src --target-lang tgt --dataset-impl raw --required-batch-size-multiple 1"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many sentences as two batches have: every epoch is one update, of the same sentences whoever takes them."""
    folder = tmp_path_factory.mktemp("data")
    generator = random.Random(1)
    for side in ("src", "tgt"):
        (folder / f"dict.{side}.txt").write_text("".join(f"w{i} 1\n" for i in range(WORDS)))
        lines = [
            " ".join(f"w{generator.randrange(WORDS)}" for _ in range(generator.randint(3, 9)))
            for _ in range(ROWS)
        ]
        (folder / f"train.src-tgt.{side}").write_text("\n".join(lines) + "\n")
    return folder


def arguments(data: Path, folder: Path, options: str, batch_size: int) -> list[str]:
    sizes = MODEL[2:]  # without the architecture
    more = ["--save-dir", str(folder), "--batch-size", str(batch_size)]
    return [str(data), *PLUGIN, *shlex.split(options), *sizes, *TRAINING, *more]


def losses(log: list[str]) -> list[float]:
    """Of every update."""
    told = [json.loads(line) for line in log if line.startswith('{"')]
    return [float(one["loss"]) for one in told if "loss" in one]


def in_a_process(given: list[str], log: Path) -> None:
    log.write_text("\n".join(run(train.cli_main, *given).log))


def together(given: list[list[str]], folder: Path) -> list[list[str]]:
    """What trainings in processes of their own logged; they begin with all that is imported here."""
    fork = multiprocessing.get_context("fork")
    logs = [folder / f"log-{rank}" for rank in range(len(given))]
    processes = [
        fork.Process(target=in_a_process, args=(own, log))
        for own, log in zip(given, logs, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=600)
    assert [process.exitcode for process in processes] == [0] * len(given)
    return [log.read_text().splitlines() for log in logs]


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_two_processes_learn_what_one_learns(options: str, data: Path, tmp_path: Path) -> None:
    """Losses of every update, and the parameters that come of them."""
    alone = run(train.cli_main, *arguments(data, tmp_path / "one", options, ROWS)).log
    pair = arguments(data, tmp_path / "two", options, ROWS // 2)
    pair += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    pair += ["--distributed-world-size", "2", "--distributed-no-spawn"]
    pair += ["--distributed-init-method", f"tcp://127.0.0.1:{free_port()}"]
    logs = together([[*pair, "--distributed-rank", rank] for rank in ("0", "1")], tmp_path)
    expected = losses(alone)
    assert len(expected) == UPDATES and expected[-1] < expected[0]
    assert losses(logs[0]) == pytest.approx(expected, abs=2e-3)
    whole, shared = (
        load_checkpoint(str(tmp_path / name / "checkpoint_last.pt"))["model"]
        for name in ("one", "two")
    )
    torch.testing.assert_close(shared, whole, atol=1e-3, rtol=1e-3)
