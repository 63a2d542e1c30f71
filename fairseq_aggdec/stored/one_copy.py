"""Models that are built to be loaded: their numbers are the file's, and nothing else is ever written to memory.

fairseq builds a model with random numbers and copies those of the checkpoint over them. Here nothing is drawn, and a
parameter becomes the tensor of the checkpoint, which is mapped: memory is taken where it is read.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import Self

DRAWING = {
    getattr(Tensor, name)
    for name in ("bernoulli_", "fill_", "normal_", "random_", "uniform_", "zero_")
}
# What makes PyTorch's modules take the given tensors, where it copies them by default; as `assign` does it.
ASSIGN = "assign_to_params_buffers"


class OneCopy(TorchFunctionMode):
    """A context in which fairseq loads checkpoints; models come to it by :func:`adopt`."""

    def __enter__(self) -> Self:
        self.token = _loading.set(self)
        entered: Self = super().__enter__()
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        _loading.reset(self.token)

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


_loading: ContextVar[OneCopy | None] = ContextVar("loading", default=None)


def adopt(model: nn.Module) -> bool:
    """Within :class:`OneCopy`, has a model that was built take the tensors of the state that it loads next.

    Returns:
        whether it is within.
    """
    if _loading.get() is None:
        return False
    take_tensors(model)
    return True


def take_tensors(
    model: nn.Module, before: Callable[[dict[str, Tensor]], object] | None = None
) -> None:
    """Has a model take the tensors of the state that it loads next, where PyTorch would copy them.

    Args:
        before: gets the state, and may exchange tensors in it.
    """
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    hooks = []
    if before is not None:
        hooks.append(model.register_load_state_dict_pre_hook(lambda _, state, *rest: before(state)))
    hooks += [one.register_load_state_dict_pre_hook(_take) for one in model.modules()]

    def loaded(*_: Any) -> None:
        for hook in hooks:
            hook.remove()
        for shared in places.values():
            # Of a parameter in several places the last that was loaded counts.
            module, name = shared[-1]
            for other, name_there in shared:
                other._parameters[name_there] = module._parameters[name]

    hooks.append(model.register_load_state_dict_post_hook(loaded))


def _take(
    module: nn.Module,
    state: Mapping[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    *_: Any,
) -> None:
    tensors = {**module._parameters, **module._buffers}
    pairs = [
        (tensors[name], state.get(prefix + name)) for name in tensors if tensors[name] is not None
    ]
    metadata[ASSIGN] = all(other is None or _alike(mine, other) for mine, other in pairs)


def _alike(tensor: Tensor | None, other: Any) -> bool:
    assert tensor is not None
    names = "dtype", "shape", "device"
    alike = isinstance(other, Tensor) and all(
        getattr(tensor, k) == getattr(other, k) for k in names
    )
    return alike and other.layout is torch.strided and tensor.stride() == other.stride()
