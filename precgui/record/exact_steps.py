"""Some steps of a recorded loop beside the same steps in FP64."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor

from precgui.engine.shadow.loop_step import examined
from precgui.engine.shadow.loop_tape import LoopTape
from precgui.engine.telemetry.backends import fetched
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.telemetry.recorder import Weight
from precgui.record.distributed import world
from precgui.sentences import L_, Sentence

_STEPS = frozenset({1, 2, 8, 32, 128, 512})
_MOST_ROWS, _AFTER_ALARMS = 8, 3
FIRST_S, _SHARE = 4.0, 0.02  # of the time of the run that this may take: so many seconds, and this share of it
_MOST_BYTES, _SHARE_OF_FREE = 1 << 30, 0.125
_NO_FP64 = ("mps", "xpu")


class ExactSteps:
    """Keeps the tape of a step that is watched anyway, and replays it in FP64 when the step is over."""

    def __init__(self) -> None:
        self._begun_s = time.perf_counter()
        self._spent_s = 0.0
        self._rows: list[dict[str, Any]] = []
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
        if self._left_s() <= 0 or (alarm and not self._alarms) or not _are_finite(weights):
            return
        self._alarms -= alarm
        device = weights[0].own.device
        if device.type in _NO_FP64:
            self._rows.append({"step": step, "unavailable": Sentence("{device} has no FP64", device=device.type)})
            return
        if world() > 1:
            self._rows.append({"step": step, "unavailable": L_("the step runs in more than one process")})
            return
        self._step = step
        named = [(each.name, each.own) for each in weights]
        with unseen():
            most_bytes = int(_SHARE_OF_FREE * min(_free_bytes(device), 8 * _MOST_BYTES))
            self.tape = LoopTape(named, module, most_bytes, self._left_s())

    def _left_s(self) -> float:
        return FIRST_S + _SHARE * (time.perf_counter() - self._begun_s) - self._spent_s

    def end(self) -> None:
        """The step is over, and no operation is watched any more."""
        tape, self.tape = self.tape, None
        if tape is None:
            return
        begun = time.perf_counter() - tape.spent_s
        with unseen(), torch.random.fork_rng(_cuda_devices(tape)):
            tape.end()
            row = examined(tape, self._left_s() - tape.spent_s)
            tape.close()
        took = time.perf_counter() - begun
        self._spent_s += took
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
        return self._rows


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


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
