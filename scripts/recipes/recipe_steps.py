"""Steps of the recipes that are more than a command line: subwords, hypotheses, scores, the table.

Called by the shell scripts beside it; ``recipe_steps.py STEP --help`` says what a step needs.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_aggdec.data.m2 import AnnotatedSentence

# Steps import what they need themselves: the package brings all of fairseq along (seconds), which
# a recipe of twenty steps need not wait for each time.

SYSTEM_NAMES = {
    "beam5": "fairseq beam 5",
    "beam1": "fairseq beam 1",
    "greedy": "one by one, cached decoder",
    "iad": "IAD",
}
REFERENCE_SYSTEM = "beam1"  # what lossless decoding must equal
BASELINE_SYSTEM = "beam5"  # what the paper's speed-ups are relative to
ENCODING_BATCH = 10_000  # lines
ROOT = Path(__file__).resolve().parents[2]


class StepError(ValueError):
    """A message for the user of a recipe."""


def read_lines(path: Path | str) -> list[str]:
    """Lines of a text file; only a newline ends one."""
    with open(path, encoding="utf-8", newline="\n") as lines:
        return [line.rstrip("\r\n") for line in lines]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


# -- subwords


def subwords(args: argparse.Namespace) -> None:
    """Learn one sentencepiece model from both sides of the training text; encode all of the text.

    Characters never seen in training are spelt in bytes, so that every text survives the round
    trip and nothing is unknown to the models.
    """
    import sentencepiece

    text, output = Path(args.text), Path(args.output)
    for split in ("train", "valid"):
        _check_parallel(text / f"{split}.src", text / f"{split}.tgt")
    trained_on = (line for side in ("src", "tgt") for line in read_lines(text / f"train.{side}"))
    model_bytes = io.BytesIO()
    # Not by file names: the model would hold them, and with them the folders of this machine.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=trained_on,
        model_writer=model_bytes,
        model_type=args.kind,
        vocab_size=args.size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=args.kind == "bpe",
        input_sentence_size=10_000_000,
        num_threads=1,
        minloglevel=2,
    )
    (output / "spm.model").write_bytes(model_bytes.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_file=str(output / "spm.model"))
    _write_dictionary(model, output / "dict.txt")
    for path in sorted(text.glob("*.src")):
        target = path.with_suffix(".tgt")
        _encode(model, path, output / path.name)
        # A set to decode has no target; fairseq-preprocess wants one, and nobody reads it.
        _encode(model, target if target.exists() else path, output / target.name)


def encode(args: argparse.Namespace) -> None:
    """Encode files with a model learnt before."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=args.model)
    for pair in args.files:
        name, path = pair.split("=", 1)
        _encode(model, Path(path), Path(args.output) / name)
    for split in ("train", "valid"):
        _check_parallel(Path(args.output) / f"{split}.src", Path(args.output) / f"{split}.tgt")


def _check_parallel(source: Path, target: Path) -> None:
    with open(source, "rb") as left, open(target, "rb") as right:
        sizes = [sum(1 for _ in file) for file in (left, right)]
    if sizes[0] != sizes[1]:
        raise StepError(f"{source} has {sizes[0]} lines, but {target} has {sizes[1]}")
    if not sizes[0]:
        raise StepError(f"{source} is empty")


def _write_dictionary(model: Any, path: Path) -> None:
    """Fairseq's dictionary: all pieces, those too that the training text does not show."""
    pieces = [
        model.id_to_piece(i)
        for i in range(model.get_piece_size())
        if not (model.is_control(i) or model.is_unknown(i))
    ]
    write_lines(path, [f"{piece} 1" for piece in pieces])


def _encode(model: Any, source: Path, output: Path) -> None:
    with (
        open(source, encoding="utf-8", newline="\n") as lines,
        open(output, "w", encoding="utf-8") as encoded,
    ):
        for batch in _batches(lines, ENCODING_BATCH):
            for pieces in model.encode(batch, out_type=str):
                encoded.write(" ".join(pieces) + "\n")


def _batches(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for line in lines:
        batch.append(line.rstrip("\r\n"))
        if len(batch) == size:
            yield batch
            batch = []
    yield batch


# -- data sets


def corrections(args: argparse.Namespace) -> None:
    """Write M2 files as text: pairs to train on and to validate with, sources to decode."""
    from fairseq_aggdec.data import m2

    output = Path(args.output)
    for split, files, annotator in (
        ("train", args.train, args.annotator),
        ("valid", args.valid, "0"),
    ):
        names = ["--source", str(output / f"{split}.src"), "--target", str(output / f"{split}.tgt")]
        m2.main([*names, "--annotator", annotator, *files])
    for name, path in (pair.split("=", 1) for pair in args.sets):
        m2.main(["--source", str(output / f"{name}.src"), path])


def nlpcc(args: argparse.Namespace) -> None:
    """Write NLPCC-2018 as text without spaces: the training lines, some held out, and the test set.

    A training line is ``number TAB n TAB sentence TAB n corrections``; with n = 0 the sentence is
    right. Lines whose n is not the number of corrections are left out and counted.
    """
    from fairseq_aggdec.data.m2 import read_m2

    groups, skipped = _nlpcc_groups(args.train)
    random.Random(args.seed).shuffle(groups)
    # Whole lines are held out, so that no validation sentence is trained on in another correction.
    valid: list[tuple[str, str]] = []
    while groups and len(valid) < args.valid_size:
        valid += groups.pop()
    if not groups:
        raise StepError(f"{args.train}: nothing is left to train on beside {len(valid)} held out")
    output = Path(args.output)
    for split, pairs in (("train", [pair for group in groups for pair in group]), ("valid", valid)):
        write_lines(output / f"{split}.src", [source for source, _ in pairs])
        write_lines(output / f"{split}.tgt", [target for _, target in pairs])
        print(f"{split}: {len(pairs)} pairs")
    write_lines(output / "test.src", ["".join(s.tokens) for s in read_m2(args.gold)])
    print(f"{skipped} training lines with another number of corrections than they say, left out")


def _nlpcc_groups(path: str) -> tuple[list[list[tuple[str, str]]], int]:
    groups, skipped = [], 0
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.rstrip("\t").split("\t")
        if len(fields) < 3 or not fields[1].strip().isdigit():
            raise StepError(f"{path}:{number}: expected number, count, sentence, corrections")
        source, *targets = ("".join(text.split()) for text in fields[2:])
        if int(fields[1]) != len(targets):
            skipped += 1
        elif source and all(targets):
            groups.append([(source, target) for target in targets or [source]])
    return groups, skipped


def lowercase(args: argparse.Namespace) -> None:
    """Copy a text in lower case."""
    with (
        open(args.source, encoding="utf-8", newline="\n") as lines,
        open(args.output, "w", encoding="utf-8") as output,
    ):
        for line in lines:
            output.write(line.rstrip("\r\n").lower() + "\n")


# -- decoding and scores


def hypotheses(args: argparse.Namespace) -> None:
    """Plain text from the H- lines of fairseq-generate, in the order of the source."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=args.model)
    found = {}
    for line in read_lines(Path(args.generated) / "generate.txt"):
        if line.startswith("H-"):
            identifier, _, pieces = line.split("\t", 2)
            found[int(identifier[2:])] = model.decode(pieces.split())
    n_sources = len(read_lines(args.source))
    missing = [number for number in range(n_sources) if number not in found]
    if missing or len(found) != n_sources:
        raise StepError(
            f"{len(found)} hypotheses for {n_sources} sentences; missing: {missing[:10]}"
        )
    write_lines(Path(args.output), [found[number] for number in range(n_sources)])


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
    result = {"title": args.title, "machine": machine(), "rows": rows}
    (work / "results.json").write_text(
        json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    table = format_table(result)
    (work / "results.md").write_text(table, encoding="utf-8")
    sys.stdout.write(table)


def _scorer(args: argparse.Namespace, reference: str) -> Any:
    """The function from hypotheses (lines) to a dictionary of percentages."""
    if args.metric == "simplification":
        return _simplification_scorer(read_lines(reference), args.references)
    from fairseq_aggdec.data.m2 import read_m2

    gold = list(read_m2(reference))
    if args.metric == "gec":
        return _gec_scorer(gold, args.subword_model)
    return _m2_scorer([s.characters() for s in gold] if args.characters else gold, args.characters)


def _m2_scorer(gold: list[AnnotatedSentence], characters: bool) -> Any:
    from fairseq_aggdec.evaluation.m2_score import corpus_m2

    def score(lines: list[str]) -> dict[str, float]:
        tokens = [list("".join(line.split())) if characters else line.split() for line in lines]
        result = corpus_m2(tokens, gold)
        return {"P": 100 * result.precision, "R": 100 * result.recall, "F0.5": 100 * result.f}

    return score


def _gec_scorer(gold: list[AnnotatedSentence], subword_model: str | None) -> Any:
    """Exact edits against the better annotator and against each alone, MaxMatch, and copying."""
    from fairseq_aggdec.evaluation.gec_score import score_sentences

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

    from fairseq_aggdec.evaluation.sari import corpus_sari

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


def machine() -> dict[str, Any]:
    """Where the times were taken."""
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


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


def format_table(result: dict[str, Any]) -> str:
    """Markdown: one row for each system and set."""
    rows = result["rows"]
    known = {key for key, _ in (COLUMNS | DIFFERENCES).values()} | {"command"}
    scores = {key: (key, "{:.2f}") for key in rows[0] if key not in known}
    columns = COLUMNS | scores | DIFFERENCES
    lines = [f"# {result['title']}", "", _row(list(columns)), "|---" * len(columns) + "|"]
    for row in rows:
        named = row | {"system": SYSTEM_NAMES.get(row["system"], row["system"])}
        cells = columns.values()
        lines.append(_row([form.format(named[key]) if key in row else "" for key, form in cells]))
    lines += ["", ", ".join(f"{key}: {value}" for key, value in result["machine"].items()), ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# -- command line


def build_parser() -> argparse.ArgumentParser:
    """One sub-command for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(required=True, metavar="STEP")

    def add(step: Any) -> argparse.ArgumentParser:
        command = steps.add_parser(step.__name__, help=step.__doc__, description=step.__doc__)
        command.set_defaults(step=step)
        return command

    command = add(subwords)
    command.add_argument("--text", required=True)
    command.add_argument("--output", required=True)
    command.add_argument("--kind", choices=("bpe", "char"), default="bpe")
    command.add_argument("--size", type=int, required=True, help="most pieces in the vocabulary")
    command = add(encode)
    command.add_argument("--model", required=True)
    command.add_argument("--output", required=True)
    command.add_argument("files", nargs="+", metavar="NAME=FILE")
    command = add(corrections)
    command.add_argument("--train", nargs="+", required=True, metavar="M2")
    command.add_argument("--valid", nargs="+", required=True, metavar="M2")
    command.add_argument("--set", dest="sets", action="append", default=[], metavar="NAME=M2")
    command.add_argument("--annotator", default="0", help="of the training data; or 'all'")
    command.add_argument("--output", required=True)
    command = add(nlpcc)
    command.add_argument("--train", required=True)
    command.add_argument("--gold", required=True)
    command.add_argument("--valid-size", type=int, required=True, help="pairs")
    command.add_argument("--seed", type=int, required=True)
    command.add_argument("--output", required=True)
    command = add(lowercase)
    command.add_argument("source")
    command.add_argument("output")
    command = add(hypotheses)
    command.add_argument("--generated", required=True, help="folder with generate.txt")
    command.add_argument("--model", required=True)
    command.add_argument("--source", required=True, help="the text that was decoded")
    command.add_argument("--output", required=True)
    command = add(report)
    command.add_argument("--work", required=True)
    command.add_argument("--title", required=True)
    command.add_argument("--systems", nargs="+", required=True)
    command.add_argument("--metric", choices=("m2", "gec", "simplification"), required=True)
    command.add_argument("--set", dest="sets", action="append", required=True, metavar="NAME=FILE")
    command.add_argument("--characters", action="store_true", help="M2 over characters")
    command.add_argument("--subword-model", help="gec: count what is copied in its pieces")
    command.add_argument("--references", nargs="+", default=[], help="simplification references")
    command.add_argument("--hypotheses", help="folder of NAME-SYSTEM.txt to score instead")
    return parser


def main() -> None:
    args = build_parser().parse_args()
    try:
        args.step(args)
    except (ValueError, OSError) as error:  # ours and those of the readers name file and line
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
