"""The check list of guides on mixed precision, filled in from what a run recorded: sizes, formats, memory and times.

Sizes: tensor cores work at their full rate on dimensions that are multiples of 16 bytes (NVIDIA, "Matrix Multiplication
Background User's Guide", "Requirements to use Tensor Cores"): of 8 numbers of 16 bits, of 16 numbers of 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from precgui.config.precision_traits import traits
from precgui.formats.registry import formats
from precgui.hardware.readings import Missing
from precgui.runs.device_memory import device_bytes, peak_bytes
from precgui.runs.known_settings import NOT_KNOWN, settings_by_path
from precgui.runs.recorded_facts import fact
from precgui.runs.run import Run
from precgui.sentences import L_, Sentence, together

State = Literal["met", "missed", "not needed", "not measured"]
_MOST_NAMES = 4
_ROW_BITS = 128  # a dimension is well filled where its numbers take a multiple of so many bits
_WAITING = 0.05  # share of the time waited for data from which more workers are worth a try
_SKIPPED = 0.01  # share of skipped steps beyond which the loss scale is not settled
_LOW_SHARE = 0.5  # share of the multiplications that are to be made in the low format
_TENSOR_USE = 0.2  # share of the time that tensor cores work, below which they wait for other things
_FULL, _EMPTY = 0.8, 0.5  # shares of the memory: close to its limit; below it checkpointing only costs time
_FUSED = ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention")
_OWN_LOOP = L_("the recorder does not see this setting")


@dataclass(frozen=True)
class CheckLine:
    """One line. `measured` is what the run's file says, or why it says nothing; `change` are settings worth a try."""

    id: str
    title: str
    state: State
    measured: str
    change: Mapping[str, Any] = field(default_factory=dict)


def check_list(run: Run) -> tuple[CheckLine, ...]:
    """Every line for a run, in the order of the guides."""
    known = settings_by_path(run)
    return (
        _sizes(run), _batch(run, known), _formats(run), _tensor_cores(run), _attention(run, known),
        _checkpointing(run, known),
        _non_finite(run), _skipped_steps(run), _loader(run, known), _compiled(known),
    )  # fmt: skip


def lines_met(lines: Sequence[CheckLine]) -> str:
    """How many lines are met of those that apply and were measured, as text."""
    counts = [sum(line.state == state for line in lines) for state in ("met", "missed", "not measured")]
    met, apply, unmeasured = counts[0], counts[0] + counts[1], counts[2]
    if unmeasured:
        return Sentence("{met} of {lines} met, {unmeasured} not measured", met=met, lines=apply, unmeasured=unmeasured)
    return Sentence("{met} of {lines} met", met=met, lines=apply)


def _bits(run: Run) -> int:
    """The bits of the operands of products."""
    fmt = formats().get(traits(run.config.precision).operand)
    return int(getattr(fmt, "bits", 32)) if fmt is not None else 32


def _multiple(run: Run) -> int:
    return max(4, _ROW_BITS // max(1, min(32, _bits(run))))


def _sizes(run: Run) -> CheckLine:
    title, model, multiple = L_("Sizes of the products"), run.model(), _multiple(run)
    if model.unavailable:
        return CheckLine("sizes", title, "not measured", model.unavailable)
    weights = [one for one in model.parameters if one.role == "parameter" and len(one.shape) > 1]
    uneven = [one for one in weights if any(size % multiple for size in one.shape[:2])]
    shown = [f"{one.name} {'x'.join(map(str, one.shape[:2]))}" for one in uneven[:_MOST_NAMES]]
    if not weights:
        return CheckLine("sizes", title, "not needed", L_("the model has no matrix of weights"))
    known = {"even": len(weights) - len(uneven), "all": len(weights), "multiple": multiple}
    if not uneven:
        return CheckLine(
            "sizes", title, "met", Sentence("{even} of {all} matrices have multiples of {multiple}", **known)
        )
    names = together(*shown, between=", ")
    if more := len(uneven) - len(shown):
        text = Sentence(
            "{even} of {all} matrices have multiples of {multiple}; not {names} and {more} more",
            **known,
            names=names,
            more=more,
        )
    else:
        text = Sentence("{even} of {all} matrices have multiples of {multiple}; not {names}", **known, names=names)
    return CheckLine("sizes", title, "missed", text)


def _batch(run: Run, known: Mapping[str, Any]) -> CheckLine:
    samples, multiple = run.series("samples")[1], _multiple(run)
    if not len(samples) or not np.median(samples) > 0:
        return CheckLine("batch", L_("Batch size"), "not measured", L_("the samples of a step were not recorded"))
    size = int(np.median(samples)) // max(1, run.config.train.accumulation)
    even = size % multiple == 0
    text = (
        Sentence("{size} samples, a multiple of {multiple}", size=size, multiple=multiple)
        if even
        else Sentence("{size} samples, no multiple of {multiple}", size=size, multiple=multiple)
    )
    is_a_setting = isinstance(known.get("data.batch_size"), int)
    change = {"data.batch_size": -(-size // multiple) * multiple} if is_a_setting and not even else {}
    return CheckLine("batch", L_("Batch size"), "met" if even else "missed", text, change)


def _formats(run: Run) -> CheckLine:
    title, census = L_("Products in the low format"), fact(run, "census")
    if isinstance(census, Missing):
        return CheckLine("formats", title, "not measured", census.reason)
    shares = {str(name): float(share) for name, share in dict(census.get("formats", {})).items()}
    if not shares:
        return CheckLine("formats", title, "not measured", L_("no product was counted in the first step"))
    low = sum(share for name, share in shares.items() if name not in ("fp32", "fp64"))
    each = [
        Sentence("{share:.0%} of the multiplications in {name}", share=share, name=n) for n, share in shares.items()
    ]
    text = together(*each, between=", ")
    if traits(run.config.precision).operand in ("fp32", "fp64"):
        return CheckLine("formats", title, "not needed", text)
    return CheckLine("formats", title, "met" if low >= _LOW_SHARE else "missed", text)


def _tensor_cores(run: Run) -> CheckLine:
    title = L_("Tensor cores at work")
    if not str(run.environment.get("device", "")).startswith("cuda"):
        return CheckLine("tensor_cores", title, "not measured", L_("the run was not on an NVIDIA GPU"))
    values = run.series("tensor_use")[1]
    values = values[np.isfinite(values)]
    if not len(values):
        reason = L_("the driver gives no readings of them, or the run ended before the first")
        return CheckLine("tensor_cores", title, "not measured", reason)
    share = float(values.mean())
    state: State = "met" if share >= _TENSOR_USE else "missed"
    text = Sentence("busy {share:.0%} of the time, the mean of {count} readings", share=share, count=len(values))
    return CheckLine("tensor_cores", title, state, text)


def _attention(run: Run, known: Mapping[str, Any]) -> CheckLine:
    title, census = L_("Fused attention"), fact(run, "census")
    if isinstance(census, Missing):
        return CheckLine("attention", title, "not measured", census.reason)
    operations = [str(name) for name in dict(census.get("operations", {}))]
    fused = next((name for name in operations if any(part in name for part in _FUSED)), "")
    if fused:
        return CheckLine("attention", title, "met", Sentence("the first step ran {operation}", operation=fused))
    apart = "_softmax" in operations and "bmm" in operations
    if not apart and not any("scaled_dot_product" in name for name in operations):
        return CheckLine("attention", title, "not needed", L_("the first step has no attention"))
    text = L_("the first step computed products and softmax one by one")
    change = {} if known.get("train.attention") in (None, NOT_KNOWN, "auto") else {"train.attention": "auto"}
    return CheckLine("attention", title, "missed", text, change)


def _checkpointing(run: Run, known: Mapping[str, Any]) -> CheckLine:
    title, used = L_("Activations fit the memory"), known.get("train.checkpointing")
    peak, room = peak_bytes(run), device_bytes(run)
    if peak is None or not room:
        return CheckLine(
            "checkpointing", title, "not measured", L_("the peak of a step or the memory was not recorded")
        )
    share = peak / room
    text = Sentence("the peak of a step is {share:.1%} of the memory", share=share)
    if used is True:
        unneeded = share < _EMPTY
        text = Sentence(
            "the peak of a step is {share:.1%} of the memory, with checkpointing, which repeats the forward pass",
            share=share,
        )
        change = {"train.checkpointing": False} if unneeded else {}
        return CheckLine("checkpointing", title, "missed" if unneeded else "met", text, change)
    if used == NOT_KNOWN:
        text = Sentence(
            "the peak of a step is {share:.1%} of the memory; whether it checkpoints is not known: the recorder does "
            "not see this setting",
            share=share,
        )
    tight = share > _FULL
    change = {"train.checkpointing": True} if tight and used is False else {}
    return CheckLine("checkpointing", title, "missed" if tight else "met", text, change)


def _non_finite(run: Run) -> CheckLine:
    title, losses = L_("Losses without NaN and Inf"), run.series("loss")[1]
    if not len(losses):
        return CheckLine("non_finite", title, "not measured", L_("the run has no step"))
    bad = int((~np.isfinite(losses)).sum())
    text = Sentence("{bad} of {count} losses are not finite", bad=bad, count=len(losses))
    return CheckLine("non_finite", title, "missed" if bad else "met", text)


def _skipped_steps(run: Run) -> CheckLine:
    title, skipped = L_("Steps skipped by the loss scaler"), run.series("skipped")[1]
    scale = run.series("scale")[1]
    if not len(skipped):
        return CheckLine("skipped", title, "not measured", L_("the run has no step"))
    if not (skipped > 0).any() and not (scale[np.isfinite(scale)] != 1).any():
        return CheckLine("skipped", title, "not needed", L_("the run had no loss scaling"))
    share = float((skipped > 0).mean())
    count = int((skipped > 0).sum())
    text = Sentence("{skipped} of {steps} steps ({share:.1%})", skipped=count, steps=len(skipped), share=share)
    return CheckLine("skipped", title, "missed" if share > _SKIPPED else "met", text)


def _loader(run: Run, known: Mapping[str, Any]) -> CheckLine:
    title = L_("Data ready in time")
    waited, worked = (np.nansum(run.series(name)[1]) for name in ("data_s", "step_s"))
    if not waited + worked > 0:
        return CheckLine("loader", title, "not measured", L_("no times were recorded"))
    share = float(waited / (waited + worked))
    workers = known.get("data.workers")
    change = {"data.workers": max(2, 2 * workers)} if share > _WAITING and isinstance(workers, int) else {}
    text = Sentence("{share:.1%} of the time waited for data", share=share)
    return CheckLine("loader", title, "missed" if share > _WAITING else "met", text, change)


def _compiled(known: Mapping[str, Any]) -> CheckLine:
    title, used = L_("Compiled model"), known.get("train.compile")
    if not isinstance(used, bool):
        return CheckLine("compile", title, "not measured", _OWN_LOOP)
    if used:
        return CheckLine("compile", title, "met", L_("the model is compiled by torch.compile"))
    return CheckLine(
        "compile", title, "missed", L_("the model is not compiled by torch.compile"), {"train.compile": True}
    )
