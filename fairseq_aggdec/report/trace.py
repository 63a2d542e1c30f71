"""The trace of a sentence in the terminal: what was drafted, what was accepted, what was discarded.

As running text (Ge et al., Table 2), with drafter and verifier beside each other (Table 17), or token by token with the
size of each block (Stern et al., section 7.4).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from fairseq.data import Dictionary
from rich.console import Console
from rich.text import Text

from fairseq_aggdec.bench.recording import Iteration, Record

COMMITTED, ACCEPTED, RELAXED = "committed", "accepted", "relaxed"
OWN, DISCARDED = "own", "discarded"


class TokenKind(NamedTuple):
    """Tells how tokens of one kind are shown; the report has CSS classes of the same names.

    Attributes:
        style: of rich.
        meaning: for the legend.
        marks: before and after the text where there are no colours, in a file or a pipe.
    """

    style: str
    meaning: str
    marks: tuple[str, str] = ("", "")


KINDS = {
    COMMITTED: TokenKind("dim", "committed before"),
    ACCEPTED: TokenKind("green", "drafted and accepted: decoded in parallel"),
    RELAXED: TokenKind(
        "blue underline",
        "drafted and accepted, though the verifier would have written another token",
        ("(", ")"),
    ),
    OWN: TokenKind(
        "bold yellow", "the verifier's own token, where the draft ended or failed", ("[", "]")
    ),
    DISCARDED: TokenKind("strike dim", "drafted or predicted, and thrown away", ("~", "~")),
}
SPACE = "\u2581"  # sentencepiece's mark of a word's beginning
BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # and how it writes characters that it does not know


@dataclass
class Piece:
    """Tokens of one kind, as text.

    Attributes:
        kind: a key of ``KINDS``.
    """

    text: str
    kind: str

    @property
    def marked(self) -> str:
        """The text with a mark around what is in it."""
        left, right = KINDS[self.kind].marks
        words = self.text.lstrip()
        return f"{self.text[: len(self.text) - len(words)]}{left}{words}{right}"


def spell(tokens: Sequence[int], words: Dictionary) -> str:
    """Tokens as text, a space before each word; subword pieces are put together."""
    symbols = [words[token] for token in tokens]
    if not in_pieces(words):
        return "".join(f" {symbol}" for symbol in symbols)
    text = "".join(f" {s}" if s == words.eos_word else s.replace(SPACE, " ") for s in symbols)
    return BYTES.sub(lambda match: from_bytes(match[0]), text)


def in_pieces(words: Dictionary) -> bool:
    """Tells whether a dictionary is of sentencepiece's pieces."""
    return any(symbol.startswith(SPACE) for symbol in words.symbols)


def from_bytes(pieces: str) -> str:
    """``<0xC3><0xA9>`` -> é; what is no character, such as half of one, stays as it is."""
    try:
        return bytes.fromhex(re.sub("<0x|>", "", pieces)).decode("utf-8")
    except UnicodeDecodeError:
        return pieces


def symbols(tokens: Sequence[int], words: Dictionary) -> str:
    """Tokens one by one as the dictionary writes them, a space before each."""
    return "".join(f" {words[token]}" for token in tokens)


def pieces(iteration: Iteration, target: Dictionary, apart: bool = False) -> list[Piece]:
    """Pieces that an iteration gained and what it threw away; ``apart`` as of :func:`trace`."""
    marked = [
        *_accepted(iteration),
        *((token, OWN) for token in iteration.emitted[iteration.accepted :]),
    ]
    return _join([*marked, *_discarded(iteration)], symbols if apart else spell, target)


def drafter_and_verifier(
    iteration: Iteration, committed: Sequence[int], target: Dictionary
) -> tuple[list[Piece], list[Piece]]:
    """Lines D and V of Table 17: what was drafted, and the verifier's choice at every position, after the prefix.

    Of V stands what is the output: the accepted tokens that were its own choice too, and its correction token. What it
    would have written after ``</s>`` is left out.
    """
    emitted, accepted = iteration.emitted, iteration.accepted
    before = [(token, COMMITTED) for token in committed]
    kinds = [
        OWN if place >= accepted else ACCEPTED if token == choice else DISCARDED
        for place, (token, choice) in enumerate(zip(emitted, iteration.predicted, strict=False))
    ]
    predicted = list(zip(iteration.predicted, kinds, strict=False))
    if emitted[-1] != target.eos():
        predicted += [(token, DISCARDED) for token in iteration.predicted[len(emitted) :]]
    drafted = [*_accepted(iteration), *_discarded(iteration)]
    return _join([*before, *drafted], spell, target), _join([*before, *predicted], spell, target)


def _accepted(iteration: Iteration) -> list[tuple[int, str]]:
    """The accepted tokens with their kinds."""
    tokens = iteration.emitted[: iteration.accepted]
    return [
        (token, ACCEPTED if token == predicted else RELAXED)
        for token, predicted in zip(tokens, iteration.predicted, strict=False)
    ]


def _discarded(iteration: Iteration) -> list[tuple[int, str]]:
    return [(token, DISCARDED) for token in iteration.drafted[iteration.accepted :]]


def _join(
    marked: Sequence[tuple[int, str]],
    write: Callable[[Sequence[int], Dictionary], str],
    target: Dictionary,
) -> list[Piece]:
    """Tokens with their kinds -> a piece for each run of one kind."""
    return [
        Piece(write([token for token, _ in run], target), kind)
        for kind, run in groupby(marked, key=lambda item: item[1])
    ]


@dataclass
class Trace:
    """A sentence ready to be shown: texts, and per iteration its pieces.

    Attributes:
        gains: tokens gained by each iteration; empty where they are not to be shown.
        verified: the verifier's line of each iteration, where ``iterations`` are the drafter's; else empty.
    """

    source: str
    output: str
    iterations: list[list[Piece]]
    tokens: int
    gains: list[int] = field(default_factory=list)
    verified: list[list[Piece]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Calls of the decoder."""
        return len(self.iterations)

    @property
    def readable(self) -> bool:
        """Tells whether all of it is text: no unknown words, no halves of characters."""
        pieces = [piece.text for line in (*self.iterations, *self.verified) for piece in line]
        return not any("<unk>" in text or BYTES.search(text) for text in (self.source, *pieces))


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


def trace_beside(record: Record, source: Dictionary, target: Dictionary) -> Trace:
    """Puts a record into words with a line of the drafter and one of the verifier for each iteration."""
    traced, committed = trace(record, source, target), list[int]()
    traced.iterations = []
    for iteration in record.iterations:
        drafted, predicted = drafter_and_verifier(iteration, committed, target)
        traced.iterations.append(drafted)
        traced.verified.append(predicted)
        committed += iteration.emitted
    return traced


def legend(traces: Sequence[Trace]) -> dict[str, str]:
    """Kind -> meaning, of the kinds that occur."""
    all_lines = (line for trace in traces for line in (*trace.iterations, *trace.verified))
    kinds = {piece.kind for line in all_lines for piece in line}
    return {name: kind.meaning for name, kind in KINDS.items() if name in kinds}


def lines(trace: Trace, marked: bool = False) -> Iterator[Text]:
    """The trace as coloured lines; ``marked`` with marks for where there are no colours."""
    yield Text("input   ", style="bold").append(trace.source, style="not bold")
    for number, iteration in enumerate(trace.iterations, start=1):
        line = Text().append(f"{number:>6} ", style="dim")
        if trace.gains:
            line.append(block(trace.gains[number - 1]), style="dim")
        if trace.verified:
            line.append("D", style="dim")
        yield _coloured(line, iteration, marked)
        if trace.verified:
            yield _coloured(Text("       V", style="dim"), trace.verified[number - 1], marked)
    yield Text("output  ", style="bold").append(trace.output, style="not bold")
    yield Text(
        f"        decoder calls: {trace.steps}; one token at a time: {trace.tokens}", style="dim"
    )


def _coloured(line: Text, pieces: Sequence[Piece], marked: bool) -> Text:
    for piece in pieces:
        line.append(piece.marked if marked else piece.text, style=KINDS[piece.kind].style)
    return line


def block(gained: int) -> str:
    """Tells how many tokens an iteration gained, in a column of its own."""
    return f"{gained:>3} token{'s' if gained > 1 else ' '} "


def show(console: Console, traces: Sequence[Trace]) -> None:
    """Prints traces with a legend, with marks where the console has no colours."""
    marked = console.color_system is None
    for kind, meaning in legend(traces).items():
        console.print(_coloured(Text("  "), [Piece(meaning, kind)], marked))
    for trace in traces:
        console.print()
        for line in lines(trace, marked):
            console.print(line)
