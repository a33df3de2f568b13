"""The places of autocast, of the scaler and of readings in a training loop."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import keyword
from precgui.lint.constants import constant
from precgui.lint.flow import definition, is_torch_optimizer, region_is_fp16, trains
from precgui.lint.scaler_rules import CLIPS, SCALE_READINGS, changes_by_scale
from precgui.lint.source import CallSite, Mistakes, Source, is_disabled
from precgui.lint.variables import Variable
from precgui.sentences import L_, Sentence

_MOST_CALLS = 64  # of one kind in a script; a training loop has a few
_OTHER_SCALERS = ("accelerate", "deepspeed", "apex", "lightning", "pytorch_lightning")


def _is_step(site: CallSite) -> bool:
    """optimizer.step() or scaler.step(optimizer), as far as names tell."""
    last = site.owner.lower().rpartition(".")[2]
    return site.method == "step" and ("optim" in last or last == "opt" or "scaler" in last)


def _steps_below(source: Source, region: ast.AST) -> CallSite | None:
    """A step of the optimizer in a loop below a node, or in a function of the script that it calls with such a loop."""
    for site in source.inside(region):
        if _is_step(site) and _loop_below(source, site.node, region):
            return site
        called = source.functions.get(site.name)
        if called is not None and source.scope(called) is not source.scope(region):
            steps = [each for each in source.in_scope(called, "step")[:_MOST_CALLS] if _is_step(each)]
            looped = _loop_below(source, site.node, region)
            if steps and (looped or any(source.loop(each.node) is not None for each in steps)):
                return site
    return None


def _loop_below(source: Source, node: ast.AST, region: ast.AST) -> bool:
    loop = source.loop(node)
    return loop is not None and source.contains(region, source.places[loop])


def loop_in_autocast(source: Source) -> Mistakes:
    """A training loop inside one autocast region, which keeps the casts of the weights until it ends."""
    for region, call in source.autocasts:
        cache = keyword(call, "cache_enabled")
        if is_disabled(source, call) or (isinstance(cache, ast.Constant) and cache.value is False):
            continue
        if (site := _steps_below(source, region)) is not None:
            yield (
                region.lineno, "error", Sentence(
                    "the training loop runs inside this one autocast region: it keeps casts of weights that the "
                    "optimizer (line {line}) has changed since",
                    line=site.line,
                ),
                L_("enter autocast anew in each step, around the forward pass and the loss"),
            )  # fmt: skip


def backward_in_autocast(source: Source) -> Mistakes:
    """backward() inside the autocast region."""
    reported: set[int] = set()
    for region, call in source.autocasts:
        if is_disabled(source, call) or _steps_below(source, region) is not None:
            continue
        for site in source.inside(region):
            if site.method == "backward" and site.owner and site.line not in reported:
                reported.add(site.line)
                yield (
                    site.line, "warning", L_("backward() runs inside autocast: torch advises against it"),
                    L_(
                        "leave the autocast region before backward(); its operations take the formats of the "
                        "forward pass"
                    ),
                )  # fmt: skip


def scaler_anew(source: Source) -> Mistakes:
    """A scaler that is created in the function of one epoch, or in the loop over the epochs."""
    for scaler, calls in source.scalers.items():
        for call in calls:
            scope, loop = source.scope(call), source.loop(call)
            used = [each for each in source.in_scope(scope, "step") if source.owner(each) == scaler]
            around = loop if loop is not None else scope if _is_epoch(source, scope) else None
            if around is None or not used or not isinstance(scope, ast.FunctionDef | ast.Module):
                continue
            if any(is_torch_optimizer(source, each) or "optim" in source.name_of(each.func).lower().rpartition(".")[2]
                   for each in source.walk(around) if isinstance(each, ast.Call)):  # fmt: skip
                continue  # everything is created anew: a fold, a trial, a whole training
            if any(source.variables.assignments(made) and made.scope is scope for site in used
                   if (made := source.variable(next(iter(site.node.args), site.node))) is not None):  # fmt: skip
                continue  # and so is the optimizer
            if source.loop(used[0].node) is None or any(isinstance(each, ast.If) for each in source.above(call)):
                continue
            yield (
                call.lineno, "warning", Sentence(
                    "the scaler {scaler} is made anew in each epoch: its scale begins again",
                    scaler=scaler,
                ),
                L_("make it once before the loop, and pass it on"),
            )  # fmt: skip


def _is_epoch(source: Source, scope: ast.AST) -> bool:
    """Whether a function trains for one epoch: called in a loop of this script, or named so."""
    if not isinstance(scope, ast.FunctionDef):
        return False
    called = [site for site in source.of(scope.name) if source.scope(site.node) is not scope]
    return any(source.loop(site.node) is not None for site in called) or (not called and "epoch" in scope.name)


def unscaled_twice(source: Source) -> Mistakes:
    """Gradients divided by the scale by hand, and again by scaler.step()."""
    for scaler in source.scaling:
        for reading in source.calls_of(scaler, "get_scale")[:_MOST_CALLS]:
            change = next(changes_by_scale(source, reading), None)
            step = source.next_in_scope(change, "step") if change is not None else None
            if change is None or step is None or source.owner(step) != scaler:
                continue
            yield (
                getattr(change, "lineno", reading.line), "error",
                Sentence(
                    "gradients are divided by the scale by hand, and a second time by {scaler}.step()",
                    scaler=scaler,
                ),
                Sentence(
                    "{scaler}.unscale_(optimizer) in its place, which {scaler}.step() knows of",
                    scaler=scaler,
                ),
            )  # fmt: skip


def no_scaler(source: Source) -> Mistakes:
    """Autocast to FP16 around a loss that is never scaled."""
    if not trains(source) or "scale_loss" in source.text or _scales_by_hand(source):
        return
    disabled = bool(source.scalers) and all(each.last_part in source.disabled_scalers for each in source.scalers)
    if not disabled and (source.scalers or "scaler" in source.text.lower()):
        return  # somebody else's
    if any(name.startswith(_OTHER_SCALERS) for name in source.imports.values()):
        return
    for region, call in source.autocasts:
        backward = source.in_scope(source.scope(region), "backward")[:_MOST_CALLS]
        direct = any(site.owner and not site.node.args for site in backward)
        direct = direct and _are_stepped(source, source.scope(region))
        if direct and region_is_fp16(source, call) and not _without_gradients(source, region):
            yield (
                region.lineno, "warning",
                L_("autocast to FP16 with a disabled gradient scaler: small gradients become zero") if disabled
                else L_("autocast to FP16 without a gradient scaler: small gradients become zero"),
                L_("torch.amp.GradScaler with enabled=True, or dtype=torch.bfloat16") if disabled
                else L_("torch.amp.GradScaler, or dtype=torch.bfloat16"),
            )  # fmt: skip
            return


def _are_stepped(source: Source, scope: ast.AST) -> bool:
    """Whether the function of a backward pass, or one that calls it or that it calls, makes a step with gradients,
    which a benchmark of the backward pass does not."""
    steps = {source.scope(each.node) for each in source.of("step")}
    called = [source.functions.get(each.method) for each in source.inside(scope)]
    callers = [source.scope(each.node) for each in source.of(getattr(scope, "name", ""))]
    by_hand = any(isinstance(each, ast.Attribute) and each.attr == "grad" and isinstance(source.parent(each), ast.BinOp)
                  for each in source.walk(scope))  # fmt: skip
    return by_hand or any(each in steps for each in [scope, *called, *callers])


def _without_gradients(source: Source, region: ast.AST) -> bool:
    """Whether a region is inside torch.no_grad()."""
    items = [item for each in (region, *source.above(region)) if isinstance(each, ast.With) for item in each.items]
    calls = (item.context_expr.func for item in items if isinstance(item.context_expr, ast.Call))
    return any(source.name_of(each).endswith(("no_grad", "inference_mode")) for each in calls)


def _scales_by_hand(source: Source) -> bool:
    """Whether a loop multiplies the loss and divides the gradients by itself."""
    for site in source.of("backward"):
        owner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
        value = definition(source, owner, conditional=True) if isinstance(owner, ast.Name) else owner
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            factors = [constant(source, each) for each in (value.left, value.right)]
            if all(each is None or abs(each) > 1 for each in factors):  # another one is a weight of the loss
                return True
    return False


def norm_before_unscale(source: Source) -> Mistakes:
    """A norm of gradients that is read while they are multiplied by the scale."""
    readings = [site for site in source.of("norm", "get_total_norm", "vector_norm") if _is_of_gradients(site)]
    by_function = {source.scope(site.node) for site in readings}
    readings += [site for name, f in source.functions.items() if f in by_function for site in source.of(name)]
    for scaler in source.scaling:
        own = source.calls_of(scaler, "scale", "unscale_", "step")
        for site in readings[:_MOST_CALLS]:
            here = [each for each in own if source.scope(each.node) is source.scope(site.node)]
            before = [each for each in here if each.place < site.place]
            later = any(each.place > site.place and each.method in ("step", "unscale_") for each in here)
            if not later or not before or before[-1].method != "scale" or source.excludes(site.node, before[-1].node):
                continue
            if _heeds_the_scale(source, scaler, before[-1], site):
                continue
            parent = source.parent(before[-1].node)
            if isinstance(parent, ast.Attribute) and parent.attr == "backward":
                yield (
                    site.line, "warning", L_(
                        "a norm of gradients is read while they are multiplied by the scale"
                    ),
                    Sentence("call {scaler}.unscale_(optimizer) before it", scaler=scaler),
                )  # fmt: skip


def _heeds_the_scale(source: Source, scaler: Variable, scale: CallSite, reading: CallSite) -> bool:
    """Whether the scale is read in the function of a norm of gradients before their step, by itself or by a function of
    this script that is called after the backward pass: then the gradients, or the norm, may be divided by it."""
    scope = source.scope(reading.node)
    step = next((each for each in source.calls_of(scaler, "step") if each.place > reading.place
                 and source.scope(each.node) is scope), None)  # fmt: skip
    last = step.place if step is not None else source.end(scope)
    called = (source.functions.get(each.method) for each in source.between(scope, scale.place, last))
    own = [each for each in source.nodes[source.places[scope] : last] if source.scope(each) is scope]
    below = [part for each in called if each is not None for part in source.walk(each)]
    return any(isinstance(each, ast.Attribute) and each.attr in SCALE_READINGS for each in own) or any(
        isinstance(each, ast.Attribute) and each.attr in ("unscale_", *SCALE_READINGS) for each in below
    )


def _is_of_gradients(site: CallSite) -> bool:
    """Whether `p.grad.detach().norm()` or `torch.norm(p.grad)` is called."""
    owner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
    for node in (owner, *site.node.args[:1]):
        for _ in range(8):
            if isinstance(node, ast.Attribute) and node.attr == "grad":
                return True
            node = node.value if isinstance(node, ast.Attribute) else node.func if isinstance(node, ast.Call) else None
    return False


def clip_after_step(source: Source) -> Mistakes:
    """Gradients clipped between a step and the end of the loop: no step gets them."""
    for clip in source.of(*CLIPS)[:_MOST_CALLS]:
        loop, scope = source.loop(clip.node), source.scope(clip.node)
        if loop is None:
            continue
        inside = [site for site in source.inside(loop) if source.scope(site.node) is scope]
        steps = [site for site in inside if _is_step(site)]
        passes = [site for site in inside if site.method == "backward" and site.owner]
        before = [site for site in steps if site.place < clip.place and source.loop(site.node) is loop]
        if not before or len(before) < len(steps) or not passes:
            continue
        if max(site.place for site in passes) > before[0].place or source.excludes(clip.node, before[0].node):
            continue
        if any(isinstance(each, ast.If | ast.Try) for site in (clip, *before) for each in source.above(site.node)
               if source.contains(loop, source.places[each])):  # fmt: skip
            continue
        yield (
            clip.line, "error", Sentence(
                "gradients are clipped after the step of line {line}, which has used them", line=before[-1].line
            ),
            L_("clip between backward() and the step (with a scaler, after scaler.unscale_(optimizer))"),
        )  # fmt: skip


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "loop-in-autocast": loop_in_autocast,
    "backward-in-autocast": backward_in_autocast,
    "scaler-anew": scaler_anew,
    "unscaled-twice": unscaled_twice,
    "no-scaler": no_scaler,
    "norm-before-unscale": norm_before_unscale,
    "clip-after-step": clip_after_step,
}
