"""The verifier: one model or an ensemble whose greedy output counts, behind one window call."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_aggdec.decoding.cached_decoder import CachedDecoder, PrefixDecoder, decoder_gap
from fairseq_aggdec.decoding.draft import AS_VERIFIED, Proposing
from fairseq_aggdec.decoding.encoder import FastEncoder, StockEncoder, encoder_gap
from fairseq_aggdec.decoding.linear import ParameterWatch
from fairseq_aggdec.decoding.window import Window

logger = logging.getLogger(__name__)


class Member:
    """One model of the ensemble: its encoder and decoder in the fastest form that represents them.

    The fast forms are made when first used and made anew when the parameters have changed since.
    """

    def __init__(self, model: Any, pack: bool):
        self.model, self.pack = model, pack
        self.watch: ParameterWatch | None = None
        self._announce()

    def _announce(self) -> None:
        for part, gap in (
            ("encoder", encoder_gap(self.model.encoder)),
            ("decoder", self._decoder_gap()),
        ):
            if gap is not None:
                how = "as it is" if part == "encoder" else "by recomputing the whole prefix"
                logger.info("%s runs %s: %s", part, how, gap)

    def _decoder_gap(self) -> str | None:
        return decoder_gap(self.model.decoder)

    def refresh(self) -> None:
        if self.watch is not None and not self.watch.changed():
            return
        model, pack = self.model, self.pack
        fast_encoder = encoder_gap(model.encoder) is None
        fast_decoder = self._decoder_gap() is None
        self.encoder = (
            FastEncoder(model.encoder, pack) if fast_encoder else StockEncoder(model.encoder)
        )
        self.decoder = CachedDecoder(model.decoder, pack) if fast_decoder else PrefixDecoder(model)
        self.watch = ParameterWatch(model)

    def start(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        self.refresh()
        rows = net_input["src_tokens"].size(0)
        encoder_input = {k: v for k, v in net_input.items() if k != "prev_output_tokens"}
        self.encoder_out = self.encoder(encoder_input)
        self.decoder.start(self.encoder_out, rows, capacity)


def follow(drafter: nn.Module, verifier: "Verifier") -> None:
    """Moves a drafter to the device and the precision of the verifier, which training moves after it was built."""
    own, wanted = (next(model.parameters()) for model in (drafter, verifier.members[0].model))
    if own.device != wanted.device or own.dtype is not wanted.dtype:
        drafter.to(wanted)


class Verifier:
    """Encodes a batch once, then scores windows of it.

    Args:
        models: fairseq encoder-decoder models in evaluation mode; probabilities of several are averaged, as in stock.
        pack: keep weights packed for CPU (see :mod:`fairseq_aggdec.decoding.linear`).
        temperature: divides the logits before the softmax.

    Attributes:
        features: (N, C) of the last window, one per model.
    """

    def __init__(self, models: Sequence[nn.Module], pack: bool = True, temperature: float = 1.0):
        self.members = [Member(model, pack) for model in models]
        self.temperature = temperature
        self.features: list[Tensor] = []

    def start(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        """Encodes ``src_tokens`` (B, S) and makes room for ``capacity`` target positions per row."""
        for member in self.members:
            member.start(net_input, capacity)

    def restrict(self, types: Tensor) -> None:
        """Until the next batch, only the given types (M,) int64 can be chosen, and only their logits are computed.

        Raises:
            ValueError: a decoder that cannot.
        """
        for member in self.members:
            if not isinstance(member.decoder, CachedDecoder):
                raise ValueError("--shortlist needs a stock Transformer decoder")
            member.decoder.restrict(types)

    def logits(self, window: Window) -> Tensor:
        """(N, V) fp32: what ``log_softmax`` turns into the models' (averaged) log-probabilities, NaN nowhere hidden."""
        self.features = [member.decoder.features(window) for member in self.members]
        outputs = [
            member.decoder.logits(features, self.temperature).float()
            for member, features in zip(self.members, self.features, strict=True)
        ]
        if len(outputs) == 1:
            return outputs[0]
        log_probs = torch.stack([output.log_softmax(-1) for output in outputs])
        return torch.logsumexp(log_probs, dim=0) - math.log(len(outputs))

    def propose(
        self, features: Tensor, block_size: int, proposing: Proposing = AS_VERIFIED
    ) -> Tensor:
        """The tokens that heads 2 to ``block_size`` predict: (B, C) -> (B, ``block_size`` - 1)."""
        (member,) = self.members
        return member.decoder.propose(features, block_size, proposing)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps the given rows of the batch, in this order."""
        for member in self.members:
            member.decoder.keep_rows(rows)
