"""The trace of a sentence in the terminal: what was drafted, where it stood, what was thrown away (paper, Table 2, 17)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairseq.data import Dictionary
from rich.console import Console
from rich.text import Text

from fairseq_aggdec.evaluation.recording import Iteration, Record

ACCEPTED, OWN, DISCARDED = "accepted", "own", "discarded"
# Of rich; the report has the same names as CSS classes.
STYLES = {ACCEPTED: "green", OWN: "bold red", DISCARDED: "strike dim"}
MEANING = {
    ACCEPTED: "drafted and accepted: decoded in parallel",
    OWN: "the verifier's own token, where the draft ended or failed",
    DISCARDED: "drafted and thrown away",
}
SPACE = "\u2581"  # sentencepiece's mark of a word's beginning


@dataclass
class Piece:
    """Tokens of one kind, as text; ``kind`` is a key of ``STYLES``."""

    text: str
    kind: str


def spell(symbols: Sequence[str]) -> str:
    """Subword pieces with word boundaries shown as spaces; other tokens with a space between them."""
    if any(symbol.startswith(SPACE) for symbol in symbols):
        return "".join(symbols).replace(SPACE, " ").strip(" ") or " "
    return " ".join(symbols)


def pieces(iteration: Iteration, target: Dictionary) -> list[Piece]:
    """One iteration as three kinds of tokens; empty ones are left out."""
    parts = (
        (iteration.emitted[: iteration.accepted], ACCEPTED),
        (iteration.emitted[iteration.accepted :], OWN),
        (iteration.drafted[iteration.accepted :], DISCARDED),
    )
    return [
        Piece(spell([target[token] for token in tokens]), kind) for tokens, kind in parts if tokens
    ]


@dataclass
class Trace:
    """A sentence ready to be shown: texts, and per iteration its pieces."""

    source: str
    output: str
    iterations: list[list[Piece]]
    tokens: int

    @property
    def tokens_per_iteration(self) -> float:
        return self.tokens / max(1, len(self.iterations))


def trace(record: Record, source: Dictionary, target: Dictionary) -> Trace:
    """Puts a record into words."""
    return Trace(
        spell([source[token] for token in record.source[:-1]]),
        spell([target[token] for token in record.output[:-1]]),
        [pieces(iteration, target) for iteration in record.iterations],
        len(record.output),
    )


def lines(shown: Trace) -> Iterator[Text]:
    """The trace as coloured lines."""
    yield Text("input   ", style="bold") + Text(shown.source, style="default")
    for number, iteration in enumerate(shown.iterations, start=1):
        line = Text(f"{number:>6}  ", style="dim")
        for piece in iteration:
            line.append(piece.text, style=STYLES[piece.kind])
            line.append(" ")
        yield line
    yield Text("output  ", style="bold") + Text(shown.output, style="default")
    yield Text(
        f"        {shown.tokens} tokens in {len(shown.iterations)} iterations, one by one it is {shown.tokens}",
        style="dim",
    )


def show(console: Console, traces: Sequence[Trace]) -> None:
    """Prints traces with a legend."""
    console.print(Text("  ").join(Text(MEANING[kind], style=STYLES[kind]) for kind in STYLES))
    for shown in traces:
        console.print()
        for line in lines(shown):
            console.print(line, soft_wrap=False)


def choose(records: Sequence[Record], count: int = 3) -> list[Record]:
    """Sentences worth showing: of middling length, and among them a copied, an edited and a much edited one."""
    by_length = sorted(records, key=lambda record: len(record.output))
    middling = by_length[
        len(by_length) // 3 : max(len(by_length) * 2 // 3, len(by_length) // 3 + 1)
    ]
    by_rounds = sorted(middling, key=lambda record: len(record.iterations))
    places = [round(i * 0.9 * (len(by_rounds) - 1) / max(1, count - 1)) for i in range(count)]
    return [by_rounds[place] for place in dict.fromkeys(places)]
