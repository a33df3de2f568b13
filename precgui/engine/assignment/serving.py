"""The search for formats of layers as a task of a child process; its result as a document, and as a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from precgui.config import build
from precgui.config.names import check_format
from precgui.engine.assignment.search import Assignment, MeasuredPlan, assign, assigned_config
from precgui.engine.errors import Stopped
from precgui.errors import SentenceError
from precgui.formats import registry
from precgui.sentences import L_, Sentence, message_of, together


class _Control(Protocol):
    def stopped(self) -> bool: ...


def assignment_document(assignment: Assignment, bits: float | None) -> dict[str, Any]:
    """An assignment as built-in types; the keys of `precgui assign --json` that it decides. `bits` is its budget."""

    def plan(measured: MeasuredPlan) -> dict[str, Any]:
        noise = measured.noise if measured.noise < float("inf") else None
        return {**asdict(measured), "noise": noise, "above_noise": measured.above_noise}

    return {
        "layers": assignment.best.layers, "bits": assignment.best.bits, "loss_rise": assignment.best.rise,
        "above_noise": assignment.best.above_noise, "fp32_loss": assignment.fp32_loss, "samples": assignment.samples,
        "candidates": [plan(measured) for measured in assignment.candidates],
        "uniform": {name: plan(measured) for name, measured in assignment.uniform.items()},
        "scores": assignment.scores, "weights": assignment.weights,
        "over_budget": budget_sentence(assignment, bits),
    }  # fmt: skip


def serve(
    emit: Callable[[Any], None], control: _Control, *, config: Mapping[str, Any], formats: Sequence[str], kind: str,
    budget: float,
) -> None:  # fmt: skip
    """Emits `{"kind": "assigned", "config", "assignment"}` or `{"kind": "fault", "message"}`.

    `kind` is "bits", of a weight on average, or "loss", the rise of the held-out loss that is allowed.
    """
    try:
        base = build(config)
        names = list(dict.fromkeys(check_format(name) for name in formats))
        bits, rise = (budget, None) if kind == "bits" else (None, budget)
        assignment = assign(base, names, bits=bits, rise=rise, stopped=control.stopped)
        planned = assigned_config(base, assignment.best.layers)
    except Stopped:
        emit({"kind": "fault", "message": L_("The search was stopped.")})
    except (SentenceError, MemoryError, ValueError) as error:
        emit({"kind": "fault", "message": message_of(error)})
    else:
        document = assignment_document(assignment, bits)
        emit({"kind": "assigned", "config": planned.model_dump(), "assignment": document})


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
