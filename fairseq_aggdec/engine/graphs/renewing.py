"""Packed weights are overwritten in place when the model's weights change, because captured graphs read their memory.

Training that decodes between updates keeps its graphs this way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "fairseq_aggdec."


class _Unlike(Exception):
    """Two packed modules do not have tensors of the same shapes."""


def renew(old: Any, new: Any) -> bool:
    """Copies the tensors of a newly packed module into those of an older one, both packed from the same model.

    Returns:
        whether all shapes agreed; if not, nothing was copied.
    """
    try:
        pairs = list(_pairs(old, new))
    except _Unlike:
        return False
    with torch.inference_mode():
        for tensor, numbers in pairs:
            tensor.copy_(numbers)
    _drop_derived(old)
    return True


def _pairs(old: Any, new: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors of both forms that are copies of weights; what a form shares with the model is up to date."""
    if isinstance(old, Tensor) != isinstance(new, Tensor) or (old is None) != (new is None):
        raise _Unlike
    if isinstance(old, Tensor):
        opaque = old.is_mkldnn  # laid out by oneDNN, which does not say where
        if opaque or old.data_ptr() != new.data_ptr():
            if opaque or any(
                getattr(old, k) != getattr(new, k) for k in ("shape", "dtype", "device")
            ):
                raise _Unlike
            yield old, new
    elif isinstance(old, list | tuple):
        if len(old) != len(new):
            raise _Unlike
        for one, other in zip(old, new, strict=True):
            yield from _pairs(one, other)
    elif _is_form(old):
        for name, value in vars(new).items():
            yield from _pairs(vars(old).get(name), value)


def _is_form(thing: Any) -> bool:
    own = type(thing).__module__.startswith(PACKAGE)
    return own and hasattr(thing, "__dict__") and not isinstance(thing, nn.Module)


def _drop_derived(form: Any) -> None:
    """Forgets what was worked out from the weights when it was first asked for."""
    if isinstance(form, list | tuple):
        for part in form:
            _drop_derived(part)
    elif _is_form(form):
        for name, value in list(vars(form).items()):
            if isinstance(getattr(type(form), name, None), functools.cached_property):
                del vars(form)[name]
            else:
                _drop_derived(value)
