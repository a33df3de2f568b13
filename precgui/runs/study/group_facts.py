"""The machine, libraries and settings of each group of a study, which show in which of them the groups differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precgui.config import OWN_LOOP
from precgui.runs.differences import PARTS, ComparedFacts, DifferenceRow, Part, differing, machine_facts
from precgui.runs.known_settings import NOT_KNOWN
from precgui.runs.study.figures import RunFigures
from precgui.runs.study.groups import Study


def group_differences(study: Study, runs: Sequence[RunFigures]) -> list[DifferenceRow]:
    """The facts in which groups differ; where runs of one group differ, one cell holds all its values."""
    names = [group.group for group in study.groups]
    own = [(name, [run for run in runs if run.group == name and run.kind == "run"]) for name in names]
    return differing([_facts(name, members) for name, members in own])


def _facts(name: str, runs: Sequence[RunFigures]) -> ComparedFacts:
    tables = [_of_run(run) for run in runs]
    parts: dict[Part, Mapping[str, Any]] = {part: _joined([table[part] for table in tables]) for part in PARTS}
    return ComparedFacts(name, parts)


def _of_run(run: RunFigures) -> dict[Part, Mapping[str, Any]]:
    seed = NOT_KNOWN if run.work.config.task == OWN_LOOP else run.seed
    return {
        "machine": machine_facts({**run.machine, "host": run.host}, run.device, run.threads),
        "libraries": run.versions,
        "settings": {"precision": run.precision, "seed": seed, **run.settings},
    }


def _joined(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One table; a fact that differs inside the group has all its values, in their order of coming."""
    keys = dict.fromkeys(key for table in tables for key in table)
    results = {}
    for key in keys:
        values = [table.get(key) for table in tables]
        values = [value for value in values if value != NOT_KNOWN] or [NOT_KNOWN]
        same = all(value == values[0] for value in values)
        results[key] = values[0] if same else ", ".join(dict.fromkeys(map(str, values)))
    return results
