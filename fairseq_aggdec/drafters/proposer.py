"""Drafting in the compiled library, from the features of slots to trees or paths, as far as these reach.

What takes longest there is to find the likeliest tokens among all of the vocabulary. Features of slots vary in few
directions, which the first ones show; along these alone every type is compared, a quarter of the arithmetic, and the
best are scored as they are.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_aggdec.drafters.trees import CANDIDATES
from fairseq_aggdec.kernels.library import (
    Product,
    ProductStruct,
    ProposerStruct,
    reads,
)

# Directions that are looked along: a quarter of the dimensions of features.
ONE_DIRECTION_OF = 4
# Where there are fewer types, finding the likeliest takes little time anyway.
FEWEST_TYPES = 2048
# Features, for each of their dimensions, from which directions are learned, then learned anew.
LEARNED_FROM = (2, 16)


class NarrowVocabulary:
    """The types of a vocabulary as they look along the directions that features vary most in.

    Args:
        vocabulary: the projection that it stands for, in the library.
        weight: (V, C) fp32 of the decoder's projection, the first rows of which ``vocabulary`` has.
        bias: (V,) or None.
    """

    def __init__(self, vocabulary: Product, weight: Tensor, bias: Tensor | None):
        self.vocabulary, self.weight = vocabulary, weight[: vocabulary.outputs]
        self.bias = None if bias is None else bias[: vocabulary.outputs]
        self.rows: list[Tensor] = []
        self.due = [vocabulary.inputs * share for share in LEARNED_FROM]
        if vocabulary.outputs < FEWEST_TYPES:
            self.due = []
        self.seen = 0
        self.gram = weight.new_zeros(vocabulary.inputs, vocabulary.inputs)

    def learn(self, rows: Tensor) -> tuple[Product, Product] | None:
        """Learns from features (N, C) fp32 of slots; now and then what they are multiplied with, one after the other:
        (C) -> (C / 4) directions and (C / 4) -> (V)."""
        if not self.due:
            return None
        self.rows.append(rows.clone())
        self.seen += len(rows)
        if self.seen < self.due[0]:
            return None
        del self.due[0]
        gathered = torch.cat(self.rows)
        self.rows = []
        # Not in place: it may have been made in inference mode.
        self.gram = self.gram + gathered.T @ gathered
        if not self.gram.isfinite().all():
            self.due = []  # a broken drafter
            return None
        return self._products()

    def stand_in(self) -> tuple[Product, Product] | None:
        """Products as long as those that are still to be learned, which find other types; None: nothing is learned."""
        if not self.due:
            return None
        weight, count = self.weight, self._count
        directions = torch.eye(count, len(self.gram), dtype=weight.dtype, device=weight.device)
        return self._along(directions, weight[:, :count])

    @property
    def _count(self) -> int:
        return max(1, len(self.gram) // ONE_DIRECTION_OF)

    def _products(self) -> tuple[Product, Product]:
        """Both, by the second moments of the features so far."""
        directions = torch.linalg.eigh(self.gram)[1][:, -self._count :].T.contiguous()
        return self._along(directions, self.weight @ directions.T)

    def _along(self, directions: Tensor, table: Tensor) -> tuple[Product, Product]:
        """Both, of directions (D, C), along which the types are table (V, D)."""
        int8, library = self.vocabulary.scales is not None, self.vocabulary.library
        narrow = Product(table, self.bias, int8=int8, library=library)
        return Product(directions, None, library=library), narrow


class Proposer:
    """Weights with which the compiled library grows trees and paths.

    Args:
        vocabulary: the projection by which candidates are found, in the library.
        projection: the decoder's, which scores candidates behind a chain.
        chain: of the slots, or None.

    Attributes:
        narrow: what likely types are looked for with, see :class:`NarrowVocabulary`; None: with the whole vocabulary.
    """

    def __init__(self, vocabulary: Product, projection: nn.Linear, chain: Any = None):
        weight = projection.weight.detach()
        bias = None if projection.bias is None else projection.bias.detach()
        self.kept = vocabulary, weight, bias, chain  # what the structure points to
        self.narrowing = NarrowVocabulary(vocabulary, weight, bias)
        self.narrow: tuple[Product, Product] | None = None
        self.library = vocabulary.library
        struct = self.struct = ProposerStruct(vocabulary=vocabulary.struct)
        struct.candidates = min(CANDIDATES, vocabulary.outputs)
        struct.weight = weight.data_ptr()
        struct.bias = None if bias is None else bias.data_ptr()
        if chain is not None:
            struct.read_slot, struct.write = (
                layer.kernel.struct for layer in (chain.read_slot, chain.write)
            )
            struct.heard = chain.heard.data_ptr()
        self.address = ctypes.addressof(struct)

    def learn_rows(self, rows: Tensor) -> None:
        """Learns directions from features (N, C) of slots."""
        if (narrow := self.narrowing.learn(rows)) is not None:
            self._look_along(narrow)

    def _look_along(self, narrow: tuple[Product, Product] | None) -> None:
        self.narrow = narrow
        structs = (
            [ProductStruct()] * 2 if narrow is None else [product.struct for product in narrow]
        )
        self.struct.directions, self.struct.narrow = structs

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """While drafts are timed they look along some directions, as they will once these are learned."""
        learned = self.narrow
        try:
            self._look_along(learned or self.narrowing.stand_in())
            yield
        finally:
            self._look_along(learned)

    @property
    def learning(self) -> int:
        """Counts the slots of which the features are worth keeping."""
        narrowing = self.narrowing
        return narrowing.due[0] - narrowing.seen if narrowing.due else 0

    def forget(self) -> None:
        """Forgets what was learned: drafts do not depend on those before."""
        vocabulary, weight, bias, _ = self.kept
        self.narrowing = NarrowVocabulary(vocabulary, weight, bias)
        self._look_along(None)


def proposer(decoder: Any, vocabulary: Any, chain: Any = None) -> Proposer | None:
    """A :class:`Proposer` for a drafter's decoder or one with heads, None where the library does not represent it.

    Args:
        decoder: has ``output_projection``.
        vocabulary: the layer that projects what is drafted.
        chain: :class:`~fairseq_aggdec.drafters.chain.FastChain` or None.
    """
    layers = [vocabulary] if chain is None else [vocabulary, chain.read_slot, chain.write]
    weight = decoder.output_projection.weight
    if any(layer.kernel is None for layer in layers) or not reads(weight.detach()):
        return None
    return Proposer(vocabulary.kernel, decoder.output_projection, chain)
