"""What ``--decoding`` adds to a fairseq task: the generator of each method."""

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import split_paths

from fairseq_aggdec.drafters.blockwise_heads import BlockwiseHeadsDrafter
from fairseq_aggdec.drafters.copy.input_copy import CopyDrafter, InputCopyDrafter
from fairseq_aggdec.drafters.copy_first import CopyFirst
from fairseq_aggdec.drafters.draft_only import DraftOnlyGenerator
from fairseq_aggdec.drafters.head_tables import HeadTables
from fairseq_aggdec.drafters.nar import NarDrafter, check_shared_encoder
from fairseq_aggdec.engine.linear import against_bfloat16
from fairseq_aggdec.methods.draft_options import (
    blockwise_size,
    choosing,
    copied_length,
    copies_first,
    drafted_nodes,
    drafted_size,
    on_gpu,
    proposing,
    with_what_pays,
)
from fairseq_aggdec.methods.from_text import WRITERS, branching, build_text_drafter
from fairseq_aggdec.methods.interleaved import build_interleaved_generator
from fairseq_aggdec.methods.lattice import build_lattice_generator
from fairseq_aggdec.methods.loading import load_drafter
from fairseq_aggdec.methods.options import (
    acceptance_rule,
    announce_int8,
    announce_ngram_blocking,
    announce_unused,
    beam_gap,
    precision,
    refuse_missing_constraints,
    refuse_no_beam,
    refuse_slots,
    refuse_unsupported,
    refuse_wide_beam,
    set_greedy_beam,
)
from fairseq_aggdec.methods.shortlist import build_shortlist
from fairseq_aggdec.search.aligned import AlignedGenerator
from fairseq_aggdec.search.beam.generator import AlignedBeamGenerator, BeamGenerator
from fairseq_aggdec.search.drafter import Drafter, EmptyDrafter
from fairseq_aggdec.search.errors import (
    BROKEN,
    NonFiniteError,
    broken_weight,
    check_best,
    explained,
    refusal,
)
from fairseq_aggdec.search.generator import DraftAndVerifyGenerator
from fairseq_aggdec.search.guards import block_repeats
from fairseq_aggdec.tasks.hooks import Hooks

logger = logging.getLogger(__name__)


class DecodingTask(Hooks):
    """Mixed in before a sequence-to-sequence task whose configuration has the fields of ``DecodingConfig``.

    Attributes:
        first_number: index of the first symbol that is a number, for ``--acceptance distance``; None where symbols are
            words.
    """

    first_number: int | None = None

    def build_generator(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: Mapping[str, Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
    ) -> Any:
        """fairseq's hook; ``args`` are its generation options, complete or (``--eval-bleu-args``) a few of them."""
        refuse_no_beam(args)
        for model in models:
            model.eval()  # as all generators do, and as they are looked at here
        self._set_precision(models)
        self._warn_of_broken(models)
        extra = dict(extra_gen_cls_kwargs or {})
        announce_unused(self.cfg)
        shortlist = build_shortlist(self.cfg, self, args)
        decoding = str(self.cfg.decoding)
        if decoding == "beam":
            decoding = self._beam(models, args, extra, seq_gen_cls, prefix_allowed_tokens_fn)
        if decoding == "stock" or getattr(args, "score_reference", False):
            generator = super().build_generator(
                models, args, seq_gen_cls, extra, prefix_allowed_tokens_fn
            )
            if str(self.cfg.decoding) == "beam":  # which keeps what it promises
                block_repeats(generator, getattr(args, "no_repeat_ngram_size", 0))
            return generator
        if prefix_allowed_tokens_fn is not None:
            reason = "a search under constraints needs --decoding stock"
            raise ValueError(refusal("prefix_allowed_tokens_fn", decoding, reason))
        self._log_summary_at_exit()
        if decoding == "interleaved":
            return self._prepared(build_interleaved_generator(self.cfg, self, models, args, extra))
        if decoding == "lattice":
            return self._prepared(build_lattice_generator(self.cfg, self, models, args, extra))
        extra |= {
            "counters": self.counters,
            "precision": precision(self.cfg),
            "retain_history": bool(getattr(args, "retain_iter_history", False)),
        }
        if getattr(args, "print_alignment", None):
            extra["print_alignment"] = args.print_alignment
        if decoding == "beam":
            return self._build_beam_generator(models, args, extra)
        return self._build_greedy_generator(
            decoding, models, args, extra | {"shortlist": shortlist}
        )

    def _set_precision(self, models: Sequence[torch.nn.Module]) -> None:
        """``--bf16``, which stock generation ignores."""
        if self.cfg.bf16 is not True or self.training:  # a name where nothing filled it in
            return
        logger.info("models in bfloat16 (--bf16)")
        for model in models:
            model.bfloat16()
        on_cpu = all(weight.is_cpu for model in models for weight in model.parameters())
        if on_cpu and (reason := against_bfloat16()):
            logger.warning("%s: fp32 is likely faster here than --bf16", reason)

    def _build_greedy_generator(
        self,
        decoding: str,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        extra: dict[str, Any],
    ) -> Any:
        """The generator of a method of the loop."""
        refuse_unsupported(args, extra, decoding)
        refuse_slots(models, decoding)
        set_greedy_beam(args, decoding)
        announce_ngram_blocking(args)
        announce_int8(self.cfg)
        generator_class: Any = DraftOnlyGenerator if decoding == "nar" else DraftAndVerifyGenerator
        if getattr(args, "print_alignment", None):
            if decoding == "nar":
                raise ValueError("--print-alignment does not go with --decoding nar: use gad")
            generator_class = AlignedGenerator
        extra |= {
            "drafter": self.build_drafter(decoding, models, args),
            "accept": acceptance_rule(self.cfg, self.first_number),
        }
        return self._prepared(super().build_generator(models, args, generator_class, extra))

    def _prepared(self, generator: Any) -> Any:
        """The generator with its weights packed, so that the first answer takes no longer than later ones.

        Training builds its generator before the models have their device, and changes them.
        """
        if not getattr(self.cfg, "eval_bleu", False):
            generator.prepare()
        return generator

    def _beam(
        self,
        models: Sequence[torch.nn.Module],
        args: Namespace,
        extra: Mapping[str, Any],
        seq_gen_cls: Any,
        prefix_allowed_tokens_fn: Any,
    ) -> str:
        """What ``--decoding beam`` comes to: ``beam``, ``stock`` where the search cannot give what stock gives (and
        says why), and with ``--beam 1`` a method of the loop."""
        gap, beam = beam_gap(args, extra, models), getattr(args, "beam", 5)
        if prefix_allowed_tokens_fn or getattr(args, "prefix_allowed_tokens_fn", None):
            gap = "prefix_allowed_tokens_fn"
        elif seq_gen_cls is not None:
            gap = f"a generator of type {seq_gen_cls.__name__}"
        elif (
            beam == 1
            and getattr(args, "match_source_len", False)
            and getattr(args, "unkpen", 0) < 0
        ):
            gap = gap or "--unkpen below 0 with --match-source-len"
        if gap is not None:
            if not getattr(args, "score_reference", False):
                logger.info("--decoding beam is left to stock fairseq: %s", gap)
            return "stock"
        if beam > 1:
            return "beam"
        return {"none": "greedy", "heads": "blockwise"}.get(str(self.cfg.draft_from), "iad")

    def _build_beam_generator(
        self, models: Sequence[torch.nn.Module], args: Namespace, extra: dict[str, Any]
    ) -> Any:
        if self.cfg.strict:
            raise ValueError(refusal("--strict", "beam", "give --beam 1"))
        announce_ngram_blocking(args)
        announce_int8(self.cfg)
        generator_class: Any = BeamGenerator
        if getattr(args, "print_alignment", None):
            generator_class = AlignedBeamGenerator
        kind = str(self.cfg.draft_from)
        extra["ahead"] = kind != "none"
        if kind == "heads":
            extra["foreteller"] = self._head_tables(models)
        elif extra["ahead"]:
            extra["texts"] = self._copy_drafter(models, args).texts_of
        return self._prepared(super().build_generator(models, args, generator_class, extra))

    def _warn_of_broken(self, models: Sequence[torch.nn.Module]) -> None:
        """A weight that is no number ends decoding only at a sentence that needs it."""
        paths = split_paths(getattr(self.cfg, "model_paths", None) or "")
        for place, model in enumerate(models if not self.training else ()):
            if weight := broken_weight(model):
                name = paths[place] if len(paths) == len(models) else "a model"
                logger.warning("%s: %s", name, BROKEN.format(weight))

    def inference_step(self, generator: Any, models: Any, sample: Any, **options: Any) -> Any:
        """fairseq's, but scores that are not finite numbers end it, whatever decodes.

        Raises:
            NonFiniteError: names the sentence and the model.
            ValueError: a search under constraints, of sentences that have none.
        """
        refuse_missing_constraints(generator, options.get("constraints"))
        try:
            found = super().inference_step(generator, models, sample, **options)
            if type(generator) is SequenceGenerator:  # ours have looked
                check_best(found)
            return found
        except (AssertionError, NonFiniteError) as error:
            paths, named = getattr(self.cfg, "model_paths", None), models
            if isinstance(generator, DraftOnlyGenerator):
                paths, named = self.cfg.drafter_path, [generator.drafter.model]
            if isinstance(error, AssertionError) and not any(map(broken_weight, models)):
                refuse_wide_beam(generator, models)
                raise  # stock search, which looks for no NaN, has a limit that it does not pass otherwise
            names = split_paths(paths) if paths else []
            row = getattr(error, "row", None)
            raise explained(row, sample, named, names) from None

    def build_drafter(
        self, decoding: str, models: Sequence[torch.nn.Module], args: Namespace
    ) -> Drafter:
        """The drafter of a method; ``args`` are fairseq's generation options."""
        if decoding == "greedy":
            return EmptyDrafter()
        if decoding == "nar":
            return self._nar_drafter(decoding, models)
        if decoding in ("gad", "blockwise"):
            drafter = self._model_drafter(decoding, models)
            if copies_first(self.cfg):
                return CopyFirst(self._copy_drafter(models, args), drafter)
            return drafter
        if str(self.cfg.draft_from) == "none":
            return EmptyDrafter()
        return branching(self._copy_drafter(models, args), self.cfg)

    def _copy_drafter(self, models: Sequence[torch.nn.Module], args: Namespace) -> CopyDrafter:
        """Copies the text that ``--draft-from`` names."""
        if str(self.cfg.draft_from) == "heads":
            raise ValueError(refusal("--draft-from heads", "iad", "use blockwise, or beam"))
        if (
            str(self.cfg.draft_from) in WRITERS
            or self.cfg.draft_file
            or self.cfg.draft_from == "file"
        ):
            drafter = build_text_drafter(self.cfg, self, models[0], args)
        else:
            drafter = InputCopyDrafter(
                self.source_dictionary, self.target_dictionary, str(self.cfg.iad_match)
            )
        drafter.limit_drafts(copied_length(self.cfg))
        return drafter

    def _model_drafter(self, decoding: str, models: Sequence[Any]) -> Drafter:
        if decoding == "gad":
            return self._nar_drafter(decoding, models)
        cfg = with_what_pays(self.cfg, models)
        gpu = on_gpu(models[0])
        size = choosing(cfg, blockwise_size(cfg, models) - 1, gpu)
        return BlockwiseHeadsDrafter(size, proposing(cfg), drafted_nodes(cfg, gpu))

    def _head_tables(self, models: Sequence[Any]) -> HeadTables:
        size, target = (
            blockwise_size(self.cfg, models, "--draft-from heads"),
            self.target_dictionary,
        )
        if size < 2:
            raise ValueError("--draft-from heads needs a model with at least two block heads")
        return HeadTables(size, target.pad(), target.unk(), proposing(self.cfg))

    def _nar_drafter(self, decoding: str, models: Sequence[Any]) -> NarDrafter:
        if not self.cfg.drafter_path:
            raise ValueError(
                f"--decoding {decoding} needs a drafter (--arch nar_drafter): name its checkpoint with --drafter-path"
            )
        drafter = load_drafter(self.cfg.drafter_path, self)
        drafter.to(next(models[0].parameters()))  # device and precision
        if drafter.shares_encoder and len(models) == 1:
            check_shared_encoder(drafter, models[0])
        cfg = self.cfg if decoding == "nar" else with_what_pays(self.cfg, models)
        return NarDrafter(
            drafter,
            drafted_size(cfg, drafter),
            precision(cfg),
            proposing(cfg),
            drafted_nodes(cfg, on_gpu(drafter)),
        )
