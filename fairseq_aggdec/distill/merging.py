"""``aggdec distill --merge``: the shards become a data folder."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq import tasks, utils
from fairseq.data import data_utils
from omegaconf import DictConfig

from fairseq_aggdec.bulk.relevant import digest
from fairseq_aggdec.distill import distilled_folder, output_folder, shards
from fairseq_aggdec.distill.distillation import DistillationError, Filter
from fairseq_aggdec.distill.distilled_folder import DataFolder
from fairseq_aggdec.jobs.job import NOTES, Header, Job, header_path, read_header
from fairseq_aggdec.records import machine

SHARDS, SUMMARY = output_folder.SHARDS, output_folder.SUMMARY


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


def merge(args: argparse.Namespace, cfg: DictConfig, subsets: list[str]) -> None:
    """Makes the output a data folder. Where its summary is, the folder is whole."""
    data = data_folder(cfg)
    distilled = [shards.collect(args.output / SHARDS, subset) for subset in subsets]
    task = tasks.setup_task(cfg.task)
    for part in distilled:
        if part.header["data"] != digest(data.files(part.header["subset"])):
            raise DistillationError(f"{data.path} is not the DATA that was decoded")
    with output_folder.attempt(args.output) as partial:
        distilled_folder.copy_the_rest(data, partial, subsets)
        made: dict[str, dict[str, Any]] = {}
        for part in distilled:
            made[part.header["subset"]] = merge_subset(args, cfg, task, part, partial)
        headers = {part.header["subset"]: part.header for part in distilled}
        for subset, header in headers.items():
            Job(args.output / SHARDS, subset, header).tidy()
        summary = {"command": machine.command("distill", sys.argv[1:]), "subsets": made}
        summary |= {"from": origin(args, headers)}
        (partial / SUMMARY).write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
        output_folder.take_over(partial, args.output)
    for subset, result in made.items():
        print(sentence(subset, result))


def origin(args: argparse.Namespace, headers: dict[str, Header]) -> dict[str, Any]:
    """Collects what the data folder depends on, to be found in its summary."""
    jobs = {name: Job(args.output, name, header).digest for name, header in headers.items()}
    return {"jobs": jobs, "filter": asdict(Filter(args.max_length_ratio, args.keep_cut))}


def is_merged(args: argparse.Namespace, subsets: list[str]) -> bool:
    """Tells whether the data folder has been made of the shards that are there, with this filter."""
    try:
        summary = json.loads((args.output / SUMMARY).read_text())
    except FileNotFoundError:
        return False
    headers = {name: read_header(header_path(args.output / SHARDS, name)) for name in subsets}
    return bool(summary.get("from") == origin(args, headers))


def merge_subset(
    args: argparse.Namespace,
    cfg: DictConfig,
    task: Any,
    part: shards.Distilled,
    output: Path,
) -> dict[str, Any]:
    """Writes a subset; returns what the summary says about it."""
    data, header = data_folder(cfg), part.header
    rule = Filter(args.max_length_ratio, args.keep_cut)
    dictionaries = task.source_dictionary, task.target_dictionary
    written = distilled_folder.write_subset(data, output, part, rule, dictionaries)
    return {
        "teacher": header[NOTES]["teacher"],
        "teacher_sha256": header["teacher"],
        "filter": asdict(rule),
        **written,
        "shards": header["shards"],
        "options": header["options"],
    }


def sentence(subset: str, result: dict[str, Any]) -> str:
    """The summary in one line for the terminal."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in result["dropped"].items() if count)
    lengths = result["mean_length"]
    return (
        f"{subset}: {result['kept']} of {result['sentences']} pairs kept (dropped: {dropped or 'none'}); "
        f"mean length {lengths['distilled']}, references {lengths['reference']}"
    )
