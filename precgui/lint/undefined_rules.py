"""Expressions that are NaN or Inf for values that occur: 0 times infinity, x / 0 + epsilon, roots of errors."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.lint.arguments import keyword, number
from precgui.lint.constants import computed, constant
from precgui.lint.flow import definition, handed_on
from precgui.lint.method_names import SAME_VALUES
from precgui.lint.origins import arguments_of, calls_in, is_model, is_truth, last_name, operand_of, takes_gradients
from precgui.lint.source import Mistakes, Source
from precgui.lint.variables import NO_TEXT, path_text
from precgui.sentences import L_, Sentence

_MOST_STEPS = 8  # from one expression to the next
_MOST_CALLS = 64  # of one kind in a script
_LARGEST_EPSILON = 1e-3
_EPSILONS = {"eps", "epsilon", "_eps", "tiny"}
_INFINITE = {f"{module}.{name}" for module in ("torch", "math", "numpy") for name in ("inf", "Inf", "infty")}
_PARTLY_ZERO = {"triu", "tril", "eye", "zeros", "zeros_like", "logical_not", "isnan", "isinf", "one_hot"}
_MENDED = {"nan_to_num", "nan_to_num_", "where", "isnan", "isfinite"}
_VIEWS = SAME_VALUES | {"expand", "expand_as", "repeat", "int", "long", "squeeze", "unsqueeze"}
_DEVIATIONS = {"std", "norm", "vector_norm", "nanstd"}
_EXTREMES = {"max", "amax", "min", "amin", "maximum", "minimum", "cummax", "cummin", "sort", "cumsum", "relu"}
_POSITIVE_ONLY = {"log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "pow", "logit", "log1p"}


def infinity_times_zero(source: Source) -> Mistakes:
    """A mask multiplied by infinity: NaN where the mask is 0."""
    if "inf" not in source.text.lower():
        return
    for node in source.nodes:
        for one, other in _factors(source, node):
            if _is_infinite(source, one) and _may_be_zero(source, other) and not _is_mended(source, node):
                yield (
                    getattr(node, "lineno", 1), "error", L_(
                        "a mask is multiplied by infinity: 0 times infinity is NaN wherever the mask is 0"
                    ),
                    L_('scores.masked_fill(masked, float("-inf")), or torch.where()'),
                )  # fmt: skip
                break


def _factors(source: Source, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Both orders of the factors of a product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from ((node.left, node.right), (node.right, node.left))
    elif isinstance(node, ast.Call) and last_name(source, node) in ("mul", "mul_", "multiply"):
        operand, given = operand_of(source, node), arguments_of(source, node)
        if operand is not None and given:
            yield from ((operand, given[0]), (given[0], operand))


def _is_infinite(source: Source, node: ast.expr | None) -> bool:
    for _ in range(_MOST_STEPS):
        if isinstance(node, ast.UnaryOp):
            node = node.operand
        elif isinstance(node, ast.Call) and source.name_of(node.func) == "float" and node.args:
            text = source.text_of(node.args[0]).strip("+-").lower()
            return isinstance(node.args[0], ast.Constant) and text in ("inf", "infinity")
        elif node is None or number(node) is not None:
            return number(node) in (float("inf"), float("-inf"))
        elif isinstance(node, ast.Name | ast.Attribute) and source.name_of(node) not in _INFINITE:
            node = definition(source, node)
        else:
            return isinstance(node, ast.Name | ast.Attribute)
    return False


def _may_be_zero(source: Source, node: ast.expr | None) -> bool:
    """Whether a factor is certainly a mask: a truth value, one minus a tensor, a triangle, what is named a mask."""
    for _ in range(_MOST_STEPS):
        if node is None or is_truth(source, node):
            return node is not None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            return number(node.left) == 1 and constant(source, node.right) is None
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Name | ast.Attribute):
            written = definition(source, node)
            if written is None:
                return "mask" in path_text(node).rpartition(".")[2].lower()
            node = written
        elif isinstance(node, ast.Call):
            name = last_name(source, node)
            if name in _PARTLY_ZERO:
                return not any(_is_infinite(source, each) for each in _all_below(source, node))
            node = operand_of(source, node) if name in _VIEWS else None
        else:
            return False
    return False


def _all_below(source: Source, node: ast.AST) -> list[ast.expr]:
    return [each for each in source.walk(node) if isinstance(each, ast.Call | ast.Attribute)]


def _is_mended(source: Source, node: ast.AST) -> bool:
    """Whether a function looks for NaN, or replaces it."""
    return any(last_name(source, each) in _MENDED for each in calls_in(source, [source.scope(node)]))


def epsilon_beside_quotient(source: Source) -> Mistakes:
    """x / deviation + eps: an epsilon that is added to the quotient and was meant for its denominator."""
    for node in source.nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            continue
        quotient, eps = (node.left, node.right) if _is_quotient(node.left) else (node.right, node.left)
        if not isinstance(quotient, ast.BinOp) or not _is_quotient(quotient) or not _is_epsilon(source, eps):
            continue
        if _is_normalised(source, quotient) and not _is_for_logarithm(source, node):
            yield (
                node.lineno, "warning", L_(
                    "the epsilon is added to the quotient and not to its denominator, which it does not keep from 0"
                ),
                Sentence("x / (deviation + {eps})", eps=path_text(eps) if number(eps) is None else f"{number(eps):g}"),
            )  # fmt: skip


def _is_quotient(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def _is_epsilon(source: Source, node: ast.expr) -> bool:
    value = constant(source, node)
    if value is not None:
        return 0 < value <= _LARGEST_EPSILON
    return path_text(node) != NO_TEXT and path_text(node).rpartition(".")[2].lower() in _EPSILONS


def _is_normalised(source: Source, quotient: ast.BinOp) -> bool:
    """Whether a quotient is a tensor over its deviation, its norm or its range, which may be 0."""
    above, below = _written(source, quotient.left), _written(source, quotient.right)
    if isinstance(below, ast.BinOp) and isinstance(below.op, ast.Sub):
        names = {last_name(source, each) for each in calls_in(source, [below.left]) + calls_in(source, [below.right])}
        return _is_difference(above) and len(names & {"max", "amax", "min", "amin"}) == 2
    if not isinstance(below, ast.Call) or last_name(source, below) not in _DEVIATIONS:
        return False
    if last_name(source, below) in ("std", "nanstd"):
        return _is_difference(above)
    operand = keyword(below, "x", 0) if source.name_of(below.func).startswith("numpy.") else operand_of(source, below)
    return (
        operand is not None
        and path_text(operand) not in ("", NO_TEXT)
        and path_text(operand) == path_text(quotient.left)
    )


def _is_difference(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)


def _written(source: Source, node: ast.expr) -> ast.expr:
    """An expression, that of a name, without changes of shape and casts."""
    for _ in range(_MOST_STEPS):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
            node = node.func.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Name) and (held := definition(source, node)) is not None:
            node = held
        else:
            break
    return node


def _is_for_logarithm(source: Source, node: ast.expr) -> bool:
    """Whether a sum is what a logarithm, a root or a division gets, for which the epsilon is then meant."""
    above = source.parent(node)
    if isinstance(above, ast.Attribute):
        return above.attr in _POSITIVE_ONLY
    if isinstance(above, ast.Call):
        return last_name(source, above) in _POSITIVE_ONLY
    if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div | ast.Pow):
        return above.right is node or isinstance(above.op, ast.Pow)
    if not isinstance(above, ast.Assign):
        return False
    reads = [each for each in source.walk(source.scope(node)) if isinstance(each, ast.Name | ast.Attribute)
             and path_text(each) == path_text(above.targets[0]) and isinstance(each.ctx, ast.Load)]  # fmt: skip
    return any(_is_for_logarithm(source, each) for each in reads[:_MOST_CALLS])


def root_of_signed(source: Source) -> Mistakes:
    """A power with a fraction, a root or a logarithm of an error, or of deviations from a mean, of either sign."""
    for node in source.nodes:
        base, name = _fractional(source, node)
        written = _written(source, base) if base is not None else None
        if not isinstance(written, ast.BinOp) or not isinstance(written.op, ast.Sub):
            continue
        if _is_error(source, written) or _is_from_mean(source, written):
            yield (
                getattr(node, "lineno", 1), "error", Sentence(
                    "{name} of a difference of either sign: NaN wherever it is negative", name=name
                ),
                L_("take the absolute value first, difference.abs(), or its square"),
            )  # fmt: skip


def _fractional(source: Source, node: ast.AST) -> tuple[ast.expr | None, str]:
    """The base of a power whose exponent is no whole number, or of a root or logarithm, with its name."""
    exponent: ast.expr | None = None
    base: ast.expr | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = node.left, node.right
    elif isinstance(node, ast.Call) and last_name(source, node) == "pow":
        given = [*arguments_of(source, node), keyword(node, "exponent")]
        base, exponent = operand_of(source, node), given[0]
    elif isinstance(node, ast.Call) and last_name(source, node) in ("sqrt", "rsqrt", "log", "log2", "log10"):
        return operand_of(source, node), last_name(source, node)
    value = computed(source, exponent)
    if value is None or value != value or abs(value) == float("inf") or value == int(value):
        return None, ""
    return base, f"x ** {value:.3g}"


def _is_error(source: Source, difference: ast.BinOp) -> bool:
    """Whether a difference is that of what a model gives and something else, in a script that trains it."""
    if not takes_gradients(source):
        return False
    sides = (difference.left, difference.right)
    if any(constant(source, each) is not None for each in sides):
        return False
    if any(last_name(source, each) in _EXTREMES for each in calls_in(source, [difference])):
        return False
    return any(_is_given_by_model(source, each) for each in sides)


def _is_given_by_model(source: Source, node: ast.expr) -> bool:
    """Whether a value is what a model of the script gives, as it is."""
    pending, known = [node], set[ast.AST]()
    while pending and len(known) < _MOST_STEPS:
        written = _written(source, pending.pop())
        if written in known:
            continue
        known.add(written)
        if isinstance(written, ast.Call) and is_model(source, written.func):
            return True
        if isinstance(written, ast.Name):
            pending += handed_on(source, written)[:_MOST_STEPS]
    return False


def _is_from_mean(source: Source, difference: ast.BinOp) -> bool:
    """Whether a difference is x - x.mean()."""
    mean = _written(source, difference.right)
    operand = operand_of(source, mean) if isinstance(mean, ast.Call) and last_name(source, mean) == "mean" else None
    text = path_text(difference.left)
    return operand is not None and text not in ("", NO_TEXT) and path_text(operand) == text


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "infinity-times-zero": infinity_times_zero,
    "epsilon-beside-quotient": epsilon_beside_quotient,
    "root-of-signed-difference": root_of_signed,
}
