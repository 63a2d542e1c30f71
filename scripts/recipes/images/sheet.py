"""Decodes images by several systems: a picture of the results side by side, their quality, and Table 2 of Stern et al.

    python -m scripts.recipes.images.sheet DATA --output docs/results/super_resolution \\
        --system greedy model.pt decoding=greedy
        --system both/8 tuned.pt decoding=blockwise acceptance=distance:2

DATA is a folder made by ``python -m scripts.recipes.images.make_images``. A system is a name, a checkpoint, and
options of the task as NAME=VALUE. Names of the form COLUMN/K, with COLUMN one of regular, approximate, fine-tuned
and both, fill the cells of Table 2. The first system is what the others are compared with, and k = 1 of the table.
Written are OUTPUT.png (one row of pictures per image: the input, which is its nearest-neighbour enlargement,
systems, reference), OUTPUT.json and OUTPUT.md.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import logging
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

# `import fairseq` makes everybody log at DEBUG unless the root has a handler by then.
logging.getLogger().addHandler(logging.NullHandler())

import numpy as np
from fairseq import checkpoint_utils, utils
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).parent))  # as fairseq does for --user-dir

from aggdec_images.data import read_format, read_split
from aggdec_images.super_resolution import SuperResolutionConfig, SuperResolutionTask

from fairseq_aggdec.records import machine
from fairseq_aggdec.records import results as files
from scripts.recipes import tables
from scripts.recipes.images.image_quality import Quality, enlarge, quality

COLUMNS = ("regular", "approximate", "fine-tuned", "both")
CELL = 112  # pixels a side of a picture on the sheet, at least
GAP = 8
TEXT = 14  # height of a line


@dataclass
class System:
    """What the command line says about a system."""

    name: str
    path: str
    options: list[str]

    @property
    def cell(self) -> tuple[int, str] | None:
        """Row and column of Table 2."""
        column, _, size = self.name.partition("/")
        return (int(size), column) if column in COLUMNS and size.isdigit() else None


@dataclass
class Result:
    """What a system made of the images.

    Attributes:
        images: uint8 (H, W, C) each.
        quality: against the references.
        mean_accepted: tokens per iteration, ``</s>`` counted; None for what does not decode.
        seconds: per image, None for what does not decode.
    """

    name: str
    images: list[np.ndarray]
    quality: Quality
    mean_accepted: float | None = None
    seconds: float | None = None

    def identical(self, other: Result) -> int:
        """Images that are the same as the other system's."""
        pairs = zip(self.images, other.images, strict=True)
        return sum(np.array_equal(one, two) for one, two in pairs)


def parse_arguments(arguments: Sequence[str] | None) -> Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="folder of prepared images")
    parser.add_argument(
        "--system",
        nargs="+",
        action="append",
        required=True,
        metavar="NAME CHECKPOINT OPTION=VALUE",
        help="may be given several times",
    )
    parser.add_argument("--output", type=Path, required=True, help="name without a suffix")
    parser.add_argument("--split", default="test", help="set of images (default: test)")
    parser.add_argument("--limit", type=int, help="decode only the first so many images")
    parser.add_argument("--rows", type=int, default=8, help="images on the sheet (default: 8)")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    args = parser.parse_args(arguments)
    for given in args.system:
        if len(given) < 2:
            parser.error(f"--system {given[0]}: a system is a name and a checkpoint")
    if args.batch_size < 1 or args.rows < 1 or (args.limit is not None and args.limit < 1):
        parser.error("--batch-size, --rows and --limit are at least 1")
    args.systems = [System(name, path, options) for name, path, *options in args.system]
    names = [system.name for system in args.systems]
    if len(set(names)) < len(names):
        parser.error("every --system needs a name of its own")
    return args


# -- decoding


def build_task(data: str, system: System) -> SuperResolutionTask:
    config = OmegaConf.structured(
        SuperResolutionConfig(data=data, model_paths=system.path, bf16=False)
    )
    try:
        chosen: Any = OmegaConf.merge(config, OmegaConf.from_dotlist(system.options))
    except OmegaConfBaseException as error:
        reason = str(error).split("\n")[0]
        raise SystemExit(f"error: --system {system.name}: {reason}") from error
    task = SuperResolutionTask.setup_task(chosen)
    task.always_draft = (
        True  # all columns draft whole blocks; by default exact ones would draft what pays
    )
    return task


def decode(system: System, args: Namespace, references: Sequence[np.ndarray]) -> Result:
    """Decodes as many images of the set as there are references, ``--batch-size`` at a time."""
    task = build_task(args.data, system)
    models, _ = checkpoint_utils.load_model_ensemble([system.path], task=task)
    cuda = utils.torch.cuda.is_available() and not args.cpu
    for model in models:
        model.eval()
        if cuda:
            model.cuda()
    task.load_dataset(args.split)
    dataset = task.dataset(args.split)
    generator = task.build_generator(models, Namespace(beam=1))
    found: list[Any] = []
    seconds = 0.0
    for start in range(0, len(references), args.batch_size):
        chosen = range(start, min(start + args.batch_size, len(references)))
        sample = dataset.collater([dataset[index] for index in chosen])
        sample = utils.move_to_cuda(sample) if cuda else sample
        if not start:
            task.inference_step(generator, models, sample)  # warms up
        began = time.perf_counter()
        hypotheses = task.inference_step(generator, models, sample)
        seconds += time.perf_counter() - began
        order = sample["id"].tolist()
        found += [best for _, (best, *_) in sorted(zip(order, hypotheses, strict=True))]
    return result_of(system.name, task, found, references, seconds)


def result_of(
    name: str,
    task: SuperResolutionTask,
    hypotheses: Sequence[Mapping[str, Any]],
    references: Sequence[np.ndarray],
    seconds: float,
) -> Result:
    images = [task.image(hypothesis["tokens"]) for hypothesis in hypotheses]
    tokens = [len(hypothesis["tokens"]) for hypothesis in hypotheses]
    # Stock fairseq names no number of iterations: it writes one token in each.
    iterations = [
        hypothesis.get("steps", count) for hypothesis, count in zip(hypotheses, tokens, strict=True)
    ]
    return Result(
        name,
        images,
        quality(references, images),
        sum(tokens) / sum(iterations),
        seconds / len(images),
    )


# -- tables


def table_two(systems: Sequence[System], results: Sequence[Result]) -> dict[int, dict[str, float]]:
    """Mean accepted block sizes in the form of the paper's Table 2: k -> column -> size, for what is a cell of it."""
    cells = [system.cell for system in systems]
    if any(cells):
        cells[0] = cells[0] or (1, COLUMNS[0])  # the base, which the others are compared with
    found: dict[int, dict[str, float]] = {}
    for cell, result in zip(cells, results, strict=True):
        if cell is not None and result.mean_accepted is not None:
            size, column = cell
            found.setdefault(size, {})[column] = result.mean_accepted
    return dict(sorted(found.items()))


def table_two_markdown(table: Mapping[int, Mapping[str, float]]) -> list[str]:
    if not table:
        return []
    rows = [[k, *(cells.get(column) for column in COLUMNS)] for k, cells in table.items()]
    heads = ["k", *(column.capitalize() for column in COLUMNS)]
    return ["Mean accepted block size:", tables.table(heads, rows)]


def quality_table(results: Sequence[Result], first: Result) -> str:
    """Every system and enlargement with its quality, as Markdown."""
    rows = []
    for result in results:
        decoded = result.mean_accepted is not None
        same = f"{result.identical(first)} of {len(result.images)}"
        rows.append(
            [
                result.name,
                result.quality.psnr,
                f"{result.quality.ssim:.3f}",
                result.mean_accepted,
                None if result.seconds is None else f"{1000 * result.seconds:.0f}",
                same if decoded and result is not first else None,
            ]
        )
    header = ("system", "PSNR, dB", "SSIM", "mean accepted", "ms / image", f"same as {first.name}")
    return tables.table(header, rows)


def write_tables(
    args: Namespace, enlarged: Sequence[Result], results: Sequence[Result], source: str
) -> None:
    """OUTPUT.json and OUTPUT.md."""
    first, table = results[0], table_two(args.systems, results)
    extra: dict[str, object] = {
        "images": len(first.images),
        "source": source,
        "batch_size": args.batch_size,
        "table_2": table,
    }
    rows = [
        {
            "name": result.name,
            "psnr": result.quality.psnr,
            "ssim": result.quality.ssim,
            "mean_accepted": result.mean_accepted,
            "seconds_per_image": result.seconds,
            "identical_to_first": result.identical(first),
        }
        for result in (*enlarged, *results)
    ]
    parts = [
        f"{len(first.images)} images of the set '{args.split}' ({source}), batch size {args.batch_size}. "
        "PSNR and SSIM are means over images; *mean accepted* counts tokens per iteration, `</s>` among them.",
        *table_two_markdown(table),
        quality_table([*enlarged, *results], first),
        f"![pictures]({args.output.name}.png)",
        f"scikit-image {version('scikit-image')}",
    ]
    command = machine.command("scripts.recipes.images.sheet", sys.argv[1:])
    title = "Image super-resolution"
    files.write_table(args.output, title, command, "\n\n".join(parts), rows, extra)


# -- the sheet


def picture(image: np.ndarray, side: int) -> Image.Image:
    """An image (H, W, C) enlarged to ``side`` without smoothing."""
    large = enlarge(image, side)
    return Image.fromarray(np.broadcast_to(large, (side, side, 3)).copy())


def caption(result: Result) -> list[str]:
    lines = [result.name, f"{result.quality.psnr:.2f} dB, {result.quality.ssim:.3f}"]
    if result.mean_accepted is not None:
        lines.append(f"{result.mean_accepted:.2f} per iteration")
    return lines


def draw_sheet(
    nearest: Result,
    results: Sequence[Result],
    references: Sequence[np.ndarray],
    rows: int,
) -> Image.Image:
    """A column for the input as nearest neighbour enlarges it, each system and the reference; a row per image."""
    shown = [nearest, *results]
    titles = [*(caption(result) for result in shown), ["reference"]]
    titles[0][0] = "input (nearest)"
    columns = [*(result.images for result in shown), references]
    font = ImageFont.load_default(TEXT - 3)
    high = references[0].shape[0]
    side = high * -(-CELL // high)  # whole pixels: every pixel of the reference is as large
    widest = max(font.getlength(line) for lines in titles for line in lines)
    width, rows = max(side, int(widest) + 1) + GAP, min(rows, len(references))
    top = max(map(len, titles)) * TEXT + GAP
    sheet = Image.new("RGB", (len(columns) * width + GAP, top + rows * (side + GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (lines, images) in enumerate(zip(titles, columns, strict=True)):
        left = GAP + index * width
        for number, line in enumerate(lines):
            draw.text((left, GAP // 2 + number * TEXT), line, fill="black", font=font)
        for row in range(rows):
            sheet.paste(picture(images[row], side), (left, top + row * (side + GAP)))
    return sheet


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    try:
        form = read_format(args.data)
        low, high = read_split(args.data, args.split, form)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    inputs, references = list(low[: args.limit]), list(high[: args.limit])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    enlarged = []
    for name, smooth in (("nearest neighbour", False), ("bicubic", True)):
        images = [enlarge(image, form.high, smooth) for image in inputs]
        enlarged.append(Result(name, images, quality(references, images)))
    results = []
    for system in args.systems:
        results.append(decode(system, args, references))
        print("; ".join(caption(results[-1])), flush=True)
    write_tables(args, enlarged, results, form.source)
    sheet = draw_sheet(enlarged[0], results, references, args.rows)
    files.write(files.named(args.output, ".png"), sheet.save)


if __name__ == "__main__":
    main()
