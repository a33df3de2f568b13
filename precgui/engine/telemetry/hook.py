"""Hooks on a model that its copies, checkpoints and child processes leave behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


class Hook:
    """Base class of callables that modules and tensors call as hooks.

    A copy or a pickle of the model has in its place a function of the standard library that does nothing: it must
    neither be recorded nor need precgui, and what is recorded with, files and threads, cannot be copied.
    """

    __slots__ = ()
    __torch_unserializable__ = True  # torch.save need not warn that it forgets those of tensors

    def __call__(self, *_: Any) -> None:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")
