"""Calls of a training loop in an order that torch refuses, or that spoils the gradients of the step."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.flow import (
    alternatives,
    created_optimizers,
    definition,
    handed_on,
    is_optimizer,
    statement,
    trained_models,
)
from precgui.lint.scaler_rules import CLIPS, is_unused
from precgui.lint.source import CallSite, Mistakes, Source, scaled_loss
from precgui.lint.variables import NO_TEXT, Variable, path_text
from precgui.sentences import L_, Sentence, filled

_MOST_CALLS = 64  # of one scaler; a training loop has a few
_MOST_VALUES = 16  # of one name
_MOST_DIVISORS = 4096  # of one script
_MAKE_NONE = {*CLIPS, "zero_grad", "no_grad", "enable_grad", "set_grad_enabled", "requires_grad_"}  # no new gradients
_REFUSED = {
    ("step", "step"): (
        L_(
            "{scaler}.step({given}) is called a second time (first in line {line}) without {scaler}.update(): "
            "torch raises"
        ),
        L_("remove one of the two"),
    ),
    ("unscale_", "unscale_"): (
        L_(
            "{scaler}.unscale_({given}) is called a second time (first in line {line}) without {scaler}.update(): "
            "torch raises"
        ),
        L_("remove one of the two"),
    ),
    ("step", "unscale_"): (
        L_("{scaler}.unscale_({given}) is called after {scaler}.step({given}) in line {line}: torch raises"),
        L_("call it before the step"),
    ),
}
_AVERAGED_ELSEWHERE = ("reduction='sum'", 'reduction="sum"', "deepspeed", "accelerator")


def scaler_out_of_order(source: Source) -> Mistakes:
    """unscale_ after step, one of both twice, and an update between a loss that was scaled and its step."""
    for scaler in source.scaling:
        own = source.calls_of(scaler, "scale", "unscale_", "step", "update")[:_MOST_CALLS]
        for index, site in enumerate(own):
            before = [each for each in own[:index] if _runs_before(source, each, site)]
            if site.method not in ("step", "unscale_") or not site.node.args or not before:
                continue
            given = path_text(site.node.args[0])
            if site.method == "step" and before[-1].method == "update" and _of_earlier_loss(source, before, site):
                yield (
                    site.line, "error", Sentence(
                        "{scaler}.update() in line {line} changes the scale before this step divides its gradients "
                        "by it",
                        scaler=scaler, line=before[-1].line,
                    ),
                    Sentence("call {scaler}.update() once, after the last {scaler}.step()", scaler=scaler),
                )  # fmt: skip
            last = next((each for each in reversed(before) if each.method == "update" or _same(each, given)), None)
            text = _REFUSED.get((last.method, site.method)) if last is not None else None
            if last is not None and text is not None and not _may_differ(source, last, site):
                named = {"scaler": scaler, "given": given, "line": last.line}
                yield site.line, "error", filled(text[0], **named), text[1]


def _same(site: CallSite, given: str) -> bool:
    return bool(site.node.args) and site.method in ("step", "unscale_") and path_text(site.node.args[0]) == given


def _runs_before(source: Source, first: CallSite, second: CallSite) -> bool:
    """Whether both are in one pass of one loop, or outside of loops in one function, and the first certainly ran."""
    same = source.scope(first.node) is source.scope(second.node)
    same = same and source.loop(first.node) is source.loop(second.node)
    return same and not source.excludes(first.node, second.node) and all(
        source.contains(each, second.place) for each in source.above(first.node)
        if isinstance(each, ast.If | ast.Try | ast.IfExp)
    )  # fmt: skip


def _may_differ(source: Source, first: CallSite, second: CallSite) -> bool:
    """Whether an argument may name another optimizer at the second call: it was assigned between both."""
    variable = source.variable(second.node.args[0])
    last = source.variables.last_before(variable, second.place) if variable is not None else None
    return variable is None or (last is not None and last.place > first.place)


def _of_earlier_loss(source: Source, before: list[CallSite], site: CallSite) -> bool:
    """Whether the gradients of a step were scaled before the last update, as far as this function shows."""
    update = before[-1]
    if not any(each.method == "scale" for each in before) or not any(each.method == "step" for each in before):
        return False
    between = source.between(source.scope(site.node), update.place, site.place)
    return not any("backward" in each.name or each.method in source.functions for each in between)


def micro_steps(source: Source) -> Mistakes:
    """update() or unscale_() in each micro-step of an accumulation, where only every n-th one steps."""
    for scaler in source.scaling:
        steps = source.calls_of(scaler, "step")[:_MOST_CALLS]
        turn = turn_of(source, steps[0]) if steps else None
        if turn is None or any(turn_of(source, each) is None for each in steps):
            continue
        each_time = [site for site in source.calls_of(scaler, "update", "unscale_")[:_MOST_CALLS]
                     if _is_beside(source, site, turn, steps[0])]  # fmt: skip
        unscaled = [site for site in each_time if site.method == "unscale_" and site.place < steps[0].place]
        updated = [site for site in each_time if site.method == "update" and site.place > steps[0].place]
        if unscaled:
            yield (
                unscaled[0].line, "error", Sentence(
                    "{scaler}.unscale_() is called in each micro-step, {scaler}.step() only in some (line {line}): "
                    "scaled gradients are added to unscaled ones, and torch raises",
                    scaler=scaler, line=steps[0].line,
                ),
                Sentence("move it under the condition of line {lineno}", lineno=turn.lineno),
            )  # fmt: skip
        elif updated and not updated[0].node.args and not updated[0].node.keywords:
            yield (
                updated[0].line, "error", Sentence(
                    "{scaler}.update() is called in each micro-step, {scaler}.step() only in some (line {line}): "
                    "torch raises, and the scale must stay within one step",
                    scaler=scaler, line=steps[0].line,
                ),
                Sentence("move it under the condition of line {lineno}", lineno=turn.lineno),
            )  # fmt: skip


def turn_of(source: Source, site: CallSite) -> ast.If | None:
    """The `if (i + 1) % n == 0` whose body a call is in, within its loop."""
    loop = source.loop(site.node)
    for each in source.above(site.node):
        if each is loop:
            return None
        if isinstance(each, ast.If) and _is_remainder(source, each.test):
            return each if any(source.contains(part, site.place) for part in each.body) else None
    return None


def _is_beside(source: Source, site: CallSite, turn: ast.If, step: CallSite) -> bool:
    """Whether a call is in the loop of a step, outside of its condition, and runs wherever that is asked."""
    if source.loop(site.node) is not source.loop(step.node) or source.contains(turn, site.place):
        return False
    around = source.conditions(turn)
    same = source.scope(site.node) is source.scope(step.node)
    return same and all(around.get(test) is positive for test, positive in source.conditions(site.node).items())


def _is_remainder(source: Source, test: ast.expr) -> bool:
    """Whether a condition is a remainder that must be zero, alone or before an `or`."""
    nodes = source.walk(test)
    moduli = [each for each in nodes if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod)]
    return bool(moduli) and not any(isinstance(each, ast.BoolOp) and isinstance(each.op, ast.And) for each in nodes)


def leftover_past_the_scaler(source: Source) -> Mistakes:
    """optimizer.step() on the rest of an accumulation, whose whole groups of micro-steps the scaler steps."""
    for scaler in source.scaling:
        if source.calls_of(scaler, "get_scale"):
            continue
        for step in source.calls_of(scaler, "step")[:_MOST_CALLS]:
            turn, loop = _count_of(source, step), source.loop(step.node)
            if turn is None or loop is None or not step.node.args:
                continue
            optimizer, scope = source.variable(step.node.args[0]), source.scope(step.node)
            for site in source.in_scope(scope, "step")[:_MOST_CALLS]:
                if site.node.args or optimizer is None or source.owner(site) != optimizer or site.place < step.place:
                    continue
                scaled = source.previous_in_scope(site.node, "backward")
                call = scaled_loss(scaled) if scaled is not None else None
                if scaled is None or call is None or not isinstance(call.func, ast.Attribute):
                    continue
                own = source.variable(call.func.value) == scaler and source.contains(loop, scaled.place)
                if own and _gets_the_rest(source, site, turn, scaled):
                    yield (
                        site.line, "error", Sentence(
                            "{owner}.step() uses the gradients of the last micro-steps, which are multiplied by the "
                            "scale: {scaler} steps whole groups only (line {line})",
                            owner=site.owner, scaler=scaler, line=step.line,
                        ),
                        Sentence(
                            "{scaler}.step({owner}) and {scaler}.update() in its place",
                            scaler=scaler, owner=site.owner,
                        ),
                    )  # fmt: skip


def _count_of(source: Source, step: CallSite) -> ast.If | None:
    """The `if` of a loop whose body has a step and that compares a count of micro-steps: a remainder, or a number that
    the loop adds to."""
    loop = source.loop(step.node)
    if (turn := turn_of(source, step)) is not None or loop is None:
        return turn
    added = {path_text(each.target) for each in source.walk(loop) if isinstance(each, ast.AugAssign)
             and isinstance(each.op, ast.Add)}  # fmt: skip
    for each in source.above(step.node):
        if each is loop:
            return None
        if isinstance(each, ast.If):
            is_count = isinstance(each.test, ast.Compare) and path_text(each.test.left) in added
            return each if is_count and any(source.contains(part, step.place) for part in each.body) else None
    return None


def _gets_the_rest(source: Source, site: CallSite, turn: ast.If, scaled: CallSite) -> bool:
    """Whether a plain step gets the gradients of a scaled loss: where a count says that some are left, or after the
    loop, and nothing divides or clears them before it."""
    loop = source.loop(turn)
    outer = source.loop(site.node)
    after = loop is not None and not source.contains(loop, site.place)
    if after and (loop is None or outer is not source.loop(loop)):
        return False
    if not after and (outer is not loop or not source.contains(turn, site.place)):
        return False
    around = source.conditions(scaled.node)
    own = [each.test for each in source.above(site.node) if isinstance(each, ast.If)
           and not source.contains(each, scaled.place)]  # fmt: skip
    counts = {path_text(each) for each in source.walk(turn.test) if isinstance(each, ast.Name)}
    between = source.between(source.scope(site.node), scaled.place, site.place)
    left = [each for each in between if not source.contains(turn, each.place) or not after]
    cleared = any(each.method in ("zero_grad", "unscale_") and not source.excludes(each.node, site.node)
                  for each in left)  # fmt: skip
    called = any(each.method in source.functions for each in left)
    early = any(each.method == "unscale_" and each.place < site.place and not source.contains(turn, each.place)
                for each in source.in_scope(source.scope(site.node), "unscale_"))  # fmt: skip
    sure = not around and all(_is_count(source, each, counts) for each in own)
    return sure and not cleared and not called and not early


def _is_count(source: Source, test: ast.expr, counts: set[str]) -> bool:
    """Whether a condition asks for a count of micro-steps and for nothing else."""
    if isinstance(test, ast.BoolOp):
        return all(_is_count(source, each, counts) for each in test.values)
    written = definition(source, test) if isinstance(test, ast.Name) and test.id not in counts else test
    below = source.walk(written) if written is not None else []
    return any((isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod))
               or (isinstance(each, ast.Name) and each.id in counts) for each in below)  # fmt: skip


def cleared_before_step(source: Source) -> Mistakes:
    """zero_grad() between backward() and the step of the same optimizer, in one block."""
    for clear in source.of("zero_grad")[:_MOST_CALLS]:
        optimizer, block = _optimizer_cleared_by(source, clear), _block(source, clear.node)
        if optimizer is None or block is None:
            continue
        calls = source.between(source.scope(clear.node), source.places[block], source.end(block) + 1)
        own = [each for each in calls if _block(source, each.node) is block
               and ("backward" in each.method or _is_step_of(source, each, optimizer))]  # fmt: skip
        last = next((each for each in reversed(own) if each.place < clear.place), None)
        following = next((each for each in own if each.place > clear.place), None)
        if last is None or following is None or "backward" not in last.method or "backward" in following.method:
            continue
        if not _may_pass_between(source, clear, following):
            yield (
                clear.line, "error", Sentence(
                    "{optimizer}.zero_grad() clears the gradients of line {line} before the step in line {line2} "
                    "uses them",
                    optimizer=clear.owner, line=last.line, line2=following.line,
                ),
                L_("call it before backward(), or after the step"),
            )  # fmt: skip


def _optimizer_cleared_by(source: Source, clear: CallSite) -> Variable | None:
    """The optimizer whose gradients zero_grad() clears, called on it or on the one model whose parameters it has."""
    owner = source.owner(clear)
    if owner is None or is_optimizer(source, clear):
        return owner
    return source.cached("optimizers_of_one_model", lambda: _optimizers_of_one_model(source)).get(owner)


def _optimizers_of_one_model(source: Source) -> dict[Variable, Variable]:
    """For each model that one optimizer alone has the parameters of, and of no other model, that optimizer."""
    found: dict[Variable, list[Variable]] = {}
    for site in created_optimizers(source):
        models, assigned = trained_models(source, site.node), statement(source, site.node)
        optimizer = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
        if len(models) == 1 and optimizer is not None:
            found.setdefault(models[0], []).append(optimizer)
    return {model: optimizers[0] for model, optimizers in found.items() if len(optimizers) == 1}


def _block(source: Source, node: ast.AST) -> ast.AST | None:
    """The compound statement or function whose body a call is a statement of."""
    above = source.parent(node)
    while isinstance(above, ast.expr):
        above = source.parent(above)
    return source.parent(above) if isinstance(above, ast.Expr | ast.Assign) else None


def _is_step_of(source: Source, site: CallSite, optimizer: Variable) -> bool:
    """Whether a call is a step of an optimizer, by itself or by a scaler."""
    if site.method != "step":
        return False
    given = site.node.args[0] if site.node.args else None
    return source.owner(site) == optimizer or (given is not None and source.variable(given) == optimizer)


def _may_pass_between(source: Source, clear: CallSite, step: CallSite) -> bool:
    """Whether gradients may come from a closure, from a function of this file or from one that is named for them."""
    by_itself = source.owner(step) not in source.scaling
    if by_itself and (step.node.args or step.node.keywords):
        return True
    between = source.between(source.scope(clear.node), clear.place, step.place)
    return any(each.method in source.functions or ("grad" in each.method and each.method not in _MAKE_NONE)
               or "backward" in each.name for each in between)  # fmt: skip


def scaled_loss_unused(source: Source) -> Mistakes:
    """scaler.scale(loss) as a statement: it returns the scaled loss and changes nothing."""
    for scaler in source.scaling:
        for site in source.calls_of(scaler, "scale"):
            if is_unused(source, site) and site.node.args:
                yield (
                    site.line, "error", Sentence(
                        "{scaler}.scale() returns the scaled loss, which is not used here",
                        scaler=scaler,
                    ),
                    f"{scaler}.scale({path_text(site.node.args[0])}).backward()",
                )  # fmt: skip


def not_averaged(source: Source) -> Mistakes:
    """Gradients of n micro-steps that are added, and a loss that is never divided by n."""
    if any(word in source.text for word in _AVERAGED_ELSEWHERE):
        return
    divisors = source.cached("divisors", lambda: _divisors(source))
    for step in source.of("step")[:_MOST_CALLS]:
        turn, loop = turn_of(source, step), source.loop(step.node)
        if turn is None or loop is None or not (is_optimizer(source, step) or source.owner(step) in source.scaling):
            continue
        count = next((path_text(each.right) for each in source.walk(turn.test) if isinstance(each, ast.BinOp)
                      and isinstance(each.op, ast.Mod)), NO_TEXT)  # fmt: skip
        if "accum" not in count.lower() or count.rpartition(".")[2] in divisors:
            continue
        passes = [
            each for each in source.inside(loop) if each.method == "backward" and (each.owner or scaled_loss(each))
        ]
        if passes and not any(source.contains(turn, each.place) for each in passes):
            clipped = any(source.contains(turn, each.place) for each in source.of(*CLIPS)[:_MOST_CALLS])
            yield (
                passes[0].line, "warning" if clipped else "info", Sentence(
                    "gradients of {count} micro-steps are added, and the loss is not divided by their number",
                    count=count,
                ),
                Sentence("divide the loss by {count} before backward()", count=count),
            )  # fmt: skip
            return


def _divisors(source: Source) -> set[str]:
    """The last parts of the names that something is divided by, and of those that such a name is another name of."""
    below = [each.right for each in source.nodes if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)]
    below += [each.value for each in source.nodes if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Div)]
    below += [given for each in source.of("div", "div_", "true_divide") for given in each.node.args]
    found: dict[ast.AST, None] = dict.fromkeys(part for each in below for part in source.walk(each) if _is_name(part))
    names = list(found)
    for name in names:  # which grows
        for value in handed_on(source, name)[:_MOST_VALUES] if len(names) < _MOST_DIVISORS else ():
            more = [each for each in alternatives(value) if _is_name(each) and each not in found]
            found |= dict.fromkeys(more)
            names += more
    return {path_text(each).rpartition(".")[2] for each in names}


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "scaler-out-of-order": scaler_out_of_order,
    "scaler-in-each-micro-step": micro_steps,
    "leftover-past-the-scaler": leftover_past_the_scaler,
    "cleared-before-step": cleared_before_step,
    "scaled-loss-unused": scaled_loss_unused,
    "accumulation-not-averaged": not_averaged,
}
