"""UA-GEC (Syvokon et al., CC BY 4.0) from its PyPI package into aligned sentence files.

    python -m scripts.recipes.aggressive.ua_gec --output DIR [--layer gec-only] [--valid-documents 60]

writes ``{train,valid}.{src,tgt}``, and for the test set ``test.src`` with one reference per annotator,
``test.tgt`` (annotator 1) and ``test.tgt2``. Text is the tokenised form that the package ships, one sentence a line.

``--sample 200`` writes ``sample.{src,tgt,tgt2}`` instead: whole test documents up to about that many sentences, none
of those that the corpus marks as sensitive. ``--limit 50`` keeps the first 50 sentences of every set, to try things.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_aggdec.startup import installing

Pair = tuple[str, str]


def load_documents(partition: str, layer: str) -> list[Any]:
    """The package's documents of ``train`` or ``test``; ``layer`` is ``gec-only`` or ``gec-fluency``."""
    try:
        from ua_gec import AnnotationLayer, Corpus
    except ImportError as error:
        raise SystemExit(
            f"error: the package ua-gec is not installed: {installing.advice('ua_gec')}"
        ) from error
    return list(Corpus(partition, AnnotationLayer(layer)))


def sentence_pairs(document: Any) -> list[Pair]:
    """(source, corrected) sentences of a document; pairs with an empty side are left out."""
    sources = document.source_sentences_tokenized
    targets = document.target_sentences_tokenized
    if len(sources) != len(targets):
        raise ValueError(
            f"document {document.doc_id}: {len(sources)} source but {len(targets)} corrected sentences"
        )
    stripped = (
        (source.strip(), target.strip()) for source, target in zip(sources, targets, strict=True)
    )
    return [(source, target) for source, target in stripped if source and target]


def split_documents(
    documents: Sequence[Any], held_out: int, seed: int
) -> tuple[list[Any], list[Any]]:
    """(train, validation): ``held_out`` document ids drawn at random, all annotations of a document on one side."""
    ids = sorted({document.doc_id for document in documents})
    chosen = set(random.Random(seed).sample(ids, held_out))
    return (
        [document for document in documents if document.doc_id not in chosen],
        [
            document
            for document in documents
            if document.doc_id in chosen and document.meta.annotator_id == 1
        ],
    )


def aligned_annotations(documents: Sequence[Any]) -> list[tuple[str, str, str]]:
    """(source, annotator 1, annotator 2) sentences of the documents that both annotators corrected."""
    by_annotator: dict[int, dict[str, Any]] = {1: {}, 2: {}}
    for document in documents:
        by_annotator[document.meta.annotator_id][document.doc_id] = document
    triples = []
    for doc_id in sorted(by_annotator[1].keys() & by_annotator[2].keys()):
        first, second = by_annotator[1][doc_id], by_annotator[2][doc_id]
        rows = zip(
            first.source_sentences_tokenized,
            first.target_sentences_tokenized,
            second.source_sentences_tokenized,
            second.target_sentences_tokenized,
            strict=True,
        )
        for source, corrected, other_source, other in rows:
            if source != other_source:
                raise ValueError(
                    f"document {doc_id}: the annotators saw different sources: {source!r}, {other_source!r}"
                )
            if source.strip():
                triples.append(
                    (
                        source.strip(),
                        corrected.strip() or source.strip(),
                        other.strip() or source.strip(),
                    )
                )
    return triples


def sample_documents(documents: Sequence[Any], sentences: int, seed: int) -> list[Any]:
    """All annotations of documents drawn at random until they have so many sentences, none marked as sensitive."""
    lengths = {
        document.doc_id: len(document.source_sentences_tokenized)
        for document in documents
        if not document.meta.is_sensitive
    }
    chosen: set[str] = set()
    found = 0
    for doc_id in random.Random(seed).sample(sorted(lengths), len(lengths)):
        # Long documents would leave room for few others.
        if found < sentences and lengths[doc_id] <= max(sentences // 10, 1):
            chosen.add(doc_id)
            found += lengths[doc_id]
    return [document for document in documents if document.doc_id in chosen]


def write_columns(
    folder: Path, split: str, suffixes: Sequence[str], rows: Iterable[Sequence[str]]
) -> int:
    """One file per column, one row a line; returns the number of rows."""
    columns = list(zip(*rows, strict=True))
    for suffix, lines in zip(suffixes, columns, strict=True):
        (folder / f"{split}.{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(columns[0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--layer", choices=["gec-only", "gec-fluency"], default="gec-only")
    parser.add_argument(
        "--valid-documents", type=int, default=60, help="documents held out for validation"
    )
    parser.add_argument(
        "--sample", type=int, metavar="SENTENCES", help="write only a sample of the test set"
    )
    parser.add_argument(
        "--limit", type=int, metavar="SENTENCES", help="write no more than these of each set"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    args.output.mkdir(parents=True, exist_ok=True)
    test, name = load_documents("test", args.layer), "test"
    if args.sample is not None:
        test, name = sample_documents(test, args.sample, args.seed), "sample"
    rows = aligned_annotations(test)[: args.limit]
    print(name, write_columns(args.output, name, ("src", "tgt", "tgt2"), rows), "sentences")
    if args.sample is not None:
        return
    train, valid = split_documents(
        load_documents("train", args.layer), args.valid_documents, args.seed
    )
    for split, documents in (("train", train), ("valid", valid)):
        pairs = [pair for document in documents for pair in sentence_pairs(document)][: args.limit]
        print(split, write_columns(args.output, split, ("src", "tgt"), pairs), "sentences")


if __name__ == "__main__":
    main()
