"""Hooks: what the plugin adds to a task's hooks: checked checkpoints, no lost sentence, counters, ``--amp`` on a
CPU."""

import atexit
import io
import logging
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from fairseq.logging import metrics
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths

from fairseq_aggdec.data.ranks import GENERATE, INTERACTIVE, OPTIONS, Share, program, share
from fairseq_aggdec.data.whole import check_whole, naming_dictionary
from fairseq_aggdec.data.whole_tokens import with_whole_tokens
from fairseq_aggdec.models.options import as_namespace, keep_options
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.stored.checkpoints import (
    AGGDEC,
    AS_TRANSLATION,
    UNFIT,
    check_built,
    check_direction,
    check_files,
    check_named,
    check_when_loaded,
    named,
    number_of,
    path_of,
    unfitting,
)
from fairseq_aggdec.stored.loading import CheckpointError
from fairseq_aggdec.stored.one_copy import adopt
from fairseq_aggdec.stored.options import check_options

logger = logging.getLogger(__name__)

GIVEN = "the configuration"  # options of a command, of a checkpoint that another option names


class Hooks(FairseqTask):
    """Mixed in before a task of fairseq, whose configuration may name checkpoints.

    Attributes:
        kind: the name that the task is registered by; tasks derived from it have their own.
        taken_over: the task class of fairseq or of the user that this one extends; None for tasks of the plugin.
        models_built: from checkpoints.
        counters: of everything that this task's generators decoded.
        own_share: of this process in the set that it decodes; None: the whole set.
        learning: the task trains or validates. validated: since the last update.
        input_seen: a text has been given, see :meth:`build_dataset_for_inference`.
    """

    kind: ClassVar[str]
    taken_over: ClassVar[type[FairseqTask] | None] = None
    models_built = 0
    input_seen = False
    counters: Counters
    own_share: Share | None
    summary_at_exit: bool
    learning: bool
    validated: bool

    @property
    def settings(self) -> Any:
        """The task's configuration; older tasks keep a namespace under another name."""
        return getattr(self, "args", None) if self.cfg is None else self.cfg

    @property
    def model_paths(self) -> str | None:
        """``--path``, as it was given."""
        return named(self.settings, "model_paths", "path")

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """fairseq's, after the files that the command names and the options have been checked.

        Args:
            **kwargs: fairseq's; ``known`` is that of :func:`~fairseq_aggdec.stored.checkpoints.check_files`.
        """
        known = kwargs.pop("known", None)
        if known is None:
            from fairseq_aggdec.packed.folder import begin

            for path in split_paths(named(cfg, "model_paths", "path") or ""):
                begin(path)
        states = check_files(cfg, cls.kind, cls.taken_over is not None, known)
        check_options({"cfg": {"task": cfg}}, GIVEN)
        codes = [named(cfg, name) for name in ("source_lang", "target_lang")]
        task = cls._set_up(cfg, **kwargs)
        if cls.kind in AS_TRANSLATION:
            check_named(codes, cfg)
            check_direction(cfg, states)
        return task

    @classmethod
    def _set_up(cls, cfg: Any, **kwargs: Any) -> Any:
        return super().setup_task(cfg, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's, for models of the plugin from a configuration of fairseq-hydra-train too."""
        path = path_of(self.model_paths, self.models_built)
        # fairseq evaluates some as Python.
        check_options({"cfg": {"model": cfg}}, path if from_checkpoint else GIVEN)
        if from_checkpoint and self.kind == AGGDEC:
            check_built(cfg, path)
        args = as_namespace(cfg)
        try:
            model = super().build_model(args, *([True] if from_checkpoint else []))
        except CheckpointError:
            raise
        except UNFIT as error:
            if not from_checkpoint:
                raise
            raise unfitting(path, error or type(error).__name__) from error
        keep_options(cfg, args)
        if from_checkpoint:
            self.models_built += 1
            if not adopt(model):
                from fairseq_aggdec.packed.folder import load_stored

                load_stored(path, model)
            check_when_loaded(model, self, getattr(self.settings, "data", None), path)
        return model

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.begin()

    def begin(self) -> None:
        """Does what the constructor does beside fairseq's."""
        self.counters = Counters()
        self.summary_at_exit = self.learning = self.validated = False
        self.own_share = share_of(self.settings)

    @classmethod
    def load_dictionary(cls, filename: str) -> Any:
        """fairseq's; a file that is no dictionary is named."""
        with naming_dictionary(filename):
            return super().load_dictionary(filename)

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> None:
        """fairseq's; sets are named whose files are empty or damaged, and those in parts that are taken -1 times."""
        if self.kind not in AS_TRANSLATION:
            return super().load_dataset(split, *args, **kwargs)
        times = getattr(self.cfg, "upsample_primary", 1)
        parts = (Path(path).glob(f"{split}1.*") for path in split_paths(self.cfg.data))
        if kwargs.get("combine") and times < 0 and any(map(any, parts)):
            raise ValueError(
                f"--upsample-primary {times}: of a set in parts ({split}, {split}1 ...) fairseq takes the first that "
                "many times; for all parts once, say --upsample-primary 1"
            )
        try:
            super().load_dataset(split, *args, **kwargs)
            check_whole(self.datasets[split])
        except (EOFError, ValueError, struct.error) as error:
            raise ValueError(
                f"the set {split} of {self.cfg.data} is empty or damaged ({error}): binarise it anew"
            ) from error

    def build_dataset_for_inference(self, src_tokens: Any, *args: Any, **kwargs: Any) -> Any:
        """fairseq's; a warning is logged where most words of the first input are unknown."""
        if not self.input_seen and self.kind in AS_TRANSLATION:
            self.input_seen = True
            warn_of_unknown(src_tokens, self.source_dictionary.unk())
        return super().build_dataset_for_inference(src_tokens, *args, **kwargs)

    def build_bpe(self, args: Any) -> Any:
        """fairseq's; tokens of a converted model's text stay whole."""
        return with_whole_tokens(super().build_bpe(args), args)

    def build_criterion(self, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        self.learning = True  # only training and validation ask for a criterion
        check_options({"cfg": {"criterion": cfg}}, GIVEN)  # fairseq-validate has them from the file
        return super().build_criterion(cfg, *args, **kwargs)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Stock batching, but no sentence is lost, and none is decoded by two processes.

        fairseq drops the end of a set that does not fill ``--required-batch-size-multiple``: harmless in training only.
        fairseq-generate shares a set by ``--distributed-world-size`` alone.
        """
        from fairseq_aggdec.methods.refusing import refuse_no_batch

        refuse_no_batch(kwargs.get("max_sentences"), kwargs.get("max_tokens"))
        of_training = getattr(self.settings, "train_subset", "train")
        if "required_batch_size_multiple" in kwargs and not (
            self.learning and dataset is self.datasets.get(of_training)
        ):
            kwargs["required_batch_size_multiple"] = 1
        part = self.own_share if "num_shards" in kwargs and not self.learning else None
        if part is not None:
            kwargs |= {"num_shards": part.of, "shard_id": part.number}
        batches = super().get_batch_iterator(dataset, *args, **kwargs)
        if part is not None:
            tell_of_share(part, getattr(batches, "frozen_batches", None), len(dataset))
        return batches

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """fairseq's, with ``--amp`` on CPU too: products in bfloat16, weights and sums in fp32.

        What validation has kept for its next batch is given back first.
        """
        if self.validated:
            self.validated = False
            release = getattr(getattr(self, "sequence_generator", None), "release", None)
            if release is not None:
                release()
        with torch.autocast("cpu", torch.bfloat16, enabled=isinstance(optimizer, AMPOptimizer)):
            return super().train_step(sample, model, criterion, optimizer, *args, **kwargs)

    def valid_step(self, sample: Any, model: Any, criterion: Any, **more: Any) -> Any:
        self.validated = True
        tokens, iterations = self.counters.tokens, self.counters.iterations
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, **more)
        if self.counters.iterations > iterations:
            logging_output["_emitted"] = self.counters.tokens - tokens
            logging_output["_iterations"] = self.counters.iterations - iterations
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs: Any, criterion: Any) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        iterations = sum(log.get("_iterations", 0) for log in logging_outputs)
        if iterations:
            # Not mean_accepted, which is what a criterion measures, by other means and on other positions.
            emitted = sum(log.get("_emitted", 0) for log in logging_outputs)
            metrics.log_scalar("decoded_accepted", emitted / iterations, iterations, round=2)

    def _log_summary_at_exit(self) -> None:
        # fairseq's tools have no hook for the end of a run; training reports through its metrics instead.
        if not self.summary_at_exit and not getattr(self.settings, "eval_bleu", False):
            self.summary_at_exit = True
            atexit.register(_log_summary, self.counters)  # not the task, which has the models


def share_of(settings: Any) -> Share | None:
    """The share of this process in the set that it decodes; None: all of it, or it decodes no set.

    Raises:
        ValueError: what options and launchers tell does not fit together, or to the command.
    """
    command = program(sys.argv[0])
    if command not in (GENERATE, INTERACTIVE):
        return None
    values = {name: number_of(settings, name) for names in OPTIONS for name in names}
    part = share({name: one for name, one in values.items() if one is not None}, os.environ)
    if part is not None and command == INTERACTIVE:
        raise ValueError(
            f"{part.source}: an interactive command decodes all lines that it reads: give every process lines of its "
            "own, or a file to aggdec-generate --input-file"
        )
    if part is not None and part.launched and (path := named(settings, "results_path")):
        raise ValueError(
            f"--results-path {path}: the {part.of} processes ({part.source}) would write one file: leave it out, what "
            "they print has the number of each sentence"
        )
    return part


def tell_of_share(part: Share, batches: Any, sentences: int) -> None:
    """Logs what a process decodes, and how outputs are put together.

    Raises:
        SystemExit: 0, as it decodes nothing: fairseq-generate divides by the number of its batches.
    """
    if batches is None:  # an iterator of a task's own
        logger.info("this process decodes share %d of %d (%s)", part.number, part.of, part.source)
        return
    mine = batches[part.number :: part.of]
    if part.launched and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # processes that share it mix whole lines
    logger.info(
        "this process decodes %d of %d sentences, share %d of %d (%s); all outputs in the order of the set: "
        "cat OUTPUTS | grep ^D- | sort -s -t- -k2,2n | cut -f3-",
        *(sum(map(len, mine)), sentences, part.number, part.of, part.source),
    )
    if not mine:
        logger.info("there is nothing to do: the set has %d batches", len(batches))
        sys.stdout.flush()
        raise SystemExit(0)


def warn_of_unknown(sentences: Sequence[torch.Tensor], unknown: int) -> None:
    """Warns if more than half of the tokens are ``unknown``. Sentences are (T,) with ``</s>`` at the end."""
    count = sum(int((tokens == unknown).sum()) for tokens in sentences)
    words = sum(len(tokens) - 1 for tokens in sentences)
    if 2 * count > words:
        logger.warning(
            "%d of the first %d words of the input are unknown to the model: cut text as for training, "
            "--bpe and --tokenizer (spm= in Python) do it",
            *(count, words),
        )


def _log_summary(counters: Counters) -> None:
    from fairseq_aggdec.engine.graphs.capture import made

    if counters.sentences:
        logger.info("decoding summary: %s", counters.summary())
    if made.graphs:
        logger.info("graphs: %s", made.summary())
