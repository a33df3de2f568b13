"""Takes snapshots of the first step that is not finite, of the first loss that is not, and of a step asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from precgui.config.sections import BESIDE_THE_RUN
from precgui.engine.hook import LoopHook, TrainingRun, do_nothing
from precgui.engine.journal import Journal
from precgui.engine.run_parts import RunParts
from precgui.engine.snapshot.step import StepSnapshot, random_state
from precgui.engine.tasks.base import Batch
from precgui.events import StepDone
from precgui.sentences import L_, Sentence, message_of

_LARGEST_BYTES = 1 << 30


class Snapshots(LoopHook):
    """Writes `PLACE.step-000042.safetensors` before the update of a step that is worth it.

    With loss scaling the first steps may be skipped in a healthy run, so the first step whose loss is not finite is
    kept, too. Until then a step costs the copy of the random state, some kilobytes: its batches are there anyway, and
    the weights before the update are those of the forward pass. Where reading the loss would make a device wait (no CPU
    and no loss scaling, which waits by itself) only the step that was asked for is written.
    """

    def __init__(self, place: Path, requested: int, journal: Journal, parts: RunParts) -> None:
        self._place, self._requested, self._journal, self._parts = place, requested, journal, parts
        self._reads = parts.device.type == "cpu" or parts.precision.scaling_mode != "none"
        self._step, self._scale, self._batch_count = 0, 1.0, 0
        self._batches: Sequence[Batch] = ()
        self._random: tuple[Tensor, Tensor | None] | None = None
        self._buffers: dict[str, Tensor] = {}  # before the step, where the precision reads them
        self._kept: set[str] = set()  # "gradient" after a step with a finite loss, both after one without

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        record = run.config.record
        if record.snapshot_to in ("", BESIDE_THE_RUN) or run.config.precision_schedule:
            return None
        return cls(Path(record.snapshot_to).expanduser().absolute(), record.snapshot_step, run.journal, run.parts)

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        self._step, self._scale, self._batches = step, scale, batches
        self._batch_count = self._parts.precision.batch_count
        if len(self._kept) < 2 or step == self._requested:
            self._random = random_state(self._parts.device)
            if self._parts.precision.reads_buffers:
                self._buffers = {name: buffer.clone() for name, buffer in self._parts.model.named_buffers()}

    def totals(self, loss: Tensor, norm: Tensor) -> None:
        if self._step == self._requested:
            self._write()
        elif len(self._kept) < 2 and self._reads:
            kind = "loss" if not math.isfinite(float(loss)) else "gradient" if not math.isfinite(float(norm)) else ""
            if kind and kind not in self._kept:
                self._kept |= {"loss", "gradient"} if kind == "loss" else {kind}
                self._write()

    def end_step(self, done: object) -> None:
        self._batches, self._random = (), None

    def leave_step(self) -> Callable[[StepDone], None]:
        self.end_step(None)
        return do_nothing

    def state(self) -> dict[str, Any]:
        return {"kept": sorted(self._kept)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._kept = set(state["kept"])

    def _write(self) -> None:
        if self._random is None:
            return
        state = self._parts.model.state_dict()
        weights = state | {name: buffer for name, buffer in self._buffers.items() if name in state}
        snapshot = StepSnapshot(self._step, self._scale, self._batch_count, self._batches, weights, *self._random)
        reason = self._fault(snapshot)
        path = snapshot_path(self._place, self._step)
        if reason:
            note = Sentence("batch, weights and random state of this step are not kept: {reason}", reason=reason)
        else:
            note = Sentence(
                "batch, weights and random state of this step are kept in {file} for precgui replay --step {step}",
                file=path.name,
                step=self._step,
            )
        self._journal.note(self._step, note)

    def _fault(self, snapshot: StepSnapshot) -> str:
        """Why there is no snapshot, after an attempt to write it; empty when there is one."""
        if self._parts.precision.has_history:
            return L_("FP8 scales of earlier batches belong to them (precision_options.fp8_amax = delayed)")
        if snapshot.size_bytes > _LARGEST_BYTES:
            return Sentence(
                "they take {size:.1f} GB, more than {most:.1f} GB",
                size=snapshot.size_bytes / 1e9,
                most=_LARGEST_BYTES / 1e9,
            )
        try:
            snapshot.write(snapshot_path(self._place, self._step))
        except OSError as error:
            return Sentence("the file cannot be written ({why})", why=error.strerror or str(error))
        except TypeError as error:
            return Sentence("{error}, which is not kept", error=message_of(error))
        return ""


def snapshot_path(place: Path, step: int) -> Path:
    """The file of a snapshot beside a run file: `RUN.h5.step-000042.safetensors`."""
    return place.with_name(f"{place.name}.step-{step:06d}.safetensors")
