"""One model of a verifier: its encoder and decoder in the fastest forms that represent it as it is now."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import (
    FastEncoder,
    StockEncoder,
    as_dtype_of,
    encoder_form,
    renewed,
    reorders_only,
)
from fairseq_aggdec.engine.plain.support import decoder_gap, encoder_gap
from fairseq_aggdec.engine.plain.walk import probabilities_gap
from fairseq_aggdec.engine.plain.watch import ModelWatch
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.engine.prefix_decoder import PrefixDecoder

logger = logging.getLogger(__name__)

READ = {"src_tokens", "src_lengths"}  # what the fast form reads of a batch


class LeftToStock(Exception):
    """Says why only stock fairseq decodes with a model as the model says."""


class Member:
    """One model of the ensemble: its encoder and decoder in the fastest form that represents them.

    The fast forms are made when first used, and made anew when the model has changed since.

    Attributes:
        encoder_gap, decoder_gap: why a part runs through its own layers; None: it has its fast form.
        left: why only stock fairseq decodes with the model; None: this does.
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
        """Finds the forms that represent the model as it is now, and logs once which parts have no fast form.

        Raises:
            ValueError: ``--int8`` was asked for, which has a fast form only.
        """
        self.encoder_gap, self.decoder_gap = encoder_gap(self.model.encoder), self._decoder_gap()
        self.stock_only = probabilities_gap(self.model)
        self.prefixes_unchecked = self.decoder_gap is not None  # until its prefixes were compared
        for part, gap in (
            ("encoder", self.encoder_gap),
            ("decoder", self.decoder_gap or self.stock_only),
        ):
            if gap is not None and self.precision.int8:
                raise ValueError(f"--int8 needs the {part} of a stock Transformer, not {gap}")
        if self.encoder_gap is not None:
            self.log_once(f"encoder runs as it is: {self.encoder_gap}")
        if self.decoder_gap is not None and self.stock_only is None:
            self.log_once(f"decoder runs by recomputing the whole prefix: {self.decoder_gap}")

    def log_once(self, line: str) -> None:
        if line not in self.logged:
            self.logged.add(line)
            logger.info(line)

    def refresh(self) -> None:
        if self.watch is not None and not self.watch.changed():
            return
        in_place = self.watch is not None and self.watch.in_place
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
        watch = ModelWatch(packed, others)
        encoder = encoder_form(model.encoder, precision)
        decoder = CachedDecoder(model.decoder, precision) if fast_decoder else PrefixDecoder(model)
        old: Any = vars(self).get("decoder")
        both = isinstance(old, CachedDecoder) and isinstance(decoder, CachedDecoder)
        if in_place and both and old.graphs is not None and old.renew(decoder):
            self.encoder = renewed(self.encoder, encoder)
        else:
            self.encoder, self.decoder = encoder, decoder
        self.watch = watch

    def forget(self) -> None:
        """Has the fast forms made anew before the next batch, whatever has changed."""
        if self.watch is not None:
            self.watch.answer(True)

    def release(self) -> None:
        """Gives back the memory of the fast forms and of what they keep; the next batch makes them anew."""
        self.watch = None
        for name in ("encoder", "decoder", "encoder_out"):
            vars(self).pop(name, None)

    def start(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        self.refresh()
        self.begin(net_input, capacity)

    def begin(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        """Takes up a batch with the forms that there are."""
        rows, encoder = net_input["src_tokens"].size(0), self.encoder
        encoder_input = {k: v for k, v in net_input.items() if k != "prev_output_tokens"}
        if isinstance(encoder, FastEncoder) and encoder_input.keys() - READ:
            encoder = StockEncoder(self.model.encoder)  # it may read them, or refuse them
        if isinstance(self.decoder, CachedDecoder):
            self.encoder_out = self.decoder.encode(encoder, encoder_input, capacity)
        else:
            self.encoder_out = encoder(encoder_input)
            if isinstance(encoder, FastEncoder):
                like = next(self.model.decoder.parameters())
                self.encoder_out = as_dtype_of(self.encoder_out, like)
            self.decoder.start(self.encoder_out, rows, capacity)

    def check_batch(self, rows: int) -> None:
        """Sets :attr:`left` where stock decoding of the batch of ``rows`` sentences calls what changes its numbers.

        An unknown encoder may change them when stock orders the rows. Recomputing a prefix may give other numbers than
        going on from a state of the layers; that is compared once for every state of the model.
        """
        encoder = self.model.encoder
        if self.encoder_gap and not reorders_only(encoder, self.encoder_out, rows):
            self.stock_only = (
                f"the reorder_encoder_out() of {type(encoder).__name__} changes numbers"
            )
        elif self.prefixes_unchecked and isinstance(self.decoder, PrefixDecoder):
            self.prefixes_unchecked = False
            if doubt := self.decoder.doubt():
                self.stock_only = f"{self.decoder_gap}, {doubt}"


def _check_int8(model: nn.Module) -> None:
    """Raises ``ValueError`` where ``--int8`` has no products for a model's parameters."""
    for parameter in model.parameters():
        if parameter.dtype is not torch.float32 or parameter.device.type != "cpu":
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"--int8 needs models in fp32 on CPU, not {kind} on {parameter.device.type}"
            )
