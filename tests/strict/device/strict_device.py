"""A device for tests and counts: its tensors live in CPU memory, say that they are CUDA, and refuse what CUDA refuses.

Without a GPU nothing else tells whether a program mixes tensors of host and device, or waits for the device where it
should not. Inside :func:`strict_device` a tensor on ``cuda`` is a :class:`DeviceTensor`, which wraps a CPU tensor.
Every operator reaches :func:`_run`, where operands are checked, the operator is computed on the CPU, and a
:class:`~tests.strict.device.recorder.Recorder` learns what a GPU would have been asked to do: a kernel, a
view, a transfer, and whether the host waits for it.

What blocks is what blocks in PyTorch's CUDA back end: reading a value (``item``, ``tolist``, ``cpu``, the truth of a
tensor, ``equal``), sizes that depend on values (``nonzero``, boolean indices, ``unique``, ``repeat_interleave``), and
copies from host memory that is not pinned, Python scalars stored by index among them. A copy from pinned memory, or to
it with ``non_blocking``, does not, and what it brings to the host arrives late (:mod:`~tests.strict.device.streams`).
CUDA graphs are captured and replayed (:mod:`~tests.strict.device.graphs`). There are two devices, of which operators
take tensors of one.

Limits: tensors and modules are moved to ``DEVICE``, with its number (``to("cuda")`` asks the guard of a back end that
is not there which device is the current one, and stays on the CPU). There is no backward pass. Time and the order of
streams are not modelled. An operator counts as one kernel, of which a GPU may launch several (``topk``, ``sort``).
Attention counts as the fused kernel in inference mode and as its parts elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_aggdec.engine.graphs.streams import Streams as own_streams
from tests.strict.device import graphs as device_graphs
from tests.strict.device.bookkeeping import fused_kernels
from tests.strict.device.graphs import CaptureError
from tests.strict.device.operators import ASKING, INDEXING, NO_WORK, TAKE_SCALARS
from tests.strict.device.recorder import (
    BLOCKING,
    KERNEL,
    TRANSFER,
    VIEW,
    Recorder,
)
from tests.strict.device.streams import DEVICES, Streams, let_guards_pass

DEVICE, SECOND = DEVICES
aten = torch.ops.aten


class MixedDevices(RuntimeError):
    """What CUDA would refuse: tensors of host and device, or of two devices, in one operator."""


def _map(change: Callable[[Tensor], Any], value: Any) -> Any:
    """An operator's results with every tensor changed; lists and tuples are all that they nest."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_map(change, part) for part in value])
    return value


def _tensors(values: Iterable[Any], found: list[Tensor]) -> list[Tensor]:
    """The tensors of an operator's arguments, behind those already found."""
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            _tensors(value, found)
    return found


def _held(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.held
    if isinstance(value, (list, tuple)):
        return type(value)([_held(part) for part in value])
    return value


def _unwrapped(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    own = tuple([_held(value) for value in args])
    return own, {name: _held(value) for name, value in kwargs.items()}


class DeviceTensor(Tensor):
    """A tensor that says it is on a GPU and holds its numbers in a CPU tensor.

    Args:
        held: holds the numbers; views and storage are as its own.
        there: the GPU.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, there: torch.device = DEVICE) -> DeviceTensor:
        made: DeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=there,
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError("a tensor of the strict device is used outside it")

    # With these, `module.to` keeps its Parameter objects, and what is tied stays tied, as on a GPU.
    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        return ["held"], self.device

    @staticmethod
    def __tensor_unflatten__(held: Any, context: Any, size: Any, stride: Any) -> DeviceTensor:
        return DeviceTensor(held["held"], context)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held!r})"


class _Mode(TorchDispatchMode):
    """Sees every operator while the device is there."""

    def __init__(self, recorder: Recorder, streams: Streams):
        super().__init__()
        self.recorder, self.streams = recorder, streams
        self.pinned: dict[int, Tensor] = {}  # held, so that no other tensor gets the address

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard would double the time of an operator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _run(self, func, types, args, kwargs or {})

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned

    def pin(self, tensor: Tensor) -> Tensor:
        self.pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor


def _pinned(mode: _Mode, name: str, tensor: Tensor) -> Any:
    if mode.recorder.tape is not None:
        raise CaptureError(f"{name}: not permitted while a graph is captured")
    if isinstance(tensor, DeviceTensor):
        raise MixedDevices("only memory of the host can be pinned")
    if name == "is_pinned" or mode.is_pinned(tensor):
        return mode.is_pinned(tensor) if name == "is_pinned" else tensor
    return mode.pin(tensor.clone())


def _run(
    mode: _Mode, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    name = _name(func)
    if name in ("is_pinned", "_pin_memory", "pin_memory"):
        return _pinned(mode, name, args[0])
    wanted = kwargs.get("device")
    if wanted is None and torch.device in map(type, args):
        wanted = next(value for value in args if isinstance(value, torch.device))
    if DeviceTensor not in types and (wanted is None or wanted.type != "cuda"):
        return _on_host(mode, func, args, kwargs)
    if name == "scaled_dot_product_attention":
        return _attention(mode, func, args, kwargs)
    if _is_composite(func):
        with mode:
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
    inputs, host = [], []
    for tensor in _tensors(kwargs.values(), _tensors(args, [])):
        (inputs if isinstance(tensor, DeviceTensor) else host).append(tensor)
    if host and mode.recorder.tape is not None:
        raise CaptureError(f"{name}: a number of the host while a graph is captured")
    _note(mode, func, name, args, kwargs, inputs, host)
    return _compute(mode, func, args, kwargs, inputs, wanted)


@functools.cache
def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.removeprefix("aten::")


def _on_host(mode: _Mode, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("pin_memory"):
        return mode.pin(func(*args, **(kwargs | {"pin_memory": False})))
    return func(*args, **kwargs)


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    )


def _compute(
    mode: _Mode,
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    inputs: Sequence[DeviceTensor],
    wanted: torch.device | None,
) -> Any:
    """The operator on the CPU; what comes out is on the device unless the host was asked for."""
    wrappers = {id(tensor.held): tensor for tensor in inputs}
    args, kwargs = _unwrapped(args, kwargs)
    if wanted is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    found = _done(mode, func, args, kwargs)
    to_host = wanted is not None and wanted.type == "cpu"
    if to_host or (func is aten.copy_.default and id(args[0]) not in wrappers):
        stream = mode.streams.current(inputs[0].device)
        if to_host and kwargs.get("non_blocking"):
            return stream.copies(mode.pin(found))
        stream.arrives()  # the host has waited for it
        return found
    there = mode.streams.device_of(inputs[0].device if wanted is None else wanted)

    def wrapped(tensor: Tensor) -> Tensor:
        return wrappers[id(tensor)] if id(tensor) in wrappers else DeviceTensor(tensor, there)

    # A view of an ordinary tensor is an ordinary one in inference mode, too.
    if torch.is_inference_mode_enabled() and _is_view(func) and inputs:
        with nullcontext() if inputs[0].is_inference() else torch.inference_mode(False):
            return _map(wrapped, found)
    return _map(wrapped, found)


def _done(mode: _Mode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator gives on the CPU, taken down where a graph is captured."""
    if mode.recorder.tape is None:
        return func(*args, **kwargs)
    return mode.recorder.tape.run(func, args, kwargs, _is_view(func))


def _note(
    mode: _Mode,
    func: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Sequence[DeviceTensor],
    host: Sequence[Tensor],
) -> None:
    """Checks the operands and records what a GPU would do."""
    recorder = mode.recorder
    if len({tensor.device for tensor in inputs}) > 1 and name != "copy_":
        raise MixedDevices(f"{name}: tensors of two devices")
    if name in ("_to_copy", "copy_"):
        if _note_copy(mode, name, args, kwargs):
            return
    elif name in INDEXING:
        _note_indices(mode, name, args)
    else:
        _check_operands(func, name, host)
    asks = name in ASKING or (name == "repeat_interleave" and kwargs.get("output_size") is None)
    if name in ("_local_scalar_dense", "equal", "allclose"):
        recorder.note(TRANSFER, name)
    if asks:
        recorder.note(BLOCKING, name)
    if name not in NO_WORK:
        recorder.note(VIEW if _is_view(func) else KERNEL, name)


@functools.cache
def _is_view(func: Any) -> bool:
    """Whether the operator returns a view; one that writes is none."""
    aliases = [result.alias_info for result in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _check_operands(func: Any, name: str, host: Sequence[Tensor]) -> None:
    scalars = name in TAKE_SCALARS or torch.Tag.pointwise in func.tags
    for tensor in host:
        if tensor.dim() or not scalars:
            raise MixedDevices(
                f"{name}: a tensor {tuple(tensor.shape)} of the host among those of the device"
            )


def _note_copy(mode: _Mode, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Records a transfer; False for a copy within the device."""
    if name == "copy_":
        target, source = args[:2]
        to_device = isinstance(target, DeviceTensor)
        other = target
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        (source,) = args
        device = kwargs.get("device")
        to_device = torch.device(device or source.device).type == "cuda"
        other = None  # pinned, where that is asked for
        non_blocking = kwargs.get("non_blocking", False)
    if to_device == isinstance(source, DeviceTensor):
        return False
    if to_device:
        waits = not (non_blocking and mode.is_pinned(source))
    else:
        waits = not (non_blocking and (other is None or mode.is_pinned(other)))
    name = "copy to device" if to_device else "copy to host"
    mode.recorder.note(TRANSFER, name, source.nbytes)
    if waits:
        mode.recorder.note(BLOCKING, name)
    return True


def _note_indices(mode: _Mode, name: str, args: Sequence[Any]) -> None:
    """What indexing with tensors makes the host wait for, as ATen's CUDA kernels do it."""
    own, indices = args[0], [index for index in args[1] if index is not None]
    value = args[2] if name != "index" and len(args) > 2 else None
    if not isinstance(own, DeviceTensor):
        raise MixedDevices(f"{name}: a tensor of the host with indices of the device")
    masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
    if value is not None and value.numel() == 1 and len(masks) == len(indices) == 1:
        if isinstance(value, DeviceTensor):  # masked_fill with its item
            mode.recorder.note(TRANSFER, name)
            mode.recorder.note(BLOCKING, name)
        return
    moved = [index for index in indices if not isinstance(index, DeviceTensor)]
    if value is not None and not isinstance(value, DeviceTensor):
        if value.dim():
            raise MixedDevices(f"{name}: values {tuple(value.shape)} of the host")
        moved.append(value)
    for _ in moved:
        mode.recorder.note(TRANSFER, f"{name}: copy to device")
        mode.recorder.note(BLOCKING, f"{name}: copy to device")
    for _ in masks:
        mode.recorder.note(BLOCKING, f"{name}: nonzero")


def _attention(mode: _Mode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """A fused kernel, chosen as PyTorch chooses on Hopper: cuDNN in half precision where it is not switched off."""
    names = ("query", "key", "value", "attn_mask")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    query, mask = given["query"], given.get("attn_mask")
    operands = [given[name] for name in names if given.get(name) is not None]
    if not all(isinstance(operand, DeviceTensor) for operand in operands):
        raise MixedDevices("attention: a tensor of the host among those of the device")
    half = query.dtype in (torch.float16, torch.bfloat16)
    kernel = "flash" if half and mask is None else "efficient"
    if half and torch.backends.cuda.cudnn_sdp_enabled():
        kernel = "cudnn"
    if kernel == "efficient" and mask is not None and any(n % 8 for n in mask.stride()[:-1]):
        mode.recorder.note(KERNEL, "attention: mask copied")
        mode.recorder.note(VIEW, "slice")
    mode.recorder.note(KERNEL, f"attention: {kernel}")
    held_args, held_kwargs = _unwrapped(args, kwargs)
    return DeviceTensor(_done(mode, func, held_args, held_kwargs), query.device)


@contextmanager
def strict_device() -> Iterator[Recorder]:
    """While this holds, ``cuda`` is the strict device.

    Raises:
        RuntimeError: PyTorch sees a GPU, which is there to be used itself.
    """
    if torch.cuda.is_available():
        raise RuntimeError("there is a GPU: the strict device would hide it")
    let_guards_pass()
    recorder = Recorder()
    streams = Streams(recorder)
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device) is a copy that is seen
    try:
        others = streams.stands_in() | device_graphs.stands_in(recorder, streams)
        # A stream belongs to the device of its time.
        with (
            mock.patch.multiple(torch.cuda, **others),
            fused_kernels(),
            _Mode(recorder, streams),
            own_streams().used(),
        ):
            yield recorder
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
