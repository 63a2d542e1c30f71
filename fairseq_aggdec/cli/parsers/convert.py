"""Convert a model of Hugging Face transformers to a fairseq checkpoint with dictionaries and subword model.

    aggdec convert Helsinki-NLP/opus-mt-en-de en-de         downloads it first, into the cache of huggingface_hub
    aggdec convert opus-mt-en-de en-de
    aggdec convert m2m100_418M m2m --source-lang en --target-lang fr

    aggdec convert nat-drafter.pt drafter                    a published drafter of generalized aggressive decoding

Marian (OPUS-MT), M2M100, NLLB, BART, mBART and mBART-50 are read. The commands that decode with the result are printed.
"""

import argparse
from pathlib import Path

from fairseq_aggdec.cli.parsers import number
from fairseq_aggdec.cli.parsers.files import refuse_taken
from fairseq_aggdec.startup.installing import is_name_of_hub


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "folder",
        metavar="MODEL",
        help="folder with config.json, weights, tokenizer; or OWNER/MODEL, a name of the hub; or a published drafter",
    )
    add("output", type=Path, metavar="OUT", help="a new folder")
    add("--source-lang", metavar="CODE", help="as the model names it")
    add("--target-lang", metavar="CODE", help="as the model names it")
    add("--block-size", type=number(1), metavar="K", help="of a drafter whose file does not say it")
    add(
        "--int8",
        action="store_true",
        help="write OUT/int8 too: packed weights in 8 bits, as aggdec pack does",
    )


def check(args: argparse.Namespace) -> None:
    """Refuses files that are not there, and outputs that are."""
    refuse_taken(args.output)
    if not is_name_of_hub(args.folder) and not Path(args.folder).exists():
        raise FileNotFoundError(args.folder)
