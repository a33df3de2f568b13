"""The schedules of the learning rates of a loop, as they stand when its recording ends."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from precgui.engine.telemetry.readable import unseen

_MOST = 8
_FEWEST_STEPS = 100  # of a loop that is asked for a schedule that never was stepped
_PLATEAU = ("mode", "factor", "patience", "best", "last_epoch", "num_bad_epochs")


class Schedules:
    """Finds schedules by who refers to an optimizer, once, when a recording ends: a search in all objects of Python.

    It is made only where the rate has changed, or where torch says that the optimizer has a schedule and it has not.
    """

    def __init__(self) -> None:
        self._first = math.nan
        self._steps = 0
        self._has_changed = False

    def stepped(self, rate: float) -> None:
        """A step was made at this rate."""
        if math.isfinite(rate):
            self._steps += 1
            self._has_changed |= math.isfinite(self._first) and rate != self._first
            self._first = rate

    def facts(self, optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
        """A row for each plateau schedule, each by a function of the user's, each that knows for how many steps it was
        planned, and each that was never stepped."""
        has_schedule = any(getattr(each.step, "_wrapped_by_lr_sched", False) for each in optimizers)
        if not (self._has_changed or (has_schedule and self._steps >= _FEWEST_STEPS)) or not optimizers:
            return []
        found = [held for held in map(_attributes, gc.get_referrers(*optimizers)) if held is not None]
        rows = [_of_plateau(held) for held in found if all(name in held for name in _PLATEAU)]
        rows += [{"kind": "lambda"} | _rates(held) for held in found if "lr_lambdas" in held]
        planned = [row | {"kind": "planned", "steps": self._steps} for row in map(_plan, found) if row]
        rows += [row for row in planned if all(math.isfinite(row[name]) for name in ("planned", "done", "peak"))]
        others = [held for held in found if "base_lrs" in held]
        if others and not self._has_changed and all(_is_new(held) for held in others):
            rows += [{"kind": "schedule", "steps": self._steps} | _rates(held) for held in others]
        return rows[:_MOST]


def _is_new(held: Mapping[str, Any]) -> bool:
    """Whether a schedule was never stepped since it was made."""
    return held.get("last_epoch") == 0 and held.get("_step_count") == 1


def _attributes(owner: Any) -> Mapping[str, Any] | None:
    """The attributes of a schedule, which holds its optimizer itself or in a dictionary; None of anything else."""
    if isinstance(owner, LRScheduler | ReduceLROnPlateau):
        return vars(owner)
    if type(owner) is dict and "optimizer" in owner and "last_epoch" in owner:
        return owner
    return None


def _of_plateau(held: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: _number(held[name]) for name in _PLATEAU if name != "mode"}
    known = {name: value for name, value in numbers.items() if math.isfinite(value)}
    return {"kind": "plateau", "mode": str(held["mode"])} | known


def _plan(held: Mapping[str, Any]) -> dict[str, Any]:
    """How many steps a schedule was planned for and has made, and the largest rate that it was made for.

    OneCycleLR and the functions of transformers know it; {} of others.
    """
    functions, group = held.get("lr_lambdas"), _first_group(held.get("optimizer"))
    known = functions if isinstance(functions, list) else []
    given = next((each.keywords for each in known if isinstance(each, functools.partial)), {})
    planned = held.get("total_steps", given.get("num_training_steps"))
    base = held.get("base_lrs")
    peak = group.get("max_lr", base[0] if isinstance(base, list) and base else None)
    row = {"planned": _number(planned), "done": _number(held.get("last_epoch")), "peak": _number(peak)}
    return {} if math.isnan(row["planned"]) else row


def _first_group(optimizer: Any) -> Mapping[str, Any]:
    groups = getattr(optimizer, "param_groups", None)
    return groups[0] if isinstance(groups, list) and groups and isinstance(groups[0], dict) else {}


def _rates(held: Mapping[str, Any]) -> dict[str, float]:
    """The rate with which the schedule begins, and the one that it was made for."""
    pair = {"rate": held.get("_last_lr"), "base_rate": held.get("base_lrs")}
    known = {name: _number(each[0]) for name, each in pair.items() if isinstance(each, list) and each}
    return {name: value for name, value in known.items() if math.isfinite(value)}


def _number(value: Any) -> float:
    """A number of a schedule; NaN of what is none. A tensor is read, since the loop is over."""
    if isinstance(value, Tensor):
        with unseen():
            return float(value) if value.numel() == 1 and not value.is_meta else math.nan
    return float(value) if isinstance(value, int | float) else math.nan
