"""A data set and models loaded as ``fairseq-generate`` loads them, to be decoded by several methods in one process.

Every option of fairseq-generate that can change an output arrives where fairseq-generate takes it, or is refused.
"""

import argparse
import ast
import functools
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_REGISTRY
from torch import Tensor

from fairseq_aggdec.api.decoding import batches_by_length
from fairseq_aggdec.api.text import Codec
from fairseq_aggdec.engine.precision import precision_name
from fairseq_aggdec.packed.folder import taken
from fairseq_aggdec.search.counters import Counters
from fairseq_aggdec.stored.one_copy import OneCopy

T = TypeVar("T")

TASK = "translation_aggdec"
Hypothesis = dict[str, Any]
# Options of fairseq-generate that no tool can honour -> why not.
REFUSED = {
    "score_reference": "nothing is decoded with it",
    "constraints": "the sentences of a data set have none",
    "scoring": "quality is measured by sacreBLEU",
    "pipeline_model_parallel": "models are not divided",
    **dict.fromkeys(
        ("replace_unk", "print_step", "results_path"),
        "it is for the text that fairseq-generate prints",
    ),
    **dict.fromkeys(
        ("num_shards", "shard_id", "distributed_world_size", "distributed_rank"),
        "the whole set is decoded",
    ),
}
# Those that some tools read -> why the others do not.
READ_BY_SOME = {
    "beam": "this tool chooses its beams by other options",
    "nbest": "this tool looks at the best output only",
    "batch_size": "this tool chooses the sizes of its batches by other options",
}
DEFAULT_DECODING = "beam"
GREEDY_OR_DEFAULT = (1, 5)  # what --beam may be where it is not read
# Values of options that say what is done anyway, beside the default, which the machine may decide.
HARMLESS = {"beam": GREEDY_OR_DEFAULT, "distributed_world_size": (1,)}


def spread(items: Sequence[T], limit: int | None) -> list[T]:
    """``limit`` of the items at equal distances, all of them for None."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def generation_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of ``fairseq-generate`` for our task: every flag of fairseq and of the plugin."""
    parser = options.get_generation_parser(default_task=TASK)
    parser.description = description
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def refuse_ignored(
    parser: argparse.ArgumentParser, args: Namespace, refused: Mapping[str, str]
) -> None:
    """Ends with a sentence about the first option that would be ignored; ``refused``: name -> why it is."""
    for name, reason in refused.items():
        value = getattr(args, name)
        harmless = (*HARMLESS.get(name, ()), parser.get_default(name))
        if value not in harmless:
            option = "--" + name.replace("_", "-")
            ending = "" if value is True else f" {value}"
            raise SystemExit(f"error: {option}{ending} is not honoured here: {reason}")


def take_batch_size(parser: argparse.ArgumentParser, args: Namespace) -> None:
    """``--batch-size`` in the place of a tool's ``--batch-sizes``; ends with a sentence where they disagree."""
    size = args.batch_size
    if size is None or not hasattr(args, "batch_sizes"):
        return
    if args.batch_sizes == parser.get_default("batch_sizes"):
        args.batch_sizes = [size]
    elif size not in args.batch_sizes:
        raise SystemExit(
            f"error: --batch-size {size} does not go with --batch-sizes: name it there"
        )


def refuse_beam_of_greedy(args: Namespace, decoding: str) -> None:
    """Ends with a sentence where ``--beam`` is for a method that is compared with stock ``--beam 1``."""
    if decoding != "beam" and args.beam not in GREEDY_OR_DEFAULT:
        raise SystemExit(
            f"error: --beam {args.beam} is not honoured here: --decoding {decoding} is looked at with --beam 1"
        )


def refuse_decoding_beside(systems: Iterable[str], decoding: str) -> None:
    """Ends with a sentence where ``--decoding`` names a method that ``--systems`` does not."""
    names = [name.split("-")[0] for name in systems]
    if decoding not in (DEFAULT_DECODING, *names):
        raise SystemExit(
            f"error: --decoding {decoding} is not honoured here: --systems names what is measured"
        )


class Session:
    """Loaded task, models and data set.

    Args:
        parser: from :func:`generation_parser`, with options of the caller's own added.
        arguments: the command line.
        data: load the data set; without it, there is none, and who asks for none refuses options itself.
        always_draft: models that draft do so in every iteration, unless an option says how much; else as much as pays.
        reads: options of :data:`READ_BY_SOME` that the caller reads.
        refused: more options that the caller does not honour -> why not.

    Attributes:
        args: parsed arguments. cfg: the same as fairseq's configuration.
        task, models, dataset: loaded, moved to the device, in evaluation mode.
        saved: the configuration in the checkpoint.
        warned: the options without effect with the command line's ``--decoding`` were named, or need not be.
        language_model: that of ``--lm-path``, if any.
    """

    language_model: Any = None
    warned = False

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        arguments: Sequence[str] | None = None,
        data: bool = True,
        always_draft: bool = True,
        reads: Collection[str] = (),
        refused: Mapping[str, str] | None = None,
    ):
        words = list(arguments) if arguments is not None else None
        self.args = options.parse_args_and_arch(parser, input_args=words)
        ours = hasattr(TASK_REGISTRY[self.args.task], "kind") and not data
        if self.args.task != TASK and not ours:
            raise SystemExit(f"error: --task {self.args.task} has no --decoding: use {TASK}")
        if data:
            unread = {name: why for name, why in READ_BY_SOME.items() if name not in reads}
            refuse_ignored(parser, self.args, REFUSED | unread | dict(refused or {}))
            take_batch_size(parser, self.args)
        self.cfg = convert_namespace_to_omegaconf(self.args)
        if not self.cfg.common_eval.path:
            raise SystemExit("error: --path: name the checkpoint of a model")
        self.cuda = torch.cuda.is_available() and not self.cfg.common.cpu
        if self.cfg.common.seed is not None and not self.cfg.generation.no_seed_provided:
            np.random.seed(self.cfg.common.seed)
            utils.set_torch_seed(self.cfg.common.seed)
        self.task = tasks.setup_task(self.cfg.task)
        self.task.always_draft = always_draft
        self._load_models()
        if data:
            self._load_data()

    def _load_models(self) -> None:
        parts, common = self.cfg.checkpoint, self.cfg.common_eval
        overrides = ast.literal_eval(common.model_overrides)  # the task has checked it
        paths = utils.split_paths(common.path)
        if parts.checkpoint_suffix or parts.checkpoint_shard_count > 1:
            self.models, self.saved = checkpoint_utils.load_model_ensemble(
                paths,
                arg_overrides=overrides,
                task=self.task,
                suffix=parts.checkpoint_suffix,
                strict=parts.checkpoint_shard_count == 1,
                num_shards=parts.checkpoint_shard_count,
            )
        else:
            self.models = []
            for path in paths:
                files = taken(path)
                state = files.load(overrides)
                with OneCopy():
                    members, self.saved = checkpoint_utils.load_model_ensemble(
                        [path], task=self.task, state=state
                    )
                self.models += members
                files.attach(members[0])
                files.check()
        if (path := self.cfg.generation.lm_path) is not None:
            overrides = overrides | {"data": self.cfg.task.data}
            (self.language_model,), _ = checkpoint_utils.load_model_ensemble(
                [path], arg_overrides=overrides, task=None
            )
            self._prepare(self.language_model)
        for model in self.models:
            self._prepare(model)

    def _load_data(self) -> None:
        self.task.load_dataset(self.cfg.dataset.gen_subset, task_cfg=self.saved.task)
        self.dataset = self.task.dataset(self.cfg.dataset.gen_subset)
        if not len(self.dataset):
            raise SystemExit(f"error: --gen-subset {self.cfg.dataset.gen_subset} has no sentences")
        if self.prefix_size > 0 and self.dataset.tgt is None:
            raise SystemExit(
                f"error: --prefix-size {self.prefix_size} needs references: --gen-subset "
                f"{self.cfg.dataset.gen_subset} has none"
            )

    @functools.cached_property
    def order(self) -> list[int]:
        """Indices of the data set, shortest first, that the models can read.

        Taken once: sets other than "test" are shuffled anew at each call.
        """
        indices: Any = self.task.filter_indices_by_size(
            self.dataset.ordered_indices(),
            self.dataset,
            self.max_positions,
            self.cfg.dataset.skip_invalid_size_inputs_valid_test,
        )
        return [int(index) for index in indices]

    @property
    def max_positions(self) -> Any:
        """Tokens of the longest source and target that task and models can read."""
        return utils.resolve_max_positions(
            self.task.max_positions(), *(model.max_positions() for model in self.models)
        )

    @functools.cached_property
    def codec(self) -> Codec:
        """Codec: what ``--tokenizer`` and ``--bpe`` make of text."""
        return Codec(
            self.task.build_tokenizer(self.cfg.tokenizer), self.task.build_bpe(self.cfg.bpe)
        )

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
        """``fp32``, ``tf32``, ``fp16`` or ``bf16``."""
        return precision_name(self.models[0])

    def generator(self, decoding: str, beam: int = 1) -> tuple[Any, Counters]:
        """A generator of this method with all of the command line's generation options, and its counters."""
        generation = Namespace(**dict(self.cfg.generation))
        generation.beam = beam
        chosen, self.task.settings.decoding = self.task.settings.decoding, decoding
        self.task.quiet = self.warned or decoding != str(chosen)
        self.warned = self.warned or not self.task.quiet
        self.task.counters = Counters(said=self.task.counters.said)
        fused = {"lm_model": self.language_model, "lm_weight": generation.lm_weight}
        try:
            generator = self.task.build_generator(
                self.models, generation, extra_gen_cls_kwargs=fused
            )
            return generator, self.task.counters
        finally:
            self.task.settings.decoding = chosen

    def batches(self, batch_size: int, limit: int | None = None) -> list[dict[str, Any]]:
        """Collated samples, sentences of like length together, on the device; ``limit`` sentences at most."""
        order, most = self.sentences(limit), self.cfg.dataset.max_tokens
        sizes = [self.dataset.num_tokens(i) for i in order] if most else range(len(order))
        chunks = batches_by_length(sizes, batch_size, most)
        return [self.batch([order[place] for place in chunk]) for chunk in chunks]

    def batch(self, sentences: Sequence[int]) -> dict[str, Any]:
        """A batch of the given sentences, on the device."""
        sample = self.dataset.collater([self.dataset[i] for i in sentences])
        return utils.move_to_cuda(sample) if self.cuda else sample

    def sentences(self, limit: int | None = None) -> list[int]:
        """The data set's indices, shortest first; of ``limit`` of them, all lengths have their share."""
        return spread(self.order, limit)

    def task_batches(self, batch_size: int) -> Iterator[dict[str, Any]]:
        """Samples as ``fairseq-generate`` gets them from the task, on the device."""
        dataset = self.cfg.dataset
        batches = self.task.get_batch_iterator(
            dataset=self.dataset,
            max_tokens=dataset.max_tokens,
            max_sentences=batch_size,
            max_positions=self.max_positions,
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
        nbest = self.task.inference_step(generator, self.models, sample, prefix_tokens=prefix)
        return [hypotheses[0] for hypotheses in nbest]
