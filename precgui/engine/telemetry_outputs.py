"""Watching what modules put out, and the gradients that come back, by hooks that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from precgui.engine.telemetry_sentinel import Sentinel
from precgui.engine.telemetry_tensors import floats

MODEL = "(model)"
_WRAPPERS = ("_orig_mod.", "module.")
Look = Callable[[str, str, Tensor], None]  # kind, name, tensor
Hook = Callable[[nn.Module, Any, Any], None]  # module, inputs, outputs


class Outputs:
    """Hooks on the modules that compute (those without parts, or with weights of their own).

    In a step that is `guarded`, outputs of modules with weights and of the model are shown to the sentinel. What else
    is wanted, `activation` and `activation_gradient`, is handed to `look`; modules that are there for nothing else have
    a hook in such steps only, since torch calls a module with hooks more slowly. A forward pass that only repeats what
    a checkpoint forgot is not looked at, nor one that is traced or transformed by torch.func.
    """

    def __init__(self, model: nn.Module, look: Look) -> None:
        self._model, self._look = model, look
        self._wanted: Set[str] = frozenset()
        self._watching = self._guarded = False
        self.sentinel = Sentinel()
        self._handles: list[RemovableHandle] = []
        self._weightless: list[tuple[nn.Module, Hook]] = []
        self._for_now: list[RemovableHandle] = []
        for name, module in model.named_modules():
            name = plain_name(name)
            if not name or any(True for _ in module.parameters(recurse=False)):
                self._handles.append(module.register_forward_hook(self._hook(name or MODEL, guarded=True)))
            elif not any(True for _ in module.children()):
                self._weightless.append((module, self._hook(name, guarded=False)))

    def begin(self, wanted: Set[str], *, guarded: bool) -> None:
        """A step begins."""
        self._wanted, self._guarded, self._watching = wanted, guarded, guarded or bool(wanted)
        if wanted and not self._for_now:
            self._for_now = [module.register_forward_hook(hook) for module, hook in self._weightless]
        self.sentinel.begin()

    def end(self) -> None:
        """The forward and backward passes of the step are over."""
        self._watching = False
        self._remove(self._for_now)

    def close(self) -> None:
        self.end()
        self._remove(self._handles)

    @staticmethod
    def _remove(handles: list[RemovableHandle]) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()

    def _hook(self, name: str, guarded: bool) -> Hook:
        def seen(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            if self._watching and self._is_training():
                if guarded and self._guarded:
                    self.sentinel.look(name, outputs)
                if self._wanted:
                    self._watch(name, outputs)

        return seen

    def _is_training(self) -> bool:
        """Neither evaluation nor the second forward pass of a checkpoint, and with tensors that have numbers."""
        return (
            self._model.training
            and torch.is_grad_enabled()
            and torch._C._current_graph_task_id() == -1
            and torch._C._functorch.maybe_current_level() is None
            and not torch.compiler.is_compiling()
        )

    def _watch(self, name: str, outputs: Any) -> None:
        for path, tensor in floats(outputs):
            if "activation" in self._wanted:
                self._look("activation", name + path, tensor)
            if "activation_gradient" in self._wanted and tensor.requires_grad:
                tensor.register_hook(self._backward(name + path))

    def _backward(self, name: str) -> Callable[[Tensor], None]:
        def seen(gradient: Tensor) -> None:
            if self._watching:
                self._look("activation_gradient", name, gradient)

        return seen


def plain_name(name: str) -> str:
    """A name without what torch.compile and DistributedDataParallel put before it."""
    for wrapper in _WRAPPERS:
        name = "" if name == wrapper[:-1] else name.removeprefix(wrapper)
    return name
