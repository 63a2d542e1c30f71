"""One model of a verifier: its encoder and decoder, packed where their classes are known, else as fairseq runs them."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import (
    FastEncoder,
    StockEncoder,
    packed_encoder,
    reorders_only,
)
from fairseq_aggdec.engine.plain.support import decoder_gap, encoder_gap
from fairseq_aggdec.engine.plain.walk import probabilities_gap
from fairseq_aggdec.engine.plain.watch import ModelWatch
from fairseq_aggdec.engine.precision import EXACT, Precision

logger = logging.getLogger(__name__)

READ = {"src_tokens", "src_lengths", "prev_output_tokens"}  # a FastEncoder needs no other input


class LeftToStock(ValueError):
    """The batch must be decoded by stock fairseq.

    Args:
        reason: why; None: the engines have said it.
    """

    def __init__(self, reason: str | None):
        super().__init__(f"only stock fairseq can run this model: {reason}")
        self.reason = reason


class Member:
    """One model of the ensemble.

    The encoder becomes a :class:`FastEncoder` and the decoder a :class:`CachedDecoder`, over packed weights, if all of
    their layers are stock. Another encoder is a :class:`StockEncoder`; with another decoder only stock fairseq decodes.
    They are built at the first batch, and again when the model's weights or classes have changed.

    Attributes:
        encoder_gap, decoder_gap: why a part is not packed; None: it is.
        stock_only: why only stock fairseq decodes with the model; None: this does.
    """

    def __init__(self, model: Any, precision: Precision = EXACT):
        self.model, self.precision = model, precision
        self.encoder: FastEncoder | StockEncoder
        self.watch: ModelWatch | None = None
        self.logged: set[str] = set()
        self._inspect()

    def _decoder_gap(self) -> str | None:
        return decoder_gap(self.model.decoder)

    def _inspect(self) -> None:
        """Finds out which parts can be packed, and logs once which cannot.

        Raises:
            ValueError: with ``--int8``, a part that cannot be packed.
        """
        self.encoder_gap, self.decoder_gap = encoder_gap(self.model.encoder), self._decoder_gap()
        self.stock_only = probabilities_gap(self.model) or self.decoder_gap
        for part, gap in (
            ("encoder", self.encoder_gap),
            ("decoder", self.stock_only),
        ):
            if gap is not None and self.precision.int8:
                raise ValueError(f"--int8 needs the {part} of a stock Transformer, not {gap}")
        if self.encoder_gap is not None and self.stock_only is None:
            self.log_once(f"encoder runs as it is: {self.encoder_gap}")

    def log_once(self, line: str) -> None:
        if line not in self.logged:
            self.logged.add(line)
            logger.info(line)

    def refresh(self) -> None:
        """Packs the weights, if they were not packed yet or the model has changed since."""
        if self.watch is not None and not self.watch.changed():
            return
        self._inspect()
        model, precision = self.model, self.precision
        if precision.int8:
            _check_int8(model)
        packed: list[nn.Module] = []
        others: list[nn.Module] = [model]
        fast_encoder, fast_decoder = self.encoder_gap is None, self.decoder_gap is None
        (packed if fast_encoder else others).append(model.encoder)
        (packed if fast_decoder else others).append(model.decoder)
        # Before anything is read: what is written meanwhile is seen.
        watch = ModelWatch(packed, others, rows=not precision.int8)
        if fast_decoder:
            self.decoder = CachedDecoder(model.decoder, precision)
            self.encoder = packed_encoder(model.encoder, precision)
        self.watch = watch

    def forget(self) -> None:
        """Has the weights packed again before the next batch."""
        if self.watch is not None:
            self.watch.answer(True)

    def release(self) -> None:
        """Frees the packed weights and the KV cache; the next batch packs again."""
        self.watch = None
        for name in ("encoder", "decoder", "encoder_out"):
            vars(self).pop(name, None)

    def start(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        self.refresh()
        self.begin(net_input, capacity)

    def begin(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        """Encodes a batch and starts decoding it, with the weights as they were packed last."""
        encoder = self.encoder
        if isinstance(encoder, FastEncoder) and net_input.keys() - READ:
            encoder = StockEncoder(self.model.encoder)  # it may read them, or refuse them
        self.encoder_out = {}  # the new batch takes the memory of the last one
        self.encoder_out = self.decoder.encode(encoder, net_input, capacity)

    def check_batch(self, rows: int) -> None:
        """Sets :attr:`stock_only` if stock decoding of this batch would give other numbers: the
        ``reorder_encoder_out()`` of an unknown encoder may change its states.

        Args:
            rows: sentences of the batch.
        """
        encoder = self.model.encoder
        if self.encoder_gap and not reorders_only(encoder, self.encoder_out, rows):
            self.stock_only = (
                f"the reorder_encoder_out() of {type(encoder).__name__} changes numbers"
            )


def _check_int8(model: nn.Module) -> None:
    """Raises ``ValueError`` where ``--int8`` has no products for a model's parameters."""
    for parameter in model.parameters():
        if parameter.dtype is not torch.float32 or parameter.device.type != "cpu":
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"--int8 needs models in fp32 on CPU, not {kind} on {parameter.device.type}"
            )
