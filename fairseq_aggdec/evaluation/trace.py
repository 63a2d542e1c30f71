"""The trace of a sentence in the terminal: what was drafted, what stood, what was thrown away.

As running text (IAD paper, Tables 2 and 17), or token by token with the size of each block (Stern et al., section 7.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # and how it writes characters that it does not know


@dataclass
class Piece:
    """Tokens of one kind, as text; ``kind`` is a key of ``STYLES``."""

    text: str
    kind: str


def spell(tokens: Sequence[int], words: Dictionary) -> str:
    """Tokens as text, a space before each word; subword pieces are put together."""
    symbols = [words[token] for token in tokens]
    if not in_pieces(words):
        return "".join(f" {symbol}" for symbol in symbols)
    text = "".join(f" {s}" if s == words.eos_word else s.replace(SPACE, " ") for s in symbols)
    return BYTES.sub(lambda found: from_bytes(found[0]), text)


def in_pieces(words: Dictionary) -> bool:
    """Whether a dictionary is of sentencepiece's pieces."""
    return any(symbol.startswith(SPACE) for symbol in words.symbols)


def from_bytes(pieces: str) -> str:
    """``<0xC3><0xA9>`` -> é."""
    return bytes.fromhex(re.sub("<0x|>", "", pieces)).decode("utf-8", "replace")


def symbols(tokens: Sequence[int], words: Dictionary) -> str:
    """Tokens one by one as the dictionary writes them, a space before each."""
    return "".join(f" {words[token]}" for token in tokens)


def pieces(iteration: Iteration, target: Dictionary, apart: bool = False) -> list[Piece]:
    """One iteration as three kinds of tokens; empty ones are left out. ``apart`` as of :func:`trace`."""
    write = symbols if apart else spell
    parts = (
        (iteration.emitted[: iteration.accepted], ACCEPTED),
        (iteration.emitted[iteration.accepted :], OWN),
        (iteration.drafted[iteration.accepted :], DISCARDED),
    )
    return [Piece(write(tokens, target), kind) for tokens, kind in parts if tokens]


@dataclass
class Trace:
    """A sentence ready to be shown: texts, and per iteration its pieces.

    Attributes:
        gains: tokens gained by each iteration; empty where they are not to be shown.
    """

    source: str
    output: str
    iterations: list[list[Piece]]
    tokens: int
    gains: list[int] = field(default_factory=list)


def trace(record: Record, source: Dictionary, target: Dictionary, apart: bool = False) -> Trace:
    """Puts a record into words.

    Args:
        apart: iterations token by token, with the number gained, instead of as running text.
    """
    return Trace(
        spell(record.source[:-1], source).strip(),
        spell(record.output[:-1], target).strip(),
        [pieces(iteration, target, apart) for iteration in record.iterations],
        len(record.output),
        [len(iteration.emitted) for iteration in record.iterations] if apart else [],
    )


def lines(shown: Trace) -> Iterator[Text]:
    """The trace as coloured lines."""
    yield Text("input   ", style="bold").append(shown.source, style="not bold")
    for number, iteration in enumerate(shown.iterations, start=1):
        line = Text().append(f"{number:>6} ", style="dim")
        if shown.gains:
            line.append(block(shown.gains[number - 1]), style="dim")
        for piece in iteration:
            line.append(piece.text, style=STYLES[piece.kind])
        yield line
    yield Text("output  ", style="bold").append(shown.output, style="not bold")
    rounds = len(shown.iterations)
    yield Text(f"        decoder calls: {rounds}; one token at a time: {shown.tokens}", style="dim")


def block(gained: int) -> str:
    """How many tokens an iteration gained, in a column of its own."""
    return f"{gained:>3} token{'s' if gained > 1 else ' '} "


def show(console: Console, traces: Sequence[Trace]) -> None:
    """Prints traces with a legend."""
    for kind, style in STYLES.items():
        console.print(Text("  ").append(MEANING[kind], style=style))
    for shown in traces:
        console.print()
        for line in lines(shown):
            console.print(line)


def choose(records: Sequence[Record], count: int = 3) -> list[Record]:
    """Sentences worth showing: of middling length, from the fewest iterations to many, edited ones first."""
    by_length = sorted(records, key=lambda record: len(record.output))
    third = len(by_length) // 3
    middling = by_length[third : max(2 * third, third + count)]
    edited = [record for record in middling if len(record.iterations) > 1]
    pool = edited if len(edited) >= count else middling
    by_rounds = sorted(pool, key=lambda record: len(record.iterations))
    # The last tenth is left out: what needs most iterations is rarely a sentence.
    places = [round(i * 0.9 * (len(by_rounds) - 1) / max(1, count - 1)) for i in range(count)]
    return [by_rounds[place] for place in dict.fromkeys(places)]
