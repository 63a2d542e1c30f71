"""Structure of modules: their classes, methods, hooks, tensors and attributes, compared with what they were."""

import itertools
from collections.abc import Iterable, Sequence
from operator import getitem, is_
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
from fairseq_aggdec.engine.plain.writes import Writes
from fairseq_aggdec.models.interleaved_transformer import SlotPositions

# The name of a layer's keys and values in the state of stock decoding.
STATE = "_incremental_state_id"
# Attributes that the packed weights depend on, beside parameters. A class that is not listed depends on every attribute
# that its methods mention.
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
    """Modules with their classes, methods, hooks, tensors and attributes.

    Args:
        packed: modules of which everything inside was read.
        others: modules that run as they are. Compared are only their parts, classes, methods, hooks, attributes that
            can be called, and whether they train.
    """

    def __init__(self, packed: Sequence[nn.Module], others: Sequence[nn.Module]):
        read = _unique(packed)
        self.modules = _unique([*packed, *others])
        # The dictionaries of the modules themselves, and whose they are.
        names = "_modules", "_forward_hooks", "_forward_pre_hooks"
        asked = [(module, name) for module in self.modules for name in names]
        asked += [(module, name) for module in read for name in ("_parameters", "_buffers")]
        tables: list[Any] = [getattr(module, name) for module, name in asked]
        kept = [
            (vars(module), name, table)
            for (module, name), table in zip(asked, tables, strict=True)
            if vars(module).get(name) is table
        ]
        self.keeping = list(zip(*kept, strict=True)) or [(), (), ()]
        hooks = nn.modules.module
        tables += [hooks._global_forward_hooks, hooks._global_forward_pre_hooks]
        # Before anything is read. Where the order of parts counts, a write is not all that can change it.
        ordered = all(type(module._modules) is dict for module in self.modules)
        self.writes = Writes(self.modules, tables) if ordered else Writes()
        self.sure = False  # that nothing has changed but for writes
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
        self.tables = [table for table in tables if id(table) not in grow]
        self.parts = [module._modules for module in self.modules if len(module._modules) > 1]
        self.contents = list(map(dict, self.tables))
        of_classes = [(cls, name) for cls in types for name in methods(cls)]
        self.classes = [cls for cls, _ in of_classes]
        self.methods = [name for _, name in of_classes]
        self.before = self._now()

    def _now(self) -> list[Any]:
        # map() takes a fraction of the time of a loop.
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
        self.sure = not self.writes.any() and self.sure
        if not self.sure and self._differs():
            return True
        self.sure = True
        return any(map(WatchedTable.changed, self.growing))

    def _differs(self) -> bool:
        owners, names, tables = self.keeping
        try:
            if not all(map(is_, map(vars, self.modules), self.owned)):
                return True
            if not all(map(is_, map(getitem, owners, names), tables)):
                return True
            # What is the same object is not compared; tensors that are not cannot be.
            if self.tables != self.contents or self._now() != self.before:
                return True
        except (KeyError, AttributeError, RuntimeError):
            return True
        if (counts := list(map(len, self.owned))) != self.counts:
            if self._told() != self.told:
                return True
            self.counts = counts  # notes of whoever works with the model
        return False


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
    """Tells whether a table (N, C) begins as before."""
    if not isinstance(found, Tensor) or len(found) < len(table) or found.dtype != table.dtype:
        return False
    return found.device == table.device and torch.equal(found[: len(table)], table)
