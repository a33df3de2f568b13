"""Hooks on a model that its copies, checkpoints and child processes leave behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from precgui.engine.telemetry.guard import Guard, guarded


class Hook:
    """Base class of callables that modules and tensors call as hooks.

    A copy or a pickle of the model has in its place a function of the standard library that does nothing: it must
    neither be recorded nor need precgui, and what is recorded with, files and threads, cannot be copied. What a
    subclass raises when it is called goes to the guard.
    """

    __slots__ = ("guard",)
    __torch_unserializable__ = True  # torch.save need not warn that it forgets those of tensors

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def __init_subclass__(cls) -> None:
        cls.__call__ = guarded(cls.__call__)  # type: ignore[method-assign]

    def __call__(self, *_: Any) -> None:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")
