"""The chart of README, docs/speed.svg, from the result files of rivals: how many times as fast as stock fairseq.

python -m scripts.readme_chart

Each bar is stock fairseq's time in fp32 divided by that of a system, both with beam 5 and the same batch size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fairseq_aggdec.records.results import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
CHART = ROOT / "docs" / "speed.svg"

TASKS = {"ua_gec": "Error correction", "multi30k": "Translation"}
BATCHES = (1, 32)
# label, system of the result file, class of the bar
SYSTEMS = (
    ("CTranslate2, float32", "ct2-float32-beam5", "other"),
    ("ours, fp32", "search5", "ours"),
    ("CTranslate2, int8", "ct2-int8-beam5", "other"),
    ("ours, --int8", "search5-int8", "ours"),
)
STOCK = "beam5"

# Pixels.
PANEL, LABELS, BARS = 400, 140, 205
ROW, BAR, HEAD, GAP = 22, 14, 26, 18
TOP = 44

# Text has a contrast of at least 4.5 with the ground, light and dark.
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; } .note { fill: #57606a; }
  .ground { fill: #ffffff; } .other { fill: #8c959f; } .ours { fill: #0969da; }
  .stock { stroke: #57606a; stroke-dasharray: 3 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .note { fill: #9da7b3; } .ground { fill: #0d1117; }
    .other { fill: #6e7681; } .ours { fill: #4493f8; } .stock { stroke: #9da7b3; }
  }
"""


def milliseconds(task: str, system: str, batch: int) -> float:
    """Per sentence, from the result file of a task; one thread.

    Raises:
        ValueError: the file has no such row, or several.
    """
    path = RESULTS / f"rivals-{task}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    (row,) = (
        row
        for row in rows
        if (row["system"], row["batch_size"], row["threads"]) == (system, batch, 1)
    )
    return 1000 * float(row["seconds"]) / int(row["sentences"])


def speedups(task: str, batch: int) -> dict[str, float]:
    """Label of a system -> how many times as fast as stock, same beam and batch."""
    stock = milliseconds(task, STOCK, batch)
    return {label: stock / milliseconds(task, system, batch) for label, system, _ in SYSTEMS}


def panel(task: str, batch: int, left: int, top: int, scale: float) -> Iterator[str]:
    """The bars of one task and batch size; ``scale`` is pixels per one time as fast."""
    start = left + LABELS
    yield f'<text class="title" x="{left}" y="{top + 13}">{TASKS[task]}, batch {batch}</text>'
    for number, (label, speedup) in enumerate(speedups(task, batch).items()):
        y, kind = top + HEAD + number * ROW, SYSTEMS[number][2]
        yield f'<text x="{start - 8}" y="{y + 11}" text-anchor="end">{label}</text>'
        width = speedup * scale
        yield f'<rect class="{kind}" x="{start}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
        yield f'<text x="{start + width + 6:.1f}" y="{y + 11}">{speedup:.1f}</text>'
    x, bottom = start + scale, top + HEAD + len(SYSTEMS) * ROW - 4
    yield f'<line class="stock" x1="{x:.1f}" y1="{top + HEAD - 4}" x2="{x:.1f}" y2="{bottom}"/>'


def chart() -> str:
    """The whole picture as SVG: real text, a title for who cannot see it, light and dark."""
    largest = max(max(speedups(task, batch).values()) for task in TASKS for batch in BATCHES)
    scale = BARS / largest
    height = TOP + len(BATCHES) * (HEAD + len(SYSTEMS) * ROW + GAP)
    width = len(TASKS) * PANEL + 16
    title = "Beam 5: times as fast as stock fairseq in fp32, one CPU thread"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="speed-title">',
        f'<title id="speed-title">{title}</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}" rx="6"/>',
        f'<text class="note" x="16" y="26">{title} (dashed line: 1)</text>',
    ]
    for column, task in enumerate(TASKS):
        for row, batch in enumerate(BATCHES):
            top = TOP + row * (HEAD + len(SYSTEMS) * ROW + GAP)
            parts += panel(task, batch, 16 + column * PANEL, top, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    write_text(CHART, chart())
