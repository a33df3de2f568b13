"""Some steps of a recorded loop beside the same steps in FP64."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.device import free_bytes, work_clock
from precgui.engine.shadow.loop_step import examined
from precgui.engine.shadow.loop_tape import LoopTape, MemoryBound
from precgui.engine.telemetry.backends import fetched
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.telemetry.recorder import Weight
from precgui.record.distributed import world
from precgui.sentences import L_, Sentence

_STEPS = frozenset({1, *(2 * 4**power for power in range(12))})  # 1, 2, 8, 32 ...
_MOST_ROWS, _AFTER_ALARMS = 8, 3
FIRST_S, _SHARE = 4.0, 0.02  # so many seconds of work this may take, and this share of that of the loop
_SHARE_OF_FREE, _OF_REPLAY = 0.125, 0.5  # of the memory that is free: for values that the step keeps, for the replay
_OF_THE_LAST = 0.5  # of the time of the step before: a first one makes ready what later ones have
_LEFT_FREE = 0.25  # of the memory that is free as the step begins: below it the values are let go of
_NO_FP64 = ("mps", "xpu")


class ExactSteps:
    """Keeps the tape of a step that is watched anyway, and replays it in FP64 when the step is over."""

    def __init__(self) -> None:
        self._clock: Callable[[], float] = time.thread_time
        self._thread, self._begun_s = threading.get_ident(), time.thread_time()
        self._spent_s = 0.0
        self._needed_s = 0.0  # by the next step, as far as is known
        self._rows: list[dict[str, Any]] = []
        self._left_out: list[dict[str, Any]] = []
        self._alarms = _AFTER_ALARMS
        self._step = 0
        self.tape: LoopTape | None = None

    def begin(
        self, step: int, weights: Sequence[Weight], module: Callable[[], str | None], *, alarm: bool = False
    ) -> None:
        """A step that is watched begins; `alarm`: since the loss of the one before was not finite."""
        self.close()
        if len(self._rows) >= _MOST_ROWS or not (alarm or step in _STEPS) or not weights:
            return
        if alarm and not self._alarms:
            return
        self._alarms -= alarm
        device = weights[0].own.device
        self._follow(device)
        if (why := self._why_not(weights, device)) is not None:
            self._leave_out(step, why)
            return
        self._step = step
        named = [(each.name, each.own) for each in weights]
        with unseen():
            free = free_bytes(device)
            room = MemoryBound(int(_SHARE_OF_FREE * free), int(_LEFT_FREE * free), lambda: free_bytes(device))
            self.tape = LoopTape(named, module, room, self._left_s(), self._clock)

    def _why_not(self, weights: Sequence[Weight], device: torch.device) -> str | None:
        """Why a step cannot be computed in FP64 beside itself, before it begins."""
        if device.type in _NO_FP64:
            return Sentence("{device} has no FP64", device=device.type)
        if world() > 1:
            return L_("the step runs in more than one process")
        left, spent = self._left_s(), {"first": FIRST_S, "share": 100 * _SHARE}
        if left <= 0:
            return Sentence(
                "the recorder has taken the {first:.3g} s and {share:.0f} % of the run that it may", **spent
            )
        if left <= self._needed_s:
            return Sentence(
                "its replay in FP64 would take about {needed:.2g} s, and of the {first:.3g} s and {share:.0f} % of the "
                "run that the recorder may take {left:.2g} s are left",
                needed=self._needed_s, left=left, **spent,
            )  # fmt: skip
        if not _are_finite(weights):
            return L_("weights are not finite, or cannot be read, before the step")
        return None

    def _leave_out(self, step: int, why: str) -> None:
        """Say why a step was not computed again; of many such steps the first and the last ones."""
        if len(self._left_out) >= _MOST_ROWS:
            self._left_out.pop()
        self._left_out.append({"step": step, "unavailable": why})

    def _follow(self, device: torch.device) -> None:
        """Count the work of the thread that makes this step, from here on where another one made those before."""
        clock, thread = work_clock(device), threading.get_ident()
        if (clock, thread) != (self._clock, self._thread):
            self._clock, self._thread, self._begun_s = clock, thread, clock()

    def _left_s(self) -> float:
        return FIRST_S + _SHARE * (self._clock() - self._begun_s) - self._spent_s

    def end(self) -> None:
        """The step is over, and no operation is watched any more."""
        tape, self.tape = self.tape, None
        if tape is None:
            return
        begun = tape.clock() - tape.spent_s
        with unseen(), torch.random.fork_rng(_cuda_devices(tape)):
            tape.end()
            device = min(tape.devices(), key=str, default=torch.device("cpu"))
            row = examined(tape, self._left_s() - tape.spent_s, int(_OF_REPLAY * free_bytes(device)))
            tape.close()
        took = tape.clock() - begun
        self._spent_s += took
        self._needed_s = max(_OF_THE_LAST * took, float(row.pop("needed_s", 0.0)))
        if "unavailable" in row:
            self._leave_out(self._step, row["unavailable"])
        else:
            self._rows.append({"step": self._step, **row, "seconds": took})

    def close(self) -> None:
        """Let go of a step that is not over."""
        if self.tape is not None:
            self.tape.close()
        self.tape = None

    def drop(self, reason: str) -> None:
        """The step cannot be replayed."""
        if self.tape is not None:
            self.tape.give_up(reason)

    def facts(self) -> list[dict[str, Any]]:
        """A row for each step that was to be replayed, see `exact_steps` in docs/run-file.md."""
        return sorted([*self._rows, *self._left_out], key=lambda row: int(row["step"]))


def _are_finite(weights: Sequence[Weight]) -> bool:
    """Whether all weights can be read and are finite: a step from others is finite in no format."""
    with unseen():
        values = [readable(each.own) if _has_memory(each.own) else None for each in weights]
        held = [value.isfinite().all() for value in values if value is not None]
        return len(held) == len(values) and all(array.item() for array in fetched(held))


def _has_memory(weight: Tensor) -> bool:
    """Whether the numbers of a weight are there: a loop that shards or offloads it resizes its memory to nothing."""
    if type(weight.data) is not Tensor or weight.layout is not torch.strided or weight.is_meta:
        return True
    return not weight.numel() or weight.untyped_storage().nbytes() > weight.storage_offset() * weight.element_size()


def _cuda_devices(tape: LoopTape) -> list[torch.device]:
    """Whose random numbers the loop goes on with, besides those of the CPU."""
    return [device for device in tape.devices() if device.type == "cuda"]
