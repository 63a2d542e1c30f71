"""Models that are built to be loaded: their numbers are the file's, and nothing else is ever written to memory.

fairseq builds a model with random numbers and copies those of the checkpoint over them. Here nothing is drawn, and a
parameter becomes the tensor of the checkpoint, which is mapped: memory is taken where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWING = {
    getattr(Tensor, name)
    for name in ("bernoulli_", "fill_", "normal_", "random_", "uniform_", "zero_")
}
# What makes PyTorch's modules take the given tensors, where it copies them by default; as `assign` does it.
ASSIGN = "assign_to_params_buffers"


class OneCopy(TorchFunctionMode):
    """A context in which fairseq loads checkpoints; models come to it by :func:`adopt`."""

    def __init__(self) -> None:
        super().__init__()
        self.models: list[tuple[list[Any], list[list[tuple[nn.Module, str]]]]] = []

    def __enter__(self) -> Self:
        self.token = _loading.set(self)
        found: Self = super().__enter__()
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        _loading.reset(self.token)
        for hooks, shared in self.models:
            for hook in hooks:
                hook.remove()
            for places in shared:
                # Of a parameter in several places the last that was loaded counts.
                module, name = places[-1]
                for other, own in places:
                    other._parameters[own] = module._parameters[name]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        drawn = func in DRAWING or getattr(func, "__module__", None) == "torch.nn.init"
        written = kwargs["tensor"] if "tensor" in kwargs else args[0] if args else None
        if drawn and isinstance(written, nn.Parameter):
            return written
        return func(*args, **kwargs)

    def adopt(self, model: nn.Module) -> None:
        places: dict[int, list[tuple[nn.Module, str]]] = {}
        for _, module in model.named_modules(remove_duplicate=False):
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, name))
        hooks = [one.register_load_state_dict_pre_hook(_take) for one in model.modules()]
        self.models.append((hooks, [found for found in places.values() if len(found) > 1]))


_loading: ContextVar[OneCopy | None] = ContextVar("loading", default=None)


def adopt(model: nn.Module) -> None:
    """Within :class:`OneCopy`, has a model that was built take the tensors of the state that it loads next."""
    context = _loading.get()
    if context is not None:
        context.adopt(model)


def _take(
    module: nn.Module,
    given: Mapping[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    *_: Any,
) -> None:
    own = {**module._parameters, **module._buffers}
    pairs = [(own[name], given.get(prefix + name)) for name in own if own[name] is not None]
    metadata[ASSIGN] = all(other is None or _alike(mine, other) for mine, other in pairs)


def _alike(own: Tensor | None, other: Any) -> bool:
    assert own is not None
    names = "dtype", "shape", "device"
    alike = isinstance(other, Tensor) and all(getattr(own, k) == getattr(other, k) for k in names)
    return alike and other.layout is torch.strided and own.stride() == other.stride()
