"""Before a run: what this machine makes of a precision, and how long the run will take, from what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from precgui.config.names import EMULATED
from precgui.config.precision_traits import traits
from precgui.config.tree import RunConfig
from precgui.hardware.device import Device
from precgui.hardware.measured import best_tops, newest_with, noise_of
from precgui.runs.facts import seconds_text, wait_text
from precgui.runs.step_times import StepTime, step_time, total_steps
from precgui.sentences import L_, Sentence, filled, together

Level = Literal["native", "slow", "emulated", "unknown"]
WORDS: dict[Level, str] = {
    "native": L_("native"), "slow": L_("slow"), "emulated": L_("emulated"), "unknown": L_("not known"),
}  # fmt: skip
_NATIVE = L_("Native: {device} multiplies {format}.")
_NOT_MEASURED = L_("How fast it is here was not measured: Hardware > Measured does it.")
_SLOW_BELOW = 0.8  # a measured rate below this share of FP32's is called slow, whatever a table says
# Precisions that precgui computes by rounding operands and multiplying in FP32, whatever the device.
_ALWAYS_EMULATED = ("mxfp8", "mxfp6", "mxfp4", "nvfp4")


@dataclass(frozen=True)
class PrecisionOutlook:
    """`level` and its `sentence`; `factor` is the measured rate over that of FP32, None where nothing was measured."""

    level: Level
    sentence: str
    factor: float | None = None


def outlook(precision: str, device: Device, results: Sequence[Mapping[str, Any]]) -> PrecisionOutlook:
    """How `device` computes a precision. `results` are the kept measurements. Raises KeyError for an unknown name."""
    own = traits(precision)
    if own.weight_bits is not None:
        text = Sentence(
            "Emulated while it trains. Training rounds to integers and multiplies in FP32, slower than fp32; only the "
            "result runs on integers."
        )
        return PrecisionOutlook("emulated", text)
    if reason := _rounded_and_multiplied(precision, own.operand, device):
        right = L_("The numbers are right, the speed says nothing about the format.")
        return PrecisionOutlook("emulated", together(reason, right))
    name = own.operand
    if name == "fp32":
        return PrecisionOutlook("native", filled(_NATIVE, device=device.name, format="FP32"), 1.0)
    level = device.level(name)
    reason = device.formats[name].reason if name in device.formats else ""
    return _measured(name, level, reason, device, results)


def _rounded_and_multiplied(precision: str, name: str, device: Device) -> str:
    """Why precgui itself emulates a precision on this device; empty where the device computes it."""
    if precision.startswith(EMULATED) or precision in _ALWAYS_EMULATED:
        return L_("Emulated: operands are rounded to the format and multiplied in FP32.")
    if device.kind == "cpu" and name == "fp16":
        return L_("Emulated on a CPU: operands are rounded to FP16 and multiplied in FP32.")
    if name == "tf32" and device.level("tf32") != "native":
        return L_("Emulated: this device multiplies FP32 operands exactly, so they are rounded to TF32 first.")
    if precision == "fp8" and (device.kind != "cuda" or device.level("e4m3fn") != "native"):
        return L_("Emulated: this device has no FP8 product, so operands are rounded to FP8 and multiplied in FP32.")
    return ""


def _measured(
    name: str, level: str, reason: str, device: Device, results: Sequence[Mapping[str, Any]]
) -> PrecisionOutlook:
    factor, how = _factor(name, device, results)
    fmt = name.upper()
    if factor is None:
        return _not_measured(level, fmt, reason or L_("no table knows this device."), device)
    if factor < _SLOW_BELOW:
        text = Sentence(
            "Slow here: {format} products take {times:.3g} times their FP32 time ({how}).",
            format=fmt, times=1 / factor, how=how,
        )  # fmt: skip
        return PrecisionOutlook("slow", text, factor)
    text = Sentence(
        "{format} products run at {times:.3g} times the FP32 rate here ({how}).", format=fmt, times=factor, how=how
    )
    return PrecisionOutlook("native", text, factor)


def _not_measured(level: str, fmt: str, reason: str, device: Device) -> PrecisionOutlook:
    """Where only tables say something of a format."""
    if level == "native":
        reported = filled(_NATIVE, device=device.name, format=fmt)
        return PrecisionOutlook("native", together(reported, _NOT_MEASURED))
    if level in ("slow", "emulated"):
        return PrecisionOutlook("slow", together(Sentence("Slow: {reason}", reason=reason), _NOT_MEASURED))
    return PrecisionOutlook("unknown", together(Sentence("Not known: {reason}", reason=reason), _NOT_MEASURED))


def _factor(name: str, device: Device, results: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
    """The best rate over FP32's in the newest measurement of this device that has both, with its day and spread."""
    result = newest_with(device.name, results, name)
    if result is None:
        return None, ""
    best = best_tops(result)
    spread = max(noise_of(result, name), noise_of(result, "fp32"))
    day = str(result["started"])[:10]
    return best[name] / best["fp32"], Sentence("measured {day}, spread {spread:.0%}", day=day, spread=spread)


@dataclass(frozen=True)
class TimeEstimate:
    """`seconds` of the whole run, None where nothing was measured; `sentence` says from what."""

    seconds: float | None
    sentence: str


def time_estimate(config: RunConfig, fp32_factor: float | None, place: str = "") -> TimeEstimate:
    """How long a run of `config` takes here, or at the place of this name, from runs of the same work there.

    One in its precision is taken first. `fp32_factor` is the measured rate of products over FP32's; with it a step in
    FP32 gives the range in which one in this precision lies, since not all of a step is products.
    """
    own = step_time(config, config.precision, place)
    if own is not None:
        return _timed(config, own, place)
    base = step_time(config, "fp32", place)
    if base is None:
        if place:
            return TimeEstimate(
                None, Sentence("Time: not measured, no run of this work has been made at {place} yet.", place=place)
            )
        return TimeEstimate(None, L_("Time: not measured, no run of this work has been made on this machine yet."))
    in_fp32 = base.step_s * total_steps(config, base.steps_per_epoch)
    if fp32_factor is None:
        return TimeEstimate(None, _time_in_fp32(config, in_fp32, place))
    return _between(config, base, sorted((in_fp32, in_fp32 / fp32_factor)), place)


def _timed(config: RunConfig, own: StepTime, place: str) -> TimeEstimate:
    """From a run of the same work in the same precision."""
    seconds = own.step_s * total_steps(config, own.steps_per_epoch)
    values = {
        "time": wait_text(seconds), "step_time": seconds_text(own.step_s), "precision": config.precision,
        "day": own.measured,
    }  # fmt: skip
    if place:
        text = Sentence(
            "About {time} at {place}: the same work took {step_time} a step in {precision} ({day}).",
            place=place, **values,
        )  # fmt: skip
        return TimeEstimate(seconds, text)
    text = Sentence(
        "About {time} on this machine: the same work took {step_time} a step in {precision} ({day}).", **values
    )
    return TimeEstimate(seconds, text)


def _time_in_fp32(config: RunConfig, seconds: float, place: str) -> Sentence:
    values = {"precision": config.precision, "time": wait_text(seconds)}
    if place:
        return Sentence(
            "Time: not measured in {precision}; in fp32 the same work takes about {time} at {place}.",
            place=place, **values,
        )  # fmt: skip
    return Sentence("Time: not measured in {precision}; in fp32 the same work takes about {time} here.", **values)


def _between(config: RunConfig, base: StepTime, ends: Sequence[float], place: str) -> TimeEstimate:
    """From a run in FP32 and the rate of products."""
    values = {
        "least": wait_text(ends[0]), "most": wait_text(ends[1]), "day": base.measured,
        "precision": config.precision,
    }  # fmt: skip
    if place:
        text = Sentence(
            "Between {least} and {most} at {place}: from a run in fp32 ({day}) and the measured rate of products; a "
            "run in {precision} was not timed yet.",
            place=place, **values,
        )  # fmt: skip
        return TimeEstimate(ends[1], text)
    text = Sentence(
        "Between {least} and {most} here: from a run in fp32 ({day}) and the measured rate of products; a run in "
        "{precision} was not timed yet.",
        **values,
    )
    return TimeEstimate(ends[1], text)
