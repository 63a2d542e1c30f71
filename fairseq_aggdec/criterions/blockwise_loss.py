"""``--criterion blockwise_loss``: cross entropy of the heads of blockwise decoding (Stern et al., section 6)."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor, nn

from fairseq_aggdec.criterions.projected_loss import projected_loss
from fairseq_aggdec.models.block_heads import BlockHeads
from fairseq_aggdec.models.options import option

HEAD_LOSS = ChoiceEnum(["sample", "mean"])
SUMS = ("nll", "hits", "count")  # logged of each head


@dataclass
class BlockwiseLossConfig(FairseqDataclass):
    """Tells how the losses of the heads become one."""

    label_smoothing: float = option(0.0, "epsilon for label smoothing, 0 means no label smoothing")
    head_loss: HEAD_LOSS = option(
        "sample",
        "sample: one head drawn per minibatch, unbiased, as in the paper; mean: all heads every time "
        "(more memory)",
    )
    head_decay: float = option(
        1.0,
        "weight of each head's loss, or how often it is drawn, relative to the head before it: 1 as in the "
        "paper; less favours the near heads, without which those behind them count for nothing",
    )
    head_positions: float = option(
        1.0,
        "share of the positions of a minibatch that heads learn from, drawn anew every time: those of a "
        "sentence teach much the same, so that with less the same time shows more sentences (1: all, as in the "
        "paper)",
    )
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("blockwise_loss", dataclass=BlockwiseLossConfig)
class BlockwiseLoss(FairseqCriterion):
    """Head i learns the token i + 1 positions ahead; nothing is learned past ``</s>``.

    With ``--slot-chain`` the loss of heads 2 to k is the mean of that of the head alone, which chooses the candidates,
    and that of the head told the true token before its own; what is logged is of the latter.

    In training the loss is that of the drawn head, or the mean over heads, weighted by ``head_decay``. Validation looks
    at all heads: its ``loss`` is the same mean, and ``mean_accepted`` the tokens per iteration that exact acceptance
    would give at the positions of the reference.
    """

    cfg: BlockwiseLossConfig

    def __init__(self, cfg: BlockwiseLossConfig, task: Any):
        super().__init__(task)
        if not 0 < cfg.head_decay <= 1:
            raise ValueError(f"--head-decay {cfg.head_decay}: it must be above 0 and at most 1")
        if not 0 < cfg.head_positions <= 1:
            raise ValueError(
                f"--head-positions {cfg.head_positions}: it must be above 0 and at most 1"
            )
        self.epsilon, self.decay = cfg.label_smoothing, cfg.head_decay
        self.positions = cfg.head_positions
        self.mean, self.sentence_avg = str(cfg.head_loss) == "mean", cfg.sentence_avg

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """Returns the summed loss in nats, the sample size that normalises it, and what to log."""
        layer = getattr(getattr(model, "decoder", None), "heads", None)
        if not isinstance(layer, BlockHeads):
            raise ValueError(
                "--criterion blockwise_loss needs a model with block heads (--arch blockwise_transformer)"
            )
        heads = self._heads(model)
        own_target = target = sample["target"]
        opened = model.decoder.head_layers is not None
        if opened:  # before the first position stands </s>, and only heads 2 to k are read there
            own_target = F.pad(target, (1, 0), value=self.padding_idx)
            target = F.pad(target, (1, 0), value=self.task.target_dictionary.eos())
        # fairseq seeds torch with the number of the update, so a resumed run draws the same heads and positions.
        places = self._places(target) if model.training else None
        outputs = model(**sample["net_input"], heads=heads, chosen=target, places=places)
        logging: dict[str, Any] = {"nsentences": target.size(0), "ntokens": sample["ntokens"]}
        # All heads, drawn or not: fairseq adds up the names that the first micro-batch has.
        for head in range(layer.block_size):
            logging |= {f"{name}_{head + 1}": target.new_zeros(()) for name in SUMS}
        losses, predicted = [], []
        for head, output in zip(heads, outputs.unbind(-2), strict=True):  # each (B, T, C)
            wanted = shift(target if head else own_target, head, self.padding_idx, places)
            learning = functools.partial(
                projected_loss,
                model.decoder.output_projection,
                target=wanted,
                epsilon=self.epsilon,
                pad=self.padding_idx,
            )
            learnt = learning(output)
            losses.append(learnt.loss)
            if head > 0 and model.decoder.chain is not None:
                before = shift(target, head - 1, self.padding_idx, places)
                learnt = learning(model.decoder.chained(output, before))
                losses[-1] = (losses[-1] + learnt.loss) / 2
            predicted.append(learnt.predicted)
            there = wanted != self.padding_idx
            logging |= {
                f"nll_{head + 1}": learnt.nll,
                f"hits_{head + 1}": ((learnt.predicted == wanted) & there).sum(),
                f"count_{head + 1}": there.sum(),
            }
        loss = torch.stack(losses) @ self._weights(len(losses)).to(losses[0])
        if model.training and not self.mean:
            decoder = model.decoder
            parts = (layer, decoder.output_projection, decoder.head_layers, decoder.chain)
            loss = loss + nothing_of(*(part for part in parts if part is not None))
        read = target if places is None else target[:, places]
        sample_size = target.size(0) if self.sentence_avg else (read != self.padding_idx).sum()
        logging |= {"loss": loss.detach(), "sample_size": sample_size}
        if not model.training:
            written = [tokens[:, int(opened) :] for tokens in predicted]
            gained, positions = accepted_on_reference(written, sample["target"], self.padding_idx)
            logging |= {"gained": gained, "positions": positions}
        return loss, sample_size, logging

    def _heads(self, model: Any) -> range:
        """The heads to learn from or to look at."""
        if not model.training:
            return range(model.decoder.heads.block_size)
        heads: range = model.trained_heads
        if self.mean:
            return heads
        drawn = int(torch.multinomial(self._weights(len(heads)), 1))
        return heads[drawn : drawn + 1]

    def _places(self, target: Tensor) -> Tensor | None:
        """Positions of the targets (B, T) that are learned from, in ascending order; None for all."""
        length = target.size(1)
        count = math.ceil(self.positions * length)
        if count == length:
            return None
        return torch.randperm(length)[:count].sort().values.to(target.device)

    def _weights(self, count: int) -> Tensor:
        """(count,) of consecutive heads, adding up to 1."""
        weights = self.decay ** torch.arange(count, dtype=torch.float32)
        return weights / weights.sum()

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Per head: ``acc_i`` in percent and ``nll_i`` in bits; ``mean_accepted`` in validation."""

        def total(name: str) -> Any:
            return sum(log.get(name, 0) for log in logging_outputs)

        sample_size = total("sample_size")
        metrics.log_scalar("loss", total("loss") / sample_size / math.log(2), sample_size, round=3)
        heads = {int(name[4:]) for log in logging_outputs for name in log if name[:4] == "nll_"}
        for head in sorted(heads):
            if count := int(total(f"count_{head}")):
                bits = total(f"nll_{head}") / count / math.log(2)
                metrics.log_scalar(f"nll_{head}", bits, count, round=3)
                accuracy = 100 * total(f"hits_{head}") / count
                metrics.log_scalar(f"acc_{head}", accuracy, count, round=1)
        if positions := int(total("positions")):
            accepted = total("gained") / positions
            metrics.log_scalar("mean_accepted", accepted, positions, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def nothing_of(*modules: nn.Module) -> Tensor:
    """Zero, with a gradient for every parameter of the modules.

    A drawn head may pass by the layer (identity) or have no target; training on several GPUs waits for every gradient.
    """
    return torch.stack(
        [parameter.flatten()[:0].sum() for module in modules for parameter in module.parameters()]
    ).sum()


def shift(target: Tensor, head: int, pad: int, places: Tensor | None = None) -> Tensor:
    """Targets of a head: targets (B, T) moved ``head`` positions to the left, ``pad`` where they end.

    Of ``places`` (T',) only, where these are given: (B, T').
    """
    shifted = target
    if head > 0:
        shifted = torch.full_like(target, pad)
        shifted[:, :-head] = target[:, head:]
    return shifted if places is None else shifted[:, places]


def accepted_on_reference(
    predicted: Sequence[Tensor], target: Tensor, pad: int
) -> tuple[Tensor, Tensor]:
    """Tokens that an iteration would gain, summed over all positions of the reference, and the number of positions.

    From position t head 1's token always stands; those of head 2, 3, ... stand as long as each equals what head 1
    predicts at its place, read with the reference as prefix.

    Args:
        predicted: per head (B, T) tokens; those of head i at t are for position t + i.
        target: (B, T) reference.
        pad: padding index.
    """
    here = target != pad
    stands, gained = here, here.sum()
    for head, tokens in enumerate(predicted[1:], start=1):
        predicted_first = shift(predicted[0], head, pad)
        stands = stands & (tokens == predicted_first) & shift(here, head, False)
        gained = gained + stands.sum()
    return gained, here.sum()
