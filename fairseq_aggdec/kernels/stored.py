"""Products whose weights a file has laid out already: noted while a model is packed, taken up where it is loaded.

A stored product stands for parameters by their names. It is taken only while the mapped checkpoint holds the numbers
of which it was made: the system says whether anybody has written to a mapping.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from fairseq_aggdec.kernels.layout import Layout
from fairseq_aggdec.kernels.library import Product, kernels
from fairseq_aggdec.kernels.mapped import mappings

logger = logging.getLogger(__name__)

PARTS = ("weight", "bias", "scales", "sums")  # of a product


def key_of(kind: str, relu: bool, names: Sequence[str]) -> str:
    """Key by which a product is found: how it computes, and the parameters that it has joined."""
    return json.dumps([kind, relu, *names])


def kind_of(int8: bool, bf16: bool) -> str:
    return "int8" if int8 else "bf16" if bf16 else "fp32"


@dataclass(frozen=True)
class PackedPart:
    """A parameter as a product has it: ``rows`` names some of its outputs, empty: all."""

    parameter: Tensor
    rows: str = ""


@dataclass(frozen=True)
class PackedProduct:
    """A product that was packed: of these weights, in this order."""

    kind: str
    relu: bool
    weights: tuple[PackedPart, ...]
    product: Product


@dataclass(frozen=True, eq=False)
class Stored:
    """Tensors that a folder holds for one model.

    Attributes:
        checkpoint: the file of the parameters.
        layout: of the weights.
        products: key -> sizes (``inputs``, ``outputs``) of a product.
        tensors: their parts, by ``KEY/PART``; views of the mapped file.
        told: precisions of which was warned.
    """

    checkpoint: str
    layout: Layout
    products: Mapping[str, Mapping[str, int]]
    tensors: Mapping[str, Tensor]
    told: set[str] = field(default_factory=set)

    def warn_of(self, kind: str) -> None:
        """Warns once where a model decodes in another precision than the one that it was packed for."""
        if kind not in self.told and all(json.loads(key)[0] != kind for key in self.products):
            self.told.add(kind)
            logger.warning(
                "%s was packed in another precision than %s, in which it decodes: its weights are packed anew",
                *(self.checkpoint, kind),
            )

    def product(self, kind: str, relu: bool, names: Sequence[str]) -> Product | None:
        key = key_of(kind, relu, names)
        sizes = self.products.get(key)
        if sizes is None:
            self.warn_of(kind)
            return None
        weight, *rest = (self.tensors.get(f"{key}/{part}") for part in PARTS)
        assert weight is not None
        return Product.of_parts(
            sizes["inputs"], sizes["outputs"], relu, kind == "bf16", weight, *rest
        )


_of_models: WeakKeyDictionary[nn.Module, Stored] = WeakKeyDictionary()
_making: ContextVar[list[PackedProduct] | None] = ContextVar("making", default=None)
# Of a parameter, by its id, the store, the name that it has there, and itself: nothing else gets its id meanwhile.
_Names = dict[int, tuple[Stored, str, Tensor]]
_using: ContextVar[_Names | None] = ContextVar("using", default=None)


def attach(model: nn.Module, stored: Stored) -> None:
    """Says that a model, loaded from the checkpoint of the folder, has packed weights there."""
    _of_models[model] = stored


@contextmanager
def noted() -> Iterator[list[PackedProduct]]:
    """The products that are packed meanwhile."""
    made: list[PackedProduct] = []
    token = _making.set(made)
    try:
        yield made
    finally:
        _making.reset(token)


@contextmanager
def used(models: Sequence[nn.Module]) -> Iterator[bool]:
    """Meanwhile, packing takes what is stored for the models; gives whether that is so for all of them."""
    names: _Names = {}
    library, found = kernels(), [_of_models.get(model) for model in models]
    for model, stored in zip(models, found, strict=True):
        if stored is None or library is None or stored.layout != Layout.of(library):
            continue
        clean = list(mappings([stored.checkpoint]))
        for name, parameter in model.named_parameters():
            at = parameter.data_ptr()
            if any(begin <= at and at + parameter.nbytes <= end for begin, end in clean):
                names[id(parameter)] = stored, name, parameter
    token = _using.set(names or None)
    try:
        yield bool(names) and None not in found
    finally:
        _using.reset(token)


def stands_for(parameter: Tensor, copied: nn.Parameter, rows: str = "") -> None:
    """Says that a parameter was copied from another one, in another precision that loses nothing; ``rows`` names those
    outputs that it has, empty: all."""
    names, made = _using.get(), _making.get()
    if names is not None and id(parameter) in names:
        stored, name, _ = names[id(parameter)]
        names[id(copied)] = stored, name + rows, copied
    if made is not None:
        of = _part(parameter)
        vars(copied)["of"] = PackedPart(of.parameter, of.rows + rows)


def _part(weight: Tensor) -> PackedPart:
    return getattr(weight, "of", None) or PackedPart(weight)


def find(kind: str, relu: bool, weights: Sequence[Tensor]) -> Product | None:
    """The stored product of these weights, side by side; None where there is none."""
    names = _using.get()
    places = [names.get(id(weight)) for weight in weights] if names else [None]
    stores = {id(place[0]) if place else None for place in places}
    if None in places or len(stores) != 1:
        return None
    stored = places[0][0]  # type: ignore[index]
    return stored.product(kind, relu, [place[1] for place in places if place])


def note(kind: str, relu: bool, weights: Sequence[Tensor], product: Product) -> None:
    made = _making.get()
    if made is not None:
        made.append(PackedProduct(kind, relu, tuple(map(_part, weights)), product))
