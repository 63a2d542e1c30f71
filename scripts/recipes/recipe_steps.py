"""Steps of the recipes that are more than a command line: subwords, data sets, hypotheses; ``recipe_report.py`` scores.

Called by the shell scripts beside it; ``recipe_steps.py STEP --help`` says what a step needs.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recipe_report import StepError, report, write_lines
from text_scores import generated, read_lines

# Steps import what they need themselves: the package brings all of fairseq along (seconds), which
# a recipe of twenty steps need not wait for each time.

ENCODING_BATCH = 10_000  # lines


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
    from scripts.recipes.aggressive import m2

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
    from scripts.recipes.aggressive.m2 import read_m2

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
    found = generated(Path(args.generated) / "generate.txt")
    if len(found) != (wanted := len(read_lines(args.source))):
        raise StepError(f"{len(found)} hypotheses for {wanted} sentences")
    write_lines(Path(args.output), [model.decode(pieces.split()) for pieces in found])


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
