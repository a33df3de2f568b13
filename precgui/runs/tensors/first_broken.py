"""Which of the tensors that hold NaN or Inf in a step broke first: the one that was computed first."""

from __future__ import annotations

from collections.abc import Sequence

from precgui.backward_order import first_nonfinite_gradient
from precgui.runs.run import Run


def first_broken(run: Run, kind: str, step: int, names: Sequence[str]) -> str:
    """One of `names`, all of which hold NaN or Inf in `step`; '' for none.

    Gradients are computed backward, so the first is the one that the backward pass completed first: as recorded, else
    as the event of the step says, else the first one of the last module. Outputs go by the order of the forward pass,
    their gradients by its reverse; others keep their order.
    """
    if not names:
        return ""
    if kind == "gradient":
        return _of_gradients(run, step, names)
    if kind in ("activation", "activation_gradient"):
        order = {name: place for place, name in enumerate(run.model().forward_order())}
        known = [name for name in names if name in order] or list(names)
        pick = min if kind == "activation" else max
        return pick(known, key=lambda name: order.get(name, known.index(name)))
    return names[0]


def _of_gradients(run: Run, step: int, names: Sequence[str]) -> str:
    order = {name: place for place, name in enumerate(run.model().backward_order())}
    reported = [event.module for event in run.events("nonfinite_gradient") if event.step == step]
    if order.keys().isdisjoint(names) and reported and reported[0] in names:
        return reported[0]
    return first_nonfinite_gradient(names, order)
