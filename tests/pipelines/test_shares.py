"""Several processes share a set: each sentence is decoded once, whoever tells the share and whatever decodes."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fairseq_cli import generate, interactive

from fairseq_aggdec.data.ranks import share
from tests.cli.commands import run
from tests.pipelines.making import BATCHES, SEARCH, SIZES, USER_DIR, write_model, write_text

PAIR = shlex.split("-s de -t en")
# Who tells the share: flags or variables, as the number of processes and of this one.
WAYS = {
    "num-shards": "--num-shards {1} --shard-id {0}",
    "world-size": "--distributed-world-size {1} --distributed-rank {0}",
    "torchrun": "WORLD_SIZE={1} RANK={0} LOCAL_RANK={0}",
    "srun": "SLURM_STEP_NUM_TASKS={1} SLURM_PROCID={0}",
}
SHARES = 3


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    data = write_text(tmp_path_factory.mktemp("shares"), ["de", "en"])
    path = write_model(data / "model.pt", data, "translation", "transformer", *PAIR, *SIZES)
    return [data, "--path", path, *BATCHES, *SEARCH, *PAIR, *USER_DIR]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher tells anything."""
    for name in ("WORLD_SIZE", "RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    yield


def lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if re.match("[STHDP]-", line)]


def told(way: str, number: int, of: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags; variables are set."""
    words = WAYS[way].format(number, of).split()
    flags = words if words[0].startswith("--") else []
    for word in words if not flags else ():
        monkeypatch.setenv(*word.split("=", 1))
    return flags


@pytest.mark.parametrize(("decoding", "ways"), [("beam", list(WAYS)), ("stock", ["num-shards"])])
def test_every_sentence_is_decoded_once_and_outputs_are_merged_by_the_printed_command(
    decoding: str,
    ways: Sequence[str],
    command: Sequence[str | Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [*command, "--batch-size", "3", "--decoding", decoding]
    whole = run(generate.cli_main, *command).stdout
    for way in ways:
        parts, said = [], ""
        with monkeypatch.context() as patched:
            for number in range(SHARES):
                found = run(generate.cli_main, *command, *told(way, number, SHARES, patched))
                parts.append(found.stdout)
                (said,) = [line for line in found.log if "this process decodes" in line]
        assert all(map(lines, parts))
        assert sorted(lines("\n".join(parts))) == sorted(lines(whole)), way
    for number, part in enumerate(parts):
        (tmp_path / f"out{number}").write_text(part)
    merge = said.partition("in the order of the set: ")[2].replace("OUTPUTS", "out0 out1 out2")
    merged = subprocess.run(merge, shell=True, cwd=tmp_path, capture_output=True, text=True)
    ordered = sorted(
        re.findall(r"^D-(\d+)\t\S+\t(.*)$", whole, re.M), key=lambda found: int(found[0])
    )
    assert merged.stdout.splitlines() == [text for _, text in ordered]


@pytest.mark.parametrize("decoding", ["beam", "stock"])
def test_an_empty_share_is_empty(decoding: str, command: Sequence[str | Path]) -> None:
    one_batch = ["--batch-size", "1000", "--decoding", decoding]
    outputs = []
    for number in range(2):
        flags = WAYS["num-shards"].format(number, 2).split()
        try:
            outputs.append(run(generate.cli_main, *command, *one_batch, *flags).stdout)
        except SystemExit as end:
            assert end.code == 0 and number == 1
    assert len(outputs) == 1 and lines(outputs[0])


REFUSED = [
    ("--shard-id 1", "", "--shard-id 1: it must be 0 to 0, as --num-shards is 1"),
    ("--num-shards 3 --shard-id 3", "", "--shard-id 3: it must be 0 to 2, as --num-shards is 3"),
    ("--num-shards 3", "WORLD_SIZE=2 RANK=1", "--num-shards 3 --shard-id 0 and WORLD_SIZE=2 RANK"),
    ("--results-path out", "WORLD_SIZE=2 RANK=1", "--results-path out: the 2 processes"),
    ("", "WORLD_SIZE=2 RANK=one", "RANK=one: it must be the number of this process"),
]


@pytest.mark.parametrize(("flags", "variables", "reason"), REFUSED)
def test_shares_that_do_not_fit_together(
    flags: str,
    variables: str,
    reason: str,
    command: Sequence[str | Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in variables.split():
        monkeypatch.setenv(*word.split("=", 1))
    with pytest.raises(ValueError, match=re.escape(reason)):
        run(generate.cli_main, *command, *flags.split())


@pytest.mark.parametrize("way", ["num-shards", "torchrun", "srun"])
def test_an_interactive_command_refuses_a_share(
    way: str, command: Sequence[str | Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*command, "--buffer-size", "5"]
    with pytest.raises(ValueError, match="an interactive command decodes all lines that it reads"):
        run(interactive.cli_main, *command, *told(way, 1, 2, monkeypatch), stdin="w1 w2\n")


def test_ones_that_agree_are_one() -> None:
    given = {"num_shards": 3, "shard_id": 2, "distributed_world_size": 1, "distributed_rank": 0}
    found = share(given, {"WORLD_SIZE": "3", "RANK": "2"})
    assert found is not None and (found.number, found.of, found.launched) == (2, 3, True)
    assert share({}, {"WORLD_SIZE": "1", "RANK": "0"}) is None
    # A batch script has no step, though it names its processes.
    assert share({}, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None
