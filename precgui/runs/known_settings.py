"""The settings of a run as far as they are known: of a recorded loop, those that the recorder was given or observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.config import OWN_LOOP, ScalingConfig
from precgui.runs.run import Run

NOT_KNOWN = "not known"
_GIVEN = ("title", "task", "model.name", "precision", "record")
_OF_OPTIMIZER = ("lr", "momentum", "weight_decay", "eps")
_OF_SCALER = ("initial_scale", "growth_factor", "backoff_factor", "growth_interval")


def observed_settings(run: Run) -> dict[str, Any] | None:
    """Of a recorded loop: what was observed, by the path of the setting; None for a run of precgui's own.

    The config of such a file holds defaults for what the recorder cannot know, such as the number of epochs; a path
    that `is_given` or is in this table is known, no other.
    """
    if run.config.task != OWN_LOOP:
        return None
    environment = run.environment
    recorder, scaler = environment.get("recorder"), environment.get("scaler")
    optimizers = recorder.get("optimizers") if isinstance(recorder, Mapping) else None
    first = optimizers[0] if isinstance(optimizers, list) and len(optimizers) == 1 else {}
    observed: dict[str, Any] = {}
    if isinstance(first, Mapping) and first:
        observed["optimizer.name"] = str(first.get("name", NOT_KNOWN))
        observed |= {f"optimizer.{name}": first[name] for name in _OF_OPTIMIZER if _is_number(first.get(name))}
    rates, samples = run.series("lr")[1], run.series("samples")[1]
    if len(rates) and np.isfinite(rates[0]):
        observed["optimizer.lr"] = float(rates[0])
    if len(samples) and np.median(samples) > 0:
        observed["data.batch_size"] = int(np.median(samples))
    if isinstance(scaler, Mapping) and scaler.get("enabled"):
        observed["scaling.mode"] = "dynamic"
        observed |= {f"scaling.{name}": scaler[name] for name in _OF_SCALER if _is_number(scaler.get(name))}
    return observed


def known_scaling(run: Run) -> ScalingConfig:
    """The policy of the run's loss scaler: of a recorded loop that of its own scaler, where it had one."""
    observed = observed_settings(run) or {}
    own = {path.partition(".")[2]: value for path, value in observed.items() if path.startswith("scaling.")}
    return run.config.scaling.model_copy(update=own)


def is_given(path: str) -> bool:
    """Whether the config of a recorded loop holds this setting as the recorder was given it."""
    return any(path == each or path.startswith(f"{each}.") for each in _GIVEN)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
