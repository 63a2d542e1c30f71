"""``aggdec distill``: replaces the targets of a data folder by what a teacher writes."""

import argparse
import logging
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig

from fairseq_aggdec.api.session import REFUSED, Session, refuse_ignored
from fairseq_aggdec.bulk.relevant import (
    MAX_TOKENS,
    FilesBefore,
    refuse_clocked_drafts,
    relevant_options,
)
from fairseq_aggdec.cli.parsers import whole_parser
from fairseq_aggdec.distill import distillation, output_folder, shards
from fairseq_aggdec.distill.distillation import DistillationError, Output
from fairseq_aggdec.distill.merging import data_folder, is_merged, merge
from fairseq_aggdec.jobs import workers
from fairseq_aggdec.jobs.claims import claim, turn
from fairseq_aggdec.jobs.job import NOTES, BulkError, Job, UnfinishedError
from fairseq_aggdec.search.errors import NonFiniteError
from fairseq_aggdec.stored.loading import CheckpointError
from fairseq_aggdec.stored.progress import passing

logger = logging.getLogger("fairseq_aggdec.distill")

SHARDS, MERGE = output_folder.SHARDS, "merge"
ALSO_REFUSED = {
    "nbest": "the best output alone is written",
    "lm_path": "the teacher alone writes",
    "model_overrides": "the teacher is what its checkpoint says",
}


def build_parser() -> argparse.ArgumentParser:
    parser = whole_parser("distill")
    # Collating is nothing beside decoding, and a process that is killed leaves no loader behind.
    parser.set_defaults(gen_subset="train", num_workers=0)
    return parser


# -- decoding


def check_teacher(cfg: DictConfig) -> None:
    refuse_clocked_drafts(cfg)
    if not cfg.common_eval.path:
        raise DistillationError("--path: name the teacher's checkpoint")
    for path in utils.split_paths(cfg.common_eval.path):
        if not Path(path).is_file():
            raise DistillationError(f"--path: there is no file {path}")


def make_batches(session: Session, subset: str) -> list[list[int]]:
    """Sentence numbers of every batch, the same list for every shard: stock batching, longest first.

    Longest first: where memory does not suffice, it shows at once.
    """
    options = session.cfg.dataset
    dataset = session.task.dataset(subset)
    longest, _ = utils.resolve_max_positions(
        session.task.max_positions(), *(model.max_positions() for model in session.models)
    )
    max_tokens = options.max_tokens
    if max_tokens is None and options.batch_size is None:
        max_tokens = MAX_TOKENS
    refuse_small_batches(dataset, longest, max_tokens)
    batches = session.task.get_batch_iterator(
        dataset=dataset,
        max_tokens=max_tokens,
        max_sentences=options.batch_size,
        max_positions=(longest, sys.maxsize),  # the reference may have any length
        ignore_invalid_inputs=True,
        seed=session.cfg.common.seed,
        disable_iterator_cache=True,
    ).frozen_batches
    return [[int(number) for number in batch] for batch in reversed(batches)]


def refuse_small_batches(dataset: Any, longest: int, max_tokens: int | None) -> None:
    sizes = dataset.num_tokens_vec(np.flatnonzero(dataset.src_sizes <= longest))
    if max_tokens is not None and sizes.max(initial=0) > max_tokens:
        raise DistillationError(
            f"--max-tokens {max_tokens} is less than the longest sentence, {sizes.max()} tokens"
        )


def make_header(
    session: Session, subset: str, batches: list[list[int]], beam: int, files: FilesBefore
) -> dict[str, Any]:
    """Collects what the outputs depend on: two processes with equal headers write equal outputs; ``beam`` is the
    generator's."""
    cfg = session.cfg
    teachers = [Path(path) for path in utils.split_paths(cfg.common_eval.path)]
    sentences = len(session.task.dataset(subset))
    batched = {number for batch in batches for number in batch}
    job_options = {
        "device": "cuda" if session.cuda else "cpu",
        "beam": beam,
        "shard_size": session.args.shard_size,
    }
    return {
        "teacher": [files.digest([path]) for path in teachers],
        "data": files.digest(data_folder(cfg).files(subset)),
        "options": relevant_options(session, files) | job_options,
        "order of sentences": shards.order_digest(batches),
        "subset": subset,
        "sentences": sentences,
        "too_long": sorted(set(range(sentences)) - batched),
        "batches": len(batches),
        "shards": min(len(batches), -(-sentences // session.args.shard_size)),
        NOTES: {"teacher": [path.name for path in teachers]},
    }


def decode(session: Session, subset: str, files: FilesBefore) -> None:
    """Works on a subset until all of it is decoded, here or elsewhere."""
    if subset != session.cfg.dataset.gen_subset:
        session.task.load_dataset(subset, task_cfg=session.saved.task)
    cfg = session.cfg
    generator, _ = session.generator(str(cfg.task.decoding), cfg.generation.beam)
    batches = make_batches(session, subset)
    header = make_header(session, subset, batches, generator.beam_size, files)
    job = Job(session.args.output / SHARDS, subset, header)
    job.begin()

    def make(shard: int) -> bytes:
        workers.forget(generator)
        of_shard = batches[shard :: job.shards]  # so all have short and long ones
        return distillation.write_batches(decoded(session, generator, subset, of_shard))

    job.work(make)


def decoded(
    session: Session, generator: Any, subset: str, batches: list[list[int]]
) -> Iterator[list[Output]]:
    """The teacher's outputs, batch by batch."""
    dataset = session.task.dataset(subset)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=dataset.collater,
        num_workers=session.cfg.dataset.num_workers,
    )
    for batch, sample in zip(batches, passing(loader, subset, "batch"), strict=True):
        # Of its own for each batch: sampling gives the same wherever and whenever it is decoded.
        utils.set_torch_seed(session.cfg.common.seed + batch[0])
        sample = utils.move_to_cuda(sample) if session.cuda else sample
        # Longest source first, unlike the batch.
        by_number = dict(zip(sample["id"].tolist(), session.decode(generator, sample), strict=True))
        longest = longest_output(generator, sample)
        outputs = []
        for number in batch:
            written = by_number[number]["tokens"][:-1].int().cpu().numpy()  # without </s>
            outputs.append(Output(number, longest is not None and len(written) >= longest, written))
        yield outputs


def longest_output(generator: Any, sample: dict[str, Any]) -> int | None:
    """Tokens, without ``</s>``, at which the generator cuts; None where the source sets the length."""
    if generator.match_source_len:
        return None
    width = sample["net_input"]["src_tokens"].size(1)
    return min(int(generator.max_len_a * width + generator.max_len_b), generator.max_len - 1)


UNFINISHED = 3  # exit status of --merge while shards are still to be decoded


def run(args: argparse.Namespace, cfg: DictConfig) -> None:
    subsets = args.subsets or [args.gen_subset]
    check_teacher(cfg)
    output_folder.check(args.output, data_folder(cfg).path)
    for subset in subsets:
        data_folder(cfg).prefix(subset)
    if not args.merge:
        workers.begin(cfg.common.cpu)
        words = [*sys.argv[1:], "--gen-subset", subsets[0]]
        files = FilesBefore(cfg)
        session = Session(build_parser(), words, always_draft=False, reads=["beam", "batch_size"])
        for subset in subsets:
            decode(session, subset, files)
    (args.output / SHARDS).mkdir(parents=True, exist_ok=True)
    if args.merge:
        with claim(args.output / SHARDS, MERGE) as mine:
            if not mine:
                raise DistillationError(
                    f"another process makes {args.output} just now: wait for it"
                )
            merge(args, cfg, subsets)
        return
    # Not before the folder is whole does a worker end: what follows in a script reads it.
    say_waiting = partial(print, f"another process makes {args.output}: waiting for it", flush=True)
    with turn(args.output / SHARDS, MERGE, lambda: is_merged(args, subsets), say_waiting) as mine:
        if mine and not is_merged(args, subsets):
            merge(args, cfg, subsets)
        else:
            print(f"{args.output} is made already")


def main() -> None:
    args = options.parse_args_and_arch(parser := build_parser())
    refuse_ignored(parser, args, REFUSED | ALSO_REFUSED)
    try:
        run(args, convert_namespace_to_omegaconf(args))
    except UnfinishedError as error:
        print(f"not yet: {error}", file=sys.stderr)
        sys.exit(UNFINISHED)
    except (BulkError, CheckpointError, NonFiniteError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        place = error.filename or args.output
        reason = error.strerror or error
        sys.exit(f"error: {place}: {reason}; once that is mended, the same command goes on")
