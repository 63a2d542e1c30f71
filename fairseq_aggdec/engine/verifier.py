"""The verifier: one model or an ensemble whose greedy output counts, behind one window call."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.encoder import FastEncoder, StockEncoder, encoder_gap
from fairseq_aggdec.engine.linear import ParameterWatch
from fairseq_aggdec.engine.prefix_decoder import PrefixDecoder
from fairseq_aggdec.engine.support import decoder_gap
from fairseq_aggdec.windows.draft import Draft, Verification
from fairseq_aggdec.windows.grid import Grid
from fairseq_aggdec.windows.window import Window

logger = logging.getLogger(__name__)

WARM_UP = 24  # tokens of the sentence that is read before the first


class Member:
    """One model of the ensemble: its encoder and decoder in the fastest form that represents them.

    The fast forms are made when first used and made anew when the parameters have changed since.
    """

    def __init__(self, model: Any, pack: bool, int8: bool = False, graphs: bool = False):
        self.model, self.pack, self.int8, self.graphs = model, pack, int8, graphs
        self.watch: ParameterWatch | None = None
        self._announce()

    def _announce(self) -> None:
        for part, gap in (
            ("encoder", encoder_gap(self.model.encoder)),
            ("decoder", self._decoder_gap()),
        ):
            if gap is not None:
                if self.int8:
                    raise ValueError(f"--int8 needs the {part} of a stock Transformer, not {gap}")
                how = "as it is" if part == "encoder" else "by recomputing the whole prefix"
                logger.info("%s runs %s: %s", part, how, gap)

    def _decoder_gap(self) -> str | None:
        return decoder_gap(self.model.decoder)

    def refresh(self) -> None:
        if self.watch is not None and not self.watch.changed():
            return
        model, pack, int8 = self.model, self.pack, self.int8
        if int8:
            _check_int8(model)
        fast_encoder = encoder_gap(model.encoder) is None
        fast_decoder = self._decoder_gap() is None
        self.encoder = (
            FastEncoder(model.encoder, pack, int8) if fast_encoder else StockEncoder(model.encoder)
        )
        self.decoder = (
            CachedDecoder(model.decoder, pack, int8, self.graphs)
            if fast_decoder
            else PrefixDecoder(model)
        )
        self.watch = ParameterWatch(model)

    def start(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        self.refresh()
        rows = net_input["src_tokens"].size(0)
        encoder_input = {k: v for k, v in net_input.items() if k != "prev_output_tokens"}
        self.encoder_out = self.encoder(encoder_input)
        self.decoder.start(self.encoder_out, rows, capacity)


def _check_int8(model: nn.Module) -> None:
    """Raises ``ValueError`` where ``--int8`` has no products for a model's parameters."""
    for parameter in model.parameters():
        if parameter.dtype is not torch.float32 or parameter.device.type != "cpu":
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"--int8 needs models in fp32 on CPU, not {kind} on {parameter.device.type}"
            )


def follow(drafter: nn.Module, verifier: "Verifier") -> None:
    """Moves a drafter to the device and the precision of the verifier, which training moves after it was built."""
    own, wanted = map(_first_parameter, (drafter, verifier.members[0].model))
    if own.device != wanted.device or own.dtype is not wanted.dtype:
        with torch.inference_mode(False):  # parameters with versions, which ParameterWatch reads
            drafter.to(wanted)


# Looking for it takes longer than decoding a token does; parameters are moved, not replaced.
_FIRST: WeakKeyDictionary[nn.Module, nn.Parameter] = WeakKeyDictionary()


def _first_parameter(model: nn.Module) -> nn.Parameter:
    if model not in _FIRST:
        _FIRST[model] = next(model.parameters())
    return _FIRST[model]


class Verifier:
    """Encodes a batch once, then scores windows of it.

    Args:
        models: fairseq encoder-decoder models in evaluation mode; probabilities of several are averaged, as in stock.
        pack: keep weights packed for CPU (see :mod:`fairseq_aggdec.engine.linear`).
        temperature: divides the logits before the softmax.
        int8: compute products in 8 bits (fp32 models on CPU).
        strict: lay all windows of a batch out to so many slots per row, see :mod:`fairseq_aggdec.windows.grid`;
            0: windows are as large as what they hold.
        graphs: on a GPU, replay windows as captured graphs.

    Attributes:
        features: (N, C) of the last window, one per model.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        pack: bool = True,
        temperature: float = 1.0,
        int8: bool = False,
        strict: int = 0,
        graphs: bool = False,
    ):
        self.strict = strict
        self.grid: Grid | None = None
        # With --strict all calls of a batch must run alike; those of a graph would begin with the second.
        graphs = graphs and not strict
        self.members = [Member(model, pack, int8, graphs) for model in models]
        for member in self.members if strict else ():
            if gap := member._decoder_gap():
                raise ValueError(f"--strict needs the decoder of a stock Transformer, not {gap}")
        self.temperature = temperature
        self.features: list[Tensor] = []

    def start(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        """Encodes ``src_tokens`` (B, S) and makes room for ``capacity`` target positions per row.

        With ``strict`` there will never be room for more.
        """
        if self.strict:
            self.grid = Grid(len(net_input["src_tokens"]), self.strict, capacity)
        for member in self.members:
            member.start(net_input, capacity)

    def prepare(self) -> None:
        """Makes the fast forms (packs the weights) now, so that the first batch does not wait for it."""
        with torch.inference_mode():
            for member in self.members:
                member.refresh()

    def warm_up(self) -> dict[str, Tensor] | None:
        """Runs the fast forms once on a sentence: what PyTorch sets up when first used is then there.

        Returns:
            the batch of one sentence that is then taken up; None where there are no fast forms.
        """
        if not all(isinstance(member.decoder, CachedDecoder) for member in self.members):
            return None
        model = self.members[0].model
        most = min(min(model.max_positions()), self.strict or WARM_UP)
        device = next(model.parameters()).device
        with torch.inference_mode():
            source = torch.full((1, most), model.decoder.padding_idx + 1, device=device)
            lengths = torch.full((1,), most, device=device)
            net_input = {"src_tokens": source, "src_lengths": lengths}
            self.start(net_input, most)
            for width in (1, most):
                self.logits(Window(source[0, :width], [0], [width])).log_softmax(-1)
        return net_input

    @property
    def watches(self) -> list[ParameterWatch]:
        """What :func:`~fairseq_aggdec.windows.transfer.begin` asks the device for the models."""
        return [member.watch for member in self.members if member.watch is not None]

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
        if self.grid is None:
            return self.logits_of(window)
        laid_out, slots = self.grid.lay_out(window)
        logits = self.logits_of(laid_out)
        self.features = [features.index_select(0, slots) for features in self.features]
        return logits.index_select(0, slots)

    def logits_of(self, window: Window) -> Tensor:
        """The same of a window that is read as it is."""
        self.features = [member.decoder.features(window) for member in self.members]
        outputs = [
            member.decoder.logits(features, self.temperature).float()
            for member, features in zip(self.members, self.features, strict=True)
        ]
        if len(outputs) == 1:
            return outputs[0]
        log_probs = torch.stack([output.log_softmax(-1) for output in outputs])
        return torch.logsumexp(log_probs, dim=0) - math.log(len(outputs))

    @property
    def reads_trees(self) -> bool:
        """Whether drafts may branch; else they are cut down to one path."""
        return not self.strict and all(member.decoder.reads_trees for member in self.members)

    def readable(self, draft: Draft) -> Draft:
        """What of a draft can be read: one path where branches cannot, and no more than a window has slots for."""
        if not self.reads_trees:
            draft = draft.chain()
        return draft.first(self.strict - 1) if self.strict else draft

    @property
    def captures(self) -> bool:
        """Whether whole iterations can be captured: every decoder has the batch where its graphs read it."""
        decoders = [member.decoder for member in self.members]
        return all(
            isinstance(d, CachedDecoder) and d.graphs is not None and d.graphs.batch is not None
            for d in decoders
        )

    @property
    def proposed_from(self) -> tuple[int, Tensor]:
        """What heads read: how many features of a position, and a weight of their device and precision."""
        weight = self.members[0].model.decoder.output_projection.weight
        return weight.size(1), weight

    @property
    def compiled(self) -> bool:
        """Whether a window is one call of the compiled library for each model."""
        decoders = [member.decoder for member in self.members]
        return all(isinstance(d, CachedDecoder) and d.compiled is not None for d in decoders)

    def settle(self, verification: Verification) -> None:
        """Moves the keys and values of what stands behind each other; nothing to do where drafts did not branch."""
        if verification.paths is None:
            return
        window, moved, first = verification.window, [], 0
        for row, path in enumerate(verification.paths):
            for place, slot in enumerate(path):
                if slot - first != place:
                    start = window.starts[row]
                    moved.append((row, start + slot - first, start + place))
            first += window.widths[row]
        if moved:
            for member in self.members:
                member.decoder.move(moved)

    def propose(self, features: Tensor, block_size: int, *how: Any) -> tuple[Tensor, Tensor]:
        """Features and logits of heads 2 to ``block_size`` of the only model; arguments as for
        :meth:`~fairseq_aggdec.engine.cached_decoder.CachedDecoder.propose`."""
        (member,) = self.members
        return member.decoder.propose(features, block_size, *how)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps the given rows of the batch, in this order."""
        if self.grid is not None:
            rows = self.grid.all_rows(rows)
        for member in self.members:
            member.decoder.keep_rows(rows)
