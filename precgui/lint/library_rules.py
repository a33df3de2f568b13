"""Mixed precision by a library or by torch's own hooks: Accelerate, Lightning, autograd functions, default formats."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import keyword
from precgui.lint.flow import cast_of, dtype_of, is_cuda, trains
from precgui.lint.method_names import CONVERSIONS, PRODUCTS
from precgui.lint.scaler_rules import CLIPS
from precgui.lint.source import Mistakes, Source, is_disabled
from precgui.sentences import L_, Sentence

_FP16_TRAINER = ("16", "16-mixed")  # precision of Lightning's Trainer that scales the loss
_MULTIPLYING = PRODUCTS | {"conv1d", "conv2d", "conv3d"}
_CONVERTING = CONVERSIONS | {"type_as"}
_MOST_CALLS = 64


def past_accelerate(source: Source) -> Mistakes:
    """loss.backward() or torch's own clipping in a script whose Accelerator scales the loss."""
    makers = [site for site in source.of("Accelerator") if site.name.startswith("accelerate.")]
    precision = keyword(makers[0].node, "mixed_precision") if len(makers) == 1 else None
    if not makers or not isinstance(precision, ast.Constant) or precision.value != "fp16":
        return
    own = [site for site in source.of("backward") if site.owner and not site.node.args]
    through = [site for site in source.of("backward") if site.owner and site.node.args]
    if own and not through and source.of("prepare") and source.of("step"):
        yield (
            own[0].line, "error", Sentence(
                "{owner}.backward() is not scaled, but the prepared optimizer divides its gradients by the scale of "
                "mixed_precision='fp16'",
                owner=own[0].owner,
            ),
            "accelerator.backward(loss)",
        )  # fmt: skip
    for clip in source.of(*CLIPS)[:_MOST_CALLS] if through and not source.of("unscale_gradients") else ():
        before = source.previous_in_scope(clip.node, "backward")
        if clip.name.startswith("torch.") and before in through and not source.excludes(clip.node, before.node):
            yield (
                clip.line, "error", L_(
                    "gradients are clipped while they are multiplied by the scale of mixed_precision='fp16'"
                ),
                Sentence("accelerator.{method}(...), which unscales before", method=clip.method),
            )  # fmt: skip


def past_lightning(source: Source) -> Mistakes:
    """loss.backward() in a manual optimization of Lightning, where a Trainer of this file trains in FP16."""
    given = [keyword(site.node, "precision") for site in source.of("Trainer")]
    precisions = {str(each.value) for each in given if isinstance(each, ast.Constant)}
    manual = any(
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is False
        and isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == "automatic_optimization"
        for node in source.nodes
    )  # fmt: skip
    if not manual or len(given) != 1 or precisions.isdisjoint(_FP16_TRAINER):
        return
    for site in source.of("backward"):
        if getattr(source.scope(site.node), "name", "") == "training_step" and site.owner and not site.node.args:
            yield (
                site.line, "error", Sentence(
                    "{owner}.backward() is not scaled, but Lightning's optimizers divide their gradients by the "
                    "scale of this precision",
                    owner=site.owner,
                ),
                f"self.manual_backward({site.owner})",
            )  # fmt: skip


def own_function(source: Source) -> Mistakes:
    """An autograd.Function that multiplies matrices in both passes, without custom_fwd, in a script with autocast."""
    if not any(not is_disabled(source, call) for _, call in source.autocasts):
        return
    for own in source.classes.values():
        bases = {source.name_of(each) for each in own.bases}
        if bases.isdisjoint(("torch.autograd.Function", "torch.autograd.function.Function")):
            continue
        passes = [
            each for each in own.body if isinstance(each, ast.FunctionDef) and each.name in ("forward", "backward")
        ]
        marked = any("custom_" in source.name_of(part) for each in passes for mark in each.decorator_list
                     for part in source.walk(mark))  # fmt: skip
        applied = source.named_calls(own.name, "apply")
        if len(passes) == 2 and applied and not marked and all(_multiplies(source, each) for each in passes):
            yield (
                own.lineno, "warning", Sentence(
                    "{name} multiplies in formats that autocast chooses forward and not backward: saved FP32 "
                    "tensors meet gradients in 16 bits, and torch raises",
                    name=own.name,
                ),
                L_("torch.amp.custom_fwd(device_type=...) on forward and torch.amp.custom_bwd on backward"),
            )  # fmt: skip


def _multiplies(source: Source, function: ast.FunctionDef) -> bool:
    """Whether a function multiplies matrices and casts nothing."""
    nodes = source.walk(function)
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    names = [source.name_of(each.func).rpartition(".")[2] for each in calls]
    product = any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult) for each in nodes)
    return (product or not _MULTIPLYING.isdisjoint(names)) and _CONVERTING.isdisjoint(names)


def other_device(source: Source) -> Mistakes:
    """Autocast for the CPU around a model that is on CUDA, or a scaler for another device than autocast."""
    devices = [_device(source, call) for _, call in source.autocasts if not is_disabled(source, call)]
    known = set(devices)
    if len(known) != 1 or known.isdisjoint(("cpu", "cuda")):
        return
    [device] = known
    call = source.autocasts[0][1]
    moved = [site for site in source.of("cuda", "to") if _moves_to_cuda(source, site.node) and not any(
        isinstance(each, ast.If | ast.IfExp) for each in source.above(site.node))]  # fmt: skip
    if device == "cpu" and moved and trains(source):
        yield (
            call.lineno, "error", Sentence(
                "autocast is for the CPU and what line {line} moves is on CUDA: nothing is cast",
                line=moved[0].line,
            ),
            'torch.autocast("cuda", ...)',
        )  # fmt: skip
    for scaler, calls in source.scalers.items():
        own = _device_of_scaler(source, calls[0])
        if len(calls) == 1 and own and own != device and scaler.last_part not in source.disabled_scalers:
            yield (
                calls[0].lineno, "warning", Sentence(
                    "the scaler {scaler} is for {own}, autocast for {device}",
                    scaler=scaler, own=own.upper(), device=device.upper(),
                ),
                f'torch.amp.GradScaler("{device}")',
            )  # fmt: skip


def _device(source: Source, call: ast.Call) -> str:
    """The device that is written into a call of autocast; '' where it is not certain."""
    name = source.name_of(call.func)
    if name in ("torch.cuda.amp.autocast", "torch.cpu.amp.autocast"):
        return name.split(".")[1]
    given = keyword(call, "device_type", 0)
    return given.value.partition(":")[0] if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""


def _device_of_scaler(source: Source, call: ast.Call) -> str:
    name = source.name_of(call.func)
    if name == "torch.cuda.amp.GradScaler":
        return "cuda"
    given = keyword(call, "device", 0)
    if given is None:
        return "cuda" if name == "torch.amp.GradScaler" else ""
    return given.value.partition(":")[0] if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""


def _moves_to_cuda(source: Source, call: ast.Call) -> bool:
    """Whether a call certainly moves a tensor or a model to CUDA."""
    if source.name_of(call.func).rpartition(".")[2] == "cuda":
        return isinstance(call.func, ast.Attribute) and not source.name_of(call.func).startswith("torch.")
    return is_cuda(source, keyword(call, "device", 0))


def low_by_default(source: Source) -> Mistakes:
    """A default format in 16 bits in a script that trains: all weights and optimizer states are in it."""
    if not trains(source) or not source.of("step"):
        return
    for site in source.of("set_default_dtype"):
        low = dtype_of(source, keyword(site.node, "d", 0))
        alone = not any(isinstance(each, ast.If | ast.Try | ast.With) for each in source.above(site.node))
        if low in ("fp16", "bf16") and alone and len(source.of("set_default_dtype")) == 1 and not _widens(source):
            yield (
                site.line, "warning", Sentence(
                    "the default format is {low}: weights, and the optimizer's state beside them, are made in it, "
                    "and small updates are rounded away",
                    low=low.upper(),
                ),
                L_("keep the default of FP32 and use torch.autocast"),
            )  # fmt: skip


def _widens(source: Source) -> bool:
    """Whether a script casts anything to FP32, as one with FP32 weights beside these does."""
    return any(cast is not None and cast[0] == "fp32" for site in source.of("float", "to", "type")
               for cast in [cast_of(source, site.node)])  # fmt: skip


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "past-accelerate": past_accelerate,
    "past-lightning": past_lightning,
    "function-without-custom-fwd": own_function,
    "autocast-on-another-device": other_device,
    "16-bits-by-default": low_by_default,
}
