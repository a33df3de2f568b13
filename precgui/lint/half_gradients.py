"""Gradients in FP16 that a script divides by the scale of the loss by itself."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import number
from precgui.lint.flow import binding_before, cast_of, definition, model_format, statement, whole_chain
from precgui.lint.source import Mistakes, Source
from precgui.lint.variables import NO_TEXT, path_text
from precgui.sentences import L_


def divided_in_half(source: Source) -> Mistakes:
    """FP16 gradients that are divided by the scale of the loss before they are widened."""
    scales = _scales_of_losses(source)
    for node in source.nodes if scales else ():
        gradient, divisor = _divided(node)
        if gradient is None or divisor is None or not _is_scale(source, divisor, scales):
            continue
        if _is_widened_after(source, node, gradient) and is_of_half_weights(source, gradient):
            yield (
                getattr(node, "lineno", 1), "warning", L_(
                    "FP16 gradients are divided by the scale of the loss before they are widened: small ones become "
                    "zero again, from which the scale had kept them"
                ),
                L_("widen first: grad.float() / scale"),
            )  # fmt: skip


def _scales_of_losses(source: Source) -> set[str]:
    """The names and numbers that a loss is multiplied by before backward()."""
    found: set[str] = set()
    for site in source.of("backward"):
        owner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
        value = definition(source, owner, conditional=True) if isinstance(owner, ast.Name) else owner
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            found |= {_key(each) for each in (value.left, value.right)}
    return found - {NO_TEXT}


def _key(node: ast.expr) -> str:
    value = number(node)
    return path_text(node).rpartition(".")[2] if value is None else f"{value:g}"


def _is_scale(source: Source, divisor: ast.expr, scales: set[str]) -> bool:
    """Whether a divisor, or a factor as 1 / scale, is that of the loss."""
    written = definition(source, divisor) if isinstance(divisor, ast.Name) and _key(divisor) not in scales else divisor
    if isinstance(written, ast.BinOp) and isinstance(written.op, ast.Div) and number(written.left) == 1:
        written = written.right
    return written is not None and _key(written) in scales


def _divided(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """The gradient and the number of `p.grad /= s`, `p.grad.div_(s)`, `p.grad.mul_(1 / s)` and `p.grad / s`."""
    match node:
        case ast.AugAssign(target=target, op=ast.Div() | ast.Mult(), value=value):
            return gradient_of(target), value
        case ast.BinOp(left=left, op=ast.Div() | ast.Mult(), right=right):
            return gradient_of(left), right
        case ast.Call(func=ast.Attribute(attr="div_" | "mul_" | "div" | "mul", value=owner), args=[value]):
            return gradient_of(owner), value
    return None, None


def gradient_of(node: ast.expr) -> ast.expr | None:
    """The `p.grad` of p.grad, p.grad.data and p.grad.detach()."""
    for _ in range(4):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        else:
            return None
    return None


def _is_widened_after(source: Source, node: ast.AST, gradient: ast.expr) -> bool:
    """Whether the quotient, or the gradient after it, is cast to FP32 or copied to another tensor."""
    chain = whole_chain(source, node)
    if any((cast := cast_of(source, each)) is not None and cast[0] in ("fp32", "fp64")
           for each in source.walk(chain) if source.contains(each, source.places[node])):  # fmt: skip
        return True
    scope, text = source.scope(node), path_text(gradient)
    around = statement(source, node)
    is_stored = isinstance(around, ast.Assign) and around.value is node and _text_of(around.targets[0]) == text
    in_place = isinstance(node, ast.AugAssign) or (isinstance(node, ast.Call) and path_text(node.func).endswith("_"))
    if not (is_stored or in_place):
        return False
    for site in source.between(scope, source.places[node], source.end(scope) + 1):
        is_copy = site.method == "copy_" and not site.owner.startswith(text)
        inner = site.node.args[0] if is_copy and site.node.args else None
        cast = cast_of(source, site.node)
        if cast is not None and cast[0] in ("fp32", "fp64"):
            inner = cast[1]
        if inner is not None and _text_of(inner) == text:
            return True
    return False


def _text_of(node: ast.expr) -> str:
    found = gradient_of(node)
    return path_text(found) if found is not None else NO_TEXT


def is_of_half_weights(source: Source, gradient: ast.expr) -> bool:
    """Whether a gradient is that of a parameter of a model that is certainly cast to FP16, and to nothing else."""
    owner = gradient.value if isinstance(gradient, ast.Attribute) else None
    variable = source.variable(owner) if owner is not None else None
    last = binding_before(source, variable, owner) if variable is not None and owner is not None else None
    loop = last.node if last is not None else None
    if not isinstance(loop, ast.For | ast.comprehension):
        return False
    calls = [each for each in source.walk(loop.iter) if isinstance(each, ast.Call)]
    owners = [each.func.value for each in calls if isinstance(each.func, ast.Attribute)
              and each.func.attr in ("parameters", "named_parameters")]  # fmt: skip
    names = {path_text(each).rpartition(".")[2] for each in owners}
    formats = set()
    for node in source.nodes:
        if isinstance(node, ast.Assign) and path_text(node.targets[0]).rpartition(".")[2] in names:
            formats.add(model_format(source, node.value))
    for site in source.of("half", "float", "to", "bfloat16", "double"):
        if site.owner.rpartition(".")[2] in names and site.owner:
            formats.add(model_format(source, whole_chain(source, site.node)))
    return len(names) == 1 and formats - {""} == {"fp16"}


RULES: dict[str, Callable[[Source], Mistakes]] = {"gradients-divided-in-fp16": divided_in_half}
