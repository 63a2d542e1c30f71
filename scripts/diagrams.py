"""Draws what docs/assets shows of decodings and results: ``drafting.svg`` and ``speed.svg``.

python -m scripts.diagrams [NAME ...]

``drafting`` is a real decoding of the shipped model, ``speed`` is drawn from the result files of ``aggdec bench``. Text
stays text, and colours follow the reader's light or dark mode. The other pictures of docs/assets are drawn by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from html import escape
from pathlib import Path

from fairseq_aggdec.bench.systems import label
from fairseq_aggdec.records.results import write_text
from fairseq_aggdec.report.colours import COLOURS
from scripts.recipes.papers_page import looked_up

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "docs" / "assets"
SHIPPED = ROOT / "checkpoints" / "ua_gec"
SENTENCE = '" Я не є доктор " - сказав я : " Чому вам не піти до лікаря ? " .'
MEANING = "“I am not a doctor,” I said. “Why do you not see a doctor?”"

# Class of a mark -> role in COLOURS.
FILLS = {
    "ink": "ink",
    "muted": "muted",
    "good": "good",
    "bad": "bad",
    "own": "series-2",
    "one": "series-1",
    "two": "series-2",
    "three": "series-3",
    "four": "series-4",
}
# Panel -> its heading, and the section of a result file.
TASKS = {
    "ua_gec": ("Error correction", "rivals-amd.md#rivals-ua_gec-avx2"),
    "multi30k": ("Translation", "rivals-amd.md#rivals-multi30k-avx2"),
}
BATCHES = (1, 8, 32, 128)
# System of the result file, its label, class, whether its line is dashed.
SYSTEMS = (
    ("search5", "ours, fp32", "one", False),
    ("search5-int8", "ours, --int8", "one", True),
    ("ct2-float32-beam5", "CTranslate2, fp32", "two", False),
    ("ct2-int8-beam5", "CTranslate2, int8", "two", True),
)
STOCK = "beam5"


def style() -> str:
    """CSS of all pictures, light and dark."""

    def rules(dark: bool) -> str:
        def colour(role: str) -> str:
            return COLOURS[role][dark]

        return "\n".join(
            [
                f".paper {{ fill: {colour('paper')}; }} .panel {{ fill: {colour('panel')}; }}",
                f".grid {{ stroke: {colour('line')}; fill: none; }}",
                *(
                    f".{name} {{ fill: {colour(role)}; }} .line-{name} {{ stroke: {colour(role)}; fill: none; }}"
                    for name, role in FILLS.items()
                ),
            ]
        )

    fonts = (
        "text { font: 14px system-ui, sans-serif; } .code { font-family: ui-monospace, monospace; }"
    )
    marks = (
        ".bold { font-weight: 600; } .out { text-decoration: line-through; } .small { font-size: 12px; }"
        " .dashed { stroke-dasharray: 5 4; } .thick { stroke-width: 2.5; }"
    )
    return f"{fonts}\n{marks}\n{rules(False)}\n@media (prefers-color-scheme: dark) {{\n{rules(True)}\n}}"


def svg(name: str, title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """A whole picture."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-labelledby="{name}-title">',
            f'<title id="{name}-title">{escape(title)}</title>',
            f"<style>{style()}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "ink", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def bracketed(words: str, wanted: bool) -> str:
    """`` word`` -> `` [word]``: seen without colours too."""
    return f" [{words.strip()}]" if wanted else words


def drafting() -> str:
    """Calls of the decoder for ``SENTENCE``, decoded now by the shipped model with drafts from the source."""
    import fairseq_aggdec
    from fairseq_aggdec.bench.recording import recording
    from fairseq_aggdec.report.trace import ACCEPTED, DISCARDED, OWN, trace

    model = fairseq_aggdec.from_pretrained(
        SHIPPED / "checkpoint.pt",
        SHIPPED,
        decoding="iad",
        draft_tokens="all",
        spm=str(SHIPPED / "spm.model"),
        source_lang="src",
        target_lang="tgt",
        device="cpu",
    )
    words = model.task.source_dictionary, model.task.target_dictionary
    with recording(model.generator, words[0].pad()) as recorder:
        model.decode_tokens([model.tokens(SENTENCE)], [0], 1)
    (shown,) = [trace(one, *words) for one in recorder.records if one.iterations]
    kinds = {ACCEPTED: "good", OWN: "own bold", DISCARDED: "muted out"}
    parts = [text(16, 28, "input", "muted"), text(84, 28, shown.source, "ink code")]
    parts.append(text(84, 48, MEANING, "muted small"))
    for number, pieces in enumerate(shown.iterations):
        y = 82 + 28 * number
        spans = "".join(
            f'<tspan class="{kinds[piece.kind]}">{escape(bracketed(piece.text, piece.kind == OWN))}</tspan>'
            for piece in pieces
        )
        parts += [text(16, y, f"call {number + 1}", "muted")]
        parts += [f'<text class="code" x="84" y="{y}" xml:space="preserve">{spans.lstrip()}</text>']
    y = 82 + 28 * len(shown.iterations)
    parts += [text(16, y, "output", "muted"), text(84, y, shown.output, "ink code")]
    legend = (
        ("good", "drafted and accepted", 84),
        ("own bold", "[the model's own token]", 250),
        ("muted out", "drafted and thrown away", 450),
    )
    parts += [text(x, y + 30, words, f"{kind} small") for kind, words, x in legend]
    counted = f"{shown.steps} calls of the decoder instead of {shown.tokens}"
    title = f"A corrector of Ukrainian copies its input as a draft: {counted}"
    parts.append(text(84, y + 54, counted, "ink bold"))
    return svg("drafting", title, 760, y + 70, parts)


def speedup(task: str, system: str, batch: int) -> float:
    """Stock fairseq's seconds per sentence divided by a system's, beam 5, one thread."""
    place = TASKS[task][1]

    def milliseconds(name: str) -> float:
        title = f"batch {batch}, 1 thread"
        return float(looked_up(f"results/{place}", title, label(name), "ms / sentence", place))

    return milliseconds(STOCK) / milliseconds(system)


def speed_panel(task: str, left: float) -> Iterator[str]:
    """Lines of all systems for one task over batch sizes; the y axis is in times as fast as stock."""
    top, bottom, most, step = 56, 256, 15, 90

    def place(number: int, value: float) -> tuple[float, float]:
        return left + 30 + step * number, bottom - (bottom - top) * value / most

    yield text(left, 28, TASKS[task][0], "ink bold")
    for value in (1, 5, 10, 15):
        _, y = place(0, value)
        yield line(left + 24, y, left + 30 + step * 3 + 8, y, "grid")
        yield text(left + 16, y + 4, str(value), "muted small", "end")
    for number, batch in enumerate(BATCHES):
        yield text(place(number, 0)[0], bottom + 18, f"{batch}", "muted small", "middle")
    yield text(left + 165, bottom + 38, "sentences per batch", "muted small", "middle")
    for system, _, kind, dashed in SYSTEMS:
        points = [
            place(number, speedup(task, system, batch)) for number, batch in enumerate(BATCHES)
        ]
        written = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        mark = " dashed" if dashed else ""
        yield f'<polyline class="line-{kind} thick{mark}" points="{written}"/>'
        yield from (
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in points
        )


def speed() -> str:
    """Times as fast as stock fairseq with the same beam and batch size."""
    parts = [
        part for number, task in enumerate(TASKS) for part in speed_panel(task, 20 + 380 * number)
    ]
    for number, (_, words, kind, dashed) in enumerate(SYSTEMS):
        x = 36 + 180 * number
        parts.append(line(x, 322, x + 34, 322, f"line-{kind} thick{' dashed' if dashed else ''}"))
        parts.append(text(x + 42, 326, words, "ink small"))
    title = "Times as fast as stock fairseq (1), beam 5, one CPU thread, by batch size"
    parts.append(text(20, 354, title, "muted small"))
    return svg("speed", title, 760, 370, parts)


PICTURES: dict[str, Callable[[], str]] = {
    "drafting": drafting,
    "speed": speed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="pictures (all)")
    for name in parser.parse_args().names or PICTURES:
        write_text(ASSETS / f"{name}.svg", PICTURES[name]())


if __name__ == "__main__":
    main()
