"""The precision advised for a run before it starts, from the decision tree and from runs timed on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precgui.config import RunConfig
from precgui.config.names import IMAGE_TASKS, MODELS
from precgui.hardware.advice import Situation, advise
from precgui.hardware.device import Device
from precgui.hardware.measured import gain
from precgui.runs.facts import seconds_text
from precgui.runs.step_times import step_time

SHORT_STEP_S = 0.005  # below it launches and data count, see `hardware.advice.SIZES`
_KINDS = {"segmentation": "segmentation", "detection": "detection", "gan": "gan", "cartpole": "rl"}
_SMALL_MODELS = ("cnn", "mlp", "linear")


@dataclass(frozen=True)
class PrecisionAdvice:
    """`task` and `size` are keys of `hardware.advice`; `sentence` names the precision and what it rests on."""

    precision: str
    task: str
    size: str
    sentence: str


def precision_advice(config: RunConfig, device: Device, results: Sequence[Mapping[str, Any]]) -> PrecisionAdvice | None:
    """The precision to start with for the work of `config`; None for a task that the decision tree does not know.

    `results` are the kept measurements of `bench`. Runs of the same work that were timed here overrule the tree.
    """
    task = _task(config)
    if task is None:
        return None
    base = step_time(config, "fp32")
    size = _size(config, base.step_s if base is not None else None)
    advice = advise(Situation(device, task, size, gain(device.name, results)))
    own = step_time(config, advice.precision)
    if base is None or own is None or advice.precision == "fp32":
        text = f"Advised for this model here: {advice.precision}. {advice.reason} It was not timed with this model yet."
        if advice.precision == "fp32":
            text = f"Advised for this model here: fp32. {advice.reason}"
        return PrecisionAdvice(advice.precision, task, size, text)
    faster = own.step_s < base.step_s
    best = advice.precision if faster else "fp32"
    text = (
        f"Advised for this model here: {best}. The same work took {seconds_text(own.step_s)} a step in {own.precision} "
        f"({own.measured}) and {seconds_text(base.step_s)} in fp32 ({base.measured}); one run each, so small "
        "differences say little."
    )
    return PrecisionAdvice(best, task, size, text)


def _task(config: RunConfig) -> str | None:
    """The kind of work in the words of the advice."""
    if config.task in IMAGE_TASKS:
        return "classification"
    if config.task == "text":
        return "rnn" if _model(config) == "lstm" else "transformer"
    return _KINDS.get(config.task)


def _model(config: RunConfig) -> str:
    usual = MODELS.get(config.task, ("",))[0]
    return usual if config.model.name == "auto" else config.model.name


def _size(config: RunConfig, step_s: float | None) -> str:
    """The size class of a model by its timed FP32 step, else by its kind."""
    if step_s is not None:
        return "small" if step_s < SHORT_STEP_S else "large"
    return "small" if _model(config) in _SMALL_MODELS and config.model.size == "small" else "large"
