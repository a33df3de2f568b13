"""The gradients of a run beside the ranges of FP16 and BF16: what becomes zero, what does not fit, which scale."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isnan

from precgui.runs.run import Run
from precgui.runs.tensors.grouping import ALL
from precgui.runs.tensors.what_if_table import WhatIfRow, what_if_table

LOST_FROM = 0.001  # share of the gradients that become zero from which a loss scale is called needed
_MARGIN = 1  # powers of two below the largest scale at which no recorded gradient overflows
_MOST_TENSORS = 8


@dataclass(frozen=True)
class LostTensor:
    """A tensor with the shares, of 1, of its gradients that FP16 turns to zero, without and with the loss scale."""

    name: str
    largest: float
    fp16: float
    fp16_scaled: float
    bf16: float


@dataclass(frozen=True)
class GradientRange:
    """All gradients of a run put together in FP16, in FP16 times 2^`scale_log2`, and in BF16.

    `scale_log2` is the largest exponent, with a margin of one, at which no recorded gradient overflows FP16. `tensors`
    are those that lose most in FP16 without it. `certainty` and `notes` say what the record does not know.
    """

    run: str
    precision: str
    steps: int
    certainty: str
    notes: tuple[str, ...]
    scale_log2: int
    fp16: WhatIfRow
    fp16_scaled: WhatIfRow
    bf16: WhatIfRow
    tensors: tuple[LostTensor, ...]

    @property
    def needs_scaling(self) -> bool:
        """Whether FP16 loses gradients without a loss scale, and fewer with one."""
        return self.fp16.underflow >= LOST_FROM and self.fp16_scaled.underflow < self.fp16.underflow

    @property
    def does_not_fit(self) -> bool:
        """Whether FP16 loses gradients at every loss scale: they span more than its range."""
        return self.fp16_scaled.underflow >= LOST_FROM


def gradient_range(run: Run) -> GradientRange | None:
    """None where no finite gradient was recorded."""
    plain = what_if_table(run, "gradient", ["fp16", "bf16"], 0, "by tensor")
    if plain is None:
        return None
    rows = {(row.tensor, row.format): row for row in plain.tensors}
    safe = rows[ALL, "fp16"].safe_scale_log2
    if not isfinite(safe):
        return None
    scale = max(0, round(safe) - _MARGIN)
    scaled_table = what_if_table(run, "gradient", ["fp16"], scale, "by tensor")
    assert scaled_table is not None
    scaled = {row.tensor: row for row in scaled_table.tensors}
    tensors = [
        LostTensor(name, row.largest, row.underflow, scaled[name].underflow, rows[name, "bf16"].underflow)
        for (name, fmt), row in rows.items()
        if fmt == "fp16" and name != ALL and not isnan(row.underflow)
    ]
    tensors.sort(key=lambda each: (-each.fp16, -each.fp16_scaled))
    return GradientRange(
        run.title, run.config.precision, plain.steps, plain.certainty, plain.notes, scale,
        rows[ALL, "fp16"], scaled[ALL], rows[ALL, "bf16"],
        tuple(each for each in tensors[:_MOST_TENSORS] if each.fp16 > 0),
    )  # fmt: skip
