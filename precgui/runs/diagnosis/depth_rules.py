"""Group C, along the depth of the model: gradients that vanish without any format at fault."""

from __future__ import annotations

import numpy as np

from precgui.runs.diagnosis.analysis import growth, median, narrow_range, percent
from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.findings import Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements, module_of
from precgui.runs.diagnosis.nan_aware import middle
from precgui.runs.diagnosis.origin import forward_order
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.sentences import L_, Sentence

_FEWEST_LAYERS = 5
_VANISHED = 1e-4
SHARP_FALL = 8.0  # of the gradient in each layer towards the input
_FEWEST_FALLS = 3  # where there are as many layers
_FEWEST_IN_SHORT = 3  # layers


def vanishing_gradients(m: Measurements) -> Answer:
    """Gradients that fall by octaves from the last layer to the first, in a training whose loss does not fall."""
    table = m.table("gradient")
    if table is None or not m.n or not m.finite_loss.all() or narrow_range(m):
        return None
    place = {name: index for index, name in enumerate(forward_order(m))}
    owners = [module_of(name, "gradient") for name in table.names]
    own = [index for index, name in enumerate(table.names) if name.endswith("weight") and owners[index] in place]
    own.sort(key=lambda index: place[owners[index]])
    if len(own) < _FEWEST_LAYERS:
        return None
    sizes = middle(table.stat("rms")[:, own], 0)
    third = max(len(own) // 3, 1)
    first, last = median(sizes[:third]), median(sizes[-third:])
    grown = growth(m, m.n)
    if grown is None or not last > 0 or not np.isfinite(first):
        return None
    ratio, fall = first / last, 1 - grown.last_loss / grown.first_loss if grown.first_loss > 0 else 1.0
    if ratio > _VANISHED or fall > 0.1:
        return RuledOut(
            "vanishing-gradients",
            Sentence(
                "because gradients of the first layers are {ratio:.2g} times those of the last and the loss fell by "
                "{fall}",
                ratio=ratio,
                fall=percent(max(fall, 0)),
            ),
        )  # fmt: skip
    names = tuple(table.names[index] for index in own[:third])
    proof = Evidence(
        L_("rms(g first third) / rms(g last third) < 1e-4 and the loss falls by < 10 %"),
        {"ratio": ratio, "first": first, "last": last, "fall": fall},
        Sentence(
            "The gradients of the first {third} layers are {ratio:.2g} times those of the last ({first:.2g}, "
            "{last:.2g}), in formats with the range of FP32; the loss fell by {fall}.",
            third=third,
            ratio=ratio,
            first=first,
            last=last,
            fall=percent(max(fall, 0)),
        ),
        Sentence("rms of the gradient of {name}", name=names[0]),
        m.points_of(table.steps, table.stat("rms")[:, own[0]]),
    )  # fmt: skip
    return [
        Finding(
            "vanishing-gradients", "warning", L_("The gradients vanish on their way to the first layers"),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Add residuals or norms, or use another initialisation or activation."), 0.8, "docs/diagnosis.md",
            module_of(names[0], "gradient"), names[:20], blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


@np.errstate(all="ignore")
def fall_per_layer(m: Measurements) -> float | None:
    """The factor by which gradients fall from layer to layer towards the first ones, which have none left.

    None unless each of the last layers with a gradient has one smaller by SHARP_FALL than the layer after it in a
    typical row, and no layer before them has any. So few numbers of FP32 would reach the first layers, too. In a model
    of five layers or more these are four at least, and the very last one may differ (no activation follows it); in one
    of three or four layers two at least, the last among them.
    """
    table = m.table("gradient")
    if table is None:
        return None
    own = [name for name in forward_order(m) if f"{name}.weight" in table.names]
    if len(own) < _FEWEST_IN_SHORT:
        return None
    sizes = middle(table.stat("rms")[:, [table.names.index(f"{name}.weight") for name in own]], 0)
    zero = int((~(sizes > 0)).sum())
    is_short = len(own) < _FEWEST_LAYERS
    arriving = sizes[zero:] if is_short else sizes[zero:-1]
    fewest = 1 if is_short else _FEWEST_FALLS
    if not zero or (sizes[:zero] > 0).any() or len(arriving) < fewest + 1:
        return None
    falls = arriving[1:] / arriving[:-1]
    return float(np.median(falls)) if (falls > SHARP_FALL).all() else None


RULES = (Rule("vanishing-gradients", "C", L_("Do gradients reach the first layers?"), vanishing_gradients),)
