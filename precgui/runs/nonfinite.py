"""Where values that are not finite came up first: in a module's output, or in the gradient of a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from precgui.events import TENSOR_STATS
from precgui.runs.run import Run

_BAD = [TENSOR_STATS.index(name) for name in ("nan", "pos_inf", "neg_inf")]


@dataclass(frozen=True)
class FirstNonFinite:
    """The first place of one step. `name` is a module for `forward`, a parameter for `backward`; '' when not known."""

    step: int
    direction: Literal["forward", "backward"]
    name: str


_DIRECTIONS: dict[str, Literal["forward", "backward"]] = {
    "nonfinite_loss": "forward",
    "nonfinite_activation": "forward",
    "nonfinite_gradient": "backward",
}


def first_nonfinite(run: Run) -> FirstNonFinite | None:
    """The first place of the first step that has one, by the events; the forward pass comes first. None for a
    run without such events."""
    reported = [event for event in run.events() if event.kind in _DIRECTIONS]
    if not reported:
        return None
    first = min(reported, key=lambda event: (event.step, _DIRECTIONS[event.kind] == "backward"))
    return FirstNonFinite(first.step, _DIRECTIONS[first.kind], first.module)


def nonfinite_gradients(run: Run, step: int) -> list[str]:
    """The parameters whose gradient was not finite in a step, in the order in which the backward pass made them.

    That order is the one of the first backward pass where the run recorded it, else the reverse of the model's;
    parameters of one module stay in the model's order. Empty when the gradients of the step were not measured.
    """
    history = run.tensors().get("gradient")
    if history is None or step not in history.steps():
        return []
    row = int(np.flatnonzero(history.steps() == step)[0])
    stats = history.stats(row, row + 1)[0]
    bad = [history.names[place] for place in np.flatnonzero(np.nansum(stats[:, _BAD], 1) > 0).tolist()]
    order = {name: place for place, name in enumerate(run.model().backward_order())}
    if not all(name in order for name in bad):
        order = {name: -place for place, name in enumerate(bad)}
    module = {name: name.rpartition(".")[0] for name in bad}
    earliest: dict[str, int] = {}
    for name in bad:
        earliest[module[name]] = min(earliest.get(module[name], order[name]), order[name])
    return sorted(bad, key=lambda name: earliest[module[name]])
