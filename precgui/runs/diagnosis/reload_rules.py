"""Group D, states of models that are loaded: weights that are copied onto themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import text, whole
from precgui.sentences import L_, Sentence

_RULE = "loaded-onto-itself"
_OWN = 3  # steps after which a module is given its own weights, until a row is made


def loaded_onto_itself(m: Measurements) -> Answer:
    """A state is loaded whose tensors are the parameters themselves."""
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    rows = m.fact_rows("reloaded_weights")
    kept = next((row for row in rows if text(row, "kind") == "kept"), None)
    own = next((row for row in rows if text(row, "kind") == "own" and whole(row, "count") > 0), None)
    if kept is not None:
        return [_kept(m, kept)]
    if own is not None:
        return [_own(m, own)]
    return RuledOut(_RULE, L_("because no load_state_dict was seen to copy weights onto themselves"))


def _kept(m: Measurements, row: Mapping[str, Any]) -> Finding:
    module, step, since = text(row, "module"), whole(row, "step"), whole(row, "since")
    parameters = whole(row, "parameters")
    proof = Evidence(
        L_("load_state_dict(state): each tensor of the state has the memory of the parameter that it is copied to"),
        {"step": step, "since": since, "parameters": parameters, "loads": whole(row, "count")},
        Sentence(
            "After step {step} load_state_dict got what state_dict() had returned after step {since}. Optimizers have "
            "stepped since, and all {parameters} parameters share the memory of the tensors that were given: the "
            "weights after step {since} do not exist any more.",
            step=step, since=since, parameters=parameters,
        ),
    )  # fmt: skip
    return Finding(
        _RULE, "warning", L_("The weights that are put back were kept without a copy: nothing is put back"),
        min(max(step, int(m.steps[0])), int(m.steps[-1])), int(m.steps[-1]), (proof,),
        L_(
            "Keep a copy: best = copy.deepcopy(model.state_dict()), or a file by torch.save; state_dict() returns the "
            "very tensors that the optimizer goes on changing."
        ),
        0.95, "torch.nn.Module.state_dict documentation", module, certainty="exact", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def _own(m: Measurements, row: Mapping[str, Any]) -> Finding:
    module, step = text(row, "module"), whole(row, "step")
    loads = whole(row, "count") + _OWN - 1
    proof = Evidence(
        L_("load_state_dict(state): each tensor of the state has the memory of the parameter that it is copied to"),
        {"step": step, "parameters": whole(row, "parameters"), "loads": loads},
        Sentence(
            "After {loads} steps, the last of them {step}, load_state_dict of a module was given the module's own "
            "{parameters} parameters, and nothing else has changed them in between.",
            step=step, parameters=whole(row, "parameters"), loads=loads,
        ),
    )  # fmt: skip
    return Finding(
        _RULE, "warning", L_("A network is given its own weights again and again: it never changes"),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_("Load the weights of the other network: target.load_state_dict(online.state_dict())."),
        0.95, "torch.nn.Module.load_state_dict documentation", module, certainty="exact", blame=IN_ANY_FORMAT,
    )  # fmt: skip


RULES = (Rule(_RULE, "D", L_("Does load_state_dict change what it loads?"), loaded_onto_itself),)
