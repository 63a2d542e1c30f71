"""The verifier: one model or an ensemble whose greedy output counts, behind one window call."""

import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Embedding

from fairseq_aggdec.engine.cached_decoder import CachedDecoder
from fairseq_aggdec.engine.graphs.window_graphs import GraphMemory
from fairseq_aggdec.engine.heads import DecoderHeads
from fairseq_aggdec.engine.member import LeftToStock, Member
from fairseq_aggdec.engine.plain.watch import ModelWatch
from fairseq_aggdec.engine.precision import EXACT, Precision
from fairseq_aggdec.kernels.gpu.logits import RuledTokens
from fairseq_aggdec.kernels.library import kernels, reads
from fairseq_aggdec.windows.draft import Kept
from fairseq_aggdec.windows.grid import Grid
from fairseq_aggdec.windows.window import DecoderOutput, Window

logger = logging.getLogger(__name__)

WARM_UP = 24  # tokens of the sentence that is read before the first


def follow(drafter: nn.Module, verifier: "Verifier") -> None:
    """Moves a drafter to the device and the precision of the verifier, which training moves after it was built."""
    held, wanted = map(_first_parameter, (drafter, verifier.members[0].model))
    if held.device != wanted.device or held.dtype is not wanted.dtype:
        with torch.inference_mode(False):  # parameters with versions, which a watch reads
            drafter.to(wanted)


def _first_parameter(model: Any) -> Tensor:
    """A parameter of the model, which tells its device and precision."""
    weight = getattr(getattr(model.decoder, "embed_tokens", None), "weight", None)
    # To look for the first of all takes longer than to decode a token does.
    return weight if isinstance(weight, Tensor) else next(model.parameters())


@contextmanager
def _same_random_numbers_where_left(device: torch.device) -> Iterator[None]:
    """On :class:`LeftToStock`, restores the random state, with which stock encodes the batch again."""
    restore = _random_numbers(device)
    try:
        yield
    except LeftToStock:
        restore()
        raise


def _random_numbers(device: torch.device) -> Callable[[], None]:
    """Restores the random numbers that come next now, for what is computed in between."""
    on_host = torch.get_rng_state()
    on_gpu = device.type == "cuda" and torch.cuda.is_initialized()
    on_device = torch.cuda.get_rng_state(device) if on_gpu else None

    def restore() -> None:
        torch.set_rng_state(on_host)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)

    return restore


class Verifier:
    """Encodes a batch once, then verifies windows of drafted tokens.

    Args:
        models: fairseq encoder-decoder models in evaluation mode; probabilities of several are averaged, as in stock.
        precision: how the models compute.
        temperature: divides the logits before the softmax.
        as_stock: what stock fairseq decodes with the models is to be equal.
    """

    member_class = Member

    def __init__(
        self,
        models: Sequence[nn.Module],
        precision: Precision = EXACT,
        temperature: float = 1.0,
        as_stock: bool = False,
    ):
        self.strict, self.as_stock = precision.strict, as_stock
        self.precision = precision
        self.grid: Grid | None = None
        # With --strict all calls of a batch must run alike; those of a graph would begin with the second.
        precision = replace(precision, graphs=precision.graphs and not precision.strict)
        self.members = [self.member_class(model, precision) for model in models]
        if precision.strict:
            self._check_strict()
        self.temperature = temperature

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy packs the weights of the copied models anew: packed ones have addresses of this process."""
        return type(self), self._made_of()

    def _made_of(self) -> tuple[Any, ...]:
        models = [member.model for member in self.members]
        return models, self.precision, self.temperature, self.as_stock

    def _check_strict(self) -> None:
        for member in self.members:
            if gap := member.stock_only:
                raise ValueError(f"--strict needs the decoder of a stock Transformer, not {gap}")

    def start(self, net_input: Mapping[str, Tensor], capacity: int) -> None:
        """Encodes a batch.

        Args:
            net_input: ``src_tokens`` (B, S).
            capacity: target positions per row to make room for; with ``precision.strict`` the room never grows.

        Raises:
            LeftToStock: a model with which only stock fairseq decodes as it says.
            ValueError: such a model with ``precision.strict``.
        """
        for member in self.members:
            member.refresh()
        if self.strict:
            self._check_strict()
            self.grid = Grid(len(net_input["src_tokens"]), self.strict, capacity)
        self._leave()
        unchecked = [member for member in self.members if member.encoder_gap]
        if not (unchecked and self.as_stock):
            for member in self.members:
                member.begin(net_input, capacity)
            return
        source = net_input["src_tokens"]
        with _same_random_numbers_where_left(source.device):
            for member in self.members:
                member.begin(net_input, capacity)
                member.check_batch(len(source))
            self._leave()

    def _leave(self) -> None:
        for member in self.members:
            if member.stock_only is not None:
                raise LeftToStock(member.stock_only)

    def is_for(self, models: Sequence[nn.Module], precision: Precision) -> bool:
        """Tells whether this verifier holds exactly ``models``, in this precision."""
        watched = [member.model for member in self.members]
        same = len(watched) == len(models) and all(map(operator.is_, watched, models))
        return same and (precision is self.precision or precision == self.precision)

    def repack(self) -> None:
        """Has all weights packed again before the next batch."""
        for member in self.members:
            member.forget()

    def prepare(self) -> None:
        """Packs the weights now, so that the first batch does not wait for it."""
        with torch.inference_mode():
            for member in self.members:
                member.refresh()

    def warm_up(self) -> bool:
        """Decodes a few tokens of a made-up sentence, so that the first batch does not wait for a GPU's set-up.

        Returns:
            whether a sentence was encoded; not if a model is not packed, or on a CPU.
        """
        model = self.members[0].model
        device = next(model.parameters()).device
        if device.type == "cpu" or any(member.stock_only for member in self.members):
            return False
        if not isinstance(getattr(model.encoder, "embed_tokens", None), Embedding):
            return False  # its sources may be no token ids
        longest = model.encoder.max_positions(), model.decoder.max_positions()
        most = min(*longest, self.strict or WARM_UP)
        with torch.inference_mode():
            paddings = {
                getattr(part, "padding_idx", None) for part in (model.encoder, model.decoder)
            }
            word = min({0, 1, 2} - paddings)  # both dictionaries have it
            source = torch.full((1, most), word, device=device)
            lengths = torch.full((1,), most, device=device)
            net_input = {"src_tokens": source, "src_lengths": lengths}
            restore = _random_numbers(device)  # an encoder may draw some
            try:
                self.start(net_input, most)
                for width in (1, most):
                    self.read(Window(source[0, :width], [0], [width])).logits.log_softmax(-1)
            except LeftToStock:
                return False
            finally:
                restore()
        return True

    @property
    def watches(self) -> list[ModelWatch]:
        """Watches of which :func:`~fairseq_aggdec.windows.transfer.begin` asks the device, for the models."""
        return [member.watch for member in self.members if member.watch is not None]

    def restrict(self, types: Tensor) -> None:
        """Until the next batch, only the given types (M,) int64 can be chosen, and only their logits are computed."""
        for member in self.members:
            member.decoder.restrict(types)

    def read(
        self, window: Window, in_fp32: bool = True, symbols: RuledTokens | None = None
    ) -> DecoderOutput:
        """Runs a window through all models; with ``precision.strict``, laid out on the grid of the batch.

        Without ``in_fp32`` the logits of a single model keep its precision. Numbers that are not finite are in the
        logits of their position, hidden nowhere. Given ``symbols``, the parts of the logits are looked at where that
        costs no launch.
        """
        slots = None
        if self.grid is not None and not window.fixed:
            window, slots = self.grid.lay_out(window)
        features: list[Tensor] = []
        outputs: list[Tensor] = []
        parts: Tensor | None = None
        symbols = None if len(self.members) > 1 else symbols  # averages are other logits
        for member in self.members:
            own_features, logits, parts = member.decoder.read(window, self.temperature, symbols)
            features.append(own_features)
            outputs.append(logits)
        if in_fp32 or len(outputs) > 1:
            outputs = [output.float() for output in outputs]
        logits = outputs[0] if len(outputs) == 1 else _averaged(outputs)
        if slots is not None:
            logits = logits.index_select(0, slots)
            features = [own_features.index_select(0, slots) for own_features in features]
        return DecoderOutput(logits, features, parts)

    def window_slots(self, rows: int) -> int:
        """Number of slots that each of ``rows`` sentences has in a window; 0: any number."""
        return self.strict

    @property
    def reads_trees(self) -> bool:
        """Tells whether drafts may branch; else they are cut down to one path."""
        return not self.strict and all(member.decoder.reads_trees for member in self.members)

    @property
    def captures(self) -> bool:
        """Tells whether whole iterations can be captured: every decoder has the batch where its graphs read it."""
        for member in self.members:
            graphs = member.decoder.graphs
            if graphs is None or graphs.batch is None:
                return False
        return True

    @property
    def launches(self) -> bool:
        """Tells whether a device can go on alone without graphs, iterations being launched one by one: a GPU where
        they are switched off, or a CPU without the compiled library."""
        alone = kernels() is None
        decoders = [member.decoder for member in self.members]
        plain = all((d.on_gpu or alone) and d.graphs is None for d in decoders)
        return plain and not self.strict

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return _first_parameter(self.members[0].model).dtype

    @property
    def head_input(self) -> tuple[int, Tensor]:
        """Width of the features that block heads read, and a weight with their device and dtype."""
        weight = self.members[0].model.decoder.output_projection.weight
        return weight.size(1), weight

    @property
    def compiled(self) -> bool:
        """Tells whether a window is one call of the compiled library for each model; not before the first batch."""
        decoders = [vars(member).get("decoder") for member in self.members]
        return all(isinstance(d, CachedDecoder) and d.compiled is not None for d in decoders)

    def rooms(self, end: int, longest: int) -> list[GraphMemory]:
        """The memory of what is captured of the decoders, when all have room for ``end`` keys of a row, which will have
        ``longest`` at most."""
        memories: list[GraphMemory] = []
        for member in self.members:
            member.decoder.reserve(end, longest)
            if member.decoder.graphs is not None:
                memories.append(member.decoder.graphs)
        return memories

    def keep(self, kept: Kept) -> None:
        """Moves and drops keys and values."""
        if kept.moved:
            for member in self.members:
                member.decoder.move(kept.moved)
        if kept.rows:
            self.keep_rows(kept.rows)
        if kept.gathered is not None:
            for member in self.members:
                member.decoder.gather_rows(kept.gathered, kept.within)

    @property
    def heads(self) -> DecoderHeads:
        """The block heads of the only model.

        Raises:
            ValueError: its decoder has none.
        """
        (member,) = self.members
        heads = member.decoder.heads
        if heads is None:
            raise ValueError("the decoder has no block heads, or is not packed")
        return heads

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keeps the given rows of the batch, in this order."""
        if self.grid is not None:
            rows = self.grid.all_rows(rows)
        for member in self.members:
            member.decoder.keep_rows(rows)


def _averaged(outputs: list[Tensor]) -> Tensor:
    """Logits (N, V) of several models -> the logarithms of their mean probabilities."""
    if all(map(reads, outputs)) and (library := kernels()) is not None:
        stacked = torch.stack(outputs)
        library.aggdec_average(stacked.data_ptr(), *stacked.shape, torch.get_num_threads())
        return stacked[0]
    log_probs = torch.stack([output.log_softmax(-1) for output in outputs])
    return torch.logsumexp(log_probs, dim=0) - math.log(len(outputs))
