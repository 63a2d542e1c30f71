"""Checks of what a checkpoint pickles that PyTorch makes itself from 2.10 on, for older ones (CVE-2026-24747).

An older PyTorch reads as many bytes of a storage as the file says, even if the record is shorter. It also sets items of
any object, a tensor among them, and takes sparse tensors whose indices lead out of their memory. The reader here goes
through the same stream before, makes nothing but containers out of it and refuses the three.
"""

import pickle
import tarfile
import zipfile
from collections import Counter, OrderedDict
from typing import IO, Any, ClassVar

import torch

from fairseq_aggdec.stored.options import CheckpointError

CHECKS_ITSELF = (2, 10)  # first PyTorch
READER: Any = pickle._Unpickler  # Python's own in Python, whose steps can be replaced
STREAMS = 4  # of a file of PyTorch < 1.6: a number, a version, the system, the contents
DICTIONARIES = {
    "collections.OrderedDict": OrderedDict,
    "collections.Counter": Counter,
    "collections.defaultdict": lambda *_: {},
}


def check_pickled(path: str) -> None:
    """Refuses a file that would harm the PyTorch that is here; those from 2.10 on refuse it themselves.

    Raises:
        CheckpointError: it would.
        pickle.UnpicklingError: it is no pickle.
    """
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release < CHECKS_ITSELF:
        read_through(path)


def read_through(path: str) -> None:
    """Reads the streams of a checkpoint without making what they name; see :func:`check_pickled`."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            sizes = {record.filename: record.file_size for record in archive.infolist()}
            names = [name for name in sizes if name.split("/")[1:] == ["data.pkl"]]
            if len(names) != 1:
                raise CheckpointError("it is no archive that PyTorch has written")
            folder = names[0].partition("/")[0]
            with archive.open(names[0]) as stream:
                Reader(stream, sizes, folder).load()
    elif tarfile.is_tarfile(
        path
    ):  # before PyTorch 0.1.10; PyTorch < 2.6 would unpack it (CVE-2025-32434)
        raise CheckpointError("it is an archive of a PyTorch before 0.1.10")
    else:
        with open(path, "rb") as stream:
            for _ in range(STREAMS):
                Reader(stream).load()


class Named:
    """Stands in for a class or function that a stream names, and for what it gives when it is called."""

    name = ""

    def __new__(cls, *_: Any) -> "Named":
        return object.__new__(cls)

    def __init__(self, *_: Any):
        """Takes anything."""

    def __setstate__(self, _: Any) -> None:
        """Takes anything."""


class Reader(READER):
    """Python's reader, which makes containers only.

    Args:
        stream: to read.
        sizes: bytes of the records of an archive, by name; None: an old file, whose sizes PyTorch compares.
        folder: that the archive's records are in.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(READER.dispatch)

    def __init__(self, stream: IO[bytes], sizes: dict[str, int] | None = None, folder: str = ""):
        super().__init__(stream, encoding="latin1")
        self.sizes, self.folder = sizes, folder

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if "sparse" in full:
            raise CheckpointError("it has a sparse tensor, which this PyTorch does not check")
        return DICTIONARIES.get(full) or type("Named", (Named,), {"name": name})

    def persistent_load(self, key: Any) -> Any:
        """Compares the size of a storage, ``("storage", type, record, device, numbers)``, with that of its record."""
        if self.sizes is None:
            return Named()
        _, kind, record, _, numbers = key
        width = 1
        if kind.name != "UntypedStorage":
            width = torch._utils._element_size(torch.serialization.StorageType(kind.name).dtype)
        there = self.sizes.get(f"{self.folder}/data/{record}", -1)
        if type(numbers) is not int or not 0 <= numbers * width <= there:
            raise CheckpointError(f"it has a tensor of {numbers!r:.20} numbers in {there} bytes")
        return Named()

    def _check_target(self, target: Any) -> None:
        if type(target) not in (dict, OrderedDict, Counter):
            raise CheckpointError("it sets items of what is no dictionary")

    def load_setitem(self) -> None:
        self._check_target(self.stack[-3])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_target(self.metastack[-1][-1])
        super().load_setitems()

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
