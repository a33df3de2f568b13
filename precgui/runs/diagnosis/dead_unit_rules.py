"""Group C: modules that return zeros only, and what killed them."""

from __future__ import annotations

import numpy as np

from precgui.events import Severity
from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import (
    has_fallen,
    lower_rate,
    narrow_range,
    percent,
    storage,
    update_ratios,
)
from precgui.runs.diagnosis.blame import blame_of_symptom, is_state_coarse
from precgui.runs.diagnosis.chance_rules import LITTLE, chance_proof, flat_at_chance
from precgui.runs.diagnosis.findings import Evidence, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows
from precgui.runs.diagnosis.nan_aware import least
from precgui.runs.diagnosis.rate_cause import HUGE_UPDATE, LARGE_UPDATES
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.sentences import L_, Sentence

_DEAD = 0.999  # share of zeros
_JUMPED = 3.0  # times the loss of the first steps


def dead_units(m: Measurements) -> Answer:
    """A module whose output is zero in every recorded step, and through which no gradient flows."""
    table = m.table("activation")
    if table is None:
        return Undecided("dead-units", L_("outputs of modules (record.activations_every)"))
    zeros, second = table.share_zero(), len(table.steps) // 2
    late = zeros[second:] if len(zeros) > 2 else zeros
    fewest = least(late, 0)
    dead = [
        place
        for place in np.flatnonzero(fewest >= _DEAD)
        if table.names[place] not in origin.WHOLE and not table.bad[:, place].any()
    ]
    dead = [place for place in dead if _no_flow(m, table.names[place])]
    if not dead and (flat := flat_at_chance(m, ("relu",), _DEAD)):
        return [_dead_at_chance(m, flat)]
    if not dead:
        most = float(np.nanmax(fewest)) if np.isfinite(fewest).any() else 0.0
        return RuledOut(
            "dead-units",
            Sentence(
                "because no module has more than {most} zeros in all recorded steps",
                most=percent(min(most, 1.0)),
            ),
        )
    if (~m.finite_loss).any() or (narrow_range(m) and _hidden(m)):
        return None
    names, chance = tuple(table.names[place] for place in dead), chance_proof(m)
    learns = has_fallen(m) and not chance  # from 2600 to the entropy of the classes it falls without anything learnt
    proof = Evidence(
        L_("zeros / n > 0.999 in every recorded step of the second half"),
        {"zeros": float(fewest[dead[0]]), "recorded_steps": len(late), "modules": len(dead)},
        Sentence(
            "{fewest} of the outputs of {name} are zero in each of {late_count} steps.",
            fewest=percent(float(fewest[dead[0]])),
            name=names[0],
            late_count=len(late),
        ),
        Sentence("zeros of {name}", name=names[0]),
        tuple(zip(table.steps.tolist(), zeros[:, dead[0]].tolist(), strict=True)),
    )
    severity: Severity = "info" if learns else "warning"
    return [_dead(m, table, names, (proof, *chance), severity)]


def _dead(
    m: Measurements, table: RecordedRows, names: tuple[str, ...], proofs: tuple[Evidence, ...], severity: Severity
) -> Finding:
    killed, rate, title = None if is_state_coarse(m) else _killed_by_rate(m), lower_rate(m), _zeros_only(names)
    first, last = int(table.steps[len(table.steps) // 2]), int(table.steps[-1])
    if killed is not None:
        return Finding(
            "dead-units",
            severity,
            Sentence("{title}, since the learning rate was too high", title=title),
            first,
            last,
            (killed, *proofs),
            (
                Sentence(
                    "Lower the learning rate to {rate:.3g}, or warm it up, and start anew: units that are dead have "
                    "no gradient.",
                    rate=rate,
                )
                if rate > 0
                else L_("Lower the learning rate, or warm it up, and start anew: units that are dead have no gradient.")
            ),
            0.85,
            "docs/diagnosis.md",
            names[0],
            names,
            {"optimizer.lr": rate} if rate > 0 else {},
            "estimate",
            LARGE_UPDATES if storage(m) == "fp32" else blame_of_symptom(m),
        )
    return Finding(
        "dead-units", severity, title, first, last, proofs,
        L_(
            "Lower the learning rate or start anew with another initialisation, a leaky activation or a norm before."
        ),
        0.8, "docs/diagnosis.md", names[0], names, blame=blame_of_symptom(m),
    )  # fmt: skip


def _killed_by_rate(m: Measurements) -> Evidence | None:
    """A step that changed the weights by more than HUGE_UPDATE of their norm, and a loss that jumped then."""
    steps, ratios = update_ratios(m)
    known = np.isfinite(ratios)
    if not known.any() or len(m.loss) < 5:
        return None
    place = int(np.flatnonzero(known)[np.argmax(ratios[known])])
    largest, highest = float(ratios[place]), float(m.loss[m.finite_loss].max())
    first = float(np.median(m.loss[:3]))
    if not largest > HUGE_UPDATE or not highest > _JUMPED * first > 0:
        return None
    return Evidence(
        L_("|update| / |weights| > 0.3 in a step, and a loss > 3 times that of the first steps"),
        {"update_ratio": largest, "step": int(steps[place]), "loss_first": first, "loss_highest": highest},
        Sentence(
            "The update of step {steps:.0f} was {largest:.2g} times as large as the weights, and the loss rose from "
            "{first:.3g} to {highest:.3g}.",
            steps=steps[place], largest=largest, first=first, highest=highest,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip


def _dead_at_chance(m: Measurements, flat: tuple[tuple[str, float], ...]) -> Finding:
    """ReLUs inside modules that return zeros only, in a training that stands still at chance."""
    names = tuple(name for name, _ in flat[:20])
    proof = Evidence(
        L_("relu(x) = 0 in > 99.9 % of its results"), {"zeros": flat[0][1], "modules": len(flat)},
        (
            Sentence(
                "{share} of the results of a ReLU in {name} are zero in the last step seen.",
                share=percent(flat[0][1]), name=names[0],
            )
            if names[0]
            else Sentence(
                "{share} of the results of a ReLU in the model are zero in the last step seen.",
                share=percent(flat[0][1]),
            )
        ),
    )  # fmt: skip
    return Finding(
        "dead-units", "warning", (
            Sentence("ReLUs in {name} return zeros only: dead units", name=names[0])
            if names[0]
            else L_("ReLUs in the model return zeros only: dead units")
        ),
        int(m.steps[0]), int(m.steps[-1]), (*chance_proof(m, LITTLE), proof),
        L_(
            "Normalise the inputs, lower the learning rate or warm it up, and start anew: these units have no "
            "gradient."
        ),
        0.8, "docs/diagnosis.md", names[0], names, certainty="estimate", blame=blame_of_symptom(m),
    )  # fmt: skip


def _zeros_only(modules: tuple[str, ...]) -> str:
    if len(modules) == 1:
        return Sentence("{module} returns zeros only: dead units", module=modules[0])
    return Sentence(
        "{module} and {count} more return zeros only: dead units", module=modules[0], count=len(modules) - 1
    )


def _hidden(m: Measurements) -> bool:
    table = m.table("activation")
    return table is not None and bool((np.nan_to_num(table.stat("amax")) > 2.0**12).any())


def _no_flow(m: Measurements, name: str) -> bool:
    """Whether the weights before or in the module get no gradient, as far as that is recorded."""
    gradients = m.table("gradient")
    if gradients is None:
        return True
    order = origin.forward_order(m)
    place = order.index(name) if name in order else 0
    near = (name, order[max(place - 1, 0)])
    own = [i for i, each in enumerate(gradients.names) if each.rpartition(".")[0] in near]
    half = gradients.stat("amax")[len(gradients.steps) // 2 :][:, own]
    known = np.isfinite(half).any(1)
    return bool(known.any()) and bool((half[known] == 0).any(1).all())


RULES = (Rule("dead-units", "C", L_("Are there dead modules?"), dead_units),)
