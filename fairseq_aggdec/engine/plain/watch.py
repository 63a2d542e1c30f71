"""Tells whether a model changed since its weights were packed: asked before every batch, so answered in microseconds.

What is compared, in the order of its cost: the modules, their classes, hooks and attributes; which tensors are their
parameters, where these stand and how often PyTorch wrote to them; a sample of their numbers, for writes that PyTorch
does not count (``.data[...]``, views of NumPy, optimisers of fairseq); and, in turns, a checksum of every number.
"""

import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter

import torch
from torch import Tensor, nn

from fairseq_aggdec.engine.plain.structure import Structure
from fairseq_aggdec.kernels.library import kernels
from fairseq_aggdec.kernels.mapped import Untouched, give_back
from fairseq_aggdec.windows.transfer import read

# Numbers of a model that are compared before every batch, spread evenly; at least so many of every tensor.
SAMPLES, LEAST = 2048, 8
# Words of 4 bytes whose checksum is compared before every batch, another piece each time: some 10 microseconds.
PIECE = 2**15
# On a GPU and without the compiled library: numbers of every tensor that are compared, at so many places in turn.
RUN, TURNS = 8, 8

_version: Callable[[Tensor], int] = attrgetter("_version")


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
    """Numbers in memory of the host, read by the compiled library; of mapped files the system tells."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.library = kernels()
        self.of_files = Untouched(tensors)
        tensors = [x for n, x in enumerate(tensors) if n not in self.of_files.watched]
        tensors = [part for tensor in tensors for part in _parts(tensor)]
        of_all = [_words(tensor) for tensor in tensors]
        words = [found for found in of_all if found is not None]
        self.kept = words
        # What does not stand side by side, or not on whole words.
        self.rest = Numbers([t for t, found in zip(tensors, of_all, strict=True) if found is None])
        total = sum(map(len, words)) or 1
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
        self.pieces: list[tuple[int, int]] = []
        self.sums: list[int] = []
        for of_tensor in words:
            for begin in range(0, len(of_tensor), PIECE):
                size = min(PIECE, len(of_tensor) - begin)
                self.pieces.append((of_tensor.data_ptr() + 4 * begin, size))
                self.sums.append(self.library.aggdec_checksum(*self.pieces[-1]))
            give_back(of_tensor)
        self.turn = 0

    def same(self) -> bool:
        if self.of_files.written() or not self.library.aggdec_same(*self.call):
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
        """Tells whether that stood at the places that were last asked for."""
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
        """Records where the tensors stand, whether row after row, and how often PyTorch wrote to them."""
        return [
            *map(Tensor.data_ptr, self.tensors),
            *map(Tensor.is_contiguous, self.tensors),
            *map(_version, self.counting),
        ]

    @property
    def in_place(self) -> bool:
        """Tells whether nothing but numbers can have changed: every tensor stands where it stood."""
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
