"""What the plugin adds to a task's hooks of data and training: no lost sentence, counters, ``--amp`` on a CPU."""

import atexit
import logging
import struct
from pathlib import Path
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.utils import split_paths

from fairseq_aggdec.checkpoints import AS_TRANSLATION
from fairseq_aggdec.engine.graphs.capture import made
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.tasks.checked_models import CheckedModels

logger = logging.getLogger(__name__)


class Hooks(CheckedModels):
    """Mixed in before a sequence-to-sequence task.

    Attributes:
        counters: of everything that this task's generators decoded.
        learning: the task trains or validates.
        validated: since the last update.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.begin()

    def begin(self) -> None:
        """What the constructor does beside fairseq's."""
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

    def build_criterion(self, *args: Any, **kwargs: Any) -> Any:
        self.learning = True  # only training and validation ask for a criterion
        return super().build_criterion(*args, **kwargs)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Stock batching, but no sentence is lost.

        fairseq drops the end of a set that does not fill ``--required-batch-size-multiple`` (default 8), which is
        harmless in training only.
        """
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
            self._release()
        with torch.autocast("cpu", torch.bfloat16, enabled=isinstance(optimizer, AMPOptimizer)):
            return super().train_step(sample, model, criterion, optimizer, *args, **kwargs)

    def _release(self) -> None:
        release = getattr(getattr(self, "sequence_generator", None), "release", None)
        if release is not None:
            release()

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


def _log_summary(counters: Counters) -> None:
    if counters.sentences:
        logger.info("decoding summary: %s", counters.summary())
    if made.graphs:
        logger.info("graphs: %s", made.summary())
