"""M2 files: tokenised sentences with the corrections of one or several annotators.

The format of the CoNLL-2013/2014 and BEA-2019 shared tasks and of NLPCC-2018 (Dahlmeier & Ng
2012). A sentence is an ``S`` line followed by one ``A`` line for each edit, and ends at an empty
line::

    S The cat sat at mat .
    A 3 4|||Prep|||on|||REQUIRED|||-NONE-|||0
    A 4 4|||ArtOrDet|||the||a|||REQUIRED|||-NONE-|||0

The fields are the token span (start inclusive, end exclusive), the error type, the correction
(alternatives separated by ``||``, empty or ``-NONE-`` for a deletion), two fields nobody reads, and
the annotator. An annotator who changes nothing has one edit of type ``noop``.

As a command, it writes parallel text:
``python -m scripts.recipes.aggressive.m2 --source X.src --target X.tgt FILE...``
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# Edits that mark an error without saying what the right text is. The script that comes with the
# BEA-2019 corpora leaves the text as it stands at these; the scorer does not look at the type.
UNCORRECTED_TYPES = frozenset({"UNK", "Um"})


class M2Error(ValueError):
    """A line that is not M2; the message starts with the file and the line number."""


@dataclass(frozen=True)
class Edit:
    """Replace the tokens from ``start`` up to ``end`` (exclusive) by one of ``corrections``."""

    start: int
    end: int
    type: str
    corrections: tuple[tuple[str, ...], ...]
    annotator: int


@dataclass(frozen=True)
class AnnotatedSentence:
    """A source sentence and, for each annotator who saw it, the edits sorted by position."""

    tokens: tuple[str, ...]
    annotations: dict[int, tuple[Edit, ...]]

    def corrected(self, annotator: int = 0) -> list[str]:
        """The sentence with the first correction of each of the annotator's edits put in.

        An edit that overlaps an earlier one is left out: no text would satisfy both.
        """
        result: list[str] = []
        position = 0
        for edit in self.annotations.get(annotator, ()):
            if edit.type in UNCORRECTED_TYPES or edit.start < position:
                continue
            result.extend(self.tokens[position : edit.start])
            result.extend(edit.corrections[0])
            position = edit.end
        return result + list(self.tokens[position:])

    def characters(self) -> AnnotatedSentence:
        """The same with every character a token (Chinese without a word segmenter)."""
        offsets = [0]
        for token in self.tokens:
            offsets.append(offsets[-1] + len(token))
        return AnnotatedSentence(
            tuple("".join(self.tokens)),
            {
                annotator: tuple(
                    replace(
                        edit,
                        start=offsets[edit.start],
                        end=offsets[edit.end],
                        corrections=tuple(tuple("".join(c)) for c in edit.corrections),
                    )
                    for edit in edits
                )
                for annotator, edits in self.annotations.items()
            },
        )


def read_m2(path: Path | str) -> Iterator[AnnotatedSentence]:
    """Yield the sentences of an M2 file in order; raise ``M2Error`` at the first malformed line."""
    tokens: tuple[str, ...] | None = None
    edits: dict[int, list[Edit]] = {}
    # newline="\n": learner text holds other line separators, which do not end an M2 line.
    with open(path, encoding="utf-8", newline="\n") as lines:
        for number, raw in enumerate(lines, start=1):
            line = raw.rstrip("\r\n")
            where = f"{path}:{number}"
            if line == "S" or line.startswith("S "):
                if tokens is not None:
                    yield _sentence(tokens, edits)
                tokens, edits = tuple(line[2:].split()), {}
            elif line.startswith("A "):
                if tokens is None:
                    raise M2Error(f"{where}: an A line before any S line: {line!r}")
                edit = _parse_edit(line, len(tokens), where)
                annotated = edits.setdefault(edit.annotator, [])
                if edit.type != "noop":
                    annotated.append(edit)
            elif not line.strip():
                if tokens is not None:
                    yield _sentence(tokens, edits)
                tokens, edits = None, {}
            else:
                raise M2Error(f"{where}: expected an S line, an A line or an empty one: {line!r}")
    if tokens is not None:
        yield _sentence(tokens, edits)


def _sentence(tokens: tuple[str, ...], edits: dict[int, list[Edit]]) -> AnnotatedSentence:
    """A sentence without any A line counts as seen by annotator 0, who found nothing to correct."""
    return AnnotatedSentence(
        tokens,
        {
            annotator: tuple(sorted(edits[annotator], key=lambda edit: (edit.start, edit.end)))
            for annotator in sorted(edits)
        }
        or {0: ()},
    )


def _parse_edit(line: str, n_tokens: int, where: str) -> Edit:
    """Read one A line; an edit without a place in the text (``-1 -1``) becomes a ``noop``."""
    fields = line[2:].split("|||")
    if len(fields) != 6:
        raise M2Error(
            f"{where}: an A line has 6 fields separated by '|||', this one {len(fields)}: {line!r}"
        )
    try:
        start, end = (int(number) for number in fields[0].split())
        annotator = int(fields[5])
    except ValueError:
        raise M2Error(
            f"{where}: the span must be two integers and the annotator one: {line!r}"
        ) from None
    if fields[1] == "noop" or (start, end) == (-1, -1):
        return Edit(-1, -1, "noop", ((),), annotator)
    if not 0 <= start <= end <= n_tokens:
        raise M2Error(
            f"{where}: span {start} {end} is not inside a sentence of {n_tokens} tokens: {line!r}"
        )
    corrections = tuple(
        () if correction.strip() == "-NONE-" else tuple(correction.split())
        for correction in fields[2].split("||")
    )
    return Edit(start, end, fields[1], corrections, annotator)


def parallel_pairs(
    sentences: Iterable[AnnotatedSentence], annotator: int | None = 0, changed_only: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (source, target) lines from one annotator, or from every annotator for ``None``.

    Pairs with an empty side are left out (fairseq cannot train on them), and with ``changed_only``
    those whose two sides are equal. Annotators who agree on a sentence give one pair, not several.
    """
    for sentence in sentences:
        chosen = list(sentence.annotations) if annotator is None else [annotator]
        source = " ".join(sentence.tokens)
        for target in dict.fromkeys(" ".join(sentence.corrected(a)) for a in chosen):
            if source and target and not (changed_only and source == target):
                yield source, target


def main(argv: Sequence[str] | None = None) -> None:
    """Write the sentences of M2 files as parallel text, and say how many there were."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.recipes.aggressive.m2", description=main.__doc__
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="M2 files, read in this order")
    parser.add_argument("--source", required=True, help="output: original sentences, one a line")
    parser.add_argument(
        "--target", help="output: corrected sentences; without it every source is written"
    )
    parser.add_argument(
        "--annotator", default="0", help="whose corrections: a number, or 'all' (default: 0)"
    )
    parser.add_argument(
        "--changed-only", action="store_true", help="leave out pairs with equal sides"
    )
    args = parser.parse_args(argv)
    try:
        if args.target is None:
            n_lines = _write_sources(args.files, Path(args.source))
        else:
            annotator = None if args.annotator == "all" else int(args.annotator)
            n_lines = _write_pairs(args, annotator)
    except (M2Error, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    print(f"{n_lines} lines from {len(args.files)} M2 file(s)")


def _write_sources(files: Sequence[str], source: Path) -> int:
    """Every sentence, empty ones too: these lines stay aligned with the gold annotation."""
    lines = [" ".join(sentence.tokens) for name in files for sentence in read_m2(name)]
    source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return len(lines)


def _write_pairs(args: argparse.Namespace, annotator: int | None) -> int:
    """Stream pairs to the two files (Lang-8 alone has a million)."""
    n_lines = 0
    with (
        open(args.source, "w", encoding="utf-8") as source,
        open(args.target, "w", encoding="utf-8") as target,
    ):
        for name in args.files:
            for left, right in parallel_pairs(read_m2(name), annotator, args.changed_only):
                source.write(left + "\n")
                target.write(right + "\n")
                n_lines += 1
    return n_lines


if __name__ == "__main__":
    main()
