"""The first step of a recorded loop in detail: operations by format, autocast, order of the modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine import census
from precgui.engine.census import AutocastState, Census, Observer
from precgui.engine.certificate import certificate
from precgui.engine.description import FirstPassOrder, described
from precgui.engine.shadow.loop_tape import LoopTape
from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.readable import unseen
from precgui.engine.torch_private import dispatch_mode_at, dispatch_modes, is_anything_compiled, is_dispatch_mode_here
from precgui.events import ModelDescribed
from precgui.sentences import L_

_COMPILED = L_("something is compiled, which the census would undo for the first step")
_OTHER_MODE = L_("another torch dispatch mode was active")
_NO_PASS = L_("the model was not called for training, or its loop hides that")


class FirstStep:
    """Begins with the first forward pass for training and ends with the step; changes nothing that is computed."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        guard: Guard,
        *,
        compiled: bool,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`observers` are told of each operation while the census counts."""
        self.order, self._guard = FirstPassOrder(guard), guard
        with unseen():
            self.certificate = certificate(device, fp32_only=True)
        self._model, self._observers = model, observers
        self._census: Census | None = None
        self._entered = self._is_over = False
        self._why_not = _COMPILED if compiled or is_anything_compiled() else _NO_PASS
        self._calls: Counter[AutocastState] = Counter()  # of the model itself

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def is_entered(self) -> bool:
        """Whether the census still lies on torch's stack of modes, below another one."""
        return self._entered

    @property
    def fp32_products(self) -> str:
        return str(self.certificate["fp32_products"])

    def called(self) -> None:
        """Begin the census at the first forward pass for training; also to be called before each later pass."""
        if self._is_over:
            return
        self._calls[census.autocast_now()] += 1
        if self._calls.total() > 1 or self._why_not == _COMPILED or is_anything_compiled():
            self._why_not = _COMPILED if self._calls.total() == 1 else self._why_not
            return
        self.order.begin(self._model)
        if dispatch_modes():
            self._why_not = _OTHER_MODE
            return
        self._census = Census(
            self._model, {}, self.fp32_products, outside=True, guard=self._guard, observers=self._observers
        )
        self._census.__enter__()
        self._entered = True

    def follow(self, tape: LoopTape | None) -> None:
        """Put the operations from now on, to the end of the step, on a tape."""
        if self._census is not None:
            self._census.tape = tape

    def optimizer_steps(self, *, inside: bool) -> None:
        """An optimizer begins to step, or has stepped: operations in between are its own."""
        if self._census is not None:
            self._census.in_optimizer = inside

    def module(self) -> str | None:
        """The module whose forward pass is running; None outside of the model."""
        return self._census.innermost if self._census is not None else None

    def end(self) -> None:
        """End the census: the step is over, or no further one follows. Idempotent."""
        self._is_over = True
        self.order.close()
        self.leave()

    def leave(self) -> None:
        """Take the census out of torch's stack of modes, unless another one has been put on top of it meanwhile."""
        if not self._entered or self._census is None:
            return
        depth = dispatch_modes()
        if depth and dispatch_mode_at(depth - 1) is self._census:
            self._census.__exit__(None, None, None)
            self._entered = False
        else:
            self._census.stop()

    def abandon(self, why: str) -> None:
        """Leave the step, of which nothing is told, where its operations are watched in this thread."""
        if self._census is not None and is_dispatch_mode_here(self._census):
            self.leave()
            self._census, self._why_not = None if not self._entered else self._census, why

    def census(self) -> dict[str, Any] | None:
        """The counts of the operations; None where nothing was counted."""
        return self._census.facts() if self._census is not None else None

    def autocast(self) -> AutocastState | None:
        """The state of autocast where most modules ran, else where the model was called; None if it never ran."""
        calls = self._census.autocast if self._census is not None and self._census.autocast else self._calls
        on = Counter({state: count for state, count in calls.items() if state.dtype})
        return (on or calls).most_common(1)[0][0] if calls else None

    def facts(self) -> dict[str, Any]:
        """`census`, `autocast` and `certificate` for the environment of the run."""
        counted, state = self.census(), self.autocast()
        calls = self._census.autocast if self._census is not None else self._calls
        inside = sum(count for visited, count in calls.items() if visited.dtype)
        reported: dict[str, Any] = {"unavailable": _NO_PASS}
        if state is not None:
            reported = {
                "enabled": bool(state.dtype), **asdict(state),
                "modules_inside": inside, "modules_outside": calls.total() - inside,
            }  # fmt: skip
        return {
            "census": {"unavailable": self._why_not} if counted is None else counted,
            "autocast": reported,
            "certificate": self.certificate,
        }

    def described(
        self, updated: Sequence[int], copies: Callable[[], list[tuple[str, Tensor]]], time_s: float
    ) -> ModelDescribed:
        return described(self._model, set(updated), copies(), self.order, time_s)
