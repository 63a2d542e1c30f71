"""Models in half precision, in parts that are small enough to come back from a machine that is lent.

python -m scripts.recipes.gpu.halves FOLDER OUT      every FOLDER/NAME/checkpoint_last.pt, the smallest first
cat OUT/NAME-fp16.pt.* > NAME-fp16.pt                joins the parts of one
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import torch

from fairseq_aggdec.stored.loading import load_checkpoint

PART = 15 << 20  # bytes


def halved(path: Path) -> bytes:
    """A checkpoint with its weights in fp16 and without the optimizer's state."""
    state, written = load_checkpoint(str(path)), io.BytesIO()
    state["model"] = {
        name: value.half() if value.is_floating_point() else value
        for name, value in state["model"].items()
    }
    state["last_optimizer_state"] = None
    torch.save(state, written)
    return written.getvalue()


def main(folder: Path, out: Path) -> None:
    for path in sorted(folder.glob("*/checkpoint_last.pt"), key=lambda one: one.stat().st_size):
        data = halved(path)
        for number in range(-(-len(data) // PART)):
            part = data[number * PART : (number + 1) * PART]
            (out / f"{path.parent.name}-fp16.pt.{number:02}").write_bytes(part)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
