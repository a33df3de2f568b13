"""The order of a loop with a gradient scaler: scale, backward, unscale, clip, step, update, schedule."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.lint.arguments import keyword
from precgui.lint.flow import definition, is_optimizer, statement
from precgui.lint.method_names import SAME_VALUES
from precgui.lint.source import CallSite, Mistakes, Source, scaled_loss
from precgui.lint.variables import Variable, path_text
from precgui.sentences import L_, Sentence, filled

_CLIPPED = L_("gradients are clipped while they are multiplied by the scale")
_CLIPPED_BEFORE = L_(
    "gradients are clipped while they are multiplied by the scale ({scaler}.unscale_() comes later, in line {line})"
)
_MOST_CALLS = 64  # of one scaler in one function
_MOST_PARTS = 8  # of an expression that scales an output
_NORMS = ("norm", "vector_norm", "square", "pow")
SCALE_READINGS = ("get_scale", "_scale")
CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_")


def scaler_not_used(source: Source) -> Mistakes:
    """A scaler that is created, passed to no function, and never multiplies a loss."""
    for scaler, calls in source.scalers.items():
        if scaler.last_part in source.disabled_scalers or source.named_calls(scaler.last_part, "scale"):
            continue
        steps = source.calls_of(scaler, "step")
        if (
            _is_handed_on(source, scaler)
            or ("[" in scaler.text and not steps)
            or (not steps and _serves_others(source, scaler))
        ):
            continue
        if steps and not source.of("backward"):
            continue  # the loss may be scaled where its gradients are taken, in a class that is derived from this one
        reported = (
            Sentence("{scaler}.step() is called, but no loss is multiplied", scaler=scaler)
            if steps
            else L_("it is never used")
        )
        yield (
            _first_plain_backward(source, steps) or calls[0].lineno, "error" if steps else "warning",
            Sentence(
                "the scaler {scaler} is made and does not scale: {reported}",
                scaler=scaler, reported=reported,
            ),
            Sentence(
                "{scaler}.scale(loss).backward(), then {scaler}.step(optimizer) and {scaler}.update()", scaler=scaler
            ),
        )  # fmt: skip


def _first_plain_backward(source: Source, steps: list[CallSite]) -> int | None:
    """The line of the first backward pass whose gradients the scaler divides though nothing multiplied them."""
    passes = (source.previous_in_scope(step.node, "backward") for step in steps)
    return next((site.line for site in passes if site is not None and scaled_loss(site) is None), None)


def _is_handed_on(source: Source, scaler: Variable) -> bool:
    """Whether the variable is read anywhere but before a dot: an argument, a return value, an element, an alias."""
    for node in source.nodes:
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
        if name != scaler.last_part or not isinstance(getattr(node, "ctx", None), ast.Load):
            continue
        if not isinstance(source.parent(node), ast.Attribute):
            return True
        if isinstance(node, ast.Attribute) and path_text(node) != scaler.text:
            return True
    return False


def _serves_others(source: Source, scaler: Variable) -> bool:
    """Whether code of other files may use the scaler: an attribute, or a variable of a module without a loop."""
    return "." in scaler.text or (scaler.scope is source.tree and not source.of("backward"))


def clip_before_unscale(source: Source) -> Mistakes:
    """Clipping between scaler.scale(loss).backward() and scaler.step() without scaler.unscale_() before it."""
    for clip in source.of(*CLIPS):
        last = source.previous_in_scope(clip.node, "scale")  # of several scalers, that of these gradients
        scaler = source.owner(last) if last is not None else None
        if last is None or scaler not in source.scaling or source.excludes(clip.node, last.node):
            continue
        if clip.owner and not clip.name.startswith("torch."):
            continue  # accelerate and others unscale before they clip
        own = [site for method in ("unscale_", "step") for site in source.in_scope(source.scope(clip.node), method)
               [:_MOST_CALLS] if source.owner(site) == scaler]  # fmt: skip
        unscaled = [site for site in own if site.method == "unscale_"]
        if len(own) == len(unscaled) or any(site.place < clip.place for site in unscaled):
            continue
        if _divided_by_hand(source, scaler, last, clip) or _unscaled_by_a_function(source, last, clip):
            continue
        text = _CLIPPED_BEFORE if unscaled else _CLIPPED
        yield (
            clip.line, "error", filled(text, scaler=scaler, line=unscaled[0].line if unscaled else 0),
            Sentence(
                "call {scaler}.unscale_(optimizer) before {method}", scaler=scaler, method=clip.method
            ),
        )  # fmt: skip


def _unscaled_by_a_function(source: Source, scale: CallSite, clip: CallSite) -> bool:
    """Whether a function of this script that is called between the backward pass and the clipping unscales."""
    called = (
        source.functions.get(site.method) for site in source.between(source.scope(clip.node), scale.place, clip.place)
    )
    return any(site.method == "unscale_" for function in called if function for site in source.inside(function))


def _divided_by_hand(source: Source, scaler: Variable, scale: CallSite, clip: CallSite) -> bool:
    """Whether the loop divides the gradients by the scale itself between the backward pass and the clipping."""
    changes = [
        source.places[change]
        for reading in source.calls_of(scaler, "get_scale")[:_MOST_CALLS]
        for change in changes_by_scale(source, reading)
    ]
    return any(scale.place < place < clip.place for place in changes)


def changes_by_scale(source: Source, reading: CallSite) -> Iterator[ast.AST]:
    """The statements that change a `.grad` by a scale that was read, directly or by one variable."""
    scope = source.scope(reading.node)
    assigned = source.parent(reading.node)
    while isinstance(assigned, ast.expr):
        assigned = source.parent(assigned)
    names = {path_text(each) for each in assigned.targets} if isinstance(assigned, ast.Assign) else set()
    for node in source.nodes[reading.place - 30 if reading.place > 30 else 0 : source.end(scope) + 1]:
        target: ast.expr | None = node.target if isinstance(node, ast.AugAssign) else None
        target = node.targets[0] if isinstance(node, ast.Assign) else target
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            in_place = node.func.attr in ("mul_", "div_", "copy_")
            target = node.func.value if in_place else None
        if target is None or ".grad" not in path_text(target) or source.scope(node) is not scope:
            continue
        below = source.walk(node)
        if reading.node in below or any(isinstance(each, ast.Name) and each.id in names for each in below):
            yield node


def step_past_the_scaler(source: Source) -> Mistakes:
    """optimizer.step() where the loss was scaled: in place of scaler.step(), or after it."""
    for scaler in source.scaling:
        scaled = {source.scope(site.node): site for site in reversed(source.calls_of(scaler, "scale"))}
        for scope, scale in scaled.items():
            own = source.in_scope(scope, "step")
            through = [site for site in own if source.owner(site) == scaler]
            by_optimizer = {path_text(site.node.args[0]): site for site in through if site.node.args}
            for site in own:
                same = by_optimizer.get(site.owner)
                if site.node.args or source.owner(site) == scaler or source.excludes(site.node, scale.node):
                    continue
                if source.loop(site.node) is not source.loop((same or scale).node):
                    continue  # before the loop, where there are no gradients yet
                if same is not None and not source.excludes(site.node, same.node):
                    yield (
                        site.line, "error", Sentence(
                            "{owner}.step() steps a second time, also where the scaler skips",
                            owner=site.owner,
                        ),
                        Sentence("remove it: {scaler}.step({owner}) calls it", scaler=scaler, owner=site.owner),
                    )  # fmt: skip
                elif is_optimizer(source, site) and _gets_scaled(source, scaler, site, bool(through)):
                    state = (
                        L_("may be NaN or Inf")
                        if source.calls_of(scaler, "unscale_")
                        else L_("are multiplied by the scale")
                    )
                    yield (
                        site.line, "error", Sentence(
                            "{owner}.step() goes past {scaler}: it uses gradients that {state}",
                            owner=site.owner, scaler=scaler, state=state,
                        ),
                        Sentence(
                            "{scaler}.step({owner}) and {scaler}.update() in its place",
                            scaler=scaler, owner=site.owner,
                        ),
                    )  # fmt: skip


def _gets_scaled(source: Source, scaler: Variable, site: CallSite, others_step: bool) -> bool:
    """Whether a plain step uses gradients of a scaled loss: the scaler steps nothing here, or it steps others, never
    this optimizer, and the last backward pass before the step was scaled by it."""
    if source.calls_of(scaler, "get_scale"):
        return False
    if not others_step:
        return True
    last = source.previous_in_scope(site.node, "backward")
    scaled = scaled_loss(last) if last is not None else None
    if last is None or scaled is None or source.excludes(site.node, last.node):
        return False
    given = [path_text(each.node.args[0]) for each in source.of("step", "unscale_") if each.node.args]
    own = isinstance(scaled.func, ast.Attribute) and source.variable(scaled.func.value) == scaler
    return own and site.owner not in given


def no_update(source: Source) -> Mistakes:
    """scaler.step() without scaler.update(): the scale never moves."""
    for scaler in source.scaling:
        steps = source.calls_of(scaler, "step")
        if not steps or source.named_calls(scaler.last_part, "update") or _is_handed_on(source, scaler):
            continue
        if scaler in source.scalers or not _are_updated(source):
            yield (
                steps[0].line, "error", Sentence(
                    "{scaler}.update() is never called: a scale that is too high stays so",
                    scaler=scaler,
                ),
                Sentence("call {scaler}.update() after {scaler}.step(optimizer)", scaler=scaler),
            )  # fmt: skip


def _are_updated(source: Source) -> bool:
    """Whether all scalers that the script makes are updated, those that functions get as arguments with them."""
    return bool(source.scalers) and all(source.named_calls(each.last_part, "update") for each in source.scalers)


def scaled_by_another(source: Source) -> Mistakes:
    """A loss that is scaled by a scaler which never steps, before the step of another one."""
    for scaler in source.scalers:
        others = [each for each in source.scalers if each != scaler and each.last_part not in source.disabled_scalers]
        if not others or source.named_calls(scaler.last_part, "step") or _is_handed_on(source, scaler):
            continue
        for scale in source.calls_of(scaler, "scale")[:_MOST_CALLS]:
            step = source.next_in_scope(scale.node, "step")
            other = source.owner(step) if step is not None else None
            if step is not None and other in others and step.node.args and not source.excludes(scale.node, step.node):
                yield (
                    step.line, "error", Sentence(
                        "{other}.step() divides gradients by its scale, but {scaler} has multiplied the loss "
                        "(line {line})",
                        other=other, scaler=scaler, line=scale.line,
                    ),
                    Sentence("{scaler}.step(...), one scaler for each loss", scaler=scaler),
                )  # fmt: skip


def scheduler_on_skipped_steps(source: Source) -> Mistakes:
    """scheduler.step() in each pass of the loop of scaler.step(), whether that steps or skips."""
    schedulers: dict[ast.AST, list[CallSite]] = {}
    for site in source.of("step"):
        loop = source.loop(site.node)
        if loop is None or "sched" not in site.owner.lower().rpartition(".")[2] or site.node.args:
            continue
        if not any(isinstance(each, ast.If) for each in source.above(site.node) if each is not loop):
            schedulers.setdefault(loop, []).append(site)
    for scaler in source.scaling:
        if source.named_calls(scaler.last_part, "get_scale"):
            continue  # somebody heeds the skipped steps
        loops = dict.fromkeys(source.loop(step.node) for step in source.calls_of(scaler, "step"))
        for site in (site for loop in loops if loop is not None for site in schedulers.get(loop, [])):
            yield (
                site.line, "info", Sentence(
                    "{owner}.step() is called in steps that the scaler skips, too",
                    owner=site.owner,
                ),
                Sentence(
                    "call it only if {scaler}.get_scale() has not fallen in {scaler}.update()",
                    scaler=scaler,
                ),
            )  # fmt: skip


def scaler_not_saved(source: Source) -> Mistakes:
    """A checkpoint with the optimizer's state and without the scaler's."""
    saves = source.of("save")
    states = [site for site in source.of("state_dict") if is_optimizer(source, site)]
    for scaler in source.scalers if saves and states else ():
        used = source.calls_of(scaler, "scale") and scaler.last_part not in source.disabled_scalers
        if used and not source.named_calls(scaler.last_part, "state_dict"):
            yield (
                states[0].line, "info", Sentence(
                    "the checkpoint has the optimizer's state, not that of {scaler}: a resumed run skips steps",
                    scaler=scaler,
                ),
                Sentence("save {scaler}.state_dict() and load it", scaler=scaler),
            )  # fmt: skip


def scale_set_anew(source: Source) -> Mistakes:
    """scaler.update(2.0**24) in each step: the argument replaces the scale."""
    for scaler in source.scaling:
        for site in source.calls_of(scaler, "update"):
            given = keyword(site.node, "new_scale", 0)
            always = not any(isinstance(each, ast.If) for each in source.above(site.node))
            if isinstance(given, ast.Constant | ast.BinOp) and _is_constant(source, given) and always:
                yield (
                    site.line, "error", Sentence(
                        "{scaler}.update() sets the scale to a constant in each step: it never adapts",
                        scaler=scaler,
                    ),
                    Sentence(
                        "{scaler}.update() without an argument, and init_scale= where the scaler is made",
                        scaler=scaler,
                    ),
                )  # fmt: skip


def _is_constant(source: Source, node: ast.AST) -> bool:
    return all(isinstance(each, ast.Constant | ast.BinOp) for each in source.walk(node)) and not (
        isinstance(node, ast.Constant) and node.value is None
    )


def loss_not_scaled(source: Source) -> Mistakes:
    """One backward() of a plain loss among those of scaled ones, before the step of the scaler."""
    for scaler in source.scaling:
        scaled = {source.scope(site.node): site for site in source.calls_of(scaler, "scale")}
        for site in source.of("backward"):
            first = scaled.get(source.scope(site.node))
            plain = site.owner and scaled_loss(site) is None and first is not None and not is_unused(source, first)
            if not plain or first is None or source.loop(site.node) is not source.loop(first.node):
                continue
            following = source.next_in_scope(site.node, "step")
            if following is None or source.owner(following) != scaler or source.excludes(site.node, first.node):
                continue
            if not source.excludes(site.node, following.node) and not _comes_from_scale(source, site):
                yield (
                    site.line, "error", Sentence(
                        "{owner}.backward() is not scaled, but {scaler}.step() divides its gradients by the scale",
                        owner=site.owner, scaler=scaler,
                    ),
                    f"{scaler}.scale({site.owner}).backward()",
                )  # fmt: skip


def is_unused(source: Source, scale: CallSite) -> bool:
    """Whether scaler.scale(loss) is a statement."""
    return isinstance(source.parent(scale.node), ast.Expr)


def _comes_from_scale(source: Source, site: CallSite) -> bool:
    """Whether the loss may have been scaled before: assigned from X.scale(...), or called so."""
    owner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
    variable = source.owner(site)
    if owner is None or variable is None or "scale" in variable.text.lower():
        return True
    values = source.variables.values(variable)
    return any(
        value is None or any(isinstance(each, ast.Attribute) and "scale" in each.attr for each in source.walk(value))
        for value in values
    )  # fmt: skip


def penalty_of_scaled(source: Source) -> Mistakes:
    """The norm of gradients that torch.autograd.grad gave for a scaled output, as in a gradient penalty."""
    for site in source.of("grad"):
        outputs = keyword(site.node, "outputs", 0)
        if site.name != "torch.autograd.grad" or outputs is None:
            continue
        scaler, scope = _scaler_of(source, outputs), source.scope(site.node)
        if scaler is None:
            continue
        reading = _norm_of(source, site, scope)
        if reading is not None and not _knows_the_scale(source, scope):
            yield (
                site.line, "error", Sentence(
                    "the gradients are those of an output that {scaler} has scaled, and line {lineno} uses them as "
                    "they are: a penalty of numbers that are multiplied by the scale",
                    scaler=scaler, lineno=reading.lineno,
                ),
                Sentence("divide them by {scaler}.get_scale() first", scaler=scaler),
            )  # fmt: skip


def _scaler_of(source: Source, outputs: ast.expr) -> Variable | None:
    """The scaler that has scaled an output, `scaler.scale(out)` itself, its sum or mean, or a list of it alone; also
    one that a function gets as an argument of the name that a scaler of this script has."""
    node: ast.expr | None = outputs
    for _ in range(_MOST_PARTS):
        if isinstance(node, ast.Name):
            node = definition(source, node)
        elif isinstance(node, ast.List | ast.Tuple) and len(node.elts) == 1:
            node = node.elts[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "scale":
                scaler = source.variable(node.func.value)
                return scaler if scaler in source.scaling or _is_given_scaler(source, scaler) else None
            node = node.func.value if node.func.attr in ("sum", "mean") else None
        else:
            return None
    return None


def _is_given_scaler(source: Source, variable: Variable | None) -> bool:
    """Whether a variable is an argument of a function, of the name of a scaler that this script scales losses with."""
    scope = variable.scope if variable is not None else None
    if variable is None or not isinstance(scope, ast.FunctionDef) or source.variables.assignments(variable):
        return False
    given = [each.arg for each in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)]
    return variable.text in given and variable.text in {each.last_part for each in source.scaling}


def _norm_of(source: Source, site: CallSite, scope: ast.AST) -> ast.expr | None:
    """The first norm or power of the variables that a call of torch.autograd.grad is assigned to."""
    assigned = statement(source, site.node)
    targets = source.walk(assigned.targets[0]) if isinstance(assigned, ast.Assign) else []
    gradients = {source.variable(each) for each in targets if isinstance(each, ast.Name)}
    for node in source.nodes[source.end(site.node) : source.end(scope) + 1]:
        if source.scope(node) is not scope:
            continue
        if isinstance(node, ast.Assign):
            reading = next((each for each in source.walk(node.value) if _is_norm(source, each, gradients)), None)
            if reading is not None:
                return reading if isinstance(reading, ast.expr) else None
            same = source.variable(_without_shapes(node.value)) in gradients
            held = {source.variable(each) for each in node.targets if isinstance(each, ast.Name)}
            gradients = gradients | held if same else gradients - held
        elif isinstance(node, ast.expr) and _is_norm(source, node, gradients):
            return node
    return None


def _is_norm(source: Source, node: ast.AST, gradients: set[Variable | None]) -> bool:
    """Whether a node is a norm or a power of gradients that nothing in it divides or multiplies."""
    is_norm = isinstance(node, ast.Call) and source.name_of(node.func).rpartition(".")[2] in _NORMS
    if not is_norm and not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)):
        return False
    below = source.walk(node)
    changed = any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult | ast.Div) for each in below)
    return not changed and any(isinstance(each, ast.Name) and source.variable(each) in gradients for each in below)


def _without_shapes(node: ast.expr) -> ast.expr:
    """The tensor whose elements an expression has in another shape, or some of them."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_VALUES:
            node = node.func.value
        else:
            return node


def _knows_the_scale(source: Source, scope: ast.AST) -> bool:
    """Whether a function asks for the scale, or writes gradients that the scaler divides itself."""
    nodes = source.walk(scope)
    asks = any(isinstance(each, ast.Attribute) and each.attr in ("unscale_", *SCALE_READINGS) for each in nodes)
    return asks or any(isinstance(each, ast.Attribute) and each.attr == "grad" and isinstance(each.ctx, ast.Store)
                       for each in nodes)  # fmt: skip


def closure_of_a_scaler(source: Source) -> Mistakes:
    """A closure that is given to scaler.step(), as L-BFGS needs one."""
    own = [each for each in source.calls if each.method.endswith("GradScaler") and each.method != "GradScaler"]
    for scaler in source.scalers if not own else ():
        if scaler.last_part in source.disabled_scalers:
            continue
        for site in source.calls_of(scaler, "step")[:_MOST_CALLS]:
            if len(site.node.args) > 1 or keyword(site.node, "closure") is not None:
                yield (
                    site.line, "error", Sentence(
                        "{scaler}.step() takes no closure: gradients that it computes anew are still multiplied by the "
                        "scale",
                        scaler=scaler,
                    ),
                    L_("train this part in BF16 or FP32 without a scaler, and call optimizer.step(closure)"),
                )  # fmt: skip


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "closure-of-a-scaler": closure_of_a_scaler,
    "scaler-not-used": scaler_not_used,
    "clip-before-unscale": clip_before_unscale,
    "step-past-the-scaler": step_past_the_scaler,
    "scaler-not-updated": no_update,
    "scaled-by-another": scaled_by_another,
    "scheduler-on-skipped-steps": scheduler_on_skipped_steps,
    "scaler-not-saved": scaler_not_saved,
    "scale-set-anew": scale_set_anew,
    "loss-not-scaled": loss_not_scaled,
    "penalty-of-scaled-gradients": penalty_of_scaled,
}
