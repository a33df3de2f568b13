"""Where the first value that is not finite came from: data, a module, the loss, or the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from precgui.events import Incident
from precgui.runs.diagnosis.blame import repetition
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows, module_of
from precgui.runs.recorded_facts import nonfinite_operation, text
from precgui.sentences import L_

Place = Literal["data", "input", "forward", "loss", "backward", "weights", "unknown"]
WHOLE = ("(model)", "")
_DATA_WORDS = (L_("inputs of this step hold"), L_("targets of this step hold"))


@dataclass(frozen=True)
class Origin:
    """`place` is `input` for the first module with finite weights. `infinite` says that Inf was recorded, None where no
    check says; `before` is the last module whose output was finite."""

    step: int
    place: Place
    module: str = ""
    infinite: bool | None = None
    before: str = ""
    part: str = ""  # of the data


def forward_order(m: Measurements) -> list[str]:
    """The modules in the order in which they ran: as recorded, else in the order of their first outputs."""
    table = m.table("activation")
    visited = [name for name in table.names if name not in WHOLE] if table is not None else []
    ran = [name for name in m.model.forward_order() if name not in WHOLE]
    if not ran:
        return visited
    owners = {name.rpartition(".")[0] for name in ran} - set(visited)  # containers without an output of their own
    known = [name for name in ran if name not in owners]
    return known + [name for name in visited if name not in known]


def of_loss(m: Measurements, place: int) -> Origin:
    """The origin of a loss that is not finite; `place` is the index of its step in the signals."""
    step = int(m.steps[place])
    reported = [each for each in m.of_kind("nonfinite_loss") if each.step == step]
    for each in reported:
        if any(words in each.message for words in _DATA_WORDS):
            return Origin(step, "data", part="targets" if "targets of" in each.message else "inputs")
    if _weights_bad_before(m, step):
        return Origin(step, "weights")
    if is_batch_broken(m, step):
        return Origin(step, "data", part="inputs")
    visited = _first_bad_output(m, step)
    named = next((each.module for each in reported if each.module not in WHOLE), "")
    module = visited.module if visited is not None and visited.module else named
    if not module:
        if any(each.module == WHOLE[0] for each in reported) or _is_bad(m, WHOLE[0], step):
            before = visited.before if visited is not None else ""
            return Origin(step, "forward", WHOLE[0], _infinite(m, WHOLE[0], step), before)
        return visited or _of_report(m, step, reported)
    first = is_first(m, module) and not _computes_by_itself(m, module)
    before = visited.before if visited is not None else _last_checked_before(m, module)
    return Origin(step, "input" if first else "forward", module, _infinite(m, module, step), before)


def is_batch_broken(m: Measurements, step: int) -> bool:
    """Whether the batch of a step holds NaN or Inf, of a kind that has none in steps that were finite."""
    return bool(broken_batches(m, step))


def broken_batches(m: Measurements, step: int) -> list[Mapping[str, Any]]:
    """The tensors of the batch of a step that hold NaN or Inf, of a kind that has none in steps that were finite."""
    finite = np.isfinite(m.grad_norm)
    sound = set(m.steps[m.finite_loss & ~m.skipped & (finite | ~finite.any())].tolist())
    usual = {text(row, "input") for row in m.fact_rows("batches") if row.get("holes") and row.get("step") in sound}
    rows = [row for row in m.fact_rows("broken_batches") if row.get("step") == step]
    return [row for row in rows if (row.get("nan") or row.get("infinite")) and text(row, "input") not in usual]


def _last_checked_before(m: Measurements, module: str) -> str:
    """The module with weights that ran before this one, whose output a report on this one says to be finite."""
    held = {name.rpartition(".")[0] for name in m.model.by_name}
    order = [name for name in forward_order(m) if name in held or name == module]
    return order[order.index(module) - 1] if module in order and order[0] != module else ""


def operations_between(m: Measurements, before: str, module: str) -> bool:
    """Whether code of a class that is not torch's may run between two modules, as their parents' forward does."""
    if not before:
        return False
    parts = [before.split("."), module.split(".")]
    depth = next((i for i, (a, b) in enumerate(zip(*parts, strict=False)) if a != b), min(map(len, parts)))
    parents = {".".join(path[:end]) for path in parts for end in range(depth, len(path))}
    return any(_computes_by_itself(m, parent) for parent in parents)


def _of_report(m: Measurements, step: int, reported: Sequence[Incident]) -> Origin:
    """The origin where no output of the step is recorded: a report without a module says that all were finite."""
    checked = m.table("activation") is not None and all(";" not in each.message for each in reported)
    if reported and checked and not any(each.module for each in reported):
        return Origin(step, "loss")
    return Origin(step, "unknown")


def _computes_by_itself(m: Measurements, module: str) -> bool:
    """Whether a module is of a class that is not torch's: its own operations may be at fault."""
    kind = m.model.module_types.get(module, "")
    return bool(kind) and not kind.startswith("torch.nn.")


def is_first(m: Measurements, module: str) -> bool:
    """Whether no other module ran before it."""
    order = forward_order(m)
    return bool(order) and order[0] == module


def of_gradients(m: Measurements, step: int) -> Origin:
    """The origin of non-finite gradients at a finite loss: the module behind the last one with a finite gradient."""
    table, order = m.table("gradient"), forward_order(m)
    reported = next((e.module for e in m.of_kind("nonfinite_gradient") if e.step == step and e.module), "")
    row = _row(table, step)
    if table is None or row is None or not order:
        return Origin(step, "backward", module_of(reported, "gradient"), None)
    bad = {module_of(name, "gradient") for name, is_bad in zip(table.names, table.bad[row], strict=True) if is_bad}
    places = [order.index(module) for module in bad if module in order]
    infinite = bool(table.infinite[row].any())
    if not places:
        return Origin(step, "backward", module_of(reported, "gradient"), infinite)
    last = max(places)
    flowing = m.table("activation_gradient")
    at = _row(flowing, step)
    if flowing is not None and at is not None:
        wrong = {name for name, is_bad in zip(flowing.names, flowing.bad[at], strict=True) if is_bad}
        infinite = infinite or bool(flowing.infinite[at].any())
        places = [order.index(name) for name in wrong if name in order]
        if not places or max(places) < last:
            return Origin(step, "backward", order[last], infinite)
        last = max(places)
    if last + 1 < len(order):
        return Origin(step, "backward", order[last + 1], infinite, before=order[last])
    return Origin(step, "loss", "", infinite, before=order[last])


def of_finite_loss(m: Measurements, step: int) -> Origin | None:
    """The first output that was not finite in a step with a finite loss, where the pass is finite in FP32.

    A loss may leave out rows with NaN, and their gradients are NaN all the same. None without such a repetition.
    """
    repeated, visited = repetition(m, step), _first_bad_output(m, step)
    if repeated.get("finite") is not True or (visited is not None and visited.place == "loss"):
        return None
    module = str(repeated.get("module") or WHOLE[0])
    before = visited.before if visited is not None and visited.module == module else _last_checked_before(m, module)
    return Origin(step, "forward", module, _infinite(m, module, step), before)


def are_outputs_finite(m: Measurements, step: int) -> bool:
    """Whether outputs of modules were recorded in a step, and all of them are finite."""
    visited = _first_bad_output(m, step)
    return visited is not None and visited.place == "loss"


def _row(table: RecordedRows | None, step: int) -> int | None:
    if table is None:
        return None
    rows = np.flatnonzero(table.steps == step)
    return int(rows[0]) if len(rows) else None


def _first_bad_output(m: Measurements, step: int) -> Origin | None:
    """The first bad output recorded in this step; None without any. If all are finite, the loss itself is at fault."""
    table = m.table("activation")
    row = _row(table, step)
    if table is None or row is None:
        return None
    before = ""
    places = {name: place for place, name in enumerate(table.names)}
    usual = _masked(m, table)
    for name in forward_order(m):
        place = places.get(name)
        if place is None or not table.recorded[row, place]:
            continue
        if table.bad[row, place] and not usual[place]:
            return Origin(step, "forward", name, bool(table.infinite[row, place]), before)
        before = name
    return Origin(step, "loss", before=before)


def _is_bad(m: Measurements, name: str, step: int) -> bool:
    """Whether NaN or Inf is recorded of an output of this step, and not in healthy steps, too."""
    table = m.table("activation")
    row = _row(table, step)
    if table is None or row is None or name not in table.names:
        return False
    place = table.names.index(name)
    return bool(table.bad[row, place] and not _masked(m, table)[place])


def both_signs(m: Measurements, name: str, step: int) -> bool:
    """Whether an output held Inf of both signs in this step."""
    table = m.table("activation")
    row = _row(table, step)
    if table is None or row is None or name not in table.names:
        return False
    place = table.names.index(name)
    return bool(table.stat("pos_inf")[row, place] > 0 and table.stat("neg_inf")[row, place] > 0)


def _masked(m: Measurements, table: RecordedRows) -> NDArray[np.bool_]:
    """Outputs that held -Inf, no NaN and no +Inf, in a step with a finite loss: a mask puts it there."""
    well = np.isfinite(m.at_loss(table.steps))
    nan, above, below = (np.nan_to_num(table.stat(name)[well]) > 0 for name in ("nan", "pos_inf", "neg_inf"))
    return np.asarray((below & ~nan & ~above).any(0))


def _infinite(m: Measurements, module: str, step: int) -> bool | None:
    """Whether Inf was among the outputs of a module in this step, or in its next measurement."""
    table = m.table("activation")
    if table is None or module not in table.names:
        return None
    place = table.names.index(module)
    rows = np.flatnonzero((table.steps >= step) & table.bad[:, place])
    return bool(table.infinite[rows[0], place]) if len(rows) else None


def _weights_bad_before(m: Measurements, step: int) -> bool:
    if text(nonfinite_operation(m.run, step), "given") == "weights":
        return True
    table = m.table("weight")
    if table is None:
        return False
    rows = np.flatnonzero(table.steps < step)
    return bool(len(rows) and table.bad[rows[-1]].any())


def last_amax(m: Measurements, kind: str, name: str, step: int) -> tuple[int, float] | None:
    """The last finite largest magnitude of a tensor at or before a step, with the step of that measurement."""
    table = m.table(kind)
    if table is None or name not in table.names:
        return None
    values = table.stat("amax")[:, table.names.index(name)]
    rows = np.flatnonzero((table.steps <= step) & np.isfinite(values) & (values > 0))
    return (int(table.steps[rows[-1]]), float(values[rows[-1]])) if len(rows) else None
