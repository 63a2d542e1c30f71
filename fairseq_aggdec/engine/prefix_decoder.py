"""Decoders whose layers :class:`~fairseq_aggdec.engine.cached_decoder.CachedDecoder` cannot represent."""

import copy
import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from fairseq_aggdec.engine.encoder import EncoderOut
from fairseq_aggdec.windows.transfer import to_device
from fairseq_aggdec.windows.window import Window

# Prefixes are compared in that many sentences and positions. Numbers may differ by a share of the largest one: half
# precision rounds, and so do sums in another order. fp16 has three bits more than bf16, so its share is an eighth.
COMPARED = (2, 6)
TOLERANCE_OF_OTHERS = 0.05
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: TOLERANCE_OF_OTHERS / 8}


class PrefixDecoder:
    """Any fairseq decoder, by recomputing the whole prefix of every row: slow and general.

    It keeps tokens where :class:`CachedDecoder` keeps keys and values. The decoder must be causal: a
    token to the right of a position (a rejected draft of an earlier window) must not change it.
    """

    reads_trees = False
    heads = None

    def __init__(self, model: Any):
        self.model = model

    def start(self, encoder_out: EncoderOut, rows: int, capacity: int) -> None:
        self.encoder_out = encoder_out
        self.pad = self.model.decoder.dictionary.pad()
        device = next(self.model.parameters()).device
        self.tokens = torch.full((rows, capacity), self.pad, device=device)

    def features(self, window: Window) -> Tensor:
        """Tokens (N,) -> what the decoder's output layer gives for them, (N, V) logits unless the softmax is
        adaptive."""
        if window.end > self.tokens.size(1):
            self.tokens = F.pad(self.tokens, (0, window.end), value=self.pad)
        self.tokens[window.row_of, window.positions] = window.tokens
        # A stock decoder keeps its causal mask, which training needs again: it must not be an inference tensor.
        with torch.inference_mode(False), torch.no_grad():
            # As stock decoding calls it: past the hooks of the decoder itself.
            output: Any = self.model.decoder.forward(
                self.tokens[:, : window.end], encoder_out=self.encoder_out
            )
        return output[0][window.row_of, window.positions]

    def mismatch(self) -> str | None:
        """Why recomputing prefixes may give other numbers than stock's decoding token by token; None: it does not.

        Layers may keep a state, or depend on the number of positions. Made-up prefixes of the current batch are tried.

        Nothing is written to the decoder, and no random number of the caller is used up.
        """
        if not isinstance(self.model.decoder, FairseqIncrementalDecoder):
            return None  # stock recomputes, too
        decoder = _copied(self.model.decoder)
        if decoder is None:
            return "which cannot be copied to find out whether it computes a prefix as its words one by one"
        devices = [self.tokens.device] if torch.cuda.is_initialized() else []
        with (
            torch.random.fork_rng(devices),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            try:
                differs = self._differs(decoder)
            except Exception as error:  # of layers that only read word by word
                return f"which fails where a whole prefix is read ({type(error).__name__}: {error})"
            if differs:
                return "which computes a prefix otherwise than its words one by one"
        return None

    def _differs(self, decoder: Any) -> bool:
        """Tells whether a copy of the decoder computes prefixes otherwise than one by one."""
        rows, device = COMPARED[0], self.tokens.device
        encoder_out: Any = self.encoder_out
        if isinstance(encoder_out, dict):  # some encoders write to it
            encoder_out = {name: copy.copy(part) for name, part in encoder_out.items()}
        order = torch.arange(rows, device=device) % len(self.tokens)
        encoder_out = self._reordered(encoder_out, order)
        dictionary = self.model.decoder.dictionary
        # One row ends early, so that there is padding behind it.
        tokens = torch.arange(rows * COMPARED[1], device=device).view(rows, -1)
        tokens = dictionary.nspecial + tokens % max(1, len(dictionary) - dictionary.nspecial)
        tokens[:, 0] = dictionary.eos()
        whole, padded = tokens.clone(), COMPARED[1] // 2
        whole[-1, padded:] = self.pad
        recomputed = decoder.forward(whole, encoder_out=encoder_out)[0]
        state: dict[Any, Any] = {}
        steps = []
        for end in range(1, COMPARED[1] + 1):
            given = {"encoder_out": encoder_out, "incremental_state": state}
            steps.append(decoder.forward(tokens[:, :end], **given)[0][:, -1])
            decoder.reorder_incremental_state_scripting(state, torch.arange(rows, device=device))
        found = torch.stack(steps, 1)
        tolerance = TOLERANCE.get(found.dtype, TOLERANCE_OF_OTHERS)
        pairs = (recomputed[:-1], found[:-1]), (recomputed[-1, :padded], found[-1, :padded])
        for ours, theirs in pairs:
            largest = float(theirs.abs().nan_to_num(nan=0.0, posinf=0.0).max())
            if not torch.allclose(ours, theirs, tolerance, tolerance * largest, equal_nan=True):
                return True
        return False

    def logits(self, features: Tensor, temperature: float) -> Tensor:
        """(N, ...) -> (N, V) log-probabilities; the temperature divides the decoder's output, as in stock."""
        output = ((features / temperature).unsqueeze(0), None)
        return self.model.get_normalized_probs(output, log_probs=True, sample=None)[0]

    def _reordered(self, encoder_out: EncoderOut, order: Tensor) -> EncoderOut:
        encoder = self.model.encoder
        if getattr(encoder.reorder_encoder_out, "__name__", "") == "_reorder_encoder_out":
            # BART's for beam search, which leaves rows as they are.
            encoder_out = type(encoder).reorder_encoder_out(encoder, encoder_out, order)
        else:
            encoder_out = encoder.reorder_encoder_out(encoder_out, order)
        return encoder_out

    def move(self, places: Sequence[tuple[int, int, int]]) -> None:
        raise ValueError("a decoder that recomputes its prefix reads no trees")

    def keep_rows(self, rows: Sequence[int]) -> None:
        order = to_device(rows, self.tokens.device)
        self.tokens = self.tokens.index_select(0, order)
        self.encoder_out = self._reordered(self.encoder_out, order)

    def gather_rows(self, rows: Tensor, within: int = 0) -> None:
        """Gathers rows as :meth:`~fairseq_aggdec.engine.cached_decoder.CachedDecoder.gather_rows`."""
        if within:
            self.tokens = self.tokens.index_select(0, rows)
        else:
            self.keep_rows(rows.tolist())


def _copied(decoder: Any) -> Any | None:
    """A decoder with a state of its own and the same parameters, None where it cannot be copied."""
    shared = *decoder.parameters(), decoder.dictionary, *_owners_outside(decoder)
    known: dict[int, Any] = {id(part): part for part in shared}
    for module in decoder.modules():
        # Buffers, and tables that fairseq keeps as attributes.
        for part in (*module._buffers.values(), *vars(module).values()):
            if isinstance(part, Tensor) and id(part) not in known:
                known[id(part)] = part.detach().clone()
    try:
        return copy.deepcopy(decoder, known)
    except Exception:
        return None


def _owners_outside(decoder: nn.Module) -> list[Any]:
    """The objects whose methods are called in a decoder and that are no part of it: a trainer, a data store."""
    inside = set(map(id, decoder.modules()))
    found = []
    for module in decoder.modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        for called in (*hooks, *vars(module).values()):
            called = called.func if isinstance(called, functools.partial) else called
            owner = called.__self__ if inspect.ismethod(called) else None
            if owner is not None and id(owner) not in inside:
                found.append(owner)
    return found
