"""Runs that belong to no sweep, grouped by all that they were asked to do but the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from precgui.runs.compare import names
from precgui.runs.known_settings import NOT_KNOWN
from precgui.runs.run import Run
from precgui.runs.study.figures import figures_of
from precgui.runs.study.run_figures import RunFigures

_MAX_FIELDS = 3  # differing fields in a name; more are a number
_IN_NO_NAME = ("train.rounding_twin",)


def ungrouped_figures(runs: Sequence[Run]) -> list[RunFigures]:
    """The figures of runs in groups named by precision and by what else differs between the runs."""
    results = [figures_of(run, name) for run, name in zip(runs, names(runs), strict=True)]
    differing = _differing([run.settings for run in results])
    created = [
        replace(
            run,
            group=_group(run, differing),
            kind="twin" if run.settings.get("train.rounding_twin") is True else "run",
        )
        for run in results
    ]
    return sorted(created, key=lambda run: run.seed)


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for each in settings for key in each if key not in _IN_NO_NAME)
    return [key for key in keys if len({repr(each.get(key, NOT_KNOWN)) for each in settings} - {repr(NOT_KNOWN)}) > 1]


def _group(run: RunFigures, differing: Sequence[str]) -> str:
    known = {key: value for key, value in run.settings.items() if value != NOT_KNOWN}
    displayed = [f"{key}={known.get(key, '?')}" for key in differing[:_MAX_FIELDS]]
    remainder = differing[_MAX_FIELDS:]
    if remainder:  # a name only has to distinguish groups, in any language; Differences has the values
        values = tuple(repr(run.settings.get(key)) for key in remainder)
        displayed.append(f"+{len(remainder)} ({_short(values)})")
    return " ".join([run.precision, *displayed])


def _short(values: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(values).encode()).hexdigest()[:6]
