"""Mixed precision by a library or by torch's own hooks: Accelerate, Lightning, DeepSpeed, FSDP, autograd functions,
default formats."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import keyword
from precgui.lint.flow import (
    cast_of,
    created_optimizers,
    definition,
    dtype_of,
    is_cuda,
    is_half,
    region_is_fp16,
    statement,
    trained_models,
    trains,
)
from precgui.lint.lightning import FP16_MIXED, trainer_precision
from precgui.lint.method_names import CONVERSIONS, PRODUCTS
from precgui.lint.origins import returns_of
from precgui.lint.scaler_rules import CLIPS
from precgui.lint.source import CallSite, Mistakes, Source, is_disabled, scaled_loss
from precgui.lint.trainer_rules import entry_of
from precgui.lint.variables import Variable, path_text
from precgui.sentences import L_, Sentence

_MULTIPLYING = PRODUCTS | {"conv1d", "conv2d", "conv3d"}
_CONVERTING = CONVERSIONS | {"type_as"}
_FSDP_MODULES = ("torch.distributed.fsdp", "torch.distributed.fsdp.fully_sharded_data_parallel")
_FSDP = tuple(f"{each}.FullyShardedDataParallel" for each in _FSDP_MODULES)
_SHARDED = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
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
    """loss.backward() in a manual optimization of Lightning, or torch's clipping behind its backward pass, where a
    Trainer of this file trains in FP16."""
    if trainer_precision(source) not in FP16_MIXED:
        return
    for site in source.of(*CLIPS):
        if getattr(source.scope(site.node), "name", "") == "on_after_backward" and site.name.startswith("torch."):
            yield (
                site.line, "error", L_(
                    "gradients are clipped in on_after_backward, where they are still multiplied by the loss scale"
                ),
                L_("Trainer(gradient_clip_val=...), or clip in on_before_optimizer_step, behind the unscaling"),
            )  # fmt: skip
    manual = any(
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is False
        and isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == "automatic_optimization"
        for node in source.nodes
    )  # fmt: skip
    for site in source.of("backward") if manual else ():
        if getattr(source.scope(site.node), "name", "") == "training_step" and site.owner and not site.node.args:
            yield (
                site.line, "error", Sentence(
                    "{owner}.backward() is not scaled, but Lightning's optimizers divide their gradients by the "
                    "scale of this precision",
                    owner=site.owner,
                ),
                f"self.manual_backward({site.owner})",
            )  # fmt: skip


def past_deepspeed(source: Source) -> Mistakes:
    """loss.backward() or the step of torch's optimizer in a script whose DeepSpeed engine certainly trains in FP16."""
    made = source.of("initialize") if "deepspeed" in source.imports.values() else []
    makers = [site for site in made if site.name == "deepspeed.initialize"]
    engine = _engine(source, makers[0]) if len(makers) == 1 else None
    if engine is None or not _is_fp16_engine(source, makers[0], engine):
        return
    through = [site for site in source.of("backward") if site.owner and site.node.args]
    for site in source.of("backward")[:_MOST_CALLS] if not through else ():
        if site.owner and scaled_loss(site) is None and _calls_engine(source, site, engine):
            yield (
                site.line, "error", Sentence(
                    "{owner}.backward() goes past the DeepSpeed engine, which scales the loss for FP16: small "
                    "gradients become zero",
                    owner=site.owner,
                ),
                f"{engine}.backward({site.owner})",
            )  # fmt: skip
    own = _optimizers_past(source, makers[0], engine)
    for site in source.of("step")[:_MOST_CALLS]:
        stepped = source.owner(site)
        if stepped is not None and not site.node.args and _is_one_of(source, stepped, own):
            yield (
                site.line, "error", Sentence(
                    "{owner}.step() goes past the DeepSpeed engine, which unscales the gradients, skips steps with "
                    "Inf, and keeps the FP32 weights",
                    owner=site.owner,
                ),
                f"{engine}.step()",
            )  # fmt: skip


def _engine(source: Source, made: CallSite) -> Variable | None:
    """The variable that holds the engine: the first of the tuple that deepspeed.initialize() returns."""
    above = source.parent(made.node)
    if isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Constant) and above.slice.value == 0:
        above = source.parent(above)
        return source.variable(above.targets[0]) if isinstance(above, ast.Assign) else None
    target = above.targets[0] if isinstance(above, ast.Assign) else None
    is_tuple = isinstance(target, ast.Tuple | ast.List) and bool(target.elts)
    return source.variable(target.elts[0]) if isinstance(target, ast.Tuple | ast.List) and is_tuple else None


def _is_fp16_engine(source: Source, made: CallSite, engine: Variable) -> bool:
    """Whether the configuration that is written out says FP16, or what the engine is called with is cast to FP16."""
    given = keyword(made.node, "config", 10) or keyword(made.node, "config_params")
    held = definition(source, given) if isinstance(given, ast.Name | ast.Attribute) else given
    if isinstance(held, ast.Call) and len(returned := returns_of(source, held)) == 1:
        held = definition(source, returned[0]) if isinstance(returned[0], ast.Name) else returned[0]
    if isinstance(held, ast.Dict):
        part = entry_of(held, "fp16")
        return isinstance(part, ast.Dict) and getattr(entry_of(part, "enabled"), "value", False) is True
    calls = [site.node for site in source.calls if _last_part(site.node.func) == engine.last_part]
    return any(is_half(source, each) for call in calls[:_MOST_CALLS] for each in call.args)


def _last_part(node: ast.AST) -> str:
    return path_text(node).rpartition(".")[2]


def _calls_engine(source: Source, backward: CallSite, engine: Variable) -> bool:
    """Whether the function of a backward pass computes something with the engine."""
    return any(
        _last_part(site.node.func) == engine.last_part for site in source.inside(source.scope(backward.node))
    )  # fmt: skip


def _optimizers_past(source: Source, made: CallSite, engine: Variable) -> set[Variable]:
    """The optimizers of torch for the model of an engine that are not replaced by those that it returns."""
    named = keyword(made.node, "model", 1)
    models = {engine, source.variable(named) if named is not None else None}
    own: set[Variable] = set()
    for site in created_optimizers(source):
        assigned = statement(source, site.node)
        variable = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
        if variable is None or models.isdisjoint(trained_models(source, site.node)):
            continue
        if len(source.variables.assignments(variable)) == 1:
            own.add(variable)
    return own


def _is_one_of(source: Source, variable: Variable, own: set[Variable]) -> bool:
    """Whether a variable is one of several, or an argument of the name of one."""
    is_given = not source.variables.assignments(variable) and variable.last_part in {each.last_part for each in own}
    return variable in own or is_given


def plain_scaler_of_fsdp(source: Source) -> Mistakes:
    """torch.amp.GradScaler beside FullyShardedDataParallel, where each rank sees NaN and Inf in its own shard only. The
    DTensors of fully_shard() share what they find, so that the plain scaler is right there."""
    wraps = [site for site in source.of("FullyShardedDataParallel", "FSDP") if source.name_of(site.node.func) in _FSDP]
    if not wraps or "ShardedGradScaler" in source.text or any(_is_unsharded(site.node) for site in wraps):
        return
    for scaler in source.scaling:
        calls = source.scalers.get(scaler, [])
        if len(calls) != 1 or not source.calls_of(scaler, "step") or not _scales_fp16(source, calls[0]):
            continue
        if not any(source.excludes(calls[0], site.node) for site in wraps):
            yield (
                calls[0].lineno, "error", Sentence(
                    "{scaler} looks for NaN and Inf in the shard of its own rank only: of the ranks of "
                    "FullyShardedDataParallel (line {line}) some step and others skip, and their scales differ",
                    scaler=scaler, line=wraps[0].line,
                ),
                L_("torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler(), which asks all ranks"),
            )  # fmt: skip


def _is_unsharded(call: ast.Call) -> bool:
    """Whether FSDP may leave the gradients whole on each rank: NO_SHARD, or a strategy that is not written out."""
    given = keyword(call, "sharding_strategy", 2)
    if given is None:
        return any(each.arg is None for each in call.keywords)
    return _last_part(given) not in _SHARDED


def _scales_fp16(source: Source, call: ast.Call) -> bool:
    """Whether a scaler is certainly on for FP16: without a condition, or beside autocast to FP16."""
    if keyword(call, "enabled") is None:
        return True
    return any(region_is_fp16(source, each) for _, each in source.autocasts)


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
    "past-deepspeed": past_deepspeed,
    "fsdp-with-plain-scaler": plain_scaler_of_fsdp,
    "function-without-custom-fwd": own_function,
    "autocast-on-another-device": other_device,
    "16-bits-by-default": low_by_default,
}
