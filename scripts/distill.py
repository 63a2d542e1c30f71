"""Sequence-level distillation: replaces the targets of a data folder by what a teacher writes.

    python scripts/distill.py DATA --output OUTPUT --path teacher.pt            decodes (again: goes on)
    python scripts/distill.py DATA --output OUTPUT --path teacher.pt --merge    makes OUTPUT a data folder

takes every flag of fairseq-generate and of the plugin; scripts/distill.sh does both with one process per GPU.
--distributed-world-size N --distributed-rank R decodes the R-th of N shards; any number of machines may share
OUTPUT. A process may be killed at any moment: the same command goes on, and the result is the same to the byte.
"""

import argparse
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, tasks, utils
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import progress_bar
from fairseq.logging.meters import TimeMeter
from omegaconf import DictConfig, OmegaConf
from sacrebleu.metrics import BLEU

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.compat import CheckpointError
from fairseq_aggdec.data import distillation, distilled_folder
from fairseq_aggdec.data.distillation import DistillationError, Filter, Output, UnfinishedError
from fairseq_aggdec.data.distilled_folder import TEXT, DataFolder
from fairseq_aggdec.evaluation import machine
from fairseq_aggdec.evaluation.session import Session, generation_parser
from fairseq_aggdec.lattice.decoding import tables_folder

logger = logging.getLogger("fairseq_aggdec.distill")

MAX_TOKENS = 12000  # fairseq-generate's, where neither --max-tokens nor --batch-size is given
BLEU_SENTENCES = 100_000  # at most; sacrebleu takes a minute for them
SHARDS, SUMMARY = "shards", "distillation.json"


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    # Collating is nothing beside decoding, and a process that is killed leaves no loader behind.
    parser.set_defaults(gen_subset="train", num_workers=0)
    group = parser.add_argument_group("distillation")
    group.add_argument(
        "--output", type=Path, required=True, help="data folder to make; progress is kept in it"
    )
    group.add_argument(
        "--subsets",
        nargs="+",
        metavar="SUBSET",
        help="sets to distill (default: --gen-subset, which is train); valid and test keep their references",
    )
    group.add_argument(
        "--merge", action="store_true", help="all shards are decoded: make the data folder"
    )
    group.add_argument(
        "--max-length-ratio",
        type=float,
        metavar="R",
        help="when merging, drop pairs with a side more than R times as long as the other (default: none)",
    )
    group.add_argument(
        "--keep-cut",
        action="store_true",
        help="when merging, keep outputs that were cut at the maximum length (default: dropped)",
    )
    group.add_argument(
        "--bleu-tokenize",
        default="13a",
        help="sacrebleu's tokenizer for the BLEU of the teacher against the references",
    )
    return parser


def data_folder(cfg: DictConfig) -> DataFolder:
    """DATA and its languages, inferred as fairseq does where they are not given."""
    paths = utils.split_paths(cfg.task.data)
    if len(paths) != 1:
        raise DistillationError(f"DATA: give one folder, not {len(paths)}")
    languages = cfg.task.source_lang, cfg.task.target_lang
    if None in languages:
        languages = data_utils.infer_language_pair(paths[0])
    if None in languages:
        raise DistillationError(
            f"--source-lang, --target-lang: {paths[0]} does not tell the languages"
        )
    return DataFolder(Path(paths[0]), *languages, cfg.task.dataset_impl)


# -- decoding


def refuse_pointless(cfg: DictConfig) -> None:
    """Options of fairseq-generate that have no meaning here are refused, not ignored."""
    generation, parallel = cfg.generation, cfg.distributed_training
    shards, shard = parallel.distributed_world_size, parallel.distributed_rank
    refused = {
        "--nbest": generation.nbest != 1,
        "--lm-path": generation.lm_path is not None,
        "--score-reference": generation.score_reference,
        "--constraints": generation.constraints is not None,
        "--replace-unk": generation.replace_unk is not None,
        "--results-path": cfg.common_eval.results_path is not None,
        "--model-overrides": cfg.common_eval.model_overrides != "{}",
        "--num-shards (use --distributed-world-size)": cfg.dataset.num_shards != 1,
    }
    for option, given in refused.items():
        if given:
            raise DistillationError(f"{option} does not go with distillation")
    options = cfg.task
    decoding = str(options.decoding)
    learned = decoding == "iad" or (decoding == "gad" and str(options.block_size) == "auto")
    lossy = {
        "--acceptance": str(options.acceptance) != "exact",
        "--min-block-size": options.min_block_size > 1,
        "--fp16": cfg.common.fp16,
        "--bf16": getattr(cfg.common, "bf16", False),
    }
    for option, given in lossy.items():
        if learned and given:
            raise DistillationError(
                f"{option} does not go with drafts whose length is learned on the way (iad, --block-size auto): the "
                "outputs would depend on when the process was killed"
            )
    if not cfg.common_eval.path:
        raise DistillationError("--path: name the teacher's checkpoint")
    for path in utils.split_paths(cfg.common_eval.path):
        if not Path(path).is_file():
            raise DistillationError(f"--path: there is no file {path}")
    if not 0 <= shard < shards:
        raise DistillationError(f"--distributed-rank {shard} is not one of 0 to {shards - 1}")


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


def digest(paths: list[Path]) -> str:
    """SHA-256 of the files' contents."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def make_header(session: Session, subset: str, batches: list[list[int]]) -> dict[str, Any]:
    """What the outputs depend on; two processes with equal headers write equal outputs."""
    cfg, parallel = session.cfg, session.cfg.distributed_training
    teachers = [Path(path) for path in utils.split_paths(cfg.common_eval.path)]
    sentences = len(session.task.dataset(subset))
    batched = {number for batch in batches for number in batch}
    return {
        "teacher": [digest([path]) for path in teachers],
        "data": digest(data_folder(cfg).files(subset)),
        "options": relevant_options(session) | {"device": "cuda" if session.cuda else "cpu"},
        "order of sentences": hashlib.sha256(json.dumps(batches).encode()).hexdigest(),
        "subset": subset,
        "sentences": sentences,
        "too_long": sorted(set(range(sentences)) - batched),
        "batches": len(batches),
        "shards": parallel.distributed_world_size,
        "shard": parallel.distributed_rank,
        distillation.NOTES: {"teacher": [path.name for path in teachers]},
    }


def relevant_options(session: Session) -> dict[str, Any]:
    """Options that can change an output, by name; a file counts by what is in it, and so do the tables of a lattice."""
    cfg = session.cfg
    plain: Any = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    found = {**plain["generation"], **plain["task"]}
    for section, names in RELEVANT.items():
        found |= {name: plain[section][name] for name in names}
    for name, value in found.items():
        if name.endswith(("_path", "_file")) and value and Path(value).is_file():
            found[name] = digest([Path(value)])
    if found["decoding"] == "lattice" or found["shortlist"]:
        folder = tables_folder(session.task.cfg)
        found["lattice"] = digest(sorted(path for path in folder.iterdir() if path.is_file()))
    rest = {name: value for name, value in sorted(found.items()) if name not in IRRELEVANT}
    return {"decoding": found["decoding"]} | rest  # the first that a refusal names


RELEVANT = {
    "common": ("seed", "fp16", "bf16"),
    "dataset": ("max_tokens", "batch_size"),
}
IRRELEVANT = {"_name", "data", "model_paths", "no_seed_provided", "print_alignment", "print_step"}


def decode(session: Session, subset: str, output: Path) -> None:
    """Decodes what is left of this process's shard of a subset."""
    parallel = session.cfg.distributed_training
    shard, shards = parallel.distributed_rank, parallel.distributed_world_size
    folder = output / SHARDS
    if subset != session.cfg.dataset.gen_subset:
        session.task.load_dataset(subset, task_cfg=session.saved.task)
    generator = build_generator(session)
    batches = make_batches(session, subset)
    header = make_header(session, subset, batches)
    header["options"]["beam"] = generator.beam_size  # most methods are greedy, whatever --beam says
    distillation.check_siblings(folder, subset, header)
    own = distillation.own_batches(batches, shard, shards)
    with distillation.exclusive(distillation.shard_path(folder, subset, shard, shards)) as opened:
        file = distillation.ShardFile(opened, header, own)
        logger.info(
            "%s, shard %d of %d: %d of %d batches are there already",
            *(subset, shard, shards, file.done, len(own)),
        )
        name = f"{subset} {shard}/{shards}"
        for outputs in decoded(session, generator, subset, own[file.done :], name):
            file.append(outputs)


def build_generator(session: Session) -> Any:
    try:
        return session.generator(str(session.cfg.task.decoding), session.cfg.generation.beam)[0]
    except ValueError as error:  # an option that the method cannot honour
        raise DistillationError(str(error)) from None


def decoded(
    session: Session, generator: Any, subset: str, batches: list[list[int]], name: str
) -> Iterator[list[Output]]:
    """The teacher's outputs, batch by batch, under a progress bar."""
    common, dataset = session.cfg.common, session.task.dataset(subset)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=dataset.collater,
        num_workers=session.cfg.dataset.num_workers,
    )
    bar = progress_bar.progress_bar(
        loader,
        common.log_format,
        common.log_interval,
        prefix=name,
        default_log_format="simple" if common.no_progress_bar else "tqdm",
    )
    speed = TimeMeter()
    for batch, sample in zip(batches, bar, strict=True):
        # Of its own for each batch: sampling gives the same however often the process was killed.
        utils.set_torch_seed(common.seed + batch[0])
        sample = utils.move_to_cuda(sample) if session.cuda else sample
        found = dict(
            zip(sample["id"].tolist(), session.decode(generator, sample), strict=True)
        )  # longest source first, unlike the batch
        longest = longest_output(generator, sample)
        yield [as_output(number, found[number]["tokens"], longest) for number in batch]
        speed.update(len(batch))
        bar.log({"sentences_per_second": round(speed.avg, 1)})


def longest_output(generator: Any, sample: dict[str, Any]) -> int | None:
    """Tokens, without ``</s>``, at which the generator cuts; None where the source sets the length."""
    if generator.match_source_len:
        return None
    width = sample["net_input"]["src_tokens"].size(1)
    return min(int(generator.max_len_a * width + generator.max_len_b), generator.max_len - 1)


def as_output(number: int, tokens: torch.Tensor, longest: int | None) -> Output:
    """From a hypothesis's tokens (T,), the last of which is ``</s>``."""
    written = tokens[:-1].int().cpu().numpy()
    return Output(number, longest is not None and len(written) >= longest, written)


# -- merging


def merge(args: argparse.Namespace, cfg: DictConfig, subsets: list[str]) -> None:
    """Makes the output a data folder. Its summary comes last: where it is, the folder is whole."""
    data = data_folder(cfg)
    distilled = [distillation.collect(args.output / SHARDS, subset) for subset in subsets]
    for found in distilled:
        if found.header["data"] != digest(data.files(found.header["subset"])):
            raise DistillationError(f"{data.path} is not the DATA that was decoded")
    partial = args.output / "merge.partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / TEXT).mkdir(parents=True)
    distilled_folder.copy_the_rest(data, partial, subsets)
    task = tasks.setup_task(cfg.task)
    summary = {"command": machine.command("distill", sys.argv[1:]), "subsets": {}}
    for found in distilled:
        summary["subsets"][found.header["subset"]] = merge_subset(args, cfg, task, found, partial)
    (partial / SUMMARY).write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    (args.output / SUMMARY).unlink(missing_ok=True)
    files = [path for path in partial.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.name == SUMMARY):
        target = args.output / path.relative_to(partial)
        target.parent.mkdir(exist_ok=True)
        path.replace(target)
    shutil.rmtree(partial)
    for subset, result in summary["subsets"].items():
        print(sentence(subset, result))


def merge_subset(
    args: argparse.Namespace,
    cfg: DictConfig,
    task: Any,
    found: distillation.Distilled,
    output: Path,
) -> dict[str, Any]:
    """Writes a subset; returns what the summary says about it."""
    data, header = data_folder(cfg), found.header
    rule = Filter(args.max_length_ratio, args.keep_cut)
    dictionaries = task.source_dictionary, task.target_dictionary
    written = distilled_folder.write_subset(data, output, found, rule, dictionaries)
    references = data.side(header["subset"], data.target, task.target_dictionary)
    return {
        "teacher": header[distillation.NOTES]["teacher"],
        "teacher_sha256": header["teacher"],
        "filter": asdict(rule),
        **written.summary,
        "bleu": None if references is None else bleu(args, cfg, task, written, references),
        "shards": header["shards"],
        "options": header["options"],
    }


def sentence(subset: str, result: dict[str, Any]) -> str:
    """The summary in one line for the terminal."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in result["dropped"].items() if count)
    lengths, score = result["mean_length"], result["bleu"]
    return (
        f"{subset}: {result['kept']} of {result['sentences']} pairs kept (dropped: {dropped or 'none'}); "
        f"mean length {lengths['distilled']}, references {lengths['reference']}"
        + (f"; BLEU {score['score']} against the references ({score['text']})" if score else "")
    )


def bleu(
    args: argparse.Namespace,
    cfg: DictConfig,
    task: Any,
    written: distilled_folder.Written,
    references: Any,
) -> dict[str, Any] | None:
    """BLEU of the teacher against the references, on the text that fairseq-generate would score."""
    bpe, tokenizer = task.build_bpe(cfg.bpe), task.build_tokenizer(cfg.tokenizer)
    post_process = cfg.common_eval.post_process

    def text(tokens: torch.Tensor) -> str:
        symbols = distilled_folder.symbols(task.target_dictionary, tokens.tolist()[:-1])
        joined = data_utils.post_process(symbols, post_process)
        for part in (bpe, tokenizer):
            joined = joined if part is None else part.decode(joined)
        return joined

    if not written.kept:
        return None
    step = -(-len(written.kept) // BLEU_SENTENCES)
    metric = BLEU(tokenize=args.bleu_tokenize)
    hypotheses = [text(tokens) for tokens in written.targets[::step]]
    expected = [text(references[number]) for number in written.kept[::step]]
    subwords = not (post_process or bpe or tokenizer)
    return {
        "score": round(metric.corpus_score(hypotheses, [expected]).score, 2),
        "signature": str(metric.get_signature()),
        "sentences": len(hypotheses),
        "text": "on dictionary symbols; --post-process joins them" if subwords else "on words",
    }


UNFINISHED = 3  # exit status of --merge while shards are still to be decoded


def main() -> None:
    args = options.parse_args_and_arch(build_parser())
    cfg = convert_namespace_to_omegaconf(args)
    subsets = args.subsets or [args.gen_subset]
    try:
        refuse_pointless(cfg)
        for subset in subsets:
            data_folder(cfg).prefix(subset)
        if args.merge:
            with distillation.exclusive(args.output / SHARDS / "merge.lock"):
                merge(args, cfg, subsets)
        else:
            session = Session(build_parser(), [*sys.argv[1:], "--gen-subset", subsets[0]])
            for subset in subsets:
                decode(session, subset, args.output)
    except UnfinishedError as error:
        print(f"not yet: {error}", file=sys.stderr)
        sys.exit(UNFINISHED)
    except (DistillationError, CheckpointError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
