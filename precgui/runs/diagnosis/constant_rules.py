"""Group C: models whose answer is one number whatever they get, and layers whose units are all alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.findings import Blame, Evidence, Finding
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows
from precgui.runs.diagnosis.origin import WHOLE
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.sentences import L_, Sentence

_FEWEST_ROWS, _FEWEST = 5, 8  # rows; elements of a tensor
_EQUAL = 1e-4  # relative deviation of the elements of a tensor of alike units, which are summed in different orders
_MATRIX = 32  # elements of a weight at least
_MOVED = 1e-3  # of an element


@np.errstate(all="ignore")
def _is_one_number(table: RecordedRows, place: int, deviation: float) -> NDArray[np.bool_]:
    """For each row whether all elements are one number other than 0, within a relative deviation."""
    largest, least, mean = (table.stat(name)[:, place] for name in ("amax", "amin_nonzero", "mean"))
    many = (table.stat("count")[:, place] >= _FEWEST) & (table.share_zero()[:, place] == 0)
    alike = (largest - least <= deviation * largest) & (np.abs(np.abs(mean) - largest) <= (deviation + 1e-6) * largest)
    return np.asarray(many & alike & (largest > 0))


def constant_output(m: Measurements) -> Answer:
    """The model gives one number for all inputs in each step, as a softmax or a norm over one element does."""
    table = m.table("activation")
    if table is None or not m.own_loop:
        return None
    whole = next((place for place, name in enumerate(table.names) if name in WHOLE), None)
    if whole is None:
        return None
    own = table.recorded[:, whole]
    zero = table.stat("amax")[:, whole] == 0
    constant = _is_one_number(table, whole, 0.0) | zero
    if own.sum() < _FEWEST_ROWS or not constant[own].all() or zero[own].sum() > 1 or table.steps[own][0] > 2:
        return None
    module = _first_constant(table, own, whole)
    before = _before(table, module)
    if not before:
        return None  # a model of one parameter, or of none
    kind = m.model.module_types.get(module, "").rpartition(".")[2]
    first, last = (float(table.stat("mean")[own, whole][at]) for at in (0, -1))
    count = int(np.nanmedian(table.stat("count")[own, whole]))
    proof = Evidence(
        L_("min(output) = max(output) in every recorded step"),
        {"steps": int(own.sum()), "elements": count, "first": first, "last": last},
        Sentence(
            "In each of {steps} recorded steps all {count} numbers that the model returned were the same, {first:.4g} "
            "at the beginning and {last:.4g} at the end, though the numbers before it ({module}) differ.",
            steps=int(own.sum()), count=count, first=first, last=last, module=before,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "constant-output", "error",
            Sentence(
                "The model gives the same number for all inputs: {module} ({kind}) makes a constant of them",
                module=module, kind=kind,
            ) if kind and module not in WHOLE
            else L_("The model gives the same number for all inputs: its last operation makes a constant of them"),
            int(table.steps[own][0]), int(m.steps[-1]), (proof,),
            L_(
                "Look at the dimension of the last softmax or norm: over a single element a softmax is always 1, and a "
                "norm leaves only its bias. Take a sigmoid for one output, no norm behind the last layer, or another "
                "dimension."
            ),
            0.9, "docs/diagnosis.md", module if module not in WHOLE else "", certainty="exact",
            blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


def _first_constant(table: RecordedRows, own: NDArray[np.bool_], whole: int) -> str:
    """The module behind whose output all is constant: the earliest of those at the end."""
    chosen = table.names[whole]
    for place in range(len(table.names) - 1, -1, -1):
        if place == whole or not table.recorded[own, place].all():
            continue
        same = _is_one_number(table, place, 0.0) | (table.stat("amax")[:, place] == 0)
        if not same[own].all():
            break
        chosen = table.names[place]
    return chosen


def _before(table: RecordedRows, module: str) -> str:
    place = table.names.index(module)
    inner = [name for name in table.names[:place] if name not in WHOLE]
    return inner[-1] if inner else ""


@np.errstate(all="ignore")
def alike_units(m: Measurements) -> Answer:
    """Weights that all began with one number, and units that have stayed equal to each other."""
    table = m.table("weight")
    if table is None or not m.own_loop or table.steps[0] > 0 or len(table.steps) < _FEWEST_ROWS:
        return None
    shapes = {each.name: each.shape for each in m.model.parameters if each.role == "parameter"}
    several = {name for name, shape in shapes.items() if sum(size > 1 for size in shape) > 1}
    count = table.stat("count")[0]
    matrices = [place for place, name in enumerate(table.names) if name in several and count[place] >= _MATRIX]
    begun = [place for place in matrices if _is_one_number(table, place, 0.0)[0]]
    if not begun or 2 * len(begun) < len(matrices):
        return None
    still = [place for place in range(len(table.names)) if _stays_alike(table, place)]
    if not still:
        return None
    names = [table.names[place] for place in begun]
    value = float(table.stat("mean")[0, begun[0]])
    left = [table.names[place] for place in still]
    proof = Evidence(
        L_("min(w) = max(w) at the beginning, and of moved tensors to the end"),
        {"value": value, "begun": len(begun), "of": len(matrices), "alike": len(still)},
        Sentence(
            "All elements of {tensors} began as {value:.4g}. In the last recorded step those of {left} are still equal "
            "to each other, though they have moved: units with equal weights get equal gradients.",
            tensors=", ".join(names[:4]), value=value, left=", ".join(left[:4]),
        ),
    )  # fmt: skip
    return [
        Finding(
            "alike-units", "warning",
            L_("All weights of a layer began with the same number: its units are and stay alike"),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Initialise weights at random (torch's own initialisation, or torch.nn.init.xavier_uniform_): equal "
                "units learn the same, so a layer has no more than one. A fixed seed makes runs repeatable."
            ),
            0.9, "docs/diagnosis.md", names[0].rpartition(".")[0], tuple(names[:20]), certainty="exact",
            blame=Blame(False, L_("units with the same weights and inputs are equal in any format")),
        )
    ]  # fmt: skip


def _stays_alike(table: RecordedRows, place: int) -> bool:
    """Whether the elements of a tensor have moved and are equal to each other in each recorded step with an update."""
    rows = np.flatnonzero(table.recorded[:, place])
    if len(rows) < _FEWEST_ROWS:
        return False
    mean = table.stat("mean")[rows, place]
    later = _is_one_number(table, place, _EQUAL)[rows[1:]]
    return bool(later.all()) and bool(abs(mean[-1] - mean[0]) > _MOVED * max(abs(mean[-1]), abs(mean[0])))


RULES = (
    Rule("constant-output", "C", L_("Does the answer of the model depend on its inputs?"), constant_output),
    Rule("alike-units", "C", L_("Do the units of a layer differ?"), alike_units),
)
