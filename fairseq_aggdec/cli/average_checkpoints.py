"""``aggdec average-checkpoints``: writes the mean of several checkpoints."""

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf

from fairseq_aggdec.cli.parsers import parsed
from fairseq_aggdec.distill.average_checkpoints import average, plain, write
from fairseq_aggdec.stored.loading import load_checkpoint


def main(arguments: Sequence[str] | None = None) -> None:
    args = parsed("average-checkpoints", arguments)
    states = [load_checkpoint(str(path)) for path in args.checkpoints]
    model = average([state["model"] for state in states], args.half)
    options: Any = OmegaConf.to_container(states[-1]["cfg"], resolve=True, enum_to_str=True)
    write(args.output, model, plain(options), states[-1])
