"""Before a run: what this machine makes of a precision, and how long the run will take, from what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from precgui.config import RunConfig
from precgui.config.names import EMULATED
from precgui.config.precision_traits import traits
from precgui.hardware.device import Device
from precgui.hardware.measured import best_tops, noise_of, of_device
from precgui.runs.facts import seconds_text
from precgui.runs.step_times import step_time, total_steps

Level = Literal["native", "slow", "emulated", "unknown"]
WORDS: dict[Level, str] = {"native": "native", "slow": "slow", "emulated": "emulated", "unknown": "not known"}
_NOT_MEASURED = "How fast it is here was not measured: Hardware > Measured does it."
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
        text = "Training rounds to integers and multiplies in FP32, slower than fp32; only the result runs on integers."
        return PrecisionOutlook("emulated", f"Emulated while it trains. {text}")
    if reason := _rounded_and_multiplied(precision, own.operand, device):
        return PrecisionOutlook("emulated", f"{reason} The numbers are right, the speed says nothing about the format.")
    name = own.operand
    if name == "fp32":
        return PrecisionOutlook("native", f"Native: {device.name} multiplies FP32.", 1.0)
    level = device.level(name)
    reason = device.formats[name].reason if name in device.formats else ""
    return _measured(name, level, reason, device, results)


def _rounded_and_multiplied(precision: str, name: str, device: Device) -> str:
    """Why precgui itself emulates a precision on this device; empty where the device computes it."""
    if precision.startswith(EMULATED) or precision in _ALWAYS_EMULATED:
        return "Emulated: operands are rounded to the format and multiplied in FP32."
    if device.kind == "cpu" and name == "fp16":
        return "Emulated on a CPU: operands are rounded to FP16 and multiplied in FP32."
    if name == "tf32" and device.level("tf32") != "native":
        return "Emulated: this device multiplies FP32 operands exactly, so they are rounded to TF32 first."
    if precision == "fp8" and (device.kind != "cuda" or device.level("e4m3fn") != "native"):
        return "Emulated: this device has no FP8 product, so operands are rounded to FP8 and multiplied in FP32."
    return ""


def _measured(
    name: str, level: str, reason: str, device: Device, results: Sequence[Mapping[str, Any]]
) -> PrecisionOutlook:
    factor, how = _factor(name, device, results)
    fmt = name.upper()
    if factor is None:
        known: Level = "native" if level == "native" else "slow" if level in ("slow", "emulated") else "unknown"
        reported = f"Native: {device.name} multiplies {fmt}." if known == "native" else f"{WORDS[known].capitalize()}: "
        reported += "" if known == "native" else f"{reason or 'no table knows this device.'}"
        return PrecisionOutlook(known, f"{reported} {_NOT_MEASURED}")
    if factor < _SLOW_BELOW:
        return PrecisionOutlook(
            "slow", f"Slow here: {fmt} products take {1 / factor:.3g} times their FP32 time ({how}).", factor
        )
    return PrecisionOutlook("native", f"{fmt} products run at {factor:.3g} times the FP32 rate here ({how}).", factor)


def _factor(name: str, device: Device, results: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
    """The best rate over FP32's in the newest measurement of this device that has both, with its day and spread."""
    for result in of_device(device.name, results):
        best = best_tops(result)
        if best.get(name) and best.get("fp32"):
            spread = max(noise_of(result, name), noise_of(result, "fp32"))
            return best[name] / best["fp32"], f"measured {str(result['started'])[:10]}, spread {spread:.0%}"
    return None, ""


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
    here, on = (f"at {place}",) * 2 if place else ("here", "on this machine")
    if own is not None:
        seconds = own.step_s * total_steps(config, own.steps_per_epoch)
        text = f"About {seconds_text(seconds)} {on}: the same work took {seconds_text(own.step_s)} a step"
        return TimeEstimate(seconds, f"{text} in {config.precision} ({own.measured}).")
    base = step_time(config, "fp32", place)
    if base is None:
        return TimeEstimate(None, f"Time: not measured, no run of this work has been made {on} yet.")
    steps = total_steps(config, base.steps_per_epoch)
    in_fp32 = base.step_s * steps
    if fp32_factor is None:
        base_text = f"in fp32 the same work takes about {seconds_text(in_fp32)} {here}"
        text = f"Time: not measured in {config.precision}; {base_text}."
        return TimeEstimate(None, text)
    ends = sorted((in_fp32, in_fp32 / fp32_factor))
    span = f"Between {seconds_text(ends[0])} and {seconds_text(ends[1])} {here}"
    text = f"{span}: from a run in fp32 ({base.measured}) and"
    return TimeEstimate(
        ends[1], f"{text} the measured rate of products; a run in {config.precision} was not timed yet."
    )
