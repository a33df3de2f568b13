"""Watching what modules put out, and the gradients that come back, by hooks that change nothing."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Inside, torch operations leave no graph, and the census of the first step does not count them."""
    counted = torch._C._len_torch_dispatch_stack() > 0
    with torch.no_grad(), _disable_current_modes() if counted else contextlib.nullcontext():
        yield


MODEL = "(model)"
_WRAPPERS = ("_orig_mod.", "module.")
Look = Callable[[str, str, Tensor], None]  # kind, name, tensor


class Outputs:
    """Hooks on the modules that compute (those without parts, or with weights of their own).

    In a step that is `guarded`, outputs of modules with weights and of the model are summed, because a sum over NaN or
    Inf is not finite; `first_nonfinite` names the first. What else is wanted, `activation` and `activation_gradient`,
    is handed to `look`. A forward pass that only repeats what a checkpoint forgot is not looked at.
    """

    def __init__(self, model: nn.Module, look: Look) -> None:
        self._model, self._look = model, look
        self._wanted: Set[str] = frozenset()
        self._watching = self._guarded = self._counted = False
        self.sentinel_s = 0.0  # CPU time for the sums of the step
        self._names: list[str] = []
        self._sums: list[Tensor] = []
        self._handles: list[RemovableHandle] = []
        for name, module in model.named_modules():
            weighty = any(True for _ in module.parameters(recurse=False))
            name = plain_name(name)
            if weighty or not any(True for _ in module.children()):
                hook = self._hook(name or MODEL, guarded=weighty or not name)
                self._handles.append(module.register_forward_hook(hook))

    def begin(self, wanted: Set[str], *, guarded: bool) -> None:
        """A step begins."""
        self._wanted, self._guarded, self._watching = wanted, guarded, guarded or bool(wanted)
        self.sentinel_s = 0.0
        self._counted = torch._C._len_torch_dispatch_stack() > 0
        self._names.clear()
        self._sums.clear()

    def end(self) -> None:
        """The forward and backward passes of the step are over."""
        self._watching = False

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def first_nonfinite(self) -> str:
        """The first module of the step whose output is not finite, or ''. Waits for the device."""
        if not self._sums or math.isfinite(float(torch.stack(self._sums).sum())):
            return ""
        finite = torch.stack(self._sums).isfinite().tolist()
        return next((name for name, good in zip(self._names, finite, strict=True) if not good), "")

    def _hook(self, name: str, guarded: bool) -> Callable[[nn.Module, Any, Any], None]:
        def seen(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            if not self._watching or not self._is_training():
                return
            if guarded and self._guarded:
                begin = time.thread_time()
                with unseen() if self._counted else contextlib.nullcontext():
                    self._guard(name, outputs)
                self.sentinel_s += time.thread_time() - begin
            if self._wanted:
                self._watch(name, outputs)

        return seen

    def _is_training(self) -> bool:
        """Neither evaluation nor the second forward pass of a checkpoint."""
        return self._model.training and torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1

    def _guard(self, name: str, outputs: Any) -> None:
        for path, tensor in floats(outputs):
            tensor = tensor.detach()
            self._sums.append(tensor.sum() if tensor.dtype is torch.float32 else tensor.sum(dtype=torch.float32))
            self._names.append(name + path)

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


def floats(outputs: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors in what a module returned, each with its place: '', '[1]', '[1][0]', '.loss'."""
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point() and outputs.numel():
            yield path, outputs
    elif isinstance(outputs, Mapping):
        for key, value in outputs.items():
            yield from floats(value, f"{path}.{key}")
    elif isinstance(outputs, Sequence) and not isinstance(outputs, str):
        for place, value in enumerate(outputs):
            yield from floats(value, f"{path}[{place}]")
