"""``aggdec-generate --input-file BIG --output-file OUT``: raw text of any size, by any number of workers.

Every other option is that of fairseq-interactive and of the plugin, and so is the output (its ``D-`` lines): text is
cut by --tokenizer and --bpe as there, and joined again. DATA is the folder of the dictionaries.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig

from fairseq_aggdec.api.session import REFUSED, Session, generation_parser, refuse_ignored
from fairseq_aggdec.api.text import Codec
from fairseq_aggdec.api.translator import Translator
from fairseq_aggdec.bulk import text, translation
from fairseq_aggdec.bulk.relevant import (
    MAX_TOKENS,
    FilesBefore,
    refuse_clocked_drafts,
    relevant_options,
    text_options,
)
from fairseq_aggdec.bulk.translation import NAME, BulkPlaces, LineTranslator
from fairseq_aggdec.jobs import workers
from fairseq_aggdec.jobs.job import NOTES, BulkError, Job
from fairseq_aggdec.jobs.options import add_shard_size
from fairseq_aggdec.methods.refusing import refuse_no_batch, refuse_senseless

OPTIONS = ("--input-file", "--output-file")
ALSO_REFUSED = {
    "constraints": "the lines of a text have none",
    "print_alignment": "it is for the text that fairseq-generate prints",
    "prefix_size": "a text has no targets",
    "lm_path": "the model alone writes",
    "model_overrides": "the model is what its checkpoint says",
}


def is_wanted(arguments: list[str]) -> bool:
    """Tells whether a command line of aggdec-generate asks for a text file, not for a set of DATA."""
    return any(argument.split("=")[0] in OPTIONS for argument in arguments)


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    add_options(parser)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("text files").add_argument
    lines = "a sentence a line; .gz is read as such"
    add("--input-file", type=Path, required=True, metavar="FILE", help=lines)
    add(
        "--output-file",
        type=Path,
        required=True,
        metavar="FILE",
        help="a line for each; OUT.jsonl: JSON lines with --nbest hypotheses; .gz is written as such. "
        "It is there when it is complete; until then progress is kept in FILE.parts",
    )
    add_shard_size(parser)


def help_text() -> str:
    """The options that are ours, for ``aggdec-generate --help``."""
    parser = argparse.ArgumentParser(
        "aggdec-generate DATA", description=__doc__.split("\n")[0], add_help=False
    )
    add_options(parser)
    return parser.format_help()


def check(cfg: DictConfig, places: BulkPlaces) -> None:
    """Refuses options that contradict each other, or would make the output depend on the clock."""
    generation = cfg.generation
    refuse_clocked_drafts(cfg)
    refuse_no_batch(cfg.dataset.batch_size, cfg.dataset.max_tokens)
    refuse_senseless(generation)
    if not 1 <= generation.nbest <= generation.beam:
        raise BulkError(f"--nbest {generation.nbest}: it must be 1 to --beam, {generation.beam}")
    if generation.nbest > 1 and not places.json_lines:
        raise BulkError(
            f"--nbest {generation.nbest}: several outputs for a line are written as JSON lines: name the output *.jsonl"
        )
    if not cfg.common_eval.path:
        raise BulkError("--path: name the checkpoint of a model")


def make_translator(session: Session) -> Translator:
    """Builds what the command line names, as fairseq-interactive builds it."""
    cfg, task = session.cfg, session.task
    generator, _ = session.generator(str(cfg.task.decoding), cfg.generation.beam)
    codec = Codec(task.build_tokenizer(cfg.tokenizer), task.build_bpe(cfg.bpe))
    joined = cfg.common_eval.post_process
    made = Translator(task, session.models, generator, codec, cfg.generation.nbest, joined)
    made.language_support.tags = (
        set()
    )  # fairseq leaves out the target's alone, which its generator knows
    return made


def make_header(
    session: Session, index: text.Index, places: BulkPlaces, files: FilesBefore
) -> dict[str, Any]:
    """Collects what the output depends on: two processes with equal headers write equal outputs."""
    paths = [Path(path) for path in utils.split_paths(session.cfg.common_eval.path)]
    job_options = {
        "device": "cuda" if session.cuda else "cpu",
        "nbest": session.cfg.generation.nbest,
        "shard_size": index.shard_size,
        "json_lines": places.json_lines,
    }
    task = session.task
    dictionaries = [task.source_dictionary.symbols, task.target_dictionary.symbols]
    return {
        "model": [files.digest([path]) for path in paths],
        "data": hashlib.sha256(json.dumps(dictionaries).encode()).hexdigest(),
        "--input-file": index.sha256,
        "options": relevant_options(session, files) | text_options(session, files) | job_options,
        "sentences": index.lines,
        "shards": index.shards,
        NOTES: {"model": [path.name for path in paths], "input": str(places.source)},
    }


def main(arguments: list[str]) -> None:
    """Translates; ``arguments`` are those of the command line."""
    sys.argv = ["aggdec-generate", *arguments]
    args = options.parse_args_and_arch(parser := build_parser(), input_args=arguments)
    refuse_ignored(parser, args, REFUSED | ALSO_REFUSED)
    cfg = convert_namespace_to_omegaconf(args)
    places = BulkPlaces(args.input_file, args.output_file)
    check(cfg, places)
    places.check()
    workers.begin(cfg.common.cpu)
    index = text.make_index(places.source, args.shard_size)
    source = text.Text(
        places.source, index
    )  # now: another worker may end while the model is loaded
    files = FilesBefore(cfg)
    session = Session(build_parser(), arguments, data=False, always_draft=False)
    translator = make_translator(session)
    job = Job(places.parts, NAME, make_header(session, index, places, files))
    job.begin()
    batch_size, max_tokens = cfg.dataset.batch_size, cfg.dataset.max_tokens
    if batch_size is None and max_tokens is None:
        max_tokens = MAX_TOKENS
    skip = cfg.dataset.skip_invalid_size_inputs_valid_test
    longest = cfg.task.max_source_positions if cfg.task.truncate_source else None
    translate = LineTranslator(translator, batch_size, max_tokens, skip, places.json_lines, longest)
    translation.work(job, places, source, translate, cfg.common.seed)


if __name__ == "__main__":
    main(sys.argv[1:])
