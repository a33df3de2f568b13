"""Differences without digits in the first step and in a few later ones, from the batch to the step of the optimizer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import nn

from precgui.engine.cancellation import Cancellations
from precgui.engine.module_calls import ModuleStack
from precgui.engine.telemetry.guard import Guard, guarded
from precgui.engine.torch_private import TorchDispatchMode, dispatch_mode_at, dispatch_modes, is_anything_compiled

_STEPS = frozenset(2 * 16**power for power in range(6))  # 2, 32, 512 ...: these see the whole step, the first does not


class LaterSteps:
    """Enters a mode that tells of each operation at the beginning of a later step, and leaves it at its end."""

    def __init__(self, model: nn.Module, guard: Guard, *, active: bool) -> None:
        self.cancellations = Cancellations()
        self._model, self._guard, self._active = model, guard, active
        self._mode: _Mode | None = None
        self._reported = 0

    def begin(self, step: int) -> None:
        """A step begins."""
        self.leave()
        if not self._active or step not in _STEPS or self._mode is not None:
            return
        if dispatch_modes() or is_anything_compiled():
            return
        self.cancellations.begin(step)
        self._mode = _Mode(self._model, self._guard, self.cancellations)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """Take the mode out of torch's stack of modes, unless another one has been put on top of it meanwhile."""
        if self._mode is None:
            return
        self._mode.stop()
        depth = dispatch_modes()
        if depth and dispatch_mode_at(depth - 1) is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def news(self) -> dict[str, Any]:
        """The fact `cancellation` where it has changed, else {}."""
        found = self.cancellations.found
        if len(found) == self._reported:
            return {}
        self._reported = len(found)
        return {"cancellation": {"all": [asdict(each) for each in found]}}


class _Mode(TorchDispatchMode):
    """Tells the cancellations of each operation, until its first fault."""

    def __init__(self, model: nn.Module, guard: Guard, cancellations: Cancellations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.guard, self._cancellations, self._stopped = guard, cancellations, False
        self._modules: ModuleStack | None = ModuleStack(model, guard=guard)
        self._modules.follow()
        cancellations.where = self._module

    def _module(self) -> str | None:
        return self._modules.innermost if self._modules is not None else None

    def stop(self) -> None:
        """Tell nothing any more, though it may still be entered, and let go of the model."""
        self._stopped = True
        if self._modules is not None:
            self._modules.close()
            self._modules = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self._stopped:
            self._tell(func, args, kwargs, out)
        return out

    @guarded
    def _tell(self, *operation: Any) -> None:
        try:
            self._cancellations.observe(*operation)
        except Exception:  # noqa: BLE001 - whatever a tensor of somebody's class raises; the training goes on
            self._stopped = True
