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
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, tasks, utils
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import progress_bar
from omegaconf import DictConfig, OmegaConf
from sacrebleu.metrics import BLEU

import fairseq_aggdec  # noqa: F401  (registers the task)
from fairseq_aggdec.compat import CheckpointError
from fairseq_aggdec.data import distillation
from fairseq_aggdec.data.distillation import DistillationError, Filter, Output
from fairseq_aggdec.evaluation.session import Session, generation_parser

logger = logging.getLogger("fairseq_aggdec.distill")

MAX_TOKENS = 12000  # fairseq-generate's, where neither --max-tokens nor --batch-size is given
BLEU_SENTENCES = 100_000  # at most; sacrebleu takes a minute for them
SHARDS, TEXT, SUMMARY = "shards", "text", "distillation.json"


def build_parser() -> argparse.ArgumentParser:
    parser = generation_parser(__doc__)
    parser.set_defaults(gen_subset="train")
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


# -- data


def data_folder(cfg: DictConfig) -> Path:
    folders = utils.split_paths(cfg.task.data)
    if len(folders) != 1:
        raise DistillationError(f"DATA: give one folder, not {len(folders)}")
    return Path(folders[0])


def prefix(cfg: DictConfig, subset: str) -> str:
    """Path of a set up to the language, as fairseq looks for it."""
    source, target = cfg.task.source_lang, cfg.task.target_lang
    names = [f"{subset}.{source}-{target}.", f"{subset}.{target}-{source}."]
    for name in names:
        path = str(data_folder(cfg) / name)
        if indexed_dataset.dataset_exists(path + source, cfg.task.dataset_impl):
            return path
    raise DistillationError(f"{data_folder(cfg)} has no {names[0]}{source}: check DATA and SUBSET")


def load_side(cfg: DictConfig, subset: str, language: str, dictionary: Dictionary) -> Any:
    """One side of a set as it was binarised; None where the file is missing."""
    return data_utils.load_indexed_dataset(
        prefix(cfg, subset) + language, dictionary, cfg.task.dataset_impl
    )


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
    if not cfg.common_eval.path:
        raise DistillationError("--path: name the teacher's checkpoint")
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


def data_digest(cfg: DictConfig, subset: str) -> str:
    """Of what the outputs depend on: sources and dictionaries."""
    source, target = cfg.task.source_lang, cfg.task.target_lang
    files = [Path(prefix(cfg, subset) + source + ending) for ending in ("", ".bin", ".idx")]
    files += [data_folder(cfg) / f"dict.{language}.txt" for language in (source, target)]
    return digest([path for path in files if path.exists()])


def make_header(session: Session, subset: str, batches: list[list[int]]) -> dict[str, Any]:
    """What the outputs depend on; two processes with equal headers write equal outputs."""
    cfg, parallel = session.cfg, session.cfg.distributed_training
    teachers = [Path(path) for path in utils.split_paths(cfg.common_eval.path)]
    sentences = len(session.task.dataset(subset))
    batched = {number for batch in batches for number in batch}
    return {
        "teacher": [digest([path]) for path in teachers],
        "data": data_digest(cfg, subset),
        "options": relevant_options(cfg) | {"device": "cuda" if session.cuda else "cpu"},
        "order of sentences": hashlib.sha256(json.dumps(batches).encode()).hexdigest(),
        "subset": subset,
        "sentences": sentences,
        "too_long": sorted(set(range(sentences)) - batched),
        "batches": len(batches),
        "shards": parallel.distributed_world_size,
        "shard": parallel.distributed_rank,
        distillation.NOTES: {"teacher": [path.name for path in teachers]},
    }


def relevant_options(cfg: DictConfig) -> dict[str, Any]:
    """Options that can change an output, by name."""
    plain: Any = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    found = {**plain["generation"], **plain["task"]}
    for section, names in RELEVANT.items():
        found |= {name: plain[section][name] for name in names}
    return {name: value for name, value in sorted(found.items()) if name not in IRRELEVANT}


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
    batches = make_batches(session, subset)
    header = make_header(session, subset, batches)
    distillation.check_siblings(folder, subset, header)
    own = distillation.own_batches(batches, shard, shards)
    with distillation.exclusive(distillation.shard_path(folder, subset, shard, shards)) as opened:
        file = distillation.ShardFile(opened, header, own)
        logger.info(
            "%s, shard %d of %d: %d of %d batches are there already",
            *(subset, shard, shards, file.done, len(own)),
        )
        name = f"{subset} {shard}/{shards}"
        for outputs in decoded(session, subset, own[file.done :], name):
            file.append(outputs)


def decoded(
    session: Session, subset: str, batches: list[list[int]], name: str
) -> Iterator[list[Output]]:
    """The teacher's outputs, batch by batch, under a progress bar."""
    cfg, dataset = session.cfg, session.task.dataset(subset)
    try:
        generator, _ = session.generator(str(cfg.task.decoding), cfg.generation.beam)
    except ValueError as error:  # an option that the method cannot honour
        raise DistillationError(str(error)) from None
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=dataset.collater,
        num_workers=cfg.dataset.num_workers,
    )
    common = cfg.common
    bar = progress_bar.progress_bar(
        loader,
        common.log_format,
        common.log_interval,
        prefix=name,
        default_log_format="simple" if common.no_progress_bar else "tqdm",
    )
    for batch, sample in zip(batches, bar, strict=True):
        # Of its own for each batch: sampling gives the same however often the process was killed.
        utils.set_torch_seed(common.seed + batch[0])
        sample = utils.move_to_cuda(sample) if session.cuda else sample
        found = dict(
            zip(sample["id"].tolist(), session.decode(generator, sample), strict=True)
        )  # longest source first, unlike the batch
        longest = longest_output(generator, sample)
        yield [as_output(number, found[number]["tokens"], longest) for number in batch]
        bar.log({"sentence": batch[-1], "tokens": sample["ntokens"]})


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
    """Makes the output a data folder, all files new or all files old; the summary comes last."""
    distilled = {name: distillation.collect(args.output / SHARDS, name) for name in subsets}
    task = tasks.setup_task(cfg.task)
    for subset, found in distilled.items():
        check_data(cfg, subset, found)
    (args.output / SUMMARY).unlink(missing_ok=True)
    partial = args.output / "merge.partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / TEXT).mkdir(parents=True)
    copy_the_rest(cfg, partial, subsets)
    summary = {"command": "python scripts/distill.py " + " ".join(sys.argv[1:]), "subsets": {}}
    for subset, found in distilled.items():
        summary["subsets"][subset] = write_subset(args, cfg, task, found, partial)
    for path in sorted(path for path in partial.rglob("*") if path.is_file()):
        target = args.output / path.relative_to(partial)
        target.parent.mkdir(exist_ok=True)
        path.replace(target)
    shutil.rmtree(partial)
    text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
    unfinished = args.output / (SUMMARY + ".partial")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(args.output / SUMMARY)
    print(text, end="")


def check_data(cfg: DictConfig, subset: str, found: distillation.Distilled) -> None:
    if found.header["data"] != data_digest(cfg, subset):
        raise DistillationError(
            f"{data_folder(cfg)}: {subset} or a dictionary is not what was decoded: give the DATA "
            "that was decoded"
        )


def copy_the_rest(cfg: DictConfig, output: Path, subsets: list[str]) -> None:
    """Dictionaries and the sets that keep their references."""
    source, target = cfg.task.source_lang, cfg.task.target_lang
    folder = data_folder(cfg)
    for language in {source, target}:
        name = f"dict.{language}.txt"
        shutil.copyfile(folder / name, output / name)
    for pair in {f"{source}-{target}", f"{target}-{source}"}:
        for path in sorted(folder.glob(f"*.{pair}.*")):
            subset = path.name.split(".")[0]
            if re.fullmatch(r"train\d+", subset) and subset not in subsets and "train" in subsets:
                # fairseq-train would read it as a part of the training set
                logger.warning("%s is left out: name it in --subsets to distill it too", path.name)
            elif subset not in subsets:
                shutil.copyfile(path, output / path.name)


def write_subset(
    args: argparse.Namespace,
    cfg: DictConfig,
    task: Any,
    found: distillation.Distilled,
    output: Path,
) -> dict[str, Any]:
    """Writes binarised pairs, text and the list of what was dropped; returns what there is to say about them."""
    subset = found.header["subset"]
    languages = cfg.task.source_lang, cfg.task.target_lang
    dictionaries = task.source_dictionary, task.target_dictionary
    source, reference = (
        load_side(cfg, subset, language, dictionary)
        for language, dictionary in zip(languages, dictionaries, strict=True)
    )
    rule = Filter(args.max_length_ratio, args.keep_cut)
    reasons = [
        rule.reason(int(source.sizes[number]) - 1, written)
        for number, written in enumerate(found.outputs)
    ]
    kept = [number for number, reason in enumerate(reasons) if reason is None]
    targets = [with_end(found.outputs[number], dictionaries[1].eos()) for number in kept]
    sides = [(source[number] for number in kept), targets]
    for language, dictionary, side in zip(languages, dictionaries, sides, strict=True):
        write_side(output, f"{subset}.{'-'.join(languages)}.{language}", dictionary, side)
    write_dropped(output / TEXT / f"{subset}.dropped.tsv", reasons, found, dictionaries[1])
    return {
        "teacher": found.header[distillation.NOTES]["teacher"],
        "options": found.header["options"],
        "shards": found.header["shards"],
        "sentences": found.header["sentences"],
        "kept": len(kept),
        "dropped": distillation.count_reasons(reasons),
        "filter": {"max_length_ratio": args.max_length_ratio, "keep_cut": args.keep_cut},
        "mean_length": {
            "source": mean(source.sizes[kept] - 1),
            "distilled": mean([len(target) - 1 for target in targets]),
            "reference": None if reference is None else mean(reference.sizes[kept] - 1),
        },
        "bleu": None if reference is None else bleu(args, cfg, task, kept, targets, reference),
    }


def with_end(written: Output, end: int) -> torch.Tensor:
    return torch.from_numpy(np.append(written.tokens, end).astype(np.int64))


def write_side(output: Path, name: str, dictionary: Dictionary, side: Iterable[torch.Tensor]):
    """One language, binarised and as dictionary symbols: ids are copied, nothing is encoded anew."""
    text = output / TEXT / f"{name.split('.')[0]}.{name.split('.')[-1]}"
    builder = indexed_dataset.make_builder(
        indexed_dataset.data_file_path(str(output / name)), "mmap", len(dictionary)
    )
    with text.open("w", encoding="utf-8") as file:
        for tokens in side:
            builder.add_item(tokens)
            file.write(symbols(dictionary, tokens[:-1].tolist()) + "\n")
    builder.finalize(indexed_dataset.index_file_path(str(output / name)))


def write_dropped(
    path: Path, reasons: list[str | None], found: distillation.Distilled, dictionary: Dictionary
) -> None:
    """Sentence number, reason and output of every pair that was dropped."""
    with path.open("w", encoding="utf-8") as file:
        for number, (reason, written) in enumerate(zip(reasons, found.outputs, strict=True)):
            if reason is not None:
                tokens = [] if written is None else written.tokens.tolist()
                file.write(f"{number}\t{reason}\t{symbols(dictionary, tokens)}\n")


def symbols(dictionary: Dictionary, tokens: list[int]) -> str:
    return " ".join(dictionary[token] for token in tokens)


def mean(lengths: Any) -> float | None:
    """Dictionary symbols without ``</s>``."""
    return round(float(np.mean(lengths)), 2) if len(lengths) else None


def bleu(
    args: argparse.Namespace,
    cfg: DictConfig,
    task: Any,
    kept: list[int],
    targets: list[torch.Tensor],
    reference: Any,
) -> dict[str, Any]:
    """BLEU of the teacher against the references, on the text that fairseq-generate would score."""
    bpe, tokenizer = task.build_bpe(cfg.bpe), task.build_tokenizer(cfg.tokenizer)

    def text(tokens: torch.Tensor) -> str:
        joined = symbols(task.target_dictionary, tokens[:-1].tolist())
        joined = data_utils.post_process(joined, cfg.common_eval.post_process)
        for part in (bpe, tokenizer):
            joined = joined if part is None else part.decode(joined)
        return joined

    step = -(-len(kept) // BLEU_SENTENCES) or 1
    metric = BLEU(tokenize=args.bleu_tokenize)
    written = [text(tokens) for tokens in targets[::step]]
    references = [text(reference[number]) for number in kept[::step]]
    score = metric.corpus_score(written, [references]).score if kept else 0.0
    joined = cfg.common_eval.post_process or cfg.bpe is not None or cfg.tokenizer is not None
    return {
        "score": round(score, 2),
        "signature": str(metric.get_signature()) if kept else None,
        "sentences": len(written),
        "text": "joined" if joined else "dictionary symbols: give --post-process for words",
    }


def main() -> None:
    parser = build_parser()
    args = options.parse_args_and_arch(parser)
    cfg = convert_namespace_to_omegaconf(args)
    subsets = args.subsets or [args.gen_subset]
    try:
        refuse_pointless(cfg)
        infer_languages(cfg)
        for subset in subsets:
            prefix(cfg, subset)
        if args.merge:
            with distillation.exclusive(args.output / SHARDS / "merge.lock"):
                merge(args, cfg, subsets)
        else:
            session = Session(build_parser())
            infer_languages(session.cfg)
            for subset in subsets:
                decode(session, subset, args.output)
    except (DistillationError, CheckpointError) as error:
        raise SystemExit(f"error: {error}") from None


def infer_languages(cfg: DictConfig) -> None:
    if not cfg.task.source_lang or not cfg.task.target_lang:
        found = data_utils.infer_language_pair(str(data_folder(cfg)))
        if None in found:
            raise DistillationError("--source-lang, --target-lang: the data folder does not tell")
        cfg.task.source_lang, cfg.task.target_lang = found


if __name__ == "__main__":
    main()
