"""A sentence on a search whose best plan does not keep the held-out loss: which formats do, and what else to name."""

from __future__ import annotations

from precgui.engine.assignment.search import Assignment
from precgui.formats import registry
from precgui.sentences import Sentence, together


def budget_sentence(assignment: Assignment, bits: float | None) -> str:
    """Says that no plan within so many bits of a weight keeps the loss; empty where the best one does.

    A plan keeps the loss where its rise is within the noise of the held-out data. `bits` is None where a rise of the
    loss was the budget, which the plan then keeps.
    """
    if bits is None or not assignment.best.above_noise:
        return ""
    parts = [
        Sentence(
            "No plan within {bits:g} bits a weight keeps the held-out loss of FP32, {loss:.3g}: the best one raises it "
            "by {rise:.2g}.",
            bits=bits,
            loss=assignment.fp32_loss,
            rise=assignment.best.rise,
        )
    ]
    keeping = {name: plan for name, plan in assignment.uniform.items() if not plan.above_noise}
    if keeping:
        name = min(keeping, key=lambda each: keeping[each].bits)
        parts.append(
            Sentence("{name} in all layers keeps it, with {bits:.3g} bits.", name=name, bits=keeping[name].bits)
        )
    for name in assignment.uniform:
        blocks = [each.name for each in registry.blocks().values() if each.element == name]
        if blocks and name not in keeping:
            scaled = together(*blocks, between=" and ")
            parts.append(
                Sentence(
                    "{name} has no scale of its own; {scaled} hold the same elements with one.",
                    name=name,
                    scaled=scaled,
                )
            )
    return together(*parts)
