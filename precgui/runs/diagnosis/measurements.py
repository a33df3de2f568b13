"""The recorded numbers of a run as the rules read them: whole signals, a bounded number of rows of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.config import OWN_LOOP, RunConfig
from precgui.events import TENSOR_STATS, Incident
from precgui.hardware.readings import Missing
from precgui.runs.diagnosis.number_formats import formats_of
from precgui.runs.diagnosis.phases import Phase, phases_of
from precgui.runs.recorded_facts import fact, fact_rows
from precgui.runs.recorded_model import RecordedModel
from precgui.runs.run import Run
from precgui.runs.tensors.record import TensorHistory
from precgui.sentences import Sentence

Values = NDArray[np.float64]
MOST_ROWS = 40  # of each kind that are read, spread over the run
POINTS = 120  # of a series that proves something
_NOT_FINITE = [TENSOR_STATS.index(name) for name in ("nan", "pos_inf", "neg_inf")]
_COUNTS = ("zeros", "count")
_HALVES = {"fp16", "bf16"}


@dataclass(frozen=True)
class RecordedRows:
    """Recorded rows of one kind of tensor, in the order of the steps. NaN where a tensor was not recorded.

    `stats` is (rows, tensors, TENSOR_STATS), `strides` (rows, tensors).
    """

    kind: str
    names: tuple[str, ...]
    steps: NDArray[np.int64]
    stats: Values
    strides: NDArray[np.int64]
    dtypes: tuple[str, ...] = ()  # as recorded, "" where they are not

    def stat(self, name: str) -> Values:
        """Shape (rows, tensors); counts are of the whole tensors, as estimated from samples."""
        values = self.stats[:, :, TENSOR_STATS.index(name)]
        return values * np.maximum(self.strides, 1) if name in _COUNTS else values

    @cached_property
    def recorded(self) -> NDArray[np.bool_]:
        return np.asarray(self.stats[:, :, TENSOR_STATS.index("count")] > 0)

    @cached_property
    def bad(self) -> NDArray[np.bool_]:
        """Whether NaN or Inf was recorded, shape (rows, tensors)."""
        return np.asarray(np.nansum(self.stats[:, :, _NOT_FINITE], 2) > 0)

    @cached_property
    def infinite(self) -> NDArray[np.bool_]:
        return np.asarray(np.nansum(self.stats[:, :, _NOT_FINITE[1:]], 2) > 0)

    @cached_property
    def formats(self) -> list[str]:
        """The number format of each tensor: by its digits (see `number_formats`), else its recorded dtype.

        Digits come first, since a format that is emulated is held in FP32. A recorded FP16 or BF16 is what it says:
        small numbers of FP16 have no more digits than those of BF16.
        """
        digits = formats_of(self.stat("amax"), self.stat("amin_nonzero"))
        dtypes = self.dtypes or ("",) * len(digits)
        return [
            own if (own not in ("", "fp32") or dtype in ("", "fp32")) and {own, dtype} != _HALVES else dtype
            for own, dtype in zip(digits, dtypes, strict=True)
        ]

    @cached_property
    def total_l2(self) -> Values:
        """The L2 norm over all tensors of each recorded step, shape (rows,)."""
        with np.errstate(all="ignore"):
            return np.asarray(np.sqrt(np.nansum(self.stat("l2") ** 2, 1)))

    def share_zero(self) -> Values:
        with np.errstate(all="ignore"):
            share: Values = self.stat("zeros") / self.stat("count")
        return share

    def of(self, chosen: NDArray[np.bool_]) -> RecordedRows:
        """The chosen rows only."""
        return replace(self, steps=self.steps[chosen], stats=self.stats[chosen], strides=self.strides[chosen])


class Measurements:
    """A run, read once, or the steps of one `phase` of it. Signals are of equal length, a value for each recorded step.

    `precision` is that of the phase; of a whole run with a schedule the first one, `precisions` are all.
    """

    def __init__(self, run: Run, phase: Phase | None = None) -> None:
        self.run = run
        self.config: RunConfig = run.config
        self.phases = phases_of(run)
        self._phase = phase
        self.precision = phase.precision if phase is not None else run.config.precision
        self.precisions = (self.precision,) if phase is not None else tuple(each.precision for each in self.phases)
        self.environment: Mapping[str, Any] = run.environment
        self.own_loop = run.config.task == OWN_LOOP
        self.imported = run.status == "imported"
        own = {name: run.series(name)[1] for name in ("loss", "scale", "skipped", "lr", "grad_norm")}
        x = run.series("loss")[0]
        self.n = min(len(x), *(len(values) for values in own.values())) if own else 0
        self.steps = x[: self.n].astype(np.int64)
        self.loss, self.scale, self.lr, self.grad_norm = (
            own[name][: self.n] for name in ("loss", "scale", "lr", "grad_norm")
        )
        self.skipped = own["skipped"][: self.n] > 0
        self.backward_passes, self.optimizer_steps = (
            run.series(name)[1][: self.n] for name in ("backward_passes", "optimizer_steps")
        )
        if phase is not None:
            self._keep((phase.first <= self.steps) & (self.steps <= phase.last))
        self._tables: dict[str, RecordedRows | None] = {}

    def _keep(self, chosen: NDArray[np.bool_]) -> None:
        """Keep the signals of these steps only."""
        self.steps, self.skipped = self.steps[chosen], self.skipped[chosen]
        self.loss, self.scale, self.lr, self.grad_norm = (
            values[chosen] for values in (self.loss, self.scale, self.lr, self.grad_norm)
        )
        self.backward_passes, self.optimizer_steps = self.backward_passes[chosen], self.optimizer_steps[chosen]
        self.n = len(self.steps)

    @cached_property
    def parts(self) -> tuple[Measurements, ...]:
        """The phases with a step, each by itself; the run as it is where its precision never changed."""
        if self._phase is not None or len(self.phases) == 1:
            return (self,)
        return tuple(part for part in (Measurements(self.run, phase) for phase in self.phases) if part.n)

    @property
    def phase_text(self) -> str:
        """The precision and the steps of a phase; '' for a whole run."""
        return self._phase.text if self._phase is not None else ""

    def as_in(self, step: int) -> Measurements:
        """All steps of the run, but with the precision of this one; the run as it is where that never changed."""
        if len(self.phases) == 1:
            return self
        result = Measurements(self.run)
        phase = next(each for each in reversed(self.phases) if each.first <= max(step, 1))
        result.precision, result.precisions = phase.precision, (phase.precision,)
        result.parts = (Measurements(self.run, phase),)
        return result

    @cached_property
    def records(self) -> Mapping[str, TensorHistory]:
        return self.run.tensors()

    @cached_property
    def incidents(self) -> list[Incident]:
        events, phase = self.run.events(), self._phase
        return events if phase is None else [each for each in events if phase.first <= each.step <= phase.last]

    def of_kind(self, *kinds: str) -> list[Incident]:
        return [each for each in self.incidents if each.kind in kinds]

    @cached_property
    def model(self) -> RecordedModel:
        return self.run.model()

    def fact(self, name: str) -> Mapping[str, Any]:
        """One of `recorded_facts.FACTS`, empty where it is not recorded."""
        if name == "census" and self._later_facts is not None:
            return self._later_facts.get(name, {})
        result = fact(self.run, name)
        return {} if isinstance(result, Missing) else result

    def fact_rows(self, name: str) -> list[Mapping[str, Any]]:
        """The rows of a fact that has some; [] where none were recorded."""
        return fact_rows(self.run, name)

    @property
    def _later_facts(self) -> Mapping[str, Mapping[str, Any]] | None:
        """The facts that the change to a later phase recorded; None for the first phase and a whole run."""
        return self._phase.facts if self._phase is not None and self._phase.first > 1 else None

    @property
    def begins_at(self) -> int:
        """The first step of a phase; 0 of a whole run."""
        return self._phase.first if self._phase is not None else 0

    @property
    def certificate(self) -> Mapping[str, Any]:
        """How products were computed when this precision began; empty where it was not tried."""
        if self._later_facts is not None:
            return self._later_facts.get("certificate", {})
        certificate = self.environment.get("certificate")
        return certificate if isinstance(certificate, Mapping) else {}

    @cached_property
    def finite_loss(self) -> NDArray[np.bool_]:
        return np.isfinite(self.loss)

    @cached_property
    def loops_scale(self) -> bool:
        """Whether a loss scale other than 1 was ever in use."""
        return bool((self.scale[np.isfinite(self.scale)] != 1).any())

    def table(self, kind: str) -> RecordedRows | None:
        """At most MOST_ROWS rows, spread over the run, with the first ones and those near trouble; None without any."""
        if kind not in self._tables:
            self._tables[kind] = self._read(kind)
        return self._tables[kind]

    def _read(self, kind: str) -> RecordedRows | None:
        record = self.records.get(kind)
        if record is None or not len(record):
            return None
        inside = self._rows(record)
        if not len(inside):
            return None
        table = table_of(record, inside[_chosen(record.steps()[inside], self._trouble)])
        return table if len(table.steps) else None  # a damaged file may have lost what it counts as recorded

    def _rows(self, record: TensorHistory) -> NDArray[np.intp]:
        """The places of the measurements that belong to these steps."""
        steps, phase = record.steps(), self._phase
        if phase is None:
            return np.arange(len(steps))
        return np.flatnonzero((phase.first <= steps) & (steps <= phase.last))

    @cached_property
    def _trouble(self) -> NDArray[np.int64]:
        """Steps with an incident, whose rows should be read."""
        bad = self.steps[(~self.finite_loss) | self.skipped]
        reported = np.array(
            [each.step for each in self.of_kind("nonfinite_activation", "nonfinite_gradient")], np.int64
        )
        return np.unique(np.concatenate((bad[:4], bad[-2:], reported[:2])))

    def histograms(self, kind: str, step: int) -> tuple[tuple[str, ...], Values]:
        """Names and exponents (tensors, 256), scaled to whole tensors, of the measurement nearest to a step."""
        record = self.records.get(kind)
        inside = self._rows(record) if record is not None else np.empty(0, np.intp)
        if record is None or not len(inside):
            return (), np.empty((0, 256))
        row = int(inside[np.argmin(np.abs(record.steps()[inside] - step))])
        counts, strides = record.exponents(row, row + 1)[0].astype(np.float64), record.strides(row, row + 1)[0]
        known = min(len(counts), len(strides))  # the axis of one may be longer
        counts[:known] *= np.maximum(strides[:known], 1)[:, None]
        return tuple(record.names[: len(counts)]), counts

    def at_loss(self, steps: NDArray[np.int64]) -> Values:
        """The loss at each of these steps; NaN where none is recorded."""
        places = np.searchsorted(self.steps, steps)
        inside = (
            (places < self.n) & (self.steps[np.minimum(places, max(self.n - 1, 0))] == steps) if self.n else steps < 0
        )
        return np.where(inside, self.loss[np.minimum(places, max(self.n - 1, 0))] if self.n else np.nan, np.nan)

    @cached_property
    def scale_at(self) -> Mapping[int, float]:
        return dict(zip(self.steps.tolist(), self.scale.tolist(), strict=True))

    @staticmethod
    def points_of(steps: NDArray[np.int64], values: Values) -> tuple[tuple[int, float], ...]:
        """Values of recorded rows as points for a small curve."""
        return tuple(zip(steps.tolist(), values.tolist(), strict=True))

    def log_of(self, name: str, values: Values, base: int) -> tuple[str, tuple[tuple[int, float], ...]]:
        """The logarithm of a signal with its name, as signal and series of an Evidence; -inf stands for 0."""
        with np.errstate(all="ignore"):
            logarithm = np.log2(values) if base == 2 else np.log10(values)
        return Sentence("log{base} of the {name}", base=base, name=name), self.series_of(logarithm)

    def series_of(self, values: Values, chosen: NDArray[np.bool_] | None = None) -> tuple[tuple[int, float], ...]:
        """A signal as points for a small curve; minimum and maximum of each part are kept."""
        x, y = (self.steps, values) if chosen is None else (self.steps[chosen], values[chosen])
        return thinned(x, y)


def table_of(record: TensorHistory, rows: NDArray[np.intp]) -> RecordedRows:
    """These rows of a record, counted in the order of the steps; rows with nothing in them are left out."""
    stats, strides = _rows(record, rows)
    reported = stats[:, :, TENSOR_STATS.index("count")] > 0
    stats = np.where(reported[:, :, None], stats, np.nan)
    kept = reported.any(1)
    names = tuple(record.names[: stats.shape[1]])
    names += tuple(f"tensor {place}" for place in range(len(names), stats.shape[1]))
    own = np.asarray(reported.any(0))
    visited = tuple(name for name, is_recorded in zip(names, own.tolist(), strict=True) if is_recorded)
    dtypes = tuple(record.dtype(name) or "" for name in visited)
    return RecordedRows(
        record.kind, visited, record.steps()[rows][kept], stats[kept][:, own], strides[kept][:, own], dtypes
    )


def _rows(record: TensorHistory, rows: NDArray[np.intp]) -> tuple[Values, NDArray[np.int64]]:
    stats, strides = record.at(rows)
    known = strides[:, : stats.shape[1]]
    return stats, np.pad(known, ((0, 0), (0, stats.shape[1] - known.shape[1])))


def _chosen(steps: NDArray[np.int64], trouble: NDArray[np.int64]) -> NDArray[np.intp]:
    """The first two rows, an even choice of all, and those at or before trouble."""
    n = len(steps)
    even = np.linspace(0, n - 1, min(n, MOST_ROWS)).astype(np.intp)
    at = np.searchsorted(steps, trouble, side="right") - 1
    near = np.concatenate((at, at - 1))
    return np.unique(np.concatenate((even, np.arange(min(n, 2)), near[near >= 0]))).astype(np.intp)


def thinned(x: NDArray[Any], y: Values) -> tuple[tuple[int, float], ...]:
    """At most POINTS points, the smallest and the largest value of each part among them."""
    if len(x) <= POINTS:
        return tuple(zip(x.astype(int).tolist(), y.tolist(), strict=True))
    chosen: set[int] = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), POINTS // 2 - 1):
        finite = part[np.isfinite(y[part])]
        chosen |= (
            {int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])} if len(finite) else {int(part[0])}
        )
    kept = sorted(chosen)
    return tuple(zip(x[kept].astype(int).tolist(), y[kept].tolist(), strict=True))


def module_of(tensor: str, kind: str) -> str:
    """The module that a tensor belongs to: `fc.weight` and `fc.weight.exp_avg` to `fc`."""
    if kind in ("activation", "activation_gradient"):
        return tensor
    parts = tensor.split(".")
    return ".".join(parts[: max(len(parts) - (2 if kind == "optimizer" else 1), 0)])
