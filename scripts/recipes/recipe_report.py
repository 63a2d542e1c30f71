"""Scores of what a recipe has decoded, with times from its logs: results.json and a table."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text_scores import read_lines

if TYPE_CHECKING:
    from scripts.recipes.aggressive.m2 import AnnotatedSentence

SYSTEM_NAMES = {
    "beam5": "fairseq beam 5",
    "beam1": "fairseq beam 1",
    "greedy": "one by one, cached decoder",
    "iad": "IAD",
}
REFERENCE_SYSTEM = "beam1"  # what lossless decoding must equal
BASELINE_SYSTEM = "beam5"  # what the paper's speed-ups are relative to
ROOT = Path(__file__).resolve().parents[2]


class StepError(ValueError):
    """A message for the user of a recipe."""


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def timing(decoded: Path) -> dict[str, float]:
    """What the logs of a decoding run say.

    ``seconds``: all calls of the generator, without loading, as fairseq-generate reports it;
    ``tokens per iteration``: for the plugin's own decoding.
    """
    logged = (decoded / "log.txt").read_text(encoding="utf-8")
    logged += (decoded / "generate.txt").read_text(encoding="utf-8")
    message = r"Translated ([\d,]+) sentences \(.*\) in ([\d.]+)s \(([\d.]+) sentences/s"
    match = re.search(message, logged)
    if match is None:
        raise StepError(f"{decoded} has no line 'Translated ... sentences'")
    n_sentences, spent, rate = (float(number.replace(",", "")) for number in match.groups())
    # The message rounds seconds to tenths, which is too coarse for a few sentences.
    found = {"seconds": spent if spent >= 10 else n_sentences / rate}
    accepted = re.search(r"decoding summary: .* mean accepted tokens ([\d.]+)", logged)
    if accepted:
        found["tokens per iteration"] = float(accepted[1])
    return found


def report(args: argparse.Namespace) -> None:
    """Score all systems on all sets; write results.json and the table results.md."""
    work = Path(args.work)
    rows = []
    for name, reference in (pair.split("=", 1) for pair in args.sets):
        score = _scorer(args, reference)
        rows += _score_set(args, name, score)
    write(work / "results", args.title, rows)


def _scorer(args: argparse.Namespace, reference: str) -> Any:
    """The function from hypotheses (lines) to a dictionary of percentages."""
    if args.metric == "simplification":
        return _simplification_scorer(read_lines(reference), args.references)
    from scripts.recipes.aggressive.m2 import read_m2

    gold = list(read_m2(reference))
    if args.metric == "gec":
        return _gec_scorer(gold, args.subword_model)
    return _m2_scorer([s.characters() for s in gold] if args.characters else gold, args.characters)


def _m2_scorer(gold: list[AnnotatedSentence], characters: bool) -> Any:
    from scripts.recipes.aggressive.m2_score import corpus_m2

    def score(lines: list[str]) -> dict[str, float]:
        tokens = [list("".join(line.split())) if characters else line.split() for line in lines]
        result = corpus_m2(tokens, gold)
        return {"P": 100 * result.precision, "R": 100 * result.recall, "F0.5": 100 * result.f}

    return score


def _gec_scorer(gold: list[AnnotatedSentence], subword_model: str | None) -> Any:
    """Exact edits against the better annotator and against each alone, MaxMatch, and copying."""
    from scripts.recipes.aggressive.gec_score import score_sentences

    sources = [" ".join(sentence.tokens) for sentence in gold]
    annotators = sorted({annotator for sentence in gold for annotator in sentence.annotations})
    references = [[" ".join(s.corrected(a)) for s in gold] for a in annotators]
    max_match = _m2_scorer(gold, characters=False)

    def score(lines: list[str]) -> dict[str, float]:
        best = score_sentences(sources, lines, references, subword_model)
        views = {"": best}
        for number, reference in enumerate(references, start=1):
            if len(references) > 1:
                views[f" ({number})"] = score_sentences(sources, lines, [reference])
        scores = {}
        for suffix, view in views.items():
            scores |= {f"P{suffix}": 100 * view.precision, f"R{suffix}": 100 * view.recall}
            scores[f"F0.5{suffix}"] = 100 * view.f
        scores["MaxMatch F0.5"] = max_match(lines)["F0.5"]
        unit = "words" if subword_model is None else "pieces"
        scores[f"copied {unit} (%)"] = 100 * best.copied_share
        return scores | {f"mean copied run ({unit})": best.mean_copied_run}

    return score


def _simplification_scorer(sources: list[str], reference_files: Sequence[str]) -> Any:
    import sacrebleu

    from scripts.recipes.aggressive.sari import corpus_sari

    references = [read_lines(name) for name in reference_files]

    def score(lines: list[str]) -> dict[str, float]:
        # The text is tokenised already; SARI folds case, and BLEU must compare the same words.
        bleu = sacrebleu.corpus_bleu(lines, references, lowercase=True, tokenize="none", force=True)
        sari = asdict(corpus_sari(sources, lines, references))
        return {"SARI": 100 * sari["sari"], "BLEU": bleu.score} | {
            f"SARI {name}": 100 * sari[name] for name in ("keep", "delete", "add")
        }

    return score


def _score_set(args: argparse.Namespace, name: str, score: Any) -> list[dict[str, Any]]:
    work = Path(args.work)
    decoded = {system: work / f"decode-{name}-{system}" for system in args.systems}
    lines = {system: read_lines(path / "hypotheses.txt") for system, path in decoded.items()}
    times = {system: timing(path) for system, path in decoded.items()}
    rows = []
    for system, path in decoded.items():
        row: dict[str, Any] = {"set": name, "sentences": len(lines[system]), "system": system}
        row |= times[system]
        if args.metric == "gec":
            row["sentences/s"] = row["sentences"] / row["seconds"]
        if BASELINE_SYSTEM in times:
            row["speed-up"] = times[BASELINE_SYSTEM]["seconds"] / row["seconds"]
        if REFERENCE_SYSTEM in lines:
            pairs = zip(lines[system], lines[REFERENCE_SYSTEM], strict=True)
            row["different"] = sum(a != b for a, b in pairs)
        scored = lines[system]
        if args.hypotheses is not None:
            scored = read_lines(Path(args.hypotheses) / f"{name}-{system}.txt")
        command = (path / "command.txt").read_text().strip().replace(f"{ROOT}/", "")
        rows.append(row | score(scored) | {"command": command})
    return rows


# Column: (key of a row, format); the scores come after these, the differences last.
COLUMNS = {
    "set": ("set", "{}"),
    "sentences": ("sentences", "{}"),
    "decoding": ("system", "{}"),
    "time (s)": ("seconds", "{:.2f}"),
    "speed-up": ("speed-up", "{:.1f}x"),
    "tokens per iteration": ("tokens per iteration", "{:.2f}"),
}
DIFFERENCES = {"differ from beam 1": ("different", "{}")}


def write(output: Path, title: str, rows: Sequence[dict[str, Any]], note: str = "") -> None:
    """Writes OUTPUT.json and OUTPUT.md, a row for each system and set, and prints the page."""
    from fairseq_aggdec.records import machine, results
    from scripts.recipes import tables

    known = {key for key, _ in (COLUMNS | DIFFERENCES).values()} | {"command"}
    scores = {key: (key, "{:.2f}") for key in rows[0] if key not in known}
    columns = COLUMNS | scores | DIFFERENCES
    named = [row | {"system": SYSTEM_NAMES.get(row["system"], row["system"])} for row in rows]
    cells = (
        [form.format(row[key]) if key in row else "" for key, form in columns.values()]
        for row in named
    )
    table = f"{tables.table(list(columns), cells)}\n\n{note}"
    command = machine.command(f"scripts.recipes.{Path(sys.argv[0]).stem}", sys.argv[1:])
    record = results.write_table(output, title, command, table, rows)
    sys.stdout.write(results.page(record, table))
