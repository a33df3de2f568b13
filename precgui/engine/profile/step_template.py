"""A step recorded with all that identifies its operations, and then only its times.

A recording with shapes costs 9 us for an event of a convolution, one without 1 us (Zen 3, torch 2.9 to 2.15), and a
marker around a module 15 us: so much would disturb what is measured. Both recordings hold the same events in the same
order, so the first one says which event is which, and the others, without shapes and markers, how long each took.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

from torch.profiler import profile

from precgui.engine.profile.operations import (
    DATA,
    MODULE,
    PHASE,
    OperationRow,
    Profiled,
    empty_row,
    in_steps,
    profile_of_steps,
    row_key,
)

_GAP = -1  # the place of an event that belongs to no operation


@dataclass(frozen=True, slots=True)
class StepTemplate:
    """The events of one step on a CPU by name, of each the place of its row in `rows`, and the rows without times."""

    names: tuple[str, ...]
    places: tuple[int, ...]
    rows: tuple[OperationRow, ...]


def template_of(detailed: profile, device: Any) -> StepTemplate:
    """The template from a recording of one step with shapes and module markers."""
    rows = profile_of_steps(detailed, 1, device).rows
    numbers = {row_key(row): number for number, row in enumerate(rows)}
    names, places = [], []
    for event, place in in_steps(detailed):
        if place.phase != DATA and not event.name.startswith(MODULE):
            names.append(event.name)
            places.append(numbers[row_key(empty_row(place.owner, place))] if place.owner is not None else _GAP)
    return StepTemplate(tuple(names), tuple(places), tuple(rows))


def times_of_steps(recorded: profile, steps: int, template: StepTemplate) -> Profiled | None:
    """The operations of so many steps that were recorded without shapes; None where a step has other events."""
    seconds, gap_s = [0.0] * len(template.rows), 0.0
    events = [(event.name, event.self_cpu_time_total * 1e-6, place.phase) for event, place in in_steps(recorded)]
    timed = [(name, own_s) for name, own_s, phase in events if phase != DATA]
    if [name for name, _ in timed] != list(template.names) * steps:
        return None
    for (_, own_s), place in zip(timed, itertools.cycle(template.places)):
        if place == _GAP:
            gap_s += own_s
        else:
            seconds[place] += own_s
    rows = [
        replace(row, calls=row.calls * steps, events=row.events * steps, cpu_s=own_s)
        for row, own_s in zip(template.rows, seconds, strict=True)
    ]
    data_s = sum(own_s for _, own_s, phase in events if phase == DATA)
    wall_s = sum(own_s for _, own_s, _ in events)
    markers = sum(name.startswith(PHASE) for name, _ in timed)
    gap_events = sum(place == _GAP for place in template.places) * steps
    return Profiled(rows, steps, wall_s, gap_s, data_s, len(timed), gap_events, markers)
