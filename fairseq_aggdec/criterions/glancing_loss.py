"""``--criterion glancing_loss``: how a non-autoregressive drafter learns (Ge et al., section 3.2.1).

A random prefix of every target is drawn and the next k tokens are the targets. In training a first pass without
gradients shows how much of the block the drafter gets wrong; a share of that is revealed to the second pass, which
learns the rest (glancing, Qian et al., 2021).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from fairseq.utils import get_perplexity
from omegaconf import II
from torch import Tensor

from fairseq_aggdec.criterions.projected_loss import projected_loss
from fairseq_aggdec.data.block_targets import choose_revealed, cut_blocks, draw_prefix_lengths
from fairseq_aggdec.models.nar_decoder import NarDecoder
from fairseq_aggdec.models.options import option
from fairseq_aggdec.models.slot_chain import tokens_before

PREFIXES = ChoiceEnum(["drawn", "none"])
VALIDATION = -1  # in place of the number of the update: the same prefixes every time


@dataclass
class GlancingLossConfig(FairseqDataclass):
    """The published schedule, and what validation measures."""

    label_smoothing: float = option(0.0, "epsilon for label smoothing, 0 means no label smoothing")
    prefixes: PREFIXES = option(
        "drawn",
        "drawn: a block begins anywhere in the sentence, as for a drafter; none: at its start, which with "
        "a --block-size of the longest sentence is a plain non-autoregressive Transformer",
    )
    slot_decay: float = option(
        1.0,
        "weight of a slot's loss, as a share of the weight of the slot before it. A slot is of use only "
        "when all before it are accepted: less than 1 learns the first slots better (1: all alike, as published)",
    )
    glancing_start: float = option(
        0.5, "share of the wrong tokens of a block that is revealed, at first"
    )
    glancing_end: float = option(0.3, "the same, at the end")
    glancing_updates: Optional[int] = option(
        None, "updates from --glancing-start to --glancing-end (default: --max-update)"
    )
    eval_acceptance: Optional[str] = option(
        None,
        "checkpoint of a verifier: validation decodes with it and the drafter and reports mean_accepted, "
        "the tokens per iteration of a sentence",
    )
    eval_acceptance_sentences: int = option(
        200, "how many sentences of the validation set that decodes"
    )
    sentence_avg: bool = II("optimization.sentence_avg")
    max_update: int = II("optimization.max_update")
    seed: int = II("common.seed")


@register_criterion("glancing_loss", dataclass=GlancingLossConfig)
class GlancingLoss(FairseqCriterion):
    """Cross entropy of the block after a drawn prefix (or at the start); nothing is learned past ``</s>``.

    Validation counts the same blocks with the same prefixes every time and reveals nothing. It reports the drafter's
    ``matched`` tokens (how many of a block equal the reference up to the first that does not) and, with
    ``--eval-acceptance``, ``mean_accepted``.

    With ``--slot-chain`` the loss is the mean of that of the slots alone and that of the slots told the true tokens
    before them, of which ``nll_loss``, ``matched`` and validation's ``accuracy`` speak.
    """

    cfg: GlancingLossConfig

    def __init__(self, cfg: GlancingLossConfig, task: Any):
        super().__init__(task)
        self.cfg = cfg
        for name in ("glancing_start", "glancing_end"):
            if not 0 <= getattr(cfg, name) < 1:
                raise ValueError(
                    f"--{name.replace('_', '-')} {getattr(cfg, name)}: a share is at least 0 and less than 1"
                )
        if not 0 < cfg.slot_decay <= 1:
            raise ValueError(f"--slot-decay {cfg.slot_decay}: more than 0 and at most 1")
        self.probe = None
        if cfg.eval_acceptance:
            from fairseq_aggdec.criterions.acceptance_probe import AcceptanceProbe

            self.probe = AcceptanceProbe(cfg.eval_acceptance, cfg.eval_acceptance_sentences, task)

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """Returns the summed loss in nats, the sample size that normalises it, and what to log."""
        target, ids, decoder = sample["target"], sample["id"], model.decoder
        if not isinstance(decoder, NarDecoder):
            raise ValueError(
                "--criterion glancing_loss trains drafters (--arch nar_drafter); this model has a "
                f"{type(decoder).__name__}"
            )
        update = model.num_updates if model.training else VALIDATION
        lengths = (target != self.padding_idx).sum(1)
        anywhere = str(self.cfg.prefixes) == "drawn"
        prefixes = torch.zeros_like(lengths)
        if anywhere:
            prefixes = draw_prefix_lengths(lengths, ids, self.cfg.seed, update)
        tokens, block = cut_blocks(
            target, prefixes, decoder.block_size, self.padding_idx, decoder.mask_index
        )
        if not anywhere:
            tokens = tokens[:, -decoder.block_size :]  # no column of prefixes
        there = block != self.padding_idx
        logging: dict[str, Any] = {"nsentences": len(target)}
        glance = None
        if model.training:
            ratio = self.ratio(update)
            keys = ids, self.cfg.seed, update
            glance = Glance(decoder.output_layer, tokens, block, there, decoder.shift, ratio, keys)
            logging |= {"glancing_ratio": ratio, "batches": 1}
        source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
        features = model(**source, prev_output_tokens=tokens, glance=glance)  # (B, k, C)
        learned = there if glance is None else glance.learned
        places = torch.arange(block.size(1), device=block.device)
        weights = (self.cfg.slot_decay**places).expand_as(block)  # (B, k)
        learning = functools.partial(
            projected_loss,
            decoder.output_layer,
            target=block.masked_fill(~learned, self.padding_idx),
            epsilon=self.cfg.label_smoothing,
            pad=self.padding_idx,
            weights=weights,
        )
        loss, logging["nll_loss"], predicted = learning(features)
        if decoder.chain is not None:
            # Slots alone choose the candidates and have to be good as well.
            features_behind = decoder.chained(features, self._before(tokens, block))
            chained, logging["nll_loss"], predicted = learning(features_behind)
            loss = (loss + chained) / 2
        right = (predicted == block) & there if glance is None else glance.right
        ntokens = learned.sum()
        sample_size = len(target) if self.cfg.sentence_avg else weights[learned].sum()
        logging |= {
            "loss": loss.detach(),
            "sample_size": sample_size,
            "ntokens": ntokens,
            "right": right.sum(),
            "slots": there.sum(),
        }
        if glance is None:
            logging["matched"] = right.cumprod(1).sum()
            logging |= self._probe(model, sample)
        return loss, sample_size, logging

    def _before(self, tokens: Tensor, block: Tensor) -> Tensor:
        """The true tokens before the slots (B, k), of input (B, P + k) and block (B, k)."""
        slots, eos = block.size(1), self.task.target_dictionary.eos()
        last = tokens.new_full((len(tokens),), eos)
        if tokens.size(1) > slots:
            last = tokens[:, -slots - 1]
        return tokens_before(last.masked_fill(last == self.padding_idx, eos), block)

    def ratio(self, update: int) -> float:
        """Share of the distance that is revealed at an update: linear from start to end, then constant.

        Raises:
            ValueError: it is not said over how many updates.
        """
        updates = self.cfg.glancing_updates or self.cfg.max_update
        if updates <= 0:
            raise ValueError("--criterion glancing_loss needs --max-update or --glancing-updates")
        start, end = self.cfg.glancing_start, self.cfg.glancing_end
        return start + (end - start) * min(1.0, update / updates)

    def _probe(self, model: Any, sample: dict[str, Any]) -> dict[str, float]:
        if self.probe is None:
            return {}
        gains = self.probe.decode(model, sample)
        return {"gained": sum(gains), "decoded": len(gains)}

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """``loss`` and ``nll_loss`` in bits, ``accuracy`` of the slots in percent (in training that of the first pass).

        ``glancing_ratio`` in training; ``matched`` and ``mean_accepted`` in validation.
        """

        def total(name: str) -> Any:
            return sum(log.get(name, 0) for log in logging_outputs)

        sample_size, ntokens, slots = total("sample_size"), total("ntokens"), total("slots")
        metrics.log_scalar("loss", total("loss") / sample_size / math.log(2), sample_size, round=3)
        metrics.log_scalar("nll_loss", total("nll_loss") / ntokens / math.log(2), ntokens, round=3)
        metrics.log_derived("ppl", lambda meters: get_perplexity(meters["nll_loss"].avg))
        metrics.log_scalar("accuracy", 100 * total("right") / slots, slots, round=1)
        if batches := total("batches"):
            ratio = total("glancing_ratio") / batches
            metrics.log_scalar("glancing_ratio", ratio, batches, round=3)
        else:
            sentences = total("nsentences")
            metrics.log_scalar("matched", total("matched") / sentences, sentences, round=2)
        if decoded := total("decoded"):
            metrics.log_scalar("mean_accepted", total("gained") / decoded, decoded, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


@dataclass
class Glance:
    """Turns what the first pass predicts into the input of the second.

    Args:
        output_layer: features (N, C) -> logits (N, V).
        tokens: (B, P + k) input of the first pass.
        block: (B, k) targets.
        there: (B, k) bool, slots that have a target.
        shift: how many slots at the end are not read, so that there is no use in revealing them.
        ratio: of the wrong tokens that is revealed.
        keys: ids, seed and update for :func:`choose_revealed`.

    Attributes:
        right: (B, k) bool, slots that the first pass got right.
        learned: (B, k) bool, slots that have a target and were not revealed.
    """

    output_layer: Callable[[Tensor], Tensor]
    tokens: Tensor
    block: Tensor
    there: Tensor
    shift: int
    ratio: float
    keys: tuple[Tensor, int, int]
    right: Tensor = field(init=False)
    learned: Tensor = field(init=False)

    def __call__(self, features: Tensor) -> Tensor:
        """Features of the slots (B, k, C) -> (B, P + k)."""
        there = self.there
        predicted = self.output_layer(features[there]).max(-1).indices
        self.right = torch.zeros_like(there).masked_scatter_(there, predicted == self.block[there])
        distance = (there & ~self.right).sum(1)
        slots = torch.arange(there.size(1), device=there.device)
        read = there & (slots < there.size(1) - self.shift)
        revealed = choose_revealed(distance, read, self.ratio, *self.keys)
        self.learned = there & ~revealed
        prefix, slots = self.tokens.split([self.tokens.size(1) - len(slots), len(slots)], 1)
        return torch.cat([prefix, torch.where(revealed, self.block, slots)], dim=1)
