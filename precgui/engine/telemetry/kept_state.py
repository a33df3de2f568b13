"""State that modules of classes of one's own carry from pass to pass, as it was before a pass: histories, peaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.telemetry.readable import unseen
from precgui.engine.torch_private import foreach_copy_

_MOST_ELEMENTS = 1024  # of a tensor or a list, and
_MOST_VALUES = 512  # of a model, that are kept: a copy of one takes some microseconds
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
_NONE: Any = object()  # in place of an attribute that was not there
Place = tuple[str, str]  # path of a module, name of the attribute or buffer


class KeptState:
    """Copies what differs from pass to pass, so that a pass can be repeated with what it began with.

    All small values are copied before the first pass, and from the second on those that had changed till then: most
    models have none. A copy shares no memory with the model and holds no graph.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = {
            path: module for path, module in model.named_modules() if not type(module).__module__.startswith("torch.")
        }
        self._before: dict[Place, Any] = {}
        self._followed: list[Place] | None = None  # None until the second pass

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that changes."""
        return not self._modules or (self._followed is not None and not self._followed)

    def keep(self) -> None:
        """A forward pass for training begins."""
        with unseen():
            if not self._before and self._followed is None:
                self._before = {place: _copied(value) for place, value in self._all()}
                return
            if self._followed is None:
                before = self._before
                changed = [place for place, value in self._all() if not _is_same(before.get(place, _NONE), value)]
                self._followed = changed[:_MOST_VALUES]
            self._keep_again(self._followed)

    def _keep_again(self, places: list[Place]) -> None:
        """Copy what is at some places, tensors that are as large as before into the memory of their copies."""
        before, self._before, copies, values = self._before, {}, [], []
        for place in places:
            value, copied = self._value(place), before.get(place)
            if type(value) is Tensor and type(copied) is Tensor and _is_alike(value, copied):
                self._before[place] = copied
                copies.append(copied)
                values.append(value)
            elif value is _NONE or _may_be_kept(value):
                self._before[place] = _copied(value)
        if copies:
            foreach_copy_(copies, values)

    def restore(self, twin: nn.Module) -> None:
        """Put what was kept into a copy of the model."""
        modules = dict(twin.named_modules())
        for (path, name), value in self._before.items():
            if (module := modules.get(path)) is None:
                continue
            own: dict[str, Any] = module._buffers if name in module._buffers else module.__dict__
            if value is _NONE:
                own.pop(name, None)
            else:
                own[name] = _copied(value)

    def _all(self) -> Iterator[tuple[Place, Any]]:
        for path, module in self._modules.items():
            for name, value in (*vars(module).items(), *module._buffers.items()):
                if _is_small(value):
                    yield (path, name), value

    def _value(self, place: Place) -> Any:
        path, name = place
        module = self._modules[path]
        return module._buffers.get(name, vars(module).get(name, _NONE))


def _is_small(value: Any) -> bool:
    if isinstance(value, list | deque):
        return len(value) <= _MOST_ELEMENTS and all(map(_is_number, value))
    return _is_number(value)


def _is_number(value: Any) -> bool:
    """Whether this is a number, or a tensor of a few that can be compared."""
    if type(value) is Tensor:
        is_small = value.dtype in _DTYPES and value.numel() <= _MOST_ELEMENTS
        return is_small and value.layout is torch.strided
    return type(value) in (float, int)


def _may_be_kept(value: Any) -> bool:
    """As `_is_small`, of a list by its first value alone: it had been looked at before."""
    if isinstance(value, list | deque):
        return len(value) <= _MOST_ELEMENTS and (not value or _is_number(value[0]))
    return _is_number(value)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if not isinstance(value, list | deque):
        return value
    copied = value.copy()
    if value and isinstance(value[0], Tensor):
        copied.clear()
        copied.extend(map(_copied, value))
    return copied


def _is_alike(value: Tensor, copied: Tensor) -> bool:
    return value.shape == copied.shape and value.dtype == copied.dtype and value.device == copied.device


def _is_same(before: Any, now: Any) -> bool:
    if type(before) is not type(now):
        return False
    if isinstance(now, Tensor):
        return _is_alike(now, before) and torch.equal(before, now)
    if isinstance(now, list | deque):
        return len(before) == len(now) and all(map(_is_same, before, now))
    return bool(before == now)
