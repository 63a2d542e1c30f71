"""Products whose weights a file has laid out already: noted while a model is packed, taken up where it is loaded.

A stored product stands for parameters by their names. It is taken only while the mapped checkpoint holds the numbers
of which it was made: the system says whether anybody has written to a mapping.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from fairseq_aggdec.kernels.layout import Layout, ProductForm
from fairseq_aggdec.kernels.library import Product, kernels
from fairseq_aggdec.kernels.mapped import mappings
from fairseq_aggdec.stored.options import CheckpointError, printable

logger = logging.getLogger(__name__)

PARTS = ("weight", "bias", "scales", "sums")  # of a product


def key_of(kind: str, relu: bool, names: Sequence[str]) -> str:
    """Key by which a product is found: how it computes, and the parameters that it has joined."""
    return json.dumps([kind, relu, *names])


def is_part(name: str) -> bool:
    """Tells whether a name is that of a part of some product, ``KEY/PART``."""
    key, _, part = name.rpartition("/")
    try:
        parts = json.loads(key)
    except (ValueError, RecursionError):
        return False
    if part not in PARTS or type(parts) is not list or len(parts) < 3:
        return False
    kind, relu, *names = parts
    texts = all(type(one) is str for one in (kind, *names))
    return texts and type(relu) is bool and key == key_of(kind, relu, names)


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


@dataclass(frozen=True)
class Making:
    """Products that are packed while somebody notes them; ``tell``: see :func:`noted`."""

    tell: Callable[[int], object]
    products: list[PackedProduct] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Stored:
    """Tensors that a folder holds for one model.

    Attributes:
        checkpoint: the file of the parameters.
        layout: of the weights.
        tensors: parts of products, by ``KEY/PART``; views of the mapped file. A part is used only after it was compared
            with the linear layers that it stands for.
        warned: precisions of which was warned.
    """

    checkpoint: str
    layout: Layout
    tensors: Mapping[str, Tensor]
    warned: set[str] = field(default_factory=set)

    def warn_of(self, kind: str) -> None:
        """Warns once where a model decodes in another precision than the one that it was packed for."""
        kinds = (json.loads(name.rpartition("/")[0])[0] for name in self.tensors)
        if kind not in self.warned and all(one != kind for one in kinds):
            self.warned.add(kind)
            logger.warning(
                "%s was packed in another precision than %s, in which it decodes: its weights are packed anew",
                *(self.checkpoint, kind),
            )

    def product(self, form: ProductForm, relu: bool, names: Sequence[str]) -> Product | None:
        """The product of parameters with these names; None where there is none.

        Raises:
            CheckpointError: a part of it is missing, or has another dtype or shape than ``form`` asks for.
        """
        key = key_of(form.kind, relu, names)
        parts = {part: self.tensors.get(f"{key}/{part}") for part in PARTS}
        if not any(tensor is not None for tensor in parts.values()):
            self.warn_of(form.kind)
            return None
        wanted = form.parts(self.layout)
        for part, tensor in parts.items():
            kind = None if tensor is None else (tensor.dtype, tuple(tensor.shape))
            if kind != wanted.get(part):
                raise CheckpointError(
                    f"the packed weights beside {self.checkpoint} are damaged (the {part} of {printable(names[0])} is "
                    "not that of its layer): write the folder again with `aggdec pack`."
                )
        return Product.of_parts(form.inputs, form.outputs, relu, form.kind == "bf16", **parts)


_of_models: WeakKeyDictionary[nn.Module, Stored] = WeakKeyDictionary()
_making: ContextVar["Making | None"] = ContextVar("making", default=None)
# Of a parameter, by its id, the store, the name that it has there, and itself: nothing else gets its id meanwhile.
_Names = dict[int, tuple[Stored, str, Tensor]]
_using: ContextVar[_Names | None] = ContextVar("using", default=None)


@dataclass
class Count:
    """Products that were packed within :func:`used`: how many there are, and how many of them a folder has."""

    products: int = 0
    stored: int = 0
    sound: bool = False


_counting: ContextVar[Count | None] = ContextVar("counting", default=None)


def attach(model: nn.Module, stored: Stored) -> None:
    """Says that a model, loaded from the checkpoint of the folder, has packed weights there."""
    _of_models[model] = stored


@contextmanager
def noted(tell: Callable[[int], object]) -> Iterator[list[PackedProduct]]:
    """The products that are packed meanwhile; ``tell`` hears of the number of weights of each."""
    making = Making(tell)
    token = _making.set(making)
    try:
        yield making.products
    finally:
        _making.reset(token)


@contextmanager
def used(models: Sequence[nn.Module]) -> Iterator[Count]:
    """Meanwhile, packing takes what is stored for the models. Gives the count of products, which the log has at the
    end; ``sound`` says whether all models have packed weights."""
    names: _Names = {}
    library, stored_of = kernels(), [_of_models.get(model) for model in models]
    for model, stored in zip(models, stored_of, strict=True):
        if stored is None or library is None or stored.layout != Layout.of(library):
            continue
        clean = list(mappings([stored.checkpoint]))
        for name, parameter in model.named_parameters():
            at = parameter.data_ptr()
            if any(begin <= at and at + parameter.nbytes <= end for begin, end in clean):
                names[id(parameter)] = stored, name, parameter
    count = Count(sound=bool(names) and None not in stored_of)
    tokens = _using.set(names or None), _counting.set(count)
    try:
        yield count
    finally:
        _using.reset(tokens[0])
        _counting.reset(tokens[1])
    if any(stored is not None for stored in stored_of) and count.products:
        places = dict.fromkeys(stored.checkpoint for stored in stored_of if stored is not None)
        logger.info(
            "%s: %d of %d products are packed there",
            ", ".join(places),
            count.stored,
            count.products,
        )


def stands_for(parameter: Tensor, copied: nn.Parameter, rows: str = "") -> None:
    """Says that a parameter was copied from another one, in another precision that loses nothing; ``rows`` names those
    outputs that it has, empty: all."""
    names = _using.get()
    if names is not None and id(parameter) in names:
        stored, name, _ = names[id(parameter)]
        names[id(copied)] = stored, name + rows, copied
    if _making.get() is not None:
        of = _part(parameter)
        vars(copied)["of"] = PackedPart(of.parameter, of.rows + rows)


def _part(weight: Tensor) -> PackedPart:
    return getattr(weight, "of", None) or PackedPart(weight)


def find(kind: str, relu: bool, modules: Sequence[nn.Linear]) -> Product | None:
    """The stored product of linear layers side by side; None where there is none.

    Raises:
        CheckpointError: it is not that of these layers.
    """
    names, weights = _using.get(), [module.weight for module in modules]
    biases = [module.bias for module in modules if module.bias is not None]
    places = [names.get(id(part)) for part in (*weights, *biases)] if names else [None]
    stores = {id(place[0]) if place else None for place in places}
    if None in places or len(stores) != 1:
        return None
    stored = places[0][0]  # type: ignore[index]
    keys = [place[1] for place in places if place]
    form = ProductForm(
        kind, weights[0].size(1), sum(len(weight) for weight in weights), bool(biases)
    )
    return stored.product(form, relu, keys[: len(weights)])


def counted(stored: bool) -> None:
    """Counts a product that is there now: from a folder, or packed anew."""
    if (count := _counting.get()) is not None:
        count.products += 1
        count.stored += stored


def note(kind: str, relu: bool, weights: Sequence[Tensor], product: Product) -> None:
    making = _making.get()
    if making is not None:
        making.products.append(PackedProduct(kind, relu, tuple(map(_part, weights)), product))
        making.tell(sum(weight.numel() for weight in weights))
