"""Steps of wmt_data.sh: from the files of a data set (``wmt_sets.py``) to subwords.

Called by the shell scripts beside it; ``wmt_steps.py STEP --help`` says what a step needs. Subwords are BPE by
sentencepiece, joint for both languages, learnt on text that is normalised and tokenised as Moses does it.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import multiprocessing
import re
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from wmt_sets import SETS, SPLITS, Corpus, DataSet, Download, StepError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

CHUNK = 1000  # lines that a process tokenises at once


def text_file(folder: Path, split: str, language: str) -> Path:
    """Text before it is cut into subwords."""
    return folder / f"{split}.raw.{language}"


# -- what to download


def plan(args: argparse.Namespace) -> None:
    """Print a line for each download: ``archive NAME URL`` or ``sacrebleu SET SPLIT``.

    Raises:
        StepError: files that have to be asked for are not in RAW.
    """
    data_set, raw = SETS[args.set], Path(args.raw)
    absent: dict[str, Download] = {}
    for split in SPLITS:
        downloads = [file for corpus in data_set.corpora(split) for file in corpus.downloads]
        missing = [file for file in downloads if not (raw / file.name).exists()]
        if missing and data_set.sacrebleu_set(split):
            print("sacrebleu", data_set.sacrebleu_set(split), split)
        else:
            absent |= {file.name: file for file in missing}
    asked = [a for a in absent.values() if not a.url]
    if asked:
        names = "\n".join(f"  {a.name}\n      {a.access}" for a in asked)
        raise StepError(
            f"{len(asked)} files of {args.set} need a licence and are not in {raw}:\n{names}"
        )
    for file in absent.values():
        print("archive", file.name, file.url)


def check(args: argparse.Namespace) -> None:
    """Read an archive to its end: what is cut short or damaged fails its checksum."""
    path = Path(args.archive)
    try:
        _read_to_the_end(path)
    except (EOFError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise StepError(f"{path} is damaged or incomplete ({error}); delete it") from error


def _read_to_the_end(path: Path) -> None:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise zipfile.BadZipFile(f"checksum of {archive.testzip()}")
    elif path.name.removesuffix(".partial").endswith((".gz", ".tgz")):
        with gzip.open(path) as stream:
            while stream.read(1 << 20):
                pass
    else:
        with tarfile.open(path) as tar:
            tar.getmembers()


# -- from archives to text


def text(args: argparse.Namespace) -> None:
    """Write the pairs of all corpora as ``SPLIT.raw.LANGUAGE``; a sentence a line."""
    data_set, raw, output = SETS[args.set], Path(args.raw), Path(args.output)
    for split in SPLITS:
        files = [text_file(output, split, language) for language in data_set.languages]
        with ExitStack() as stack:
            outputs = [stack.enter_context(open(f, "w", encoding="utf-8")) for f in files]
            for corpus in data_set.corpora(split):
                _copy_pairs(corpus, raw, data_set, outputs)


def _copy_pairs(corpus: Corpus, raw: Path, data_set: DataSet, outputs: list[IO[str]]) -> None:
    names = [corpus.members.format(language) for language in data_set.languages]
    paths = [raw / corpus.downloads[i % len(corpus.downloads)].name for i in range(2)]
    with ExitStack() as stack:
        sides = [
            _sentences(name or path.name, stack.enter_context(_opened(path, name)))
            for path, name in zip(paths, names, strict=True)
        ]
        for pair in zip_longest(*sides):
            if None in pair:
                raise StepError(
                    f"{paths[0]}: {names[0] or paths[0].name} and its translation differ in length"
                )
            for line, file in zip(pair, outputs, strict=True):
                file.write(line + "\n")


@contextmanager
def _opened(path: Path, pattern: str) -> Iterator[IO[bytes]]:
    """The bytes of a file, or of the one member of an archive whose name, without folders, is like ``pattern``."""
    with ExitStack() as stack:
        stream: IO[bytes]
        if not pattern:
            name, stream = path.name, stack.enter_context(open(path, "rb"))
        elif zipfile.is_zipfile(path):
            archive = stack.enter_context(zipfile.ZipFile(path))
            name = _member(path, archive.namelist(), pattern)
            stream = stack.enter_context(archive.open(name))
        else:
            tar = stack.enter_context(tarfile.open(path))
            name = _member(path, tar.getnames(), pattern)
            stream = stack.enter_context(_extracted(tar, name))
        if name.endswith(".gz"):
            stream = stack.enter_context(gzip.open(stream))
        yield stream


def _extracted(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    stream = tar.extractfile(name)
    if stream is None:
        raise StepError(f"{tar.name}: {name} is not a file")
    return stream


def _member(path: Path, names: Iterable[str], pattern: str) -> str:
    found = [name for name in names if fnmatch(name.rsplit("/", 1)[-1], pattern)]
    if len(found) != 1:
        raise StepError(f"{path} has {len(found)} files {pattern}, expected one")
    return found[0]


def _sentences(name: str, lines: Iterable[bytes]) -> Iterator[str]:
    """Text of a file; of IWSLT's formats what fairseq's script takes: of training talks titles and descriptions too."""
    for line in lines:
        sentence = " ".join(line.decode("utf-8").split())
        if name.endswith(".xml"):
            segment = re.fullmatch(r"<seg id=\"\d+\">(.*)</seg>", sentence)
            if segment is None:
                continue
            sentence = segment[1].strip()
        elif name.startswith("train.tags.") and sentence.startswith("<"):
            field = re.fullmatch(r"<(title|description)>(.*)</\1>", sentence)
            if field is None:
                continue
            sentence = field[2].strip()
        yield sentence


# -- from text to tokens

# Cedillas where a comma below is right, as old keyboards had it: the same word is written in two ways else.
ROMANIAN = str.maketrans("\u015e\u015f\u0162\u0163", "\u0218\u0219\u021a\u021b")


def tokenise(args: argparse.Namespace) -> None:
    """Normalise punctuation and tokenise as Moses does; the same file names in another folder."""
    data_set, folder, output = SETS[args.set], Path(args.text), Path(args.output)
    with multiprocessing.Pool(args.workers) as pool:
        for split in SPLITS:
            for language in data_set.languages:
                function = partial(_tokenised, language, data_set)
                path = text_file(folder, split, language)
                with (
                    open(path, encoding="utf-8", newline="\n") as lines,
                    open(text_file(output, split, language), "w", encoding="utf-8") as file,
                ):
                    for line in pool.imap(function, lines, chunksize=CHUNK):
                        file.write(line + "\n")
    if data_set.held_out:
        _hold_out(output, data_set)


def _hold_out(folder: Path, data_set: DataSet) -> None:
    """Cleans the training pairs by their tokens, then makes every n-th of those left validation text.

    As fairseq's script for IWSLT14 has it, but for their limit; ``counts.json`` says how many were left out.
    """
    files = [text_file(folder, "train", language) for language in data_set.languages]
    sides = [file.read_text(encoding="utf-8").split("\n")[:-1] for file in files]
    counts: Counter[str] = Counter()
    kept = []
    for pair in zip(*sides, strict=True):
        fault = fault_of(len(pair[0].split()), len(pair[1].split()), data_set)
        counts[f"train, {fault or 'kept'}"] += 1
        if not fault:
            kept.append(pair)
    held = kept[data_set.held_out - 1 :: data_set.held_out]
    del kept[data_set.held_out - 1 :: data_set.held_out]
    most = min(data_set.validation or len(held), len(held))
    valid = [held[number * len(held) // most] for number in range(most)]
    for side, language in enumerate(data_set.languages):
        for split, pairs in (("train", kept), ("valid", valid)):
            with open(text_file(folder, split, language), "w", encoding="utf-8") as file:
                file.writelines(pair[side] + "\n" for pair in pairs)
    _write_counts(folder, counts)


def _write_counts(folder: Path, counts: Mapping[str, int]) -> None:
    (folder / "counts.json").write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


def _tokenised(language: str, data_set: DataSet, line: str) -> str:
    tokens = moses(language)(line.strip()) if data_set.moses else line.strip()
    return tokens.lower() if data_set.lowercase else tokens


@cache
def moses(language: str) -> Callable[[str], str]:
    """The function from text to tokens with spaces between them; entities are left as characters."""
    import sacremoses

    normaliser = sacremoses.MosesPunctNormalizer(language)
    tokeniser = sacremoses.MosesTokenizer(language)

    letters = ROMANIAN if language == "ro" else {}

    def tokenised(line: str) -> str:
        text = normaliser.normalize(line).translate(letters)
        tokens: str = tokeniser.tokenize(text, escape=False, return_str=True)
        return tokens

    return tokenised


# -- from tokens to subwords


def _lines(folder: Path, languages: Iterable[str]) -> Iterator[str]:
    """The training text of one language after the other, without ends of lines."""
    for language in languages:
        with open(text_file(folder, "train", language), encoding="utf-8") as file:
            for line in file:
                yield line.removesuffix("\n")


def subwords(args: argparse.Namespace) -> None:
    """Learn one sentencepiece model from both sides of the training text and encode all of it.

    Training pairs that are empty, too long or of too different lengths, in pieces, are left out, but where they were
    cleaned before (``held_out``); ``counts.json`` says how many.
    """
    import sentencepiece

    data_set, folder, output = SETS[args.set], Path(args.text), Path(args.output)
    size = args.vocabulary or data_set.vocabulary
    settings: dict[str, Any] = {}
    if data_set.kind == "bpe":
        # Tokens are normalised already; a character seen once is a piece of its own.
        settings = {"normalization_rule_name": "identity", "character_coverage": 1.0}
    model_bytes = io.BytesIO()
    # Not by file names: the model would hold them, and with them the folders of this machine.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_lines(folder, sorted(data_set.languages)),
        model_writer=model_bytes,
        model_type=data_set.kind,
        vocab_size=size,
        hard_vocab_limit=False,
        input_sentence_size=10_000_000,
        minloglevel=2,
        **settings,
    )
    (output / "spm.model").write_bytes(model_bytes.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_proto=model_bytes.getvalue())
    counts: Counter[str] = Counter()
    for split in SPLITS:
        limits = data_set if split == "train" and not data_set.held_out else None
        _encode(
            model,
            [text_file(folder, split, x) for x in data_set.languages],
            output,
            split,
            limits,
            counts,
        )
    _write_counts(output, counts)
    if not counts["train, kept"]:
        raise StepError(f"{folder}: no training pair is left of {sum(counts.values())}")


def _encode(
    model: SentencePieceProcessor,
    files: list[Path],
    output: Path,
    split: str,
    limits: DataSet | None,
    counts: Counter[str],
) -> None:
    with ExitStack() as stack:
        sides = [stack.enter_context(open(f, encoding="utf-8", newline="\n")) for f in files]
        outputs = [
            stack.enter_context(open(output / f"{split}{f.suffix}", "w", encoding="utf-8"))
            for f in files
        ]
        for pair in zip(*sides, strict=True):
            pieces = [model.encode(line.strip(), out_type=str) for line in pair]
            fault = limits and fault_of(len(pieces[0]), len(pieces[1]), limits)
            counts[f"{split}, {fault or 'kept'}"] += 1
            if not fault:
                for line, file in zip(pieces, outputs, strict=True):
                    file.write(" ".join(line) + "\n")


def fault_of(source: int, target: int, limits: DataSet) -> str:
    """Why a training pair of these lengths is left out; ``""`` if it is not."""
    if not source or not target:
        return "empty"
    if limits.max_length and max(source, target) > limits.max_length:
        return "too long"
    if limits.max_ratio and max(source, target) > limits.max_ratio * min(source, target):
        return "of too different lengths"
    return ""


# -- command line


def build_parser() -> argparse.ArgumentParser:
    """One sub-command for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(required=True, metavar="STEP")

    def add(step: Callable[[argparse.Namespace], None], *flags: str) -> argparse.ArgumentParser:
        command = steps.add_parser(step.__name__, help=step.__doc__, description=step.__doc__)
        command.set_defaults(step=step)
        for flag in flags:
            command.add_argument(flag, required=True)
        return command

    add(check).add_argument("archive")
    commands = {
        step: add(step, *flags)
        for step, flags in (
            (plan, ("--raw",)),
            (text, ("--raw", "--output")),
            (tokenise, ("--text", "--output")),
            (subwords, ("--text", "--output")),
        )
    }
    for command in commands.values():
        command.add_argument("set", choices=sorted(SETS))
    commands[tokenise].add_argument("--workers", type=int, default=1)
    commands[subwords].add_argument("--vocabulary", type=int, help="pieces (default: the paper's)")
    return parser


def main() -> None:
    args = build_parser().parse_args()
    try:
        args.step(args)
    except (ValueError, OSError) as error:  # ours name file and what is wrong with it
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
