"""Tells whether a model changed since its weights were packed: asked before every batch, so answered in microseconds.

What is compared: the modules, their classes, hooks and attributes; which tensors are their parameters, where these are
in memory and how often PyTorch wrote to them; and a fixed sample of their numbers, for writes that PyTorch does not
count (``.data[...]``, views of NumPy, optimisers of fairseq).
"""

import itertools
from collections.abc import Callable, Sequence, Set
from operator import attrgetter, getitem
from typing import Any

import torch
from fairseq.modules import (
    FairseqDropout,
    LearnedPositionalEmbedding,
    MultiheadAttention,
    SinusoidalPositionalEmbedding,
)
from torch import Tensor, nn

from fairseq_aggdec.engine.plain.walk import KNOWN, methods
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.mapped import Untouched, give_back
from fairseq_aggdec.models.interleaved_transformer import SlotPositions
from fairseq_aggdec.windows.transfer import read

# Numbers of a model that are compared before every batch, spread evenly; at least so many of every tensor. Of tables
# with a row for each type it is one of each row: tokens are added by writing rows.
SAMPLES, LEAST = 1024, 4
# Without the compiled library: numbers of every tensor that are compared, side by side.
RUN = 8
# The name of a layer's keys and values in the state of stock decoding.
STATE = "_incremental_state_id"
# Attributes that the packed weights depend on, beside parameters. A class that is not listed depends on all.
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    nn.Linear: (),
    nn.ModuleList: (),
    nn.LayerNorm: ("eps", "normalized_shape"),
    nn.Embedding: ("max_norm",),
    LearnedPositionalEmbedding: ("max_norm", "padding_idx"),
    SinusoidalPositionalEmbedding: ("padding_idx", "weights"),  # no buffer in fairseq 0.12.2
    FairseqDropout: ("p", "training", "apply_during_inference"),
    MultiheadAttention: (
        *("num_heads", "head_dim", "embed_dim", "scaling", "bias_k", "add_zero_attn"),
        *("use_xformers", "training", STATE, "self_attention", "encoder_decoder_attention"),
    ),
}
# Set by whatever decodes with the model, read by nothing that is packed.
UNREAD = frozenset(("beam_size", "num_updates"))
_UNREAD_OF_ANY = (frozenset(vars(nn.Module())) | UNREAD) - {"training"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
PARTS = ("_modules", "_parameters", "_buffers")
# Tables that modules lengthen when a longer sentence comes: (class, name of the buffer).
GROWING = ((SinusoidalPositionalEmbedding, "weights"), (SlotPositions, "waves"))

_version: Callable[[Tensor], int] = attrgetter("_version")


def _unique(roots: Sequence[nn.Module]) -> list[nn.Module]:
    """All modules inside, each once."""
    by_id = {id(module): module for root in roots for module in root.modules()}
    return list(by_id.values())


def _names(module: nn.Module, packed: bool) -> list[str]:
    """The attributes of a module that are compared: of one that runs as it is fewer than of one that was packed."""
    attributes = vars(module)
    names = {name for name, value in attributes.items() if callable(value)}
    # What hides a tensor or a part.
    names |= {name for parts in PARTS for name in getattr(module, parts) if name in attributes}
    if type(module) in ATTRIBUTES:
        names.update(attributes.keys() & ATTRIBUTES[type(module)])
    elif packed or type(module) in KNOWN:
        names |= {
            name for name in attributes.keys() - _UNREAD_OF_ANY if name == STATE or name[:1] != "_"
        }
    elif "training" in attributes:  # a compiled module has none
        names.add("training")
    # The tables themselves, too: `vars(module).update(vars(other))` replaces them.
    return [*(name for name in PARTS if attributes.get(name)), *sorted(names)]


class Structure:
    """Modules with their classes, methods, hooks, tensors and attributes.

    Args:
        packed: modules of which everything inside was read.
        others: modules that run as they are. Compared are only their parts, classes, methods, hooks, attributes that
            can be called, and whether they train.
    """

    def __init__(self, packed: Sequence[nn.Module], others: Sequence[nn.Module]):
        read = _unique(packed)
        known = set(map(id, read))
        self.modules = _unique([*packed, *others])
        self.packed = [id(module) in known for module in self.modules]
        self.owned = list(map(vars, self.modules))
        self.named = self._named()
        self.counts = list(map(len, self.owned))
        places = [
            (owner, name)
            for owner, names in zip(self.owned, self.named, strict=True)
            for name in names
        ]
        self.owners, self.names = (
            [owner for owner, _ in places],
            [name for _, name in places],
        )
        self.growing = [
            (module, name)
            for module in read
            for cls, name in GROWING
            if isinstance(module, cls) and module._buffers.get(name) is not None
        ]
        hooked = [(module, name) for module in self.modules for name in HOOKS]
        owners = [(vars(module), name) for module, name in hooked if not getattr(module, name)]
        self.unhooked = [owner for owner, _ in owners], [name for _, name in owners]
        everywhere = nn.modules.module
        tables: list[Any] = [
            everywhere._global_forward_hooks,
            everywhere._global_forward_pre_hooks,
            *(getattr(module, name) for module, name in hooked),
            *(module._modules for module in self.modules),
        ]
        tables += [getattr(module, name) for module in read for name in ("_parameters", "_buffers")]
        grow = {id(module._buffers) for module, _ in self.growing}
        tables = [table for table in tables if id(table) not in grow]
        # Most are empty, which is seen in a tenth of the time.
        seen = {id(owner[name]) for owner, name in owners}
        self.empty = [table for table in tables if not table and id(table) not in seen]
        self.tables = [table for table in tables if table]
        self.contents = list(map(dict, self.tables))
        self.ordered = [module._modules for module in self.modules if len(module._modules) > 1]
        of_classes = [(cls, name) for cls in set(map(type, self.modules)) for name in methods(cls)]
        self.classes = [cls for cls, _ in of_classes]
        self.methods = [name for _, name in of_classes]
        self.before = self._now()

    def _named(self) -> list[list[str]]:
        return list(map(_names, self.modules, self.packed))

    def _now(self) -> list[Any]:
        # map() takes a fraction of the time of a loop.
        return [
            *map(type, self.modules),
            *itertools.chain.from_iterable(self.ordered),
            *map(getitem, self.owners, self.names),
            *map(getattr, self.classes, self.methods),
        ]

    def changed(self) -> bool:
        try:
            # What is the same object is not compared; tensors that are not cannot be.
            if any(self.empty) or any(map(getitem, *self.unhooked)):
                return True
            if self.tables != self.contents or self._now() != self.before:
                return True
        except (KeyError, AttributeError, RuntimeError):
            return True
        if (counts := list(map(len, self.owned))) != self.counts:
            if self._named() != self.named:
                return True
            self.counts = counts  # stock decoding has left notes
        return False


def _grown(table: Any, grown: Any) -> bool:
    """Tells whether a table (N, C) begins as before."""
    if not isinstance(grown, Tensor) or len(grown) < len(table) or grown.dtype != table.dtype:
        return False
    return grown.device == table.device and torch.equal(grown[: len(table)], table)


def _words(tensor: Tensor) -> Tensor | None:
    """(N,) int32 view of a tensor's memory; None where its numbers do not stand side by side in whole words."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.transpose(0, -1) if tensor.dim() > 1 else tensor
    if not tensor.is_contiguous() or not tensor.nbytes or tensor.nbytes % 4:
        return None
    flat = tensor.view(-1)
    return (
        None
        if flat.data_ptr() % 4 or flat.storage_offset() * flat.itemsize % 4
        else flat.view(torch.int32)
    )


class HostNumbers:
    """Numbers in memory of the host, read by the compiled library; of mapped files the system tells.

    Args:
        rows: sizes of tables of embeddings. Of a matrix with so many rows one number of each row is compared.
    """

    def __init__(self, tensors: Sequence[Tensor], rows: Set[int] = frozenset()):
        self.library = kernels()
        self.of_files = Untouched(tensors)
        tensors = [x for n, x in enumerate(tensors) if n not in self.of_files.watched]
        tables = [len(x) if x.dim() == 2 and len(x) in rows else 0 for x in tensors]
        of_all = [_words(tensor) for tensor in tensors]
        self.kept = words = [held for held in of_all if held is not None]
        self.rest = Numbers([t for t, held in zip(tensors, of_all, strict=True) if held is None])
        total = sum(map(len, words)) or 1
        chance = torch.Generator().manual_seed(1)  # what is sampled later does not depend on it
        places = [torch.empty(0, dtype=torch.int64, device="cpu")]
        numbers = [torch.empty(0, dtype=torch.int32, device="cpu")]
        least = (table for table, of_one in zip(tables, of_all, strict=True) if of_one is not None)
        for of_tensor, of_rows in zip(words, least, strict=True):
            size = len(of_tensor)
            count = min(size, max(LEAST, of_rows, size * SAMPLES // total))
            begins = torch.arange(count + 1, device="cpu") * size // count
            # Not at equal distances: these would all be in the same columns.
            within = torch.rand(count, generator=chance, device="cpu") * begins.diff()
            at = begins[:-1] + within.long()
            places.append(of_tensor.data_ptr() + 4 * at)
            numbers.append(of_tensor[at])
            give_back(of_tensor)
        self.places, self.numbers = torch.cat(places), torch.cat(numbers)
        self.call = self.places.data_ptr(), self.numbers.data_ptr(), len(self.places)

    def same(self) -> bool:
        if self.of_files.written() or not self.library.aggdec_same(*self.call):
            return False
        return self.rest.same()


# The integer type of each width in bytes, as which numbers are compared: NaN equals itself there.
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _probe(tensor: Tensor, start: float) -> Tensor:
    """(N,) :data:`RUN` numbers of a tensor as bits; as many rows where these are not side by side."""
    kind = _WHOLE.get(tensor.itemsize)
    part = tensor.detach() if kind is None else tensor.detach().view(kind)
    part = part.view(-1) if part.is_contiguous() else part
    first = int(start * max(1, len(part) - RUN))
    part = part[first : first + RUN]
    return part if part.dim() == 1 else part.reshape(-1)


class Numbers:
    """Some numbers of every tensor, by PyTorch's operators."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = [tensor for tensor in tensors if tensor.numel()]
        chance = torch.Generator().manual_seed(1)
        self.starts = torch.rand(len(self.tensors), generator=chance).tolist()
        values = self.now()
        self.values = [] if values is None else read([values])

    def now(self) -> Tensor | None:
        """(N,) the numbers, on their device; None where there is no tensor."""
        return torch.cat(list(map(_probe, self.tensors, self.starts))) if self.tensors else None

    def are(self, values: Tensor | None) -> bool:
        """Tells whether these are what they were."""
        return values is None or torch.equal(values.cpu(), self.values[0])

    def same(self) -> bool:
        return self.are(self.now())


class ModelWatch:
    """Tells whether what was packed has changed since this was made.

    A write that PyTorch does not count is seen where it spans some thousandth of the model, or a row of an embedding on
    a CPU with the compiled library; a smaller one by chance. All other changes are seen.

    Args:
        packed: modules of which everything inside was read.
        others: modules that run as they are: whether they have to is looked at anew when they change.
        rows: look at every row of embeddings: 0.5 % of the time of one sentence in fp32, 1.5 % in 8 bits.
    """

    def __init__(
        self, packed: Sequence[nn.Module], others: Sequence[nn.Module] = (), rows: bool = True
    ):
        self.structure, self.rows = Structure(packed, others), rows
        tensors = {
            id(tensor): tensor
            for module in packed
            for tensor in itertools.chain(module.parameters(), module.buffers())
        }
        self._watch(list(tensors.values()))
        self.known_change: bool | None = None

    def _types(self) -> set[int]:
        """Numbers of rows of the embeddings that are looked at row by row."""
        modules = self.structure.modules if self.rows else ()
        return {module.num_embeddings for module in modules if isinstance(module, nn.Embedding)}

    def _watch(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.tables = [module._buffers[name] for module, name in self.structure.growing]
        # A tensor made in inference mode counts no writes.
        self.counting = [tensor for tensor in tensors if not tensor.is_inference()]
        self.matrices = [tensor for tensor in tensors if tensor.dim() > 1]
        self.before = self._now()
        self.on_host = all(tensor.device.type == "cpu" for tensor in tensors)
        host = self.on_host and kernels() is not None
        self.numbers = HostNumbers(tensors, self._types()) if host else Numbers(tensors)

    def _now(self) -> list[int]:
        """Records where the tensors stand, whether row after row, and how often PyTorch wrote to them."""
        return [
            *map(Tensor.data_ptr, self.tensors),
            *map(Tensor.is_contiguous, self.matrices),
            *map(_version, self.counting),
        ]

    def _moved(self) -> bool:
        return self.structure.changed() or self._now() != self.before or not self._follow()

    def _follow(self) -> bool:
        """Takes up tables of positions that grew; False where one is another."""
        for (module, name), before in zip(self.structure.growing, self.tables, strict=True):
            now = module._buffers.get(name)
            if now is not before:
                if not _grown(before, now):
                    return False
                assert now is not None
                self._watch([now if tensor is before else tensor for tensor in self.tensors])
        return True

    def question(self) -> Tensor | None:
        """(N,) numbers on the device; None where the host knows the answer, or finds out without waiting."""
        if self.on_host:
            return None
        if self.known_change or self._moved():
            self.known_change = True
            return None
        assert isinstance(self.numbers, Numbers)
        return self.numbers.now()

    def hear(self, numbers: Tensor) -> None:
        assert isinstance(self.numbers, Numbers)
        self.answer(not self.numbers.are(numbers))

    def answer(self, changed: bool) -> None:
        """Says whether there was a change; the next :meth:`changed` need not ask the device then."""
        self.known_change = changed

    def changed(self) -> bool:
        known, self.known_change = self.known_change, None
        if known is not None:
            return known
        return self._moved() or not self.numbers.same()
