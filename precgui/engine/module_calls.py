"""The modules of a model by name, and hooks on the calls of all modules of the process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from precgui.engine.telemetry.guard import LET_THROUGH, Guard, guarded
from precgui.engine.torch_private import autograd_node, node_number, sequence_number

_WRAPPERS = ("_orig_mod.", "module.")  # of torch.compile and DistributedDataParallel


def follow_modules(called: Callable[..., Any], returned: Callable[..., Any]) -> contextlib.ExitStack:
    """Call `called(module, inputs)` before and `returned(module, inputs, outputs)` after each forward pass.

    After one that raises, too. Ends when the result is closed, or its `with` is left.
    """
    hooks = contextlib.ExitStack()
    hooks.callback(register_module_forward_pre_hook(called).remove)
    hooks.callback(register_module_forward_hook(returned, always_call=True).remove)
    return hooks


class ModuleStack:
    """The names of the modules of a model whose forward pass is running, outermost first, from `follow` to `close`."""

    def __init__(
        self,
        model: nn.Module,
        on_call: Callable[[nn.Module], None] = lambda module: None,
        guard: Guard = LET_THROUGH,
        on_error: Callable[[], None] = lambda: None,
        on_return: Callable[[str, nn.Module, Any, Any], None] | None = None,
    ) -> None:
        """`on_call` is called with each module before its forward pass, `on_error` where one raises, `on_return` with
        the name of one that returns, itself, its inputs and its outputs."""
        self.guard = guard
        self._names = {module: name for name, module in model.named_modules()}
        self._on_call, self._on_error, self._on_return = on_call, on_error, on_return
        self._running: list[str] = []
        self._is_own: list[bool] = []  # of each of these, whether it is a part of the model
        self._handled: list[BaseException | None] = []  # exceptions that were being handled as each was called
        self._module_of_node: dict[int, str] = {}  # by the sequence number of an autograd node
        self._hooks = contextlib.ExitStack()

    @property
    def innermost(self) -> str | None:
        """The name of the innermost running module, '' for one of another model; None outside of a forward pass."""
        return self._running[-1] if self._running else None

    @property
    def is_inside(self) -> bool:
        """Whether the model, or a part of it, is running."""
        return any(self._is_own)

    def of_operation(self) -> str:
        """The module of the operation that runs now, '' where it is not known.

        In a backward pass: the module whose forward pass created the autograd node.
        """
        if self._running:
            self._module_of_node.setdefault(sequence_number() - 1, self._running[-1])
            return self._running[-1]
        node = autograd_node()
        return "" if node is None else self._module_of_node.get(node_number(node), "")

    def follow(self) -> None:
        self._hooks = follow_modules(self._called, self._returned)

    def close(self) -> None:
        self._hooks.close()

    @guarded
    def _called(self, module: nn.Module, _inputs: Any) -> None:
        self._running.append(self._names.get(module, ""))
        self._is_own.append(module in self._names)
        self._handled.append(sys.exception())
        self._on_call(module)

    @guarded
    def _returned(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if not self._running:  # a module may have been called before `follow`
            return
        name = self._running.pop()
        self._is_own.pop()
        if sys.exception() is not self._handled.pop():
            self._on_error()
        elif self._on_return is not None:
            self._on_return(name, module, inputs, outputs)


def plain_name(name: str) -> str:
    """A name without what torch.compile and DistributedDataParallel put before it."""
    for wrapper in _WRAPPERS:
        name = "" if name == wrapper[:-1] else name.removeprefix(wrapper)
    return name
