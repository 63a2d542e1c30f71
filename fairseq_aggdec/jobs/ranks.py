"""The number of a process on its machine, as launchers tell it; loads nothing, as a wrong one keeps fairseq out."""

from collections.abc import Mapping

RANKS = ("LOCAL_RANK", "SLURM_LOCALID")  # of torchrun and of srun
IGNORED = "the number of this process, %d, is ignored: there is no GPU to choose"  # for the log


def local_rank(environment: Mapping[str, str]) -> int:
    """The number of this process on its machine, from what torchrun or srun say; 0 where they did not start it.

    Raises:
        ValueError: what they say is no number.
    """
    name = next((name for name in RANKS if environment.get(name)), None)
    if name is None:
        return 0
    if not environment[name].isdecimal():
        raise ValueError(
            f"{name}={environment[name]}: it must be the number of this process, from 0 on"
        )
    return int(environment[name])
