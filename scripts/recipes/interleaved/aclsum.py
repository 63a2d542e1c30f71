"""ACLSum (Takeshita et al. 2024, MIT) from its PyPI package into the text that ``interleaved_summaries.sh`` reads.

    pip install --no-deps aclsum
    python -m scripts.recipes.interleaved.aclsum --output DATA

writes ``{train,val,test}.{source,target}``. People have summarised the challenge, the approach and the outcome of 250
papers in a sentence each, 300 for training. A source is the sentences of the paper that they marked for that. So few
summaries train a bad summariser: the table is for times, and for a recipe on data that people wrote.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SPLITS = ("train", "val", "test")


def folder() -> Path:
    """Where the package has its data; the package itself is not imported, which needs another one."""
    found = importlib.util.find_spec("aclsum")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("error: the package aclsum is not installed: pip install --no-deps aclsum")
    return Path(next(iter(found.submodule_search_locations))) / "dataset"


def pairs(paper: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Marked sentences and the summary, for each aspect of a paper that has both."""
    for aspect, summary in paper["summary"].items():
        marks = paper["highlights"][aspect]
        marked = [
            " ".join(sentence.split())
            for section, sentences in paper["sentences"].items()
            for sentence, mark in zip(sentences, marks[section], strict=True)
            if mark
        ]
        if marked and summary.split():
            yield " ".join(marked), " ".join(summary.split())


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DATA", help="is made")
    output = parser.parse_args(given).output
    data = folder()
    output.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        lines = (data / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        found = [pair for line in lines for pair in pairs(json.loads(line))]
        for side, texts in zip(("source", "target"), zip(*found, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in texts)
            (output / f"{split}.{side}").write_text(text, encoding="utf-8")
        print(f"{split}: {len(found)} summaries")


if __name__ == "__main__":
    main()
