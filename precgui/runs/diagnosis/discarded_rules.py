"""Group D, backward passes that no optimizer uses."""

from __future__ import annotations

from precgui.runs.diagnosis.analysis import median
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import text, whole
from precgui.sentences import L_, Sentence

_RULE = "passes-discarded"
_FEWEST, _FEWEST_STEPS = 4, 2  # passes between two steps, steps that were watched
_SHORT = 8  # steps: of a run with fewer, one step is watched in full


def passes_discarded(m: Measurements) -> Answer:
    """Gradients are cleared in each batch, and the optimizer steps after many batches."""
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    rows = [row for row in m.fact_rows("discarded_passes") if whole(row, "passes") >= _FEWEST]
    needed = 1 if m.n < _SHORT else _FEWEST_STEPS
    if len(rows) < needed or not median(m.backward_passes) >= _FEWEST:
        return RuledOut(_RULE, L_("because no step was seen that uses the last of several backward passes alone"))
    steps, passes = [whole(row, "step") for row in rows], max(whole(row, "passes") for row in rows)
    optimizer = text(rows[0], "optimizer")
    proof = Evidence(
        L_("backward passes whose gradients are None or zero before the next pass, and that nothing has read"),
        {"passes": passes, "discarded": passes - 1, "steps": len(rows)},
        Sentence(
            "Before {row_count} steps of {optimizer} that were watched ({steps}) up to {passes} backward passes were "
            "made. The gradients of all of them but the last were cleared before the next pass, and no operation had "
            "read them.",
            row_count=len(rows), optimizer=optimizer, steps=", ".join(map(str, steps[:6])), passes=passes,
        ),
    )  # fmt: skip
    return [
        Finding(
            _RULE, "warning",
            Sentence("The gradients of {discarded} of {passes} batches are thrown away", discarded=passes - 1,
                     passes=passes),
            steps[0], int(m.steps[-1]), (proof,),
            L_(
                "Call optimizer.step() after each loss.backward(), inside the loop over batches; or, to add up the "
                "gradients of several batches, zero_grad() once before them."
            ),
            0.95, "torch.optim documentation, taking an optimization step", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (Rule(_RULE, "D", L_("Does each backward pass reach a step?"), passes_discarded),)
