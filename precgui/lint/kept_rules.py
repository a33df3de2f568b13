"""Numbers that a script keeps in 16 bits from step to step: moments, sums of gradients, master weights."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from precgui.events import Severity
from precgui.lint.arguments import keyword
from precgui.lint.constants import computed, constant
from precgui.lint.dtype_rules import enclosing_class
from precgui.lint.flow import (
    EXACT_UP_TO,
    binding_before,
    cast_of,
    created_optimizers,
    definition,
    dtype_of,
    model_format,
    trains,
    weights_format,
)
from precgui.lint.order_rules import turn_of
from precgui.lint.overflow_rules import squared
from precgui.lint.source import CallSite, Mistakes, Source
from precgui.lint.variables import Variable, path_text
from precgui.lint.weight_rules import trained_low
from precgui.sentences import L_, Sentence

_MAKERS = {"zeros", "tensor", "new_zeros", "zeros_like", "full", "full_like", "ones_like"}
_GRADIENTS = {"g", "grad", "grads", "gradient", "gradients", "d_p"}
_LOW_CASTS = ("half", "bfloat16", "to", "type", "from_pretrained")
_COMPENSATED = ("stochastic", "kahan", "compensat")
_UNCHANGED = {"detach", "clone", "contiguous", "requires_grad_", "to", "cuda", "cpu", "Parameter", "deepcopy"}
_COPIES = {"clone", "Parameter", "deepcopy"}
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
DEVIATION = 0.25  # of an average: what differs so much from it should move it
_PAIRS = ("items", "named_parameters", "named_buffers")
_MOST_STEPS = 8  # from one expression to the next
_MOST_CALLS = 64  # of one kind in a script


@dataclass(frozen=True)
class Kept:
    """A tensor, or a list of them, that is made in 16 bits."""

    text: str
    format: str
    line: int


def weight_of_new(source: Source, site: CallSite) -> float | None:
    """The weight w of a new value in `x.lerp_(new, w)`, `x.mul_(1 - w).add_(new, alpha=w)` and `.add_(w * new)`, also
    of its square, `.addcmul_(new, new, value=w)`."""
    if site.method == "lerp_":
        return computed(source, keyword(site.node, "weight", 1))
    owner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
    if not isinstance(owner, ast.Call) or not isinstance(owner.func, ast.Attribute) or owner.func.attr != "mul_":
        return None
    alpha, new = keyword(site.node, "alpha") or keyword(site.node, "value"), keyword(site.node, "other", 0)
    if alpha is not None:
        return computed(source, alpha)
    factors = [new.left, new.right] if isinstance(new, ast.BinOp) and isinstance(new.op, ast.Mult) else []
    return next((found for each in factors if (found := computed(source, each)) is not None), None)


def is_compensated(source: Source) -> bool:
    text = source.text.lower()
    return any(word in text for word in _COMPENSATED)


def made_low(source: Source, value: ast.expr) -> str:
    """The format in 16 bits that a tensor is certainly made in, or each of a list of them; '' for others."""
    node = value
    while isinstance(node, ast.DictComp | ast.ListComp | ast.GeneratorExp):
        node = node.value if isinstance(node, ast.DictComp) else node.elt
    made = model_format(source, node)
    if not made and isinstance(node, ast.Call) and source.name_of(node.func).rpartition(".")[2] in _MAKERS:
        made = dtype_of(source, keyword(node, "dtype"))
    return made if made in EXACT_UP_TO else ""


def kept_in_16_bits(source: Source) -> dict[Hashable, Kept]:
    """The tensors that a script keeps in 16 bits, by variable or by key of a state, and in no other format."""

    def collect() -> dict[Hashable, Kept]:
        found: dict[Hashable, Kept] = {}
        others: set[Hashable] = set()
        made_somewhere = any(made_low(source, site.node) for site in source.of(*_MAKERS, *_LOW_CASTS))
        for place, text, value in _makings(source) if made_somewhere else ():
            if made := made_low(source, value):
                found.setdefault(place, Kept(text, made, value.lineno))
            else:
                others.add(place)
        return {place: kept for place, kept in found.items() if place not in others}

    return source.cached("kept_in_16_bits", collect)


def _makings(source: Source) -> Iterator[tuple[Hashable, str, ast.expr]]:
    """The places that a script assigns to, with their texts and what they get."""
    for node in source.nodes:
        if isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Tuple | ast.List):
            if (place := place_of(source, node.targets[0], follow=False)) is not None:
                yield place, path_text(node.targets[0]), node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Call):
                    yield _entry(source, key), key.value, value
    for site in source.of("register_buffer", "setdefault"):
        given = [*site.node.args, *(each.value for each in site.node.keywords if each.arg == "tensor")]
        key, owner = given[0] if len(given) > 1 else None, enclosing_class(source, site.node)
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        if site.method == "setdefault":
            yield _entry(source, key), key.value, given[1]
        elif owner is not None:
            yield Variable(owner, f"self.{key.value}"), f"self.{key.value}", given[1]


def _entry(source: Source, key: ast.Constant) -> Hashable:
    return (enclosing_class(source, key) or source.scope(key), key.value)


def place_of(source: Source, node: ast.expr, *, follow: bool = True) -> Hashable | None:
    """The variable that a tensor is held in, the key of a state, or the list that a loop takes it from."""
    current: ast.expr | None = node
    for _ in range(_MOST_STEPS):
        if isinstance(current, ast.Attribute) and current.attr == "data":
            current = current.value
        elif isinstance(current, ast.Subscript):
            if isinstance(current.slice, ast.Constant) and isinstance(current.slice.value, str):
                return _entry(source, current.slice)
            if not follow:
                return None
            current = current.value
        elif isinstance(current, ast.Name) and follow:
            held = taken_from(source, current) or definition(source, current)
            if not isinstance(held, ast.Name | ast.Attribute | ast.Subscript):
                return source.variable(current)
            current = held
        elif isinstance(current, ast.Name | ast.Attribute):
            return source.variable(current)
        else:
            return None
    return None


def taken_from(source: Source, name: ast.Name) -> ast.expr | None:
    """The list that a loop takes a variable from, also one of several lists: `a` of `for x, y in zip(a, b)`; of pairs
    of names and tensors, the dictionary, or the call that gives them."""
    variable = source.variable(name)
    last = binding_before(source, variable, name) if variable is not None else None
    while variable is not None and last is not None and isinstance(last.node, ast.AugAssign):
        last = source.variables.last_before(variable, last.place)
    if last is None or not isinstance(last.node, ast.For) or source.scope(last.node) is not source.scope(name):
        return None
    target, items = last.node.target, last.node.iter
    for _ in range(_MOST_STEPS):
        called = source.name_of(items.func).rpartition(".")[2] if isinstance(items, ast.Call) else ""
        if not isinstance(items, ast.Call) or not isinstance(target, ast.Tuple):
            break
        if called == "enumerate" and len(target.elts) == 2 and items.args:
            target, items = target.elts[1], items.args[0]
        elif called == "zip" and len(items.args) == len(target.elts):
            own = [place for place, each in enumerate(target.elts) if _binds(source, each, variable)]
            target, items = (target.elts[own[0]], items.args[own[0]]) if len(own) == 1 else (target, target)
        elif called in _PAIRS and len(target.elts) == 2 and isinstance(items.func, ast.Attribute):
            target, items = target.elts[1], items.func.value if called == "items" else items
        else:
            break
    if isinstance(items, ast.Call) and isinstance(items.func, ast.Attribute) and items.func.attr == "values":
        items = items.func.value
    return items if isinstance(target, ast.Name) and source.variable(target) == variable else None


def _binds(source: Source, target: ast.expr, variable: Variable | None) -> bool:
    """Whether a variable, or a pair, in the target of a loop binds a variable."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return any(source.variable(each) == variable for each in parts)


def kept_by(source: Source, call: ast.Call) -> Kept | None:
    """The tensor in 16 bits that a call changes in place, also as `x.mul_(b).add_(y)` and torch._foreach_add_()."""
    kept = kept_in_16_bits(source)
    if not kept:
        return None
    changed: ast.expr | None = call.func.value if isinstance(call.func, ast.Attribute) else None
    if source.name_of(call.func).startswith("torch._foreach_"):
        changed = next(iter(call.args), None)
    while isinstance(changed, ast.Call) and isinstance(changed.func, ast.Attribute) and changed.func.attr.endswith("_"):
        changed = changed.func.value
    return kept.get(place_of(source, changed)) if changed is not None else None


def low_moments(source: Source) -> Mistakes:
    """A mean of squared gradients that an optimizer of the script keeps in 16 bits."""
    told: set[Kept] = set()
    for site in source.of("add_", "addcmul_", "lerp_", "copy_", "_foreach_addcmul_", "_foreach_add_", "_foreach_lerp_"):
        kept = kept_by(source, site.node)
        if kept is None or kept in told or is_compensated(source) or not _adds_squares(source, site):
            continue
        weight = weight_of_new(source, site)
        if kept.format == "bf16" and weight is not None and weight * DEVIATION > UNIT_ROUNDOFF["bf16"]:
            continue
        told.add(kept)
        yield (
            kept.line, "warning", Sentence(
                "{target} keeps squares of gradients (line {line}) in FP16: those of gradients below 1.7e-4 are zero, "
                "those of gradients above 256 infinite",
                target=kept.text, line=site.line,
            ) if kept.format == "fp16" else Sentence(
                "{target} keeps a mean of squared gradients (line {line}) in BF16: changes below 1/256 of it are "
                "rounded away, so that it does not fall with a decay of 0.999",
                target=kept.text, line=site.line,
            ),
            L_("keep it in FP32: torch.zeros_like(p, dtype=torch.float32)"),
        )  # fmt: skip


def _adds_squares(source: Source, site: CallSite) -> bool:
    """Whether a call adds the square of a gradient to a tensor."""
    given = site.node.args[1:] if site.method.startswith("_foreach") else site.node.args
    if "addcmul" in site.method:
        texts = [ast.dump(_without_calls(each)) for each in given[:2]]
        return len(texts) == 2 and texts[0] == texts[1] and _is_gradient(source, given[0])
    below = [part for each in given for part in source.walk(each) if isinstance(part, ast.expr)]
    factors = [squared(source, each) for each in below]
    return any(each is not None and _is_gradient(source, each) for each in factors)


def _without_calls(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _is_gradient(source: Source, node: ast.expr) -> bool:
    """Whether an expression is a gradient, by its attribute or by its name."""
    plain = _without_calls(node)
    if path_text(plain).rpartition(".")[2].lower() in _GRADIENTS:
        return True
    held = definition(source, plain) if isinstance(plain, ast.Name) else plain
    return held is not None and any(
        isinstance(each, ast.Attribute) and each.attr == "grad" for each in source.walk(held)
    )


def is_of_gradients(source: Source, node: ast.expr) -> bool:
    """Whether an expression has a gradient in it, whose noise moves an average by more than its own size."""
    parts = [each for each in source.walk(node) if isinstance(each, ast.Name | ast.Attribute)]
    return any(_is_gradient(source, each) for each in parts)


def low_sums(source: Source) -> Mistakes:
    """Gradients of many micro-steps that are added up in 16 bits, in buffers or in the gradients of such weights."""
    sums = [(site.node, site.line) for site in source.of("add_", "_foreach_add_")] + [
        (each, each.lineno) for each in source.nodes if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add)
    ]
    for node, line in sums if kept_in_16_bits(source) else ():
        kept, added = _sum_of(source, node)
        count = _micro_steps(source, node) if kept is not None and added is not None else None
        if kept is None or added is None or not _is_gradient(source, added) or squared(source, added) is not None:
            continue
        if count is not None and count >= EXACT_UP_TO[kept.format]:
            yield kept.line, *_stopped(count, kept.format, line)
    for site, _, weights, _ in trained_low(source) if "%" in source.text else ():
        stepped = [each for each in source.of("step")[:_MOST_CALLS] if source.owner(each) == _holder(source, site)]
        turn = turn_of(source, stepped[0]) if len(stepped) == 1 else None
        count = _modulus(source, turn.test) if turn is not None else None
        if count is not None and count >= EXACT_UP_TO[weights]:
            yield site.line, *_stopped(count, weights, stepped[0].line)


def _stopped(count: float, weights: str, line: int) -> tuple[Severity, str, str]:
    return (
        "warning", Sentence(
            "gradients of {count:g} micro-steps are added up in {weights} (line {line}): a sum stops growing at "
            "{largest} times an addend",
            count=count, line=line, weights=weights.upper(), largest=EXACT_UP_TO[weights],
        ),
        L_("add them up in FP32"),
    )  # fmt: skip


def _sum_of(source: Source, node: ast.Call | ast.AugAssign) -> tuple[Kept | None, ast.expr | None]:
    """The tensor in 16 bits that a statement adds to, and the value that it adds as it is."""
    if isinstance(node, ast.AugAssign):
        kept = kept_in_16_bits(source)
        return (kept.get(place_of(source, node.target)) if kept else None), node.value
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    is_each = source.name_of(node.func).startswith("torch._foreach_")
    if isinstance(owner, ast.Call) or keyword(node, "alpha") is not None or len(node.args) != 1 + is_each:
        return None, None
    return kept_by(source, node), node.args[-1]


def _micro_steps(source: Source, node: ast.AST) -> float | None:
    """The number of micro-steps whose gradients are added, where the script tells: `i % n == 0`, or range(n)."""
    for loop in [each for each in source.above(node) if isinstance(each, ast.For | ast.While)]:
        tests = [each.test for each in source.walk(loop) if isinstance(each, ast.If)]
        counts = [count for each in tests if (count := _modulus(source, each)) is not None]
        if counts:
            return min(counts)
        steps = [each for each in source.inside(loop) if each.method in ("step", "zero_")]
        items = loop.iter if isinstance(loop, ast.For) and not steps else None
        if isinstance(items, ast.Call) and source.name_of(items.func) == "range" and len(items.args) == 1:
            return constant(source, items.args[0])
    return None


def _modulus(source: Source, test: ast.expr) -> float | None:
    """The n of `i % n == 0`."""
    moduli = [each for each in source.walk(test) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod)]
    return constant(source, moduli[0].right) if len(moduli) == 1 else None


def _holder(source: Source, site: CallSite) -> Variable | None:
    """The variable that is assigned what a call makes."""
    above = source.parent(site.node)
    return source.variable(above.targets[0]) if isinstance(above, ast.Assign) else None


def low_masters(source: Source) -> Mistakes:
    """Master weights that are copies of weights in 16 bits, in the same format."""
    if "master" not in source.text.lower() or not trains(source):
        return
    for site in created_optimizers(source):
        given = keyword(site.node, "params", 0)
        made = definition(source, given) if isinstance(given, ast.Name | ast.Attribute) else given
        weights, model = _copied_low(source, made) if made is not None else ("", None)
        variable = source.variable(given) if given is not None else None
        if weights and made is not None and not _is_widened(source, variable):
            yield (
                made.lineno, "warning", Sentence(
                    "the master weights are copies of {model} in {weights}, and keep no more digits than its weights: "
                    "small updates are lost",
                    model=model, weights=weights.upper(),
                ),
                L_("p.detach().clone().float() for each parameter, and gradients in FP32"),
            )  # fmt: skip
        elif variable is not None and (copied := _overwritten(source, site, variable)) is not None:
            yield (
                copied.line, "warning", L_(
                    "the master weights are overwritten with weights in 16 bits before each step: small updates are "
                    "lost"
                ),
                L_("copy the weights once, before the loop"),
            )  # fmt: skip


def _overwritten(source: Source, site: CallSite, masters: Variable) -> CallSite | None:
    """The copy of weights in 16 bits into their masters that each pass of the loop makes before the step."""
    optimizer = _holder(source, site)
    for step in source.calls_of(optimizer, "step")[:_MOST_CALLS] if optimizer is not None else ():
        loop = source.loop(step.node)
        for copy in source.of("copy_")[:_MOST_CALLS]:
            owner = copy.node.func.value if isinstance(copy.node.func, ast.Attribute) else None
            if owner is None or loop is None or not source.contains(loop, copy.place) or copy.place > step.place:
                continue
            if source.conditions(copy.node) != source.conditions(step.node) or place_of(source, owner) != masters:
                continue
            given = _without_calls(copy.node.args[0]) if copy.node.args else None
            while isinstance(given, ast.Attribute) and given.attr == "data":
                given = given.value
            model = _model_of(source, given) if isinstance(given, ast.Name) else None
            if model is not None and low_before(source, model, source.scope(site.node), site.place):
                return copy
    return None


def _model_of(source: Source, parameter: ast.Name) -> Variable | None:
    """The model over whose parameters a loop runs with a variable."""
    items = taken_from(source, parameter)
    if not isinstance(items, ast.Call) or not isinstance(items.func, ast.Attribute) or items.func.attr != "parameters":
        return None
    return source.variable(items.func.value)


def low_before(source: Source, model: Variable, scope: ast.AST, place: int) -> str:
    """The format of 16 bits that the weights of a model certainly have at a place; else ''."""
    for each in dict.fromkeys((scope, model.scope)):
        state = weights_format(source, model, each)
        if state is not None and source.places[state[1]] < place:
            return state[0]
    return ""


def _copied_low(source: Source, made: ast.expr) -> tuple[str, Variable | None]:
    """The format of the weights that a list is made of copies of, where it is one of 16 bits, with their model."""
    if not isinstance(made, ast.ListComp) or len(made.generators) != 1 or made.generators[0].ifs:
        return "", None
    node: ast.AST = made.elt
    is_copy = False
    for _ in range(_MOST_STEPS):
        if isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        elif isinstance(node, ast.Call) and source.name_of(node.func).rpartition(".")[2] in _UNCHANGED:
            if cast_of(source, node) is not None:
                return "", None
            name = source.name_of(node.func)
            is_copy = is_copy or name.rpartition(".")[2] in _COPIES
            is_function = name.startswith(("torch.", "copy.")) or isinstance(node.func, ast.Name)
            inner = next(iter(node.args), None) if is_function else getattr(node.func, "value", None)
            if inner is None:
                return "", None
            node = inner
        else:
            break
    calls = [each for each in source.walk(made.generators[0].iter) if isinstance(each, ast.Call)]
    owners = [each.func.value for each in calls if isinstance(each.func, ast.Attribute)
              and each.func.attr in ("parameters", "named_parameters")]  # fmt: skip
    model = source.variable(owners[0]) if len(owners) == 1 else None
    if model is None or not is_copy or not isinstance(node, ast.Name):
        return "", None
    return low_before(source, model, source.scope(made), source.places[made]), model


def _is_widened(source: Source, masters: Variable | None) -> bool:
    """Whether the data of masters is set anew in a loop over them."""
    return any(
        isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Attribute) and each.targets[0].attr == "data"
        and place_of(source, each.targets[0].value) == masters for each in source.nodes
    )  # fmt: skip


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "moments-in-16-bits": low_moments,
    "gradient-sums-in-16-bits": low_sums,
    "masters-in-16-bits": low_masters,
}
