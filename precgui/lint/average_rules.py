"""Moving averages that a script keeps in 16 bits: of weights, and of other numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from precgui.events import Severity
from precgui.lint.arguments import keyword
from precgui.lint.constants import constant, given_for, possible
from precgui.lint.flow import (
    base,
    cast_of,
    definition,
    format_at,
    model_format,
    statement,
    weights_format,
    whole_chain,
)
from precgui.lint.kept_rules import (
    DEVIATION,
    UNIT_ROUNDOFF,
    is_compensated,
    is_of_gradients,
    kept_in_16_bits,
    place_of,
    taken_from,
)
from precgui.lint.method_names import CONVERSIONS
from precgui.lint.source import Mistakes, Source
from precgui.lint.variables import NO_TEXT, Variable, path_text
from precgui.sentences import L_, Sentence

_AVERAGES = ("ema", "average", "averaged", "shadow")
_OF_MODELS = {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict"}
_LISTS = {"list", "dict", "tuple", "OrderedDict", "items", "values"}
# Classes that keep an average of a model in the format of its weights: package, argument of the decay, its default.
_LIBRARIES = {
    "EMAModel": ("diffusers.", "decay", 0.9999), "ExponentialMovingAverage": ("torch_ema.", "decay", None),
    "ModelEma": ("timm.", "decay", 0.9999), "ModelEmaV2": ("timm.", "decay", 0.9999),
    "ModelEmaV3": ("timm.", "decay", 0.9999), "EMA": ("ema_pytorch.", "beta", 0.9999),
}  # fmt: skip
_UPDATES = ("step", "update", "update_parameters")
_MOST_AVERAGES = 16
_MOST_CALLS = 64  # of one kind in a script
_MOST_STEPS = 8  # from one expression to the next


@dataclass(frozen=True)
class _Update:
    """A step of a moving average: the tensor that it changes, what it adds, and the weights that this may have."""

    target: ast.expr
    new: ast.expr | None
    weights: frozenset[float]
    line: int


def low_average(source: Source) -> Mistakes:
    """A moving average that is kept in 16 bits: of weights, or another one in which a new value weighs little."""
    told: set[int] = set()
    for found in [*_named(source), *_tensors_and_models(source), *_of_libraries(source)]:
        if found[0] not in told:
            told.add(found[0])
            yield found


def _named(source: Source) -> Mistakes:
    """Averages by their names, whatever the weight of a new value."""
    assigned = [each for each in source.nodes if isinstance(each, ast.Assign)]
    for node in [each for each in assigned if _is_average(path_text(each.targets[0]))][:_MOST_AVERAGES]:
        weights = _low_inside(source, node.value)
        line = _line_of_update(source, path_text(node.targets[0]), weights) if weights else None
        if line is not None:
            yield node.lineno, *_lost_changes(path_text(node.targets[0]), weights, line)


def _tensors_and_models(source: Source) -> Mistakes:
    """Averages by a step in which a new value weighs little: of tensors that are kept in 16 bits, of models in them."""
    kept = kept_in_16_bits(source)
    if is_compensated(source) or not (kept or "float16" in source.text or "half" in source.text):
        return
    for update in _updates(source):
        tensor = kept.get(place_of(source, update.target))
        if tensor is not None and not _is_average(tensor.text):
            is_of_others = update.new is not None and not is_of_gradients(source, update.new)
            if is_of_others and _is_lost(max(update.weights), tensor.format):
                yield tensor.line, *_lost_changes(tensor.text, tensor.format, update.line)
            continue
        for model in _models_of(source, update.target):
            weights, line = _format_of_average(source, model)
            if weights and any(_is_lost(each, weights) for each in update.weights):
                yield line, *_lost_changes(model.text, weights, update.line)


def _is_lost(weight: float, weights: str) -> bool:
    return 0 < weight * DEVIATION <= UNIT_ROUNDOFF[weights]


def _lost_changes(text: str, weights: str, line: int) -> tuple[Severity, str, str]:
    return (
        "warning", Sentence(
            "{target} is a moving average in {weights}: small changes (line {line}) are rounded away",
            target=text, weights=weights.upper(), line=line,
        ),
        L_("keep the average in FP32 (.float())"),
    )  # fmt: skip


def _is_average(text: str) -> bool:
    return not set(_AVERAGES).isdisjoint(text.rpartition(".")[2].lower().split("_"))


def _low_inside(source: Source, value: ast.expr) -> str:
    """The format in 16 bits that an average is made in: cast itself, cast element by element, or a copy of a model."""
    node = value
    while isinstance(node, ast.DictComp | ast.ListComp):
        node = node.value if isinstance(node, ast.DictComp) else node.elt
    weights = model_format(source, node)
    copy = base(node)
    if not weights and isinstance(copy, ast.Call) and source.name_of(copy.func).endswith("deepcopy") and copy.args:
        weights = format_at(source, copy.args[0], value)
    return weights if weights in UNIT_ROUNDOFF else ""


def _line_of_update(source: Source, name: str, weights: str) -> int | None:
    """The line of the call that changes an average in place, in a loop over it or with it as an argument, where a new
    value certainly weighs little or is no expression that may say otherwise."""
    for site in source.of("mul_", "lerp_", "_foreach_mul_", "_foreach_lerp_"):
        loop = source.loop(site.node)
        nodes = [*source.walk(site.node), *(source.walk(loop.iter) if isinstance(loop, ast.For) else [])]
        if any(isinstance(each, ast.Name | ast.Attribute) and path_text(each) == name for each in nodes):
            is_lerp, is_each = site.method.endswith("lerp_"), site.method.startswith("_foreach")
            given = keyword(site.node, "weight" if is_lerp else "other", is_lerp + is_each)
            numbers = possible(source, given)
            lost = [each for each in numbers if _is_lost(each if is_lerp else 1 - each, weights)]
            return site.line if lost or (not numbers and not _is_computed(source, given)) else None
    return None


def _is_computed(source: Source, node: ast.expr | None) -> bool:
    """Whether a number comes from an expression of the script, as a decay that rises over the training."""
    for _ in range(_MOST_STEPS):
        if isinstance(node, ast.BinOp) and constant(source, node.left) == 1:
            node = node.right
        variable = source.variable(node) if isinstance(node, ast.Name | ast.Attribute) else None
        held = [each for each in source.variables.values(variable) if each is not None] if variable is not None else []
        held += given_for(source, variable) if variable is not None and not held else []
        if any(isinstance(each, ast.BinOp | ast.Call | ast.IfExp) for each in held):
            return True
        if not held:
            return isinstance(node, ast.BinOp | ast.Call | ast.IfExp)
        node = held[0]
    return False


def _updates(source: Source) -> Iterator[_Update]:
    """The steps of averages whose weights are known: in place, or as `e = d * e + (1 - d) * p`."""
    for site in source.of("add_", "lerp_", "addcmul_", "_foreach_add_", "_foreach_lerp_")[:_MOST_CALLS]:
        call, is_each = site.node, site.method.startswith("_foreach")
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        given = call.args[1:] if is_each else call.args
        changed = next(iter(call.args), None) if is_each else owner
        if not site.method.endswith("lerp_"):
            changed = _scaled(source, call, changed)
        weights = _weights(source, call, given)
        if changed is not None and weights:
            yield _Update(changed, next(iter(given), None), weights, site.line)
    for site in source.of("copy_")[:_MOST_CALLS]:
        if isinstance(site.node.func, ast.Attribute) and site.node.args:
            yield from _mixed(source, site.node.func.value, site.node.args[0])
    for node in source.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            yield from _mixed(source, node.targets[0], node.value)


def _scaled(source: Source, call: ast.Call, changed: ast.expr | None) -> ast.expr | None:
    """The tensor of `x.mul_(d).add_(...)`, and of `x.mul_(d)` before `x.add_(...)`; None for a plain sum."""
    if isinstance(changed, ast.Call) and isinstance(changed.func, ast.Attribute) and changed.func.attr == "mul_":
        return changed.func.value
    name = "_foreach_mul_" if source.name_of(call.func).startswith("torch._foreach") else "mul_"
    before = source.previous_in_scope(call, name)
    if changed is None or before is None or source.loop(before.node) is not source.loop(call):
        return None
    owner = before.node.args[0] if name != "mul_" and before.node.args else getattr(before.node.func, "value", None)
    return changed if owner is not None and path_text(owner) == path_text(changed) != NO_TEXT else None


def _weights(source: Source, call: ast.Call, given: list[ast.expr]) -> frozenset[float]:
    """The weights that the new value may have: of lerp_(new, w), add_(new, alpha=w), add_(w * new) and addcmul_."""
    if source.name_of(call.func).endswith("lerp_"):
        return possible(source, keyword(call, "weight") or next(iter(given[1:]), None))
    alpha = keyword(call, "alpha") or keyword(call, "value")
    if alpha is not None:
        return possible(source, alpha)
    return _factor(source, given[0])[0] if given else frozenset()


def _factor(source: Source, node: ast.expr) -> tuple[frozenset[float], ast.expr | None]:
    """The numbers that may be the factor of a product with a tensor, and the tensor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for number, tensor in ((node.left, node.right), (node.right, node.left)):
            if found := possible(source, number):
                return found, tensor
    return frozenset(), None


def _mixed(source: Source, target: ast.expr, value: ast.expr) -> Iterator[_Update]:
    """The step `target = d * target + (1 - d) * new`."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return
    pairs = [(_factor(source, each), other) for each, other in ((value.left, value.right), (value.right, value.left))]
    for (_, old), other in pairs:
        weights, new = _factor(source, other)
        if old is not None and new is not None and weights and _same(old, target):
            yield _Update(target, new, weights, value.lineno)
            return


def _same(one: ast.expr, other: ast.expr) -> bool:
    texts = [path_text(each).removesuffix(".data") for each in (one, other)]
    return texts[0] == texts[1] != NO_TEXT


def _models_of(source: Source, tensor: ast.expr) -> list[Variable]:
    """The models, also those that calls of a function give, whose weights a tensor is one of."""
    node: ast.expr | None = tensor
    for _ in range(_MOST_STEPS):
        match node:
            case ast.Attribute(attr="data", value=value) | ast.Subscript(value=value):
                node = value
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in _OF_MODELS:
                return _given_models(source, value)
            case ast.Call(func=func, args=given) if source.name_of(func).rpartition(".")[2] in _LISTS:
                inner = func.value if isinstance(func, ast.Attribute) and not given else None
                node = given[0] if given else inner
            case ast.Name():
                node = taken_from(source, node) or definition(source, node)
            case _:
                return []
    return []


def _given_models(source: Source, node: ast.expr) -> list[Variable]:
    while isinstance(node, ast.Attribute) and node.attr == "module":
        node = node.value
    model = source.variable(node)
    if model is None:
        return []
    given = given_for(source, model) if isinstance(model.scope, ast.FunctionDef) else []
    if not given or source.variables.assignments(model):
        return [model]
    found = [source.variable(each) for each in given[:_MOST_CALLS]]
    return list(dict.fromkeys(each for each in found if each is not None)) if None not in found else []


def _format_of_average(source: Source, model: Variable) -> tuple[str, int]:
    """The format of 16 bits that a model certainly is made in, or cast to where it is made, and the line of it."""
    made = source.variables.assignments(model)
    scopes = {source.scope(each.node) for each in made}
    value = made[0].value if made else None
    casts = source.calls_of(model, *CONVERSIONS)
    elsewhere = [each for each in casts if source.scope(each.node) not in scopes]
    if (
        len(scopes) != 1
        or value is None
        or any(model_format(source, whole_chain(source, each.node)) for each in elsewhere)
    ):
        return "", 0
    scope = next(iter(scopes))
    state = weights_format(source, model, scope)
    if state is not None:
        return state[0], getattr(state[1], "lineno", 0)
    is_cast = any(model_format(source, whole_chain(source, each.node)) for each in casts)
    return ("", 0) if len(made) != 1 or is_cast else (_low_inside(source, value), value.lineno)


def _of_libraries(source: Source) -> Mistakes:
    """Averages that a class of a library keeps in the format of the weights that it gets, or in one it is cast to."""
    for site in source.of(*_LIBRARIES)[:_MOST_CALLS]:
        package, argument, default = _LIBRARIES[site.method]
        assigned = statement(source, site.node)
        held = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
        given = site.node.args[0] if site.node.args else keyword(site.node, "parameters") or keyword(site.node, "model")
        if held is None or given is None or not site.name.startswith(package):
            continue
        steps = source.calls_of(held, *_UPDATES)
        decay = keyword(site.node, argument)
        decays = possible(source, decay) if decay is not None else frozenset({default} if default is not None else ())
        weights, line = _format_of_library(source, site.node, held, given)
        if steps and weights and any(_is_lost(1 - each, weights) for each in decays):
            yield line, *_lost_changes(held.text, weights, steps[0].line)


def _format_of_library(source: Source, made: ast.Call, held: Variable, given: ast.expr) -> tuple[str, int]:
    """The format of 16 bits that an average is in by the last cast of it, or by the model that it copies."""
    casts = [(cast[0], each.line) for each in source.calls_of(held, "to", "half", "bfloat16", "float")
             if (cast := cast_of(source, each.node)) is not None]  # fmt: skip
    if casts:
        return casts[-1] if casts[-1][0] in UNIT_ROUNDOFF else ("", 0)
    inner = given.func.value if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) else given
    weights = format_at(source, inner, made)
    return (weights if weights in UNIT_ROUNDOFF else ""), made.lineno


RULES: dict[str, Callable[[Source], Mistakes]] = {"average-in-16-bits": low_average}
