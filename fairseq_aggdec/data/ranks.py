"""The number of a process, and its share of a set, as options and launchers tell them; loads nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RANKS = ("LOCAL_RANK", "SLURM_LOCALID")  # of torchrun and of srun
IGNORED = "the number of this process, %d, is ignored: there is no GPU to choose"  # for the log
# How many processes share a set, and which of them this is: options, and variables of torchrun and of srun.
OPTIONS = (("num_shards", "shard_id"), ("distributed_world_size", "distributed_rank"))
VARIABLES = (("WORLD_SIZE", "RANK"), ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"))
GENERATE, INTERACTIVE = "generate", "interactive"


def local_rank(environment: Mapping[str, str]) -> int:
    """The number of this process on its machine, from what torchrun or srun say; 0 where they did not start it.

    Raises:
        ValueError: what they say is no number.
    """
    name = next((name for name in RANKS if environment.get(name)), None)
    return 0 if name is None else _number(environment, name)


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment[name].isdecimal():
        raise ValueError(
            f"{name}={environment[name]}: it must be the number of this process, from 0 on"
        )
    return int(environment[name])


def program(argument: str) -> str:
    """The command of fairseq that runs, by the first argument of the process: ``generate``, ``interactive``, or another
    word."""
    return Path(argument).stem.rpartition("-")[2]


@dataclass(frozen=True)
class Share:
    """The share of a process: batch ``number``, ``number + of``, ... of a set.

    Attributes:
        source: by whom, for messages. launched: all processes have the same command line.
    """

    number: int
    of: int
    source: str
    launched: bool = False


def share(values: Mapping[str, int], environment: Mapping[str, str]) -> Share | None:
    """The share that options and launchers give this process; None: it decodes the whole set.

    Args:
        values: values of :data:`OPTIONS` by name; those that are not given may be missing.

    Raises:
        ValueError: a share that there is not, or two that differ.
    """
    shares = []
    for names in OPTIONS:
        spelt = ["--" + name.replace("_", "-") for name in names]
        of, number = values.get(names[0], 1), values.get(names[1], 0)
        if not 0 <= number < max(1, of):
            raise ValueError(
                f"{spelt[1]} {number}: it must be 0 to {max(0, of - 1)}, as {spelt[0]} is {of}"
            )
        if of > 1:
            shares.append(Share(number, of, f"{spelt[0]} {of} {spelt[1]} {number}"))
    for size, rank in VARIABLES:
        if environment.get(size) and environment.get(rank):
            of, number = _number(environment, size), _number(environment, rank)
            if of > 1:
                shares.append(Share(number, of, f"{size}={of} {rank}={number}", launched=True))
    for other in shares[1:]:
        if (other.number, other.of) != (shares[0].number, shares[0].of):
            raise ValueError(f"{shares[0].source} and {other.source}: give one of them")
    launched = any(one.launched for one in shares)
    return Share(shares[0].number, shares[0].of, shares[0].source, launched) if shares else None
