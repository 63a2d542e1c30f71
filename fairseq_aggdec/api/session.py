"""A data set and models loaded as ``fairseq-generate`` loads them, to be decoded by several methods in one process."""

from __future__ import annotations

import argparse
import functools
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor

from fairseq_aggdec.search.counters import Counters

TASK = "translation_aggdec"
Hypothesis = dict[str, Any]


def generation_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of ``fairseq-generate`` for our task: every flag of fairseq and of the plugin."""
    parser = options.get_generation_parser(default_task=TASK)
    parser.description = description
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


class Session:
    """Loaded task, models and data set.

    Args:
        parser: from :func:`generation_parser`, with options of the caller's own added.
        arguments: the command line.
        data: load the data set; without it, there is none.
        every: models that draft do so in every iteration, unless an option says how much; else as much as pays.

    Attributes:
        args: parsed arguments. cfg: the same as fairseq's configuration.
        task, models, dataset: loaded, moved to the device, in evaluation mode.
        saved: the configuration in the checkpoint.
    """

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        arguments: Sequence[str] | None = None,
        data: bool = True,
        every: bool = True,
    ):
        given = list(arguments) if arguments is not None else None
        self.args = options.parse_args_and_arch(parser, input_args=given)
        if self.args.task != TASK:
            raise SystemExit(f"error: --task {self.args.task} has no --decoding: use {TASK}")
        self.cfg = convert_namespace_to_omegaconf(self.args)
        if not self.cfg.common_eval.path:
            raise SystemExit("error: --path: name the checkpoint of a model")
        if every and self.cfg.task.block_size is None and self.cfg.task.draft_nodes is None:
            self.cfg.task.block_size = "all"
        self.cuda = torch.cuda.is_available() and not self.cfg.common.cpu
        self.task = tasks.setup_task(self.cfg.task)
        self.models, self.saved = checkpoint_utils.load_model_ensemble(
            utils.split_paths(self.cfg.common_eval.path), task=self.task
        )
        for model in self.models:
            self._prepare(model)
        if data:
            self._load_data()

    def _load_data(self) -> None:
        self.task.load_dataset(self.cfg.dataset.gen_subset, task_cfg=self.saved.task)
        self.dataset = self.task.dataset(self.cfg.dataset.gen_subset)
        if not len(self.dataset):
            raise SystemExit(f"error: --gen-subset {self.cfg.dataset.gen_subset} has no sentences")
        # Taken once: sets other than "test" are shuffled anew at each call.
        self.order: list[int] = self.dataset.ordered_indices().tolist()

    def _prepare(self, model: Any) -> None:
        if self.cfg.common.fp16:
            model.half()
        if getattr(self.cfg.common, "bf16", False):
            model.bfloat16()
        if self.cuda:
            model.cuda()
        model.eval()
        model.prepare_for_inference_(self.cfg)

    @property
    def precision(self) -> str:
        """``fp32``, ``fp16`` or ``bf16``."""
        names = {torch.float16: "fp16", torch.bfloat16: "bf16"}
        return names.get(next(self.models[0].parameters()).dtype, "fp32")

    def generator(self, decoding: str, beam: int = 1) -> tuple[Any, Counters]:
        """A generator of this method with all of the command line's generation options, and its counters."""
        generation = Namespace(**dict(self.cfg.generation))
        generation.beam = beam
        chosen, self.task.cfg.decoding = self.task.cfg.decoding, decoding
        self.task.counters = Counters()
        try:
            return self.task.build_generator(self.models, generation), self.task.counters
        finally:
            self.task.cfg.decoding = chosen

    def batches(self, batch_size: int, limit: int | None = None) -> list[dict[str, Any]]:
        """Collated samples, sentences of like length together, on the device; ``limit`` sentences at most."""
        order = self.sentences(limit)
        chunks = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        return [self.batch(chunk) for chunk in chunks]

    def batch(self, sentences: Sequence[int]) -> dict[str, Any]:
        """The sample of these sentences, on the device."""
        sample = self.dataset.collater([self.dataset[i] for i in sentences])
        return utils.move_to_cuda(sample) if self.cuda else sample

    def sentences(self, limit: int | None = None) -> list[int]:
        """The data set's indices, shortest first; of ``limit`` of them, all lengths have their share."""
        if limit is None or limit >= len(self.order):
            return self.order
        return [self.order[i * len(self.order) // limit] for i in range(limit)]

    def task_batches(self, batch_size: int) -> Iterator[dict[str, Any]]:
        """Samples as ``fairseq-generate`` gets them from the task, on the device."""
        dataset = self.cfg.dataset
        batches = self.task.get_batch_iterator(
            dataset=self.dataset,
            max_tokens=dataset.max_tokens,
            max_sentences=batch_size,
            max_positions=utils.resolve_max_positions(
                self.task.max_positions(), *(model.max_positions() for model in self.models)
            ),
            ignore_invalid_inputs=dataset.skip_invalid_size_inputs_valid_test,
            required_batch_size_multiple=dataset.required_batch_size_multiple,
            seed=self.cfg.common.seed,
            disable_iterator_cache=True,  # the cache would hand out the first batch size again
        ).next_epoch_itr(shuffle=False)
        for sample in batches:
            yield utils.move_to_cuda(sample) if self.cuda else sample

    @functools.cached_property
    def prefix_size(self) -> int:
        """``--prefix-size``: asked for with every batch, and a configuration takes long to say it."""
        return int(self.cfg.generation.prefix_size)

    def decode(self, generator: Any, sample: dict[str, Any]) -> list[Hypothesis]:
        """The best hypothesis of each sentence of a sample."""
        size = self.prefix_size
        prefix: Tensor | None = sample["target"][:, :size] if size > 0 else None
        found = self.task.inference_step(generator, self.models, sample, prefix_tokens=prefix)
        return [hypotheses[0] for hypotheses in found]
