"""Effect of another format or loss scale on the tensors of a run, as a table of plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, isnan, ldexp

import numpy as np
from numpy.typing import NDArray

from precgui.runs.run import Run
from precgui.runs.tensors.confidence import basis_of, share_text, spread
from precgui.runs.tensors.grouping import View, grouped, whole_rows
from precgui.runs.tensors.overview import FEWEST_COLUMNS, Overview
from precgui.runs.tensors.record import TensorHistory
from precgui.runs.tensors.what_if import Prediction
from precgui.sentences import Sentence, together

LOST_FORMATS = ("bf16", "fp16", "e4m3fn")  # of the recorded `lost_*` statistics, those that are shown
_AT_ONCE = 64  # rows that are read together


@dataclass(frozen=True)
class WhatIfRow:
    """One tensor (or several put together) in one format. Shares are of 1, NaN where nothing finite was recorded.

    `underflow` become zero though they are not, `subnormal` keep fewer digits, `overflow` do not fit. `*_spread` is two
    standard deviations of a share that comes from samples, 0 where every element was measured. `safe_scale_log2` is
    the exponent of the largest power of two that lets nothing overflow. `largest` is the largest finite magnitude,
    `changed` the mean share of the elements that a step changed (of updates only), `nonfinite_step` the first step
    with NaN or Inf. `lost_*` is the mean share of these changes below half an ulp of the weight in a format, which
    weights stored in it would not take.
    """

    tensor: str
    format: str
    elements: float
    underflow: float
    subnormal: float
    overflow: float
    snr_db: float
    safe_scale_log2: float
    largest: float
    changed: float
    nonfinite_step: float
    underflow_spread: float
    overflow_spread: float
    lost_bf16: float
    lost_fp16: float
    lost_e4m3fn: float


@dataclass(frozen=True)
class WhatIfTable:
    """All entries of one kind, the whole first within each format; `certainty` and `notes` as in `runs.certainty`."""

    kind: str
    steps: int
    first_step: int
    last_step: int
    certainty: str
    notes: tuple[str, ...]
    tensors: tuple[WhatIfRow, ...]


def what_if_table(run: Run, kind: str, formats: list[str], log2_scale: int, grouping: str) -> WhatIfTable | None:
    """All recorded steps of one kind, in each of `formats`, times 2^log2_scale.

    `grouping` is one of `grouping.GROUPINGS`. None when nothing of the kind was recorded. Raises ValueError for a
    format without exponents.
    """
    record = run.tensors().get(kind)
    overview = all_rows(record) if record is not None else None
    rows = whole_rows(record, overview) if record is not None and overview is not None else None
    if record is None or overview is None or rows is None:
        return None
    view = grouped(rows, grouping)
    basis = basis_of(run, kind, sampled=bool(rows.sampled.any()))
    what_if = view.what_if
    lines = [line for name in formats for line in _lines(view, name, what_if.predict(name, log2_scale), what_if.count)]
    steps = record.steps()
    word, reasons = basis.word(log2_scale), tuple(basis.reasons(log2_scale))
    return WhatIfTable(kind, overview.rows, int(steps[0]), int(steps[-1]), word, reasons, tuple(lines))


def all_rows(record: TensorHistory, most_columns: int = FEWEST_COLUMNS) -> Overview:
    """All rows of a record added up, in at most so many columns unless they were added up as they came."""
    if record.overview is not None:
        return record.overview
    overview = Overview(most_columns)
    overview.expect(record.written_steps(), len(record.names))
    for start in range(0, len(record), _AT_ONCE):
        record.add_to(overview, range(start, min(start + _AT_ONCE, len(record))))
    return overview


def _lines(view: View, name: str, prediction: Prediction, counts: NDArray[np.float64]) -> list[WhatIfRow]:
    own = (prediction.underflow, prediction.subnormal, prediction.overflow, prediction.snr_db, prediction.safe_scale)
    off = [spread(share, view.sampled, counts) for share in (prediction.underflow, prediction.overflow)]
    numbers = (counts, *own, largest(view), mean_share(view, "changed"), view.first_bad_steps(), *off)
    lost = [mean_share(view, f"lost_{each}") for each in LOST_FORMATS]
    lines = zip(view.names, *(column.tolist() for column in (*numbers, *lost)), strict=True)
    return [WhatIfRow(tensor, name, *line) for tensor, *line in lines]


def largest(view: View) -> NDArray[np.float64]:
    """The largest finite magnitude of each entry over the run."""
    most: NDArray[np.float64] = np.fmax.reduce(view.amax, 0)
    return most


@np.errstate(all="ignore")
def mean_share(view: View, name: str) -> NDArray[np.float64]:
    """`changed` or a `lost_*` of each entry, the mean over the recorded steps; NaN for all but updates.

    A `lost_*` is a share of what a step changed, so steps weigh by that.
    """
    changed = view.stat("changed")
    shares = changed if name == "changed" else np.where(np.isfinite(changed), view.stat(name), np.nan)
    weights = view.rows.added[:, None] * (1.0 if name == "changed" else changed)
    weights = np.where(np.isfinite(shares), weights, 0.0)
    return np.asarray(np.nansum(shares * weights, 0) / weights.sum(0))


def lost_sentence(shares: dict[str, float]) -> str:
    """How much of the updates weights stored in each format would not take, as a sentence; empty where none is known.

    `shares` by format, as `lost_*`.
    """
    known = {name: share for name, share in shares.items() if not isnan(share)}
    if not known:
        return ""
    each = [Sentence("{share} in {format}", share=share_text(share), format=name) for name, share in known.items()]
    parts = together(*each, between=", ")
    return Sentence(
        "Below half an ulp of their weight, hence lost if weights are stored and rounded to nearest: {shares}.",
        shares=parts,
    )


SORTS: dict[str, tuple[Callable[[WhatIfRow], float], bool]] = {  # by what, and whether the largest comes first
    "underflow": (lambda line: line.underflow, True),
    "overflow": (lambda line: line.overflow, True),
    "snr": (lambda line: line.snr_db, False),
    "safe-scale": (lambda line: line.safe_scale_log2, False),
    "largest": (lambda line: line.largest, True),
    "changed": (lambda line: line.changed, False),
    "nonfinite": (lambda line: line.nonfinite_step, False),
    "lost": (lambda line: line.lost_bf16, True),
}


def ordered(lines: tuple[WhatIfRow, ...], by: str, whole: str) -> list[WhatIfRow]:
    """The rows of each format, the whole first, then by one of SORTS; rows without that number come last."""
    key, down = SORTS[by]
    formats = list(dict.fromkeys(line.format for line in lines))

    def place(line: WhatIfRow) -> tuple[int, bool, bool, float]:
        value = key(line)
        missing, signed = isnan(value), -value if down else value
        return formats.index(line.format), line.tensor != whole, missing, 0.0 if missing else signed

    return sorted(lines, key=place)


def as_json(line: WhatIfRow) -> dict[str, object]:
    """Numbers that there are none of as None, also the SNR of what overflows; the safe scale as a number, too."""
    reported = {
        name: None if isinstance(value, float) and not isfinite(value) else value for name, value in vars(line).items()
    }
    for name in ("elements", "safe_scale_log2", "nonfinite_step"):
        if isfinite(value := getattr(line, name)):
            reported[name] = round(value)
    exponent = line.safe_scale_log2
    return reported | {"safe_scale": ldexp(1.0, round(exponent)) if isfinite(exponent) else None}
