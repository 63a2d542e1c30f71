"""The table of a translation or summarisation recipe: quality, speed and steps of all systems."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import recipe_report
import text_scores
from subwords import decoder
from wmt_sets import SETS

Score = Callable[[list[str]], dict[str, float]]


def translation_scorer(args: argparse.Namespace) -> tuple[Score, str]:
    """sacreBLEU on text and the papers' BLEU on tokens; sacreBLEU's signature."""
    data_set = SETS[args.set]
    references = text_scores.read_lines(args.reference)
    reference_tokens = text_scores.read_lines(args.reference_tokens)
    detokenise = detokeniser(args.language) if data_set.moses else str
    if data_set.lowercase:
        references = [line.lower() for line in references]
    # Text that came in tokens is compared in tokens.
    tokenize = None if data_set.moses or args.set.startswith("multi30k") else "none"
    _, signature = text_scores.sacre_bleu(references, references, tokenize)

    def score(tokens: list[str]) -> dict[str, float]:
        text = [detokenise(line) for line in tokens]
        return {
            "sacreBLEU": text_scores.sacre_bleu(text, references, tokenize)[0],
            "compound-split BLEU": text_scores.compound_bleu(tokens, reference_tokens)[0],
        }

    return score, f"sacreBLEU signature: {signature}"


def detokeniser(language: str) -> Callable[[str], str]:
    import sacremoses

    moses = sacremoses.MosesDetokenizer(language)
    return lambda line: str(moses.detokenize(line.split()))


def summary_scorer(args: argparse.Namespace) -> tuple[Score, str]:
    references = text_scores.read_lines(args.reference)
    note = "ROUGE: rouge-score, F1, Porter's stemmer; ROUGE-L over sentences."
    commands = [Path(args.work, one.split("=")[0], "command.txt") for one in args.systems]
    if any("--no-repeat-ngram-size" in path.read_text(encoding="utf-8") for path in commands):
        note += (
            " Stock fairseq without its CUDA extension ignores --no-repeat-ngram-size, so its outputs differ from "
            "ours, which enforces it."
        )
    return lambda summaries: text_scores.rouge(summaries, references), note


def rows(args: argparse.Namespace, score: Score) -> list[dict[str, Any]]:
    """A row per system; speed-ups are over the first, differences from ``--oracle``."""
    work, decode = Path(args.work), decoder(args.subwords)
    systems = dict(item.split("=", 1) for item in args.systems)
    pieces = {name: text_scores.generated(work / name / "generate.txt") for name in systems}
    times = {name: recipe_report.timing(work / name) for name in systems}
    baseline = times[next(iter(systems))]["seconds"]
    found = []
    for name, label in systems.items():
        row: dict[str, Any] = {"set": "test", "sentences": len(pieces[name]), "system": label}
        row |= times[name] | {"speed-up": baseline / times[name]["seconds"]}
        row |= score([decode(line) for line in pieces[name]])
        if args.oracle is not None and name != args.oracle:
            pairs = zip(pieces[name], pieces[args.oracle], strict=True)
            row["different"] = sum(a != b for a, b in pairs)
        command = (work / name / "command.txt").read_text(encoding="utf-8").strip()
        found.append(row | {"command": command.replace(f"{recipe_report.ROOT}/", "")})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, help="folder of the decoding stages")
    parser.add_argument("--title", required=True)
    parser.add_argument(
        "--system", dest="systems", action="append", required=True, metavar="STAGE=LABEL"
    )
    parser.add_argument("--subwords", required=True, help="sentencepiece model, @@, or gpt2:FOLDER")
    parser.add_argument("--reference", required=True, help="text")
    parser.add_argument("--reference-tokens", help="the same, tokenised")
    parser.add_argument("--set", choices=sorted(SETS), help="of wmt_data.sh; summaries without")
    parser.add_argument("--language", help="of the target")
    parser.add_argument(
        "--oracle", metavar="STAGE", help="count sentences that differ from this one's"
    )
    parser.add_argument("--output", required=True, help="OUTPUT.md and OUTPUT.json")
    args = parser.parse_args(arguments)
    try:
        score, note = translation_scorer(args) if args.set else summary_scorer(args)
        recipe_report.write(Path(args.output), args.title, rows(args, score), note)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
