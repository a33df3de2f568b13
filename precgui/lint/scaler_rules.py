"""The order of a loop with a gradient scaler: scale, backward, unscale, clip, step, update, schedule."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.events import Severity
from precgui.lint.source import CallSite, Source, keyword

Mistakes = Iterator[tuple[int, Severity, str, str]]
_CLIPPED = "gradients are clipped while they are multiplied by the scale"
_CLIPPED_BEFORE = (
    "gradients are clipped while they are multiplied by the scale ({scaler}.unscale_() comes later, in line {line})"
)
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_")


def _enabled(call: ast.Call) -> bool | None:
    """False for `enabled=False`, None where a variable says it."""
    given = keyword(call, "enabled")
    if given is None:
        return True
    return bool(given.value) if isinstance(given, ast.Constant) else None


def _calls_of(source: Source, scaler: str, *methods: str) -> list[CallSite]:
    return [site for site in source.of(*methods) if site.owner == scaler]


def scaler_not_used(source: Source) -> Mistakes:
    """A scaler that is created, passed to no function, and never multiplies a loss."""
    for name, call in source.scalers.items():
        if _enabled(call) is False or _calls_of(source, name, "scale") or _is_handed_on(source, name, call):
            continue
        steps = _calls_of(source, name, "step")
        reported = f"{name}.step() is called, but no loss is multiplied" if steps else "it is never used"
        yield (
            call.lineno, "error" if steps else "warning", f"the scaler {name} is made and does not scale: {reported}",
            f"{name}.scale(loss).backward(), then {name}.step(optimizer) and {name}.update()",
        )  # fmt: skip


def _is_handed_on(source: Source, name: str, call: ast.Call) -> bool:
    """Whether the variable is read anywhere but before a dot: an argument, a return value, an element, an alias."""
    attribute = name.rpartition(".")[2]
    for node in ast.walk(source.tree):
        is_name = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        is_attribute = (
            isinstance(node, ast.Attribute)
            and node.attr == attribute
            and isinstance(node.ctx, ast.Load)
            and "." in name
        )
        if (is_name or is_attribute) and not isinstance(source.parents.get(node), ast.Attribute):
            return True
        if is_attribute and isinstance(node, ast.Attribute) and ast.unparse(node) != name:
            return True
    return source.scope(call) is source.tree and "." not in name and _is_imported_elsewhere(source)


def _is_imported_elsewhere(source: Source) -> bool:
    """A module without a training loop may make a scaler for others."""
    return not source.of("backward")


def clip_before_unscale(source: Source) -> Mistakes:
    """Clipping between scaler.scale(loss).backward() and scaler.step() without scaler.unscale_() before it."""
    for name in source.scaling:
        for clip in source.of(*_CLIPS):
            scope = source.scope(clip.node)
            own = [site for site in source.inside(scope) if site.owner == name]
            scaled = [site for site in own if site.method == "scale"]
            unscaled = [site for site in own if site.method == "unscale_"]
            steps = [site for site in own if site.method == "step"]
            if not scaled or not steps or _excludes(source, clip.node, scaled[0].node):
                continue
            if not any(site.line <= clip.line for site in unscaled):
                text = _CLIPPED_BEFORE if unscaled else _CLIPPED
                late = unscaled[0].line if unscaled else 0
                yield (
                    clip.line, "error", text.format(scaler=name, line=late),
                    f"call {name}.unscale_(optimizer) before {clip.method}",
                )  # fmt: skip


def _excludes(source: Source, one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes are in different branches of an `if`, so that they never both run."""
    for node in source.above(one):
        if isinstance(node, ast.If):
            in_body = {id(each) for part in node.body for each in ast.walk(part)}
            in_else = {id(each) for part in node.orelse for each in ast.walk(part)}
            if (id(one) in in_body and id(other) in in_else) or (id(one) in in_else and id(other) in in_body):
                return True
    return False


def step_past_the_scaler(source: Source) -> Mistakes:
    """optimizer.step() where the loss was scaled: in place of scaler.step(), or after it."""
    for name in source.scaling:
        for scaled in _calls_of(source, name, "scale"):
            scope = source.scope(scaled.node)
            own = [site for site in source.inside(scope) if site.method == "step"]
            through = [site for site in own if site.owner == name]
            optimizers = {ast.unparse(site.node.args[0]) for site in through if site.node.args}
            for site in own:
                if site.owner == name or site.node.args or _excludes(source, site.node, scaled.node):
                    continue
                if site.owner in optimizers and not any(_excludes(source, site.node, each.node) for each in through):
                    yield (
                        site.line, "error", f"{site.owner}.step() steps a second time, also where the scaler skips",
                        f"remove it: {name}.step({site.owner}) calls it",
                    )  # fmt: skip
                elif not through and is_optimizer(source, site.owner):
                    yield (
                        site.line, "error", f"{site.owner}.step() uses gradients that are still multiplied by the "
                        f"scale",
                        f"{name}.step({site.owner}) and {name}.update() in its place",
                    )  # fmt: skip


def is_optimizer(source: Source, owner: str) -> bool:
    """A variable that is called like one, or that torch.optim made."""
    if "optim" in owner.lower() or owner.lower().rpartition(".")[2] in ("opt", "optimiser"):
        return True
    assigned = (
        node for node in ast.walk(source.tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    )
    return any(
        ast.unparse(node.targets[0]) == owner and source.name_of(node.value.func).startswith("torch.optim.")  # type: ignore[attr-defined]
        and "lr_scheduler" not in source.name_of(node.value.func)  # type: ignore[attr-defined]
        for node in assigned
    )  # fmt: skip


def no_update(source: Source) -> Mistakes:
    """scaler.step() without scaler.update(): the scale never moves."""
    for name in source.scaling:
        steps = _calls_of(source, name, "step")
        if steps and not _calls_of(source, name, "update"):
            yield (
                steps[0].line, "error", f"{name}.update() is never called: a scale that is too high stays so",
                f"call {name}.update() after {name}.step(optimizer)",
            )  # fmt: skip


def scheduler_on_skipped_steps(source: Source) -> Mistakes:
    """scheduler.step() in each pass of the loop of scaler.step(), whether that steps or skips."""
    for name in source.scaling:
        if _calls_of(source, name, "get_scale"):
            continue  # somebody looks
        for step in _calls_of(source, name, "step"):
            loop = source.loop(step.node)
            for site in source.of("step"):
                word = site.owner.lower().rpartition(".")[2]
                of_loop = loop is not None and source.loop(site.node) is loop
                guarded = any(isinstance(each, ast.If) for each in source.above(site.node) if each is not loop)
                if of_loop and "sched" in word and not site.node.args and not guarded:
                    yield (
                        site.line, "info", f"{site.owner}.step() is called in steps that the scaler skips, too",
                        f"call it only if {name}.get_scale() has not fallen in {name}.update()",
                    )  # fmt: skip


def scaler_not_saved(source: Source) -> Mistakes:
    """A checkpoint with the optimizer's state and without the scaler's."""
    saves = source.of("save")
    states = [site for site in source.of("state_dict") if is_optimizer(source, site.owner)]
    for name, call in source.scalers.items():
        used = _calls_of(source, name, "scale")
        if saves and states and used and not _calls_of(source, name, "state_dict") and _enabled(call) is not False:
            yield (
                states[0].line, "info", f"the checkpoint has the optimizer's state, not that of {name}: a resumed run "
                f"skips steps",
                f"save {name}.state_dict() and load it",
            )  # fmt: skip


def backward_in_autocast(source: Source) -> Mistakes:
    """backward() inside the autocast region."""
    for node, _ in source.autocasts:
        for site in source.inside(node):
            if site.method == "backward" and site.owner:
                yield (
                    site.line, "warning", "backward() runs inside autocast: torch advises against it",
                    "leave the autocast region before backward(); its operations take the formats of the forward pass",
                )  # fmt: skip


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "scaler-not-used": scaler_not_used,
    "clip-before-unscale": clip_before_unscale,
    "step-past-the-scaler": step_past_the_scaler,
    "scaler-not-updated": no_update,
    "scheduler-on-skipped-steps": scheduler_on_skipped_steps,
    "scaler-not-saved": scaler_not_saved,
    "backward-in-autocast": backward_in_autocast,
}
