"""Reads the figures of one run that a study needs from its file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.hardware.readings import Missing, Reading, known
from precgui.runs.baseline import trailing_mean, window_of
from precgui.runs.caveats import arithmetic_of
from precgui.runs.device_memory import largest_batch
from precgui.runs.file.reader import SavedRun
from precgui.runs.identity import identity_of
from precgui.runs.known_settings import settings_by_path
from precgui.runs.metric import metric_of
from precgui.runs.outcome import why_failed
from precgui.runs.quantised_model import integer_model
from precgui.runs.run import Run
from precgui.runs.study.run_figures import RunFigures, RunKind, ValidationCurve
from precgui.runs.summary import energy_used_j, summarise
from precgui.runs.timing import timing_of
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence, without_stop

CURVE_POINTS = 240
_SETTINGS_LEFT_OUT = ("title", "seed", "precision")

_LARGEST_FIGURE = 1e100
_MOST_PLACE = 40  # characters of the name of a place
_MEASURED = (
    "metric_value", "val_loss", "train_loss", "step_s", "cpu_s", "data_share", "memory_bytes", "joules_per_sample",
    "tensor_use", "time_s", "skipped_steps", "pressure", "model_bytes", "energy_j", "power_w", "idle_w",
    "largest_batch", "net_joules_per_sample",
)  # fmt: skip


@np.errstate(all="ignore")  # a damaged file holds any bits
def figures_of(run: Run, name: str, *, group: str = "", kind: RunKind = "run", order: int = 0) -> RunFigures:
    """The figures of a run; without a group it is named by its precision."""
    summary, environment, config = summarise(run), run.environment, run.config
    final = summary["final"]
    samples = run.series("samples")[1]
    timing, arithmetic, why = timing_of(run), arithmetic_of(run), why_failed(run)
    used, idle = energy_used_j(run), idle_w(run)
    energy_j, time_s = known(used), summary["time_s"]
    above_idle_j = None if energy_j is None or isinstance(idle, Missing) or not time_s else energy_j - idle * time_s
    result = RunFigures(
        name=name, path=run.path, group=group or config.precision, precision=config.precision, seed=config.seed,
        kind=kind, order=order, status=run.status, came_through=not why, why_failed=why,
        metric=metric_of(environment), metric_value=final["val_accuracy"], run_id=run.run_id, created=run.created,
        val_loss=final["val_loss"], train_loss=final["train_loss"], work=identity_of(run),
        settings={path: value for path, value in settings_by_path(run).items() if path not in _SETTINGS_LEFT_OUT},
        host=timing.host, device=timing.device, device_kind=timing.device_kind, threads=timing.threads,
        versions=_versions(environment), step_s=timing.step_s, cpu_s=timing.cpu_s,
        data_share=_data_share(run), memory_bytes=summary["memory_peak_bytes"],
        memory_of_one_step=not np.isfinite(run.series("memory_bytes")[1]).any(),
        joules_per_sample=_joules(energy_j, samples), tensor_use=summary["tensor_use"],
        energy_j=energy_j, power_w=energy_j / time_s if energy_j is not None and time_s else None, idle_w=known(idle),
        net_joules_per_sample=_joules(above_idle_j, samples), why_no_energy=_reason(used), why_no_idle=_reason(idle),
        time_s=time_s, skipped_steps=summary["skipped_steps"],
        emulated=timing.emulated, pressure=timing.pressure, record_share=timing.record_share,
        machine=dict(run.machine),
        place=one_line(str(environment.get("place") or ""), _MOST_PLACE),
        model_bytes=_model_bytes(run), largest_batch=largest_batch(run),
        slow=arithmetic.caveat if arithmetic.arithmetic == "slow" else "",
        curve=_curve(run), validation=_validation(run),
    )  # fmt: skip
    unknown: dict[str, Any] = {name: None for name in _MEASURED if not _is_number(getattr(result, name))}
    return replace(result, refused=_damage(run), **unknown)


def idle_w(run: Run) -> Reading[float]:
    """Power of all devices with a sensor before the run, while nothing ran, in watts; or why it was not measured."""
    power = run.environment.get("power")
    by_device = power.get("idle_w") if isinstance(power, Mapping) else None
    if not isinstance(by_device, Mapping) or not by_device:
        return Missing(L_("the run measured no idle baseline; set power.idle_s, such as 10"))
    unknown = power.get("idle_unknown") if isinstance(power, Mapping) else None
    for device in run.power_devices():
        if not _is_number(by_device.get(device)):
            reason = unknown.get(device) if isinstance(unknown, Mapping) else None
            why = reason or L_("it was not read while idle")
            return Missing(Sentence("{device}: {why}", device=device, why=why))
    return float(sum(by_device[device] for device in run.power_devices()))


def _reason(value: Reading[float]) -> str:
    return value.reason if isinstance(value, Missing) else ""


def _damage(run: Run) -> str:
    """Why the figures of a file are not those of the whole run; empty where they are. Asked when all is read."""
    damage = run.damage if isinstance(run, SavedRun) else ""
    return (
        Sentence("{reason}: {detail}", reason=L_("its file is damaged"), detail=without_stop(damage)) if damage else ""
    )


def _is_number(value: object) -> bool:
    """Whether a figure can be compared; a damaged file holds NaN, Inf, texts, and numbers whose squares overflow."""
    return isinstance(value, int | float) and abs(value) < _LARGEST_FIGURE


def _model_bytes(run: Run) -> float | None:
    """Bytes of the integer model where there is one, else of the weights as the precision stores them."""
    integers = integer_model(run)
    if integers is not None:
        return integers.models[-1].size_bytes
    memory = run.environment.get("memory")
    weights = memory.get("weights_bytes") if isinstance(memory, Mapping) else None
    return float(weights) if isinstance(weights, int | float) and weights > 0 else None


def _versions(environment: Mapping[str, Any]) -> dict[str, Any]:
    libraries = environment.get("libraries")
    result = dict(libraries) if isinstance(libraries, Mapping) else {}
    return {"precgui": environment.get("precgui"), "python": environment.get("python"), **result}


def _data_share(run: Run) -> float | None:
    waited, worked = run.series("data_s")[1].sum(), run.series("step_s")[1].sum()
    share = float(waited / (waited + worked)) if waited + worked > 0 else math.nan
    return share if math.isfinite(share) else None


def _joules(energy_j: float | None, samples: NDArray[np.float64]) -> float | None:
    total = float(samples.sum()) if len(samples) else 0.0
    return energy_j / total if energy_j is not None and total > 0 and math.isfinite(total) else None


def _curve(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    step, loss = run.series("loss")
    if not len(loss):
        return step, loss
    smooth = trailing_mean(loss, window_of(run))
    places = np.unique(np.linspace(0, len(loss) - 1, CURVE_POINTS).astype(int))
    return step[places], smooth[places]


def _validation(run: Run) -> ValidationCurve:
    step, loss = run.series("val_loss")
    steps, cpu_s = run.series("cpu_s")
    spent = np.concatenate(([0.0], np.cumsum(cpu_s)))
    time_s = run.series("val_loss", "time_s")[0] - _start_up_s(run)
    return ValidationCurve(step, loss, time_s, spent[np.searchsorted(steps, step, "right")])


def _start_up_s(run: Run) -> float:
    """Seconds from the start of the run to its first batch: building the model, reading data."""
    ends = run.series("step_s", "time_s")[0]
    if not len(ends):
        return 0.0
    first = [run.series(name)[1][0] for name in ("step_s", "data_s")]
    begin = float(ends[0]) - float(np.nansum(first))
    return max(0.0, begin) if math.isfinite(begin) else 0.0
