"""What of a tensor can be looked at: the numbers that lie in the memory of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

_PLAIN = (Tensor, nn.Parameter)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Inside, torch operations leave no graph, and the census of the first step does not count them."""
    counted = torch._C._len_torch_dispatch_stack() > 0
    with torch.no_grad(), _disable_current_modes() if counted else contextlib.nullcontext():
        yield


def readable(tensor: Tensor) -> Tensor | None:
    """The tensor as one whose memory is its numbers, None where it has none.

    That is the part that this process holds of a tensor spread over several ones, the elements that a sparse or nested
    tensor stores, and nothing of a class that makes its numbers up from other tensors.
    """
    plain = type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_nested
    if plain and tensor.data_ptr() != 0:  # as nearly always
        return tensor
    if tensor.is_meta:
        return None
    if plain:
        return torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor
    tensor = tensor.detach()
    if tensor.is_mkldnn:
        return readable(tensor.to_dense())
    if tensor.is_nested or tensor.layout in (torch.sparse_csr, torch.sparse_bsr, torch.sparse_csc, torch.sparse_bsc):
        return readable(tensor.values())
    if tensor.layout is torch.sparse_coo:
        return readable(tensor.coalesce().values())
    if hasattr(tensor, "to_local"):
        return readable(tensor.to_local())
    wraps: bool = is_traceable_wrapper_subclass(tensor)
    return None if wraps or tensor.layout is not torch.strided else tensor.as_subclass(Tensor)


def dense(tensor: Tensor) -> Tensor:
    """All elements of a readable tensor, flat and in any order, without a copy where memory allows."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_contiguous():
        steps = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -steps[axis]))
    return tensor.reshape(-1).contiguous().resolve_neg()  # every second element makes a flat view, too


def floats(outputs: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors in what a module returned, each with its place: '', '[1]', '[1][0]', '.loss'."""
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point():
            yield path, outputs
    elif isinstance(outputs, Mapping):
        for key, value in outputs.items():
            yield from floats(value, f"{path}.{key}")
    elif isinstance(outputs, Sequence) and not isinstance(outputs, str):
        for place, value in enumerate(outputs):
            yield from floats(value, f"{path}[{place}]")
