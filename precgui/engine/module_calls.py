"""Hooks on the calls of all modules of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


def follow_modules(called: Callable[..., Any], returned: Callable[..., Any]) -> contextlib.ExitStack:
    """Call `called(module, inputs)` before and `returned(module, inputs, outputs)` after each forward pass.

    After one that raises, too. Ends when the result is closed, or its `with` is left.
    """
    hooks = contextlib.ExitStack()
    hooks.callback(register_module_forward_pre_hook(called).remove)
    hooks.callback(register_module_forward_hook(returned, always_call=True).remove)
    return hooks
