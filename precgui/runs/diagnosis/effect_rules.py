"""Rules on a trained model from the measurements of `precgui quantize`: calibration data, and the time of a plan."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from precgui.formats.text import grouped
from precgui.runs.diagnosis.findings import Evidence, RuledOut
from precgui.runs.diagnosis.scanned_model import Answer, ScannedModel, and_others, model_finding
from precgui.sanitize import visible_name
from precgui.sentences import L_, Sentence


def unreached_layers(model: ScannedModel) -> Answer:
    """Layers that no calibration input reached, as experts that no token was sent to."""
    seen = dict(model.effects.inputs) if model.effects is not None else {}
    if not seen:
        return None
    fewest, usual = min(seen.values()), statistics.median(seen.values())
    lost = [name for name, count in seen.items() if count == 0]
    if not lost:
        return RuledOut(
            "unreached-layers",
            Sentence(
                "because each of {layers} layers got {fewest} inputs of the calibration data or more",
                layers=len(seen),
                fewest=grouped(fewest),
            ),
        )
    tensors = [f"{name}.weight" if f"{name}.weight" in model.surveys else name for name in lost]
    proof = Evidence(
        L_("inputs of a layer = 0"), {"unreached": len(lost), "layers": len(seen), "usual": usual},
        Sentence(
            "{unreached} of {layers} layers got no input of the calibration data; the usual one got {usual}.",
            unreached=len(lost), layers=len(seen), usual=grouped(int(usual)),
        ),
    )  # fmt: skip
    return model_finding(
        "unreached-layers", "warning", Sentence(
            "No calibration data reached {name}{names}",
            name=visible_name(tensors[0]), names=and_others(tensors),
        ), proof,
        L_(
            "Calibrate on more data, or on other data: GPTQ, AWQ and SmoothQuant round these layers to nearest, and "
            "what was measured may not depend on them at all."
        ), tensors,
    )  # fmt: skip


def smaller_not_faster(model: ScannedModel) -> Answer:
    """A plan that saves bytes and no time on the machine that measured it."""
    speed = model.effects.speed if model.effects is not None else None
    if speed is None or not speed.ratios:
        return None
    (count, one), (many, several) = speed.ratios[0], speed.ratios[-1]
    if speed.nbytes >= speed.plain_bytes or min(one, several) < 1:
        return RuledOut(
            "smaller-not-faster",
            Sentence(
                "because products of the plan take {one:.3g} times as long as in FP32, and "
                "{several:.3g} times; inputs at once: {count} and {many}",
                one=one, count=count, several=several, many=many,
            ),
        )  # fmt: skip
    proof = Evidence(
        L_("bytes < bytes in FP32, and seconds >= seconds in FP32"),
        {"bytes": speed.nbytes, "fp32_bytes": speed.plain_bytes, "times_as_long": min(one, several)},
        Sentence(
            "The layers take {size} bytes instead of {plain} in FP32, and their products {one:.3g} and {several:.3g} "
            "times as long for {count} and {many} inputs at once: codes become numbers before each product.",
            size=grouped(speed.nbytes), plain=grouped(speed.plain_bytes), one=one, count=count, several=several,
            many=many,
        ),
    )  # fmt: skip
    return model_finding(
        "smaller-not-faster", "info", L_("The plan is smaller, not faster on the machine that measured it"), proof,
        L_(
            "Take it for its size. For speed run it where there are kernels for its codes, such as vLLM on a GPU, or "
            "choose a format that this machine multiplies: precgui bench."
        ), speed.layers,
        certainty="estimate", confidence=0.8,
    )  # fmt: skip


EFFECT_RULES: dict[str, Callable[[ScannedModel], Answer]] = {
    "unreached-layers": unreached_layers,
    "smaller-not-faster": smaller_not_faster,
}
