"""Synthetic errors: clean text -> text with mistakes, to pre-train a corrector (section 4.1 of Ge et al. does so too).

    python -m scripts.recipes.aggressive.synthetic_errors --clean train.tgt --pairs train.src train.tgt --copies 4
    --output DIR/train

writes ``DIR/train.src`` (with errors) and ``DIR/train.tgt`` (clean). Errors are spelling slips inside words, endings
and words that the given pairs show to be confused, dropped, doubled and swapped words, punctuation and capitals.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rapidfuzz.distance import Levenshtein

from fairseq_aggdec.data.lines import read_lines

Confusions = Mapping[str, Sequence[str]]

PUNCTUATION = frozenset(",.;:!?-–—\"'«»“”()")


def learn_confusions(
    sources: Sequence[str], targets: Sequence[str], least: int = 1
) -> dict[str, list[str]]:
    """Corrected word -> the wrong forms seen in its place, each as often as it was seen (sampling follows frequency).

    A wrong form may be the empty string: the word was missing. Only replacements of one word by one and single missing
    words count.
    """
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for source, target in zip(sources, targets, strict=True):
        wrong, right = source.split(), target.split()
        for edit in Levenshtein.opcodes(wrong, right):
            if (
                edit.tag == "replace"
                and edit.src_end - edit.src_start == edit.dest_end - edit.dest_start
            ):
                for old, new in zip(
                    wrong[edit.src_start : edit.src_end],
                    right[edit.dest_start : edit.dest_end],
                    strict=True,
                ):
                    seen[new][old] += 1
            elif edit.tag == "insert" and edit.dest_end - edit.dest_start == 1:
                seen[right[edit.dest_start]][""] += 1
    return {
        word: sorted(form for form, times in forms.items() if times >= least for _ in range(times))
        for word, forms in seen.items()
    }


def misspell(word: str, letters: str, rng: random.Random) -> str:
    """One slip inside a word: a letter dropped, doubled, replaced or swapped with the next."""
    at = rng.randrange(len(word))
    kind = rng.randrange(4)
    if kind == 0 and len(word) > 2:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at] + word[at:]
    if kind == 2 and at + 1 < len(word):
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + rng.choice(letters) + word[at + 1 :]


def corrupt(
    sentence: str, rate: float, confusions: Confusions, letters: str, rng: random.Random
) -> str:
    """A sentence with errors in about ``rate`` of its words (whitespace tokens); never empty."""
    words = sentence.split()
    output: list[str] = []
    for word in words:
        if rng.random() >= rate:
            output.append(word)
        else:
            output += _corrupt_word(word, confusions, letters, rng)
    if len(output) > 2 and rng.random() < rate:
        at = rng.randrange(len(output) - 1)
        output[at], output[at + 1] = output[at + 1], output[at]
    return " ".join(output) or sentence


def _corrupt_word(word: str, confusions: Confusions, letters: str, rng: random.Random) -> list[str]:
    forms = confusions.get(word)
    if forms and rng.random() < 0.6:
        return rng.choice(forms).split()
    kind = rng.random()
    if word in PUNCTUATION or kind < 0.15:
        return []
    if kind < 0.25:
        return [word, rng.choice([",", word])]
    if kind < 0.40:
        return [word.lower() if word[0].isupper() else word.capitalize()]
    return [misspell(word, letters, rng)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clean",
        type=Path,
        required=True,
        help="text without errors, tokenised, one sentence a line",
    )
    parser.add_argument(
        "--pairs",
        type=Path,
        nargs=2,
        metavar=("SRC", "TGT"),
        help="real errors to learn confusions from",
    )
    parser.add_argument("--copies", type=int, default=1, help="noised copies of the text")
    parser.add_argument("--rate", type=float, default=0.1, help="share of words with an error")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--output", required=True, help="prefix of the two files to write, .src and .tgt"
    )
    args = parser.parse_args(arguments)
    clean = read_lines(args.clean)
    confusions: Confusions = {}
    if args.pairs:
        sources, targets = map(read_lines, args.pairs)
        if len(sources) != len(targets):
            raise SystemExit(
                f"error: --pairs have {len(sources)} and {len(targets)} lines, they must match"
            )
        confusions = learn_confusions(sources, targets)
    letters = "".join(
        sorted({letter for line in clean for letter in line.lower() if letter.isalpha()})
    )
    rng = random.Random(args.seed)
    with (
        open(f"{args.output}.src", "w", encoding="utf-8") as noisy,
        open(f"{args.output}.tgt", "w", encoding="utf-8") as right,
    ):
        for _ in range(args.copies):
            for sentence in clean:
                # The rate itself varies, so that the model meets nearly clean and badly broken sentences.
                rate = args.rate * 2 * rng.random()
                noisy.write(corrupt(sentence, rate, confusions, letters, rng) + "\n")
                right.write(sentence + "\n")


if __name__ == "__main__":
    main()
