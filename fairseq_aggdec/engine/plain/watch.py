"""Whether a model changed since its weights were packed: asked before every batch, so answered in microseconds.

What is compared, in the order of its cost: the modules, their classes, hooks and attributes; which tensors are their
parameters, where these stand and how often PyTorch wrote to them; a sample of their numbers, for writes that PyTorch
does not count (``.data[...]``, views of NumPy, optimisers of fairseq); and, in turns, a checksum of every number.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
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

from fairseq_aggdec.engine.plain.walk import KNOWN, mentioned, methods
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.models.interleaved_transformer import SlotPositions
from fairseq_aggdec.windows.transfer import read

# Numbers of a model that are compared before every batch, spread evenly; at least so many of every tensor.
SAMPLES, LEAST = 2048, 8
# Words of 4 bytes whose checksum is compared before every batch, another piece each time: some 10 microseconds.
PIECE = 2**15
# On a GPU and without the compiled library: numbers of every tensor that are compared, at so many places in turn.
RUN, TURNS = 8, 8

# The name of a layer's keys and values in the state of stock decoding.
STATE = "_incremental_state_id"
# What the packed form has read of modules of these classes, beside their parameters; of others every attribute that
# their methods speak of.
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    nn.Linear: (),
    nn.ModuleList: (),
    nn.LayerNorm: ("eps", "normalized_shape"),
    nn.Embedding: ("max_norm",),
    LearnedPositionalEmbedding: ("max_norm", "padding_idx"),
    SinusoidalPositionalEmbedding: ("padding_idx",),
    FairseqDropout: ("p", "training", "apply_during_inference"),
    MultiheadAttention: (
        *("num_heads", "head_dim", "embed_dim", "scaling", "bias_k", "add_zero_attn"),
        *("use_xformers", "training", STATE, "self_attention", "encoder_decoder_attention"),
    ),
}
# Set by whatever decodes with the model, read by nothing that is packed.
UNREAD = frozenset(("beam_size", "num_updates"))
# Tables that modules lengthen when a longer sentence comes: (class, name of the buffer).
GROWING = ((SinusoidalPositionalEmbedding, "weights"), (SlotPositions, "waves"))
_UNREAD_OF_ANY = (frozenset(vars(nn.Module())) | UNREAD) - {"training"}

_version: Callable[[Tensor], int] = attrgetter("_version")


def _attributes(module: nn.Module) -> Iterable[str]:
    names = ATTRIBUTES.get(type(module))
    if names is not None:
        return [name for name in names if name in vars(module)]
    return [
        name
        for name in vars(module)
        if name == STATE or (name not in _UNREAD_OF_ANY and not name.startswith("_"))
    ]


def _telling(module: nn.Module, read: bool, spoken_of: set[str]) -> list[str]:
    """The attributes that tell what a module computes, and whether it was altered.

    Args:
        module: its own are looked at, not those of its parts.
        read: it was packed; else it runs as it is, and tells less where its class is not known.
        spoken_of: by classes, of which no other attributes matter.
    """
    own = vars(module)
    names = ["training"] if not read and "training" in own else []  # a compiled module has none
    if read or type(module) in ATTRIBUTES or type(module) in KNOWN:
        names += [name for name in _attributes(module) if name in spoken_of]
    names += [name for name, value in own.items() if callable(value)]
    # What hides a tensor or a part.
    for parts in (module._parameters, module._buffers, module._modules):
        names += [name for name in parts if name in own]
    return names


class Structure:
    """Which modules there are, of which classes, with which methods, hooks, tensors and attributes.

    Args:
        packed: modules of which everything inside was read.
        others: of these only what tells whether they could be: their modules, classes, methods, hooks, what is called
            in them, and whether they train.
    """

    def __init__(self, packed: Sequence[nn.Module], others: Sequence[nn.Module]):
        read = _unique(packed)
        self.modules = _unique([*packed, *others])
        known = set(map(id, read))
        self.read = [id(module) in known for module in self.modules]
        types = set(map(type, self.modules))
        self.spoken_of = mentioned(types) | {"training"}
        self.owned = list(map(vars, self.modules))
        self.counts = list(map(len, self.owned))
        self.told = self._told()
        places = [
            (own, name) for own, names in zip(self.owned, self.told, strict=True) for name in names
        ]
        self.owners = [owner for owner, _ in places]
        self.names = [name for _, name in places]
        self.growing = [
            WatchedTable(module._buffers, name, table)
            for module in read
            for cls, name in GROWING
            if isinstance(module, cls) and (table := module._buffers.get(name)) is not None
        ]
        grow = {id(table.buffers) for table in self.growing}
        # The dictionaries of the modules themselves, and what is in them now.
        self.tables: list[Any] = [module._modules for module in self.modules]
        self.parts = [table for table in self.tables if len(table) > 1]
        for module in self.modules:
            self.tables += [module._forward_hooks, module._forward_pre_hooks]
        for module in read:
            self.tables.append(module._parameters)
            self.tables += [] if id(module._buffers) in grow else [module._buffers]
        hooks = nn.modules.module
        self.tables += [hooks._global_forward_hooks, hooks._global_forward_pre_hooks]
        # Most are empty, which is seen faster.
        self.empty = [table for table in self.tables if not table]
        self.tables = [table for table in self.tables if table]
        self.contents = list(map(dict, self.tables))
        of_classes = [(cls, name) for cls in types for name in methods(cls)]
        self.classes = [cls for cls, _ in of_classes]
        self.methods = [name for _, name in of_classes]
        self.before = self._now()

    def _now(self) -> list[Any]:
        # For every batch: map() takes a fraction of the time of a loop.
        return [
            *map(type, self.modules),
            *itertools.chain.from_iterable(self.parts),  # their order
            *map(getitem, self.owners, self.names),
            *map(getattr, self.classes, self.methods),
        ]

    def _told(self) -> list[list[str]]:
        return [
            _telling(module, read, self.spoken_of)
            for module, read in zip(self.modules, self.read, strict=True)
        ]

    def changed(self) -> bool:
        try:
            # What is the same object is not compared; tensors that are not cannot be.
            if any(self.empty) or self.tables != self.contents or self._now() != self.before:
                return True
        except (KeyError, AttributeError, RuntimeError):
            return True
        if (counts := list(map(len, self.owned))) != self.counts:
            if self._told() != self.told:
                return True
            self.counts = counts  # notes of whoever works with the model
        return any(map(WatchedTable.changed, self.growing))


class WatchedTable:
    """A buffer that may be replaced by one that begins as it does."""

    def __init__(self, buffers: dict[str, Tensor | None], name: str, table: Tensor):
        self.buffers, self.name = buffers, name
        self._take_up(table)

    def _take_up(self, table: Tensor) -> None:
        # A tensor made in inference mode counts no writes.
        self.table, self.writes = table, None if table.is_inference() else table._version

    def changed(self) -> bool:
        found, table = self.buffers.get(self.name), self.table
        if self.writes is not None and table._version != self.writes:
            return True
        if found is not table:
            if not _grown(table, found):
                return True
            assert found is not None
            self._take_up(found)
        return False


def _unique(roots: Sequence[nn.Module]) -> list[nn.Module]:
    """All modules inside, each once."""
    found = {id(module): module for root in roots for module in root.modules()}
    return list(found.values())


def _grown(table: Tensor, found: Any) -> bool:
    """Whether a table (N, C) begins as before."""
    if not isinstance(found, Tensor) or len(found) < len(table) or found.dtype != table.dtype:
        return False
    return found.device == table.device and torch.equal(found[: len(table)], table)


def _flat(tensor: Tensor) -> Tensor | None:
    """(N,) view of a tensor, in the order of memory; None where its numbers do not stand side by side."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.transpose(0, -1) if tensor.dim() > 1 else tensor
    return tensor.view(-1) if tensor.is_contiguous() and tensor.numel() else None


def _words(tensor: Tensor) -> Tensor | None:
    """(N,) int32 view of a tensor's memory; None where it has no such words."""
    flat = _flat(tensor)
    if flat is None or flat.data_ptr() % 4 or flat.storage_offset() * flat.itemsize % 4:
        return None
    return flat.view(torch.int32) if flat.nbytes % 4 == 0 else None


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    """The numbers of a tensor in whole words, and those behind the last whole word, if there are any."""
    flat, in_a_word = _flat(tensor), 4 // min(4, tensor.itemsize)
    if flat is None or len(flat) % in_a_word == 0:
        return (tensor,)
    return flat.tensor_split([len(flat) // in_a_word * in_a_word])


# Of the numbers of a type so many bytes wide, as which NaN is like itself.
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as whole numbers, of whatever strides."""
    kind = _WHOLE.get(tensor.itemsize)
    return tensor.detach() if kind is None else tensor.detach().view(kind)


class HostNumbers:
    """Numbers in memory of the host, read by the compiled library."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.library = kernels()
        tensors = [part for tensor in tensors for part in _parts(tensor)]
        of_all = [_words(tensor) for tensor in tensors]
        words = [found for found in of_all if found is not None]
        self.kept = words
        # What does not stand side by side, or not on whole words.
        self.rest = Numbers([t for t, found in zip(tensors, of_all, strict=True) if found is None])
        total = sum(map(len, words))
        own = torch.Generator().manual_seed(1)  # what is sampled later does not depend on it
        places = [torch.empty(0, dtype=torch.int64, device="cpu")]
        numbers = [torch.empty(0, dtype=torch.int32, device="cpu")]
        for of_tensor in words:
            size = len(of_tensor)
            count = min(size, max(LEAST, size * SAMPLES // total))
            begins = torch.arange(count + 1, device="cpu") * size // count
            # Not at equal distances: these would all be in the same columns.
            at = (
                begins[:-1]
                + (torch.rand(count, generator=own, device="cpu") * begins.diff()).long()
            )
            places.append(of_tensor.data_ptr() + 4 * at)
            numbers.append(of_tensor[at])
        self.places, self.numbers = torch.cat(places), torch.cat(numbers)
        self.call = self.places.data_ptr(), self.numbers.data_ptr(), len(self.places)
        self.pieces = [
            (of_tensor.data_ptr() + 4 * begin, min(PIECE, len(of_tensor) - begin))
            for of_tensor in words
            for begin in range(0, len(of_tensor), PIECE)
        ]
        self.sums = [self.library.aggdec_checksum(*piece) for piece in self.pieces]
        self.turn = 0

    def same(self) -> bool:
        if not self.library.aggdec_same(*self.call):
            return False
        if self.rest.values and not self.rest.same():
            return False
        if not self.pieces:
            return True
        turn = self.turn
        self.turn = (turn + 1) % len(self.pieces)
        found: int = self.library.aggdec_checksum(*self.pieces[turn])
        return found == self.sums[turn]


def _flattened(probe: Tensor) -> Tensor:
    return probe if probe.dim() == 1 else probe.reshape(-1)


def _probe(tensor: Tensor, start: float) -> Tensor:
    """View of :data:`RUN` numbers side by side, or of as many rows where the numbers are not side by side."""
    flat = _flat(tensor)
    found = tensor.detach() if flat is None else flat
    first = int(start * max(1, len(found) - RUN))
    return found[first : first + RUN]


class Numbers:
    """Some numbers of every tensor, by PyTorch's operators, at other places every time."""

    def __init__(self, tensors: Sequence[Tensor]):
        # As they stand in memory, where NaN is like itself.
        parts = [_bits(tensor) for tensor in tensors if tensor.numel()]
        own = torch.Generator().manual_seed(1)
        self.probes = []
        for _ in range(TURNS if parts else 0):
            starts = torch.rand(len(parts), generator=own).tolist()
            self.probes.append(list(map(_probe, parts, starts)))
        values = [torch.cat(list(map(_flattened, probes))) for probes in self.probes]
        self.values = read(values) if values else []
        self.turn = 0

    def next(self) -> Tensor | None:
        """(N,) the numbers at the next places, on their device."""
        if not self.values:
            return None
        self.turn = (self.turn + 1) % TURNS
        return torch.cat(list(map(_flattened, self.probes[self.turn])))

    def are(self, found: Tensor | None) -> bool:
        """Whether that stood at the places that were last asked for."""
        return found is None or torch.equal(found.cpu(), self.values[self.turn])

    def same(self) -> bool:
        return self.are(self.next())


class ModelWatch:
    """Tells whether what was packed has changed since this was made.

    A write that PyTorch does not count is seen with the next batch where it spans some thousandth of the model; a
    smaller one on a CPU once its checksum had its turn, on a GPU by chance. All other changes are seen at once.

    Args:
        packed: modules of which everything inside was read.
        others: modules that run as they are: whether they have to is looked at anew when they change.
    """

    def __init__(self, packed: Sequence[nn.Module], others: Sequence[nn.Module] = ()):
        self.structure = Structure(packed, others)
        found = {
            id(tensor): tensor
            for module in packed
            for tensor in itertools.chain(module.parameters(), module.buffers())
        }
        self.tensors = list(found.values())
        # A tensor made in inference mode counts no writes.
        self.counting = [tensor for tensor in self.tensors if not tensor.is_inference()]
        self.before = self._now()
        on_host = all(tensor.device.type == "cpu" for tensor in self.tensors)
        self.numbers: HostNumbers | Numbers
        if on_host and kernels() is not None:
            self.numbers = HostNumbers(self.tensors)
        else:
            self.numbers = Numbers(self.tensors)
        self.on_host = on_host
        self.told: bool | None = None

    def _now(self) -> list[int]:
        """Where the tensors stand, whether row after row, and how often PyTorch wrote to them."""
        return [
            *map(Tensor.data_ptr, self.tensors),
            *map(Tensor.is_contiguous, self.tensors),
            *map(_version, self.counting),
        ]

    @property
    def in_place(self) -> bool:
        """Whether nothing but numbers can have changed: every tensor stands where it stood."""
        places = 2 * len(self.tensors)
        return not self.structure.changed() and self._now()[:places] == self.before[:places]

    def _moved(self) -> bool:
        return self.structure.changed() or self._now() != self.before

    def question(self) -> Tensor | None:
        """(N,) numbers on the device; None where the host knows the answer, or finds out without waiting."""
        if self.on_host:
            return None
        if self.told or self._moved():
            self.told = True
            return None
        assert isinstance(self.numbers, Numbers)
        return self.numbers.next()

    def hear(self, numbers: Tensor) -> None:
        assert isinstance(self.numbers, Numbers)
        self.answer(not self.numbers.are(numbers))

    def answer(self, changed: bool) -> None:
        """Says whether there was a change; the next :meth:`changed` need not ask the device then."""
        self.told = changed

    def changed(self) -> bool:
        told, self.told = self.told, None
        if told is not None:
            return told
        return self._moved() or not self.numbers.same()
