"""Hooks: what the plugin adds to a task's hooks: checked checkpoints, no lost sentence, counters, ``--amp`` on a
CPU."""

import atexit
import logging
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from fairseq.logging import metrics
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths

from fairseq_aggdec.checkpoints import (
    AGGDEC,
    AS_TRANSLATION,
    check_built,
    check_direction,
    check_files,
    check_named,
    check_when_loaded,
    named,
    path_of,
)
from fairseq_aggdec.models.options import as_namespace, keep_options
from fairseq_aggdec.one_copy import adopt
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.stored_options import check_options

logger = logging.getLogger(__name__)

GIVEN = "the configuration"  # options of a command, of a checkpoint that another option names


class Hooks(FairseqTask):
    """Mixed in before a task of fairseq, whose configuration may name checkpoints.

    Attributes:
        kind: the name that the task is registered by; tasks derived from it have their own.
        taken_over: the task class of fairseq or of the user that this one extends; None for tasks of the plugin.
        models_built: from checkpoints.
        counters: of everything that this task's generators decoded.
        learning: the task trains or validates. validated: since the last update.
        input_seen: a text has been given, see :meth:`build_dataset_for_inference`.
    """

    kind: ClassVar[str]
    taken_over: ClassVar[type[FairseqTask] | None] = None
    models_built = 0
    input_seen = False
    counters: Counters
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
            **kwargs: fairseq's; ``known`` is that of :func:`~fairseq_aggdec.checkpoints.check_files`.
        """
        known = kwargs.pop("known", None)
        states = check_files(cfg, cls.kind, cls.taken_over is not None, known)
        check_options({"cfg": {"task": cfg}}, GIVEN)
        given = [named(cfg, name) for name in ("source_lang", "target_lang")]
        task = cls._set_up(cfg, **kwargs)
        if cls.kind in AS_TRANSLATION:
            check_named(given, cfg)
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
        model = super().build_model(args, *([True] if from_checkpoint else []))
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
            return super().load_dataset(split, *args, **kwargs)
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

    def build_criterion(self, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        self.learning = True  # only training and validation ask for a criterion
        check_options({"cfg": {"criterion": cfg}}, GIVEN)  # fairseq-validate has them from the file
        return super().build_criterion(cfg, *args, **kwargs)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Stock batching, but no sentence is lost.

        fairseq drops the end of a set that does not fill ``--required-batch-size-multiple``: harmless in training only.
        """
        from fairseq_aggdec.methods.refusing import refuse_no_batch

        refuse_no_batch(kwargs.get("max_sentences"), kwargs.get("max_tokens"))
        of_training = getattr(self.settings, "train_subset", "train")
        if "required_batch_size_multiple" in kwargs and not (
            self.learning and dataset is self.datasets.get(of_training)
        ):
            kwargs["required_batch_size_multiple"] = 1
        return super().get_batch_iterator(dataset, *args, **kwargs)

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


def warn_of_unknown(sentences: Sequence[torch.Tensor], unknown: int) -> None:
    """Warns if more than half of the tokens are ``unknown``. Sentences are (T,) with ``</s>`` at the end."""
    found = sum(int((tokens == unknown).sum()) for tokens in sentences)
    words = sum(len(tokens) - 1 for tokens in sentences)
    if 2 * found > words:
        logger.warning(
            "%d of the first %d words of the input are unknown to the model: cut text as for training, "
            "--bpe and --tokenizer (spm= in Python) do it",
            *(found, words),
        )


def _log_summary(counters: Counters) -> None:
    from fairseq_aggdec.engine.graphs.capture import made

    if counters.sentences:
        logger.info("decoding summary: %s", counters.summary())
    if made.graphs:
        logger.info("graphs: %s", made.summary())
