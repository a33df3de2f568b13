"""Selects the tensors that can be read: dense numbers in the memory of this process."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.torch_private import (
    dispatch_modes,
    dispatch_modes_disabled,
    is_traceable_wrapper_subclass,
    set_grad_enabled,
)

_DEEPEST = 8  # containers in each other
_PLAIN = (Tensor, nn.Parameter)
_LAYOUT, _IS_NESTED = attrgetter("layout"), attrgetter("is_nested")
_LARGEST, _SMALLEST = torch.finfo(torch.float32).max, 2.0**-149
_DIGITS = -(1 << 29)  # FP64 has 29 more than FP32


class unseen:
    """Inside, torch operations leave no graph, and the census of the first step does not count them."""

    __slots__ = ("_graph", "_modes")

    def __enter__(self) -> None:
        self._graph = torch.is_grad_enabled()
        set_grad_enabled(False)
        self._modes = dispatch_modes_disabled() if dispatch_modes() > 0 else None
        if self._modes is not None:
            self._modes.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._modes is not None:
            self._modes.__exit__(*error)
        set_grad_enabled(self._graph)


def are_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether `readable` gives back all of these as they are, which is seen faster for many of them together."""
    return (
        all(map(_PLAIN.__contains__, map(type, tensors)))
        and set(map(_LAYOUT, tensors)) <= {torch.strided}
        and not any(map(_IS_NESTED, tensors))
        and not any(map(Tensor.is_complex, tensors))
        and all(map(Tensor.data_ptr, tensors))
    )


def readable(tensor: Tensor) -> Tensor | None:
    """The tensor as one whose memory is its numbers, None where it has none.

    That is the part that this process holds of a tensor spread over several ones, the elements that a sparse or nested
    tensor stores, real and imaginary parts, and nothing of a class that makes its numbers up from other tensors.
    """
    plain = type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_nested
    if plain and tensor.is_complex() and not tensor.is_meta:
        return torch.view_as_real(tensor.detach().resolve_conj())
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
    if wraps or tensor.layout is not torch.strided:
        return None
    bare = tensor.as_subclass(Tensor)
    return readable(bare) if type(bare) is Tensor else None  # a fake tensor has no numbers and stays what it is


def address_of(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; 0 where its class makes its numbers up from other tensors."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse ones raise the second
        return 0


def dense(tensor: Tensor) -> Tensor:
    """All elements of a readable tensor, flat and in any order, without a copy where memory allows."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        steps = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -steps[axis]))
    return tensor.reshape(-1).contiguous().resolve_neg()  # every second element makes a flat view, too


def single(values: Tensor) -> Tensor:
    """Values converted to FP32, with their own exponents.

    FP64 is cut to FP32's digits, since rounding could lift a number into the next binade. What is finite stays so, and
    what is not zero: numbers out of range become the nearest in it.
    """
    if values.dtype is not torch.float64:
        return values.float()
    cut = (values.clamp(-_LARGEST, _LARGEST).view(torch.int64) & _DIGITS).view(torch.float64)
    inside = torch.where(values.isfinite(), cut, values).float()
    return torch.where(
        (inside == 0) & (values != 0), torch.copysign(torch.full_like(inside, _SMALLEST), inside), inside
    )


def floats(outputs: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of real or complex numbers in what a module returned, each with its place: '', '[1]', '.loss'."""
    return ((path, each) for path, each in placed_tensors(outputs) if each.is_floating_point() or each.is_complex())


def placed_tensors(held: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """All tensors in something, each with its place, as `floats` has it.

    Searches lists, tuples, dicts and dataclasses, which can be read without side effects.
    """
    if isinstance(held, Tensor):
        yield path, held
        return
    places: Iterable[tuple[str, Any]] = ()
    if isinstance(held, (dict, UserDict)):
        places = ((f".{key}", value) for key, value in held.items())
    elif isinstance(held, (list, tuple)):
        places = ((f"[{place}]", value) for place, value in enumerate(held))
    elif is_dataclass(held) and not isinstance(held, type):
        places = ((f".{each.name}", getattr(held, each.name, None)) for each in fields(held))
    if depth < _DEEPEST:  # what contains itself has no end
        for place, value in places:
            yield from placed_tensors(value, path + place, depth + 1)
