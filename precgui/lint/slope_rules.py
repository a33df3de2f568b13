"""Functions whose slope is infinite or undefined at a value that occurs: their gradients become NaN."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.lint.arguments import keyword
from precgui.lint.constants import constant
from precgui.lint.flow import definition, handed_on
from precgui.lint.origins import (
    arguments_of,
    calls_in,
    is_differentiated,
    last_layer,
    last_name,
    operand_of,
    origins,
    takes_gradients,
)
from precgui.lint.source import CallSite, Mistakes, Source
from precgui.lint.variables import NO_TEXT, path_text
from precgui.sentences import L_, Sentence

_MOST_CALLS = 64  # of one kind in a script
_MADE_SAFE = {
    "clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "where", "masked_fill", "masked_fill_", "maximum", "max",
    "relu6", "softplus", "exp", "sigmoid", "softmax", "nan_to_num", "hardtanh", "minimum", "min",
}  # fmt: skip
_UNDEFINED = {"log": "log", "log2": "log2", "log10": "log10", "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "1 / x"}
_AT_ZERO = {"log", "log2", "log10", "1 / x", "x / y"}  # not differentiable at 0; a condition of 1 or more is for others
_ANGLES = {"acos": "acos", "arccos": "acos", "asin": "asin", "arcsin": "asin"}
_OF_COSINES = {
    "matmul", "mm", "bmm", "einsum", "dot", "inner", "sum", "mean", "normalize", "cosine_similarity", "trace",
    "diagonal", "norm", "vdot", "linear", "tensordot",
}  # fmt: skip
_BOUNDED = {"clamp", "clamp_", "clip", "tanh", "sigmoid", "hardtanh", "minimum", "maximum", "min", "max", "where",
            "sin", "cos", "softmax", "nan_to_num", "clamp_max", "clamp_min"}  # fmt: skip


def chosen_too_late(source: Source) -> Mistakes:
    """A logarithm, root or quotient in torch.where(), which leaves out the values that it is not defined for too late:
    0 times an infinite slope is NaN in the backward pass."""
    if not takes_gradients(source):
        return
    for condition, branch in _choices(source):
        for unsafe, argument, name in _undefined(source, branch):
            limit = _asks_for(source, condition, argument)
            if limit is None or (name in _AT_ZERO and abs(limit) >= 1) or _is_safe(source, argument):
                continue
            if not is_differentiated(source, unsafe):
                continue
            hidden = _is_of_relu(source, argument)
            yield (
                getattr(unsafe, "lineno", 1), "info" if hidden else "warning", Sentence(
                    "the branch of {function} that is not chosen has a gradient, too: 0 times an infinite slope is "
                    "NaN, which the ReLU before it leaves out again",
                    function=name,
                ) if hidden else Sentence(
                    "the branch of {function} that is not chosen has a gradient, too: 0 times an infinite slope is NaN",
                    function=name,
                ),
                L_("choose a safe argument first: x_safe = torch.where(condition, x, 1), then the function of x_safe"),
            )  # fmt: skip


def _choices(source: Source) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each condition with a branch of torch.where(condition, a, b), and with x of x.masked_fill(condition, value)."""
    for site in source.of("where")[:_MOST_CALLS]:
        call = site.node
        if site.name == "torch.where" and len(call.args) == 3:
            yield call.args[0], call.args[1]
            yield call.args[0], call.args[2]
        elif (
            isinstance(call.func, ast.Attribute)
            and len(call.args) == 2
            and not site.name.startswith(("numpy", "torch"))
        ):
            yield call.args[0], call.func.value
    for site in source.of("masked_fill")[:_MOST_CALLS]:
        operand, given = operand_of(source, site.node), arguments_of(source, site.node)
        if operand is not None and given:
            yield given[0], operand


def _undefined(source: Source, branch: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """The functions in a branch that are not defined everywhere, each with its argument and the name of it."""
    written = definition(source, branch) if isinstance(branch, ast.Name) else branch
    for node in source.walk(written) if written is not None else ():
        if isinstance(node, ast.Call) and last_name(source, node) in _UNDEFINED:
            operand = operand_of(source, node)
            if operand is not None:
                yield node, operand, _UNDEFINED[last_name(source, node)]
        elif isinstance(node, ast.Call) and last_name(source, node) == "pow":
            operand, given = operand_of(source, node), arguments_of(source, node)
            if operand is not None and given and _is_root(source, given[0]):
                yield node, operand, "pow"
        elif isinstance(node, ast.Call) and last_name(source, node) in _ANGLES:
            operand = operand_of(source, node)
            if operand is not None:
                yield node, operand, _ANGLES[last_name(source, node)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield node, node.right, "x / y"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _is_root(source, node.right):
            yield node, node.left, "pow"


def _is_root(source: Source, exponent: ast.expr) -> bool:
    value = constant(source, exponent)
    if value is None and isinstance(exponent, ast.BinOp) and isinstance(exponent.op, ast.Div):
        above, below = constant(source, exponent.left), constant(source, exponent.right)
        value = above / below if above is not None and below else None
    return value is not None and value < 1 and value != 0


def _asks_for(source: Source, condition: ast.expr, argument: ast.expr) -> float | None:
    """The number that a condition compares the argument of a function with, None where it compares something else."""
    written = definition(source, condition) if isinstance(condition, ast.Name) else condition
    while isinstance(written, ast.UnaryOp):
        written = written.operand
    if isinstance(written, ast.Call):
        operand, given = operand_of(source, written), arguments_of(source, written)
        compares = last_name(source, written) in ("gt", "ge", "lt", "le", "eq", "ne") and bool(given)
        own = compares and operand is not None and _same(operand, argument)
        return constant(source, given[0]) if own else None
    if not isinstance(written, ast.Compare) or len(written.ops) != 1:
        return None
    sides = [written.left, written.comparators[0]]
    numbers = [value for each in sides if (value := constant(source, each)) is not None]
    others = [each for each in sides if constant(source, each) is None]
    if len(numbers) != 1 or len(others) != 1:
        return None
    return numbers[0] if _same(_inner(source, others[0]), argument) or _same(others[0], argument) else None


def _inner(source: Source, node: ast.expr) -> ast.expr:
    """The x of x.abs() and x.detach() in a condition."""
    while isinstance(node, ast.Call) and last_name(source, node) in ("abs", "detach"):
        operand = operand_of(source, node)
        if operand is None:
            break
        node = operand
    return node


def _same(one: ast.expr, other: ast.expr) -> bool:
    return (path_text(one) != NO_TEXT and path_text(one) == path_text(other)) or ast.dump(one) == ast.dump(other)


def _is_safe(source: Source, argument: ast.expr) -> bool:
    """Whether the argument of a function was kept from where it is not defined: by a clamp, another choice, a sum."""
    for _ in range(8):
        if isinstance(argument, ast.Name):
            written = definition(source, argument)
            if written is None:
                return _may_be_safe(source, argument)
            argument = written
        elif isinstance(argument, ast.Call):
            if last_name(source, argument) in _MADE_SAFE:
                return True
            inner = operand_of(source, argument)
            if inner is None:
                return False
            argument = inner
        elif isinstance(argument, ast.BinOp) and isinstance(argument.op, ast.Add):
            return True
        elif isinstance(argument, ast.Subscript | ast.UnaryOp):
            argument = argument.value if isinstance(argument, ast.Subscript) else argument.operand
        else:
            return constant(source, argument) is not None
    return False


def _may_be_safe(source: Source, name: ast.Name) -> bool:
    return any(last_name(source, each) in _MADE_SAFE - {"exp", "max", "min", "sigmoid", "softmax"}
               for each in calls_in(source, origins(source, name)[1:]))  # fmt: skip


def _is_of_relu(source: Source, argument: ast.expr) -> bool:
    """Whether a value is that of ReLU, whose own backward pass leaves NaN out where the value is 0."""
    node: ast.AST | None = argument
    for _ in range(8):
        if isinstance(node, ast.Call):
            return last_name(source, node) == "relu" or last_layer(source, node) == "relu"
        if node is None:
            return False
        held = handed_on(source, node)
        node = definition(source, node) or (held[0] if len(held) == 1 else None)
    return False


def root_of_zero_distance(source: Source) -> Mistakes:
    """The root of squared distances of all pairs of rows, those of each row to itself included, without an epsilon."""
    if not takes_gradients(source):
        return
    for node in source.nodes:
        squares = _under_root(source, node)
        if squares is None or not _is_of_all_pairs(source, squares) or not is_differentiated(source, squares):
            continue
        yield (
            getattr(node, "lineno", 1), "warning", L_(
                "the root of squared distances of all pairs has an infinite slope on the diagonal, which is 0: NaN "
                "gradients, also where the diagonal is left out afterwards"
            ),
            L_("add an epsilon under the root, or take torch.cdist(x, x) or a norm, whose slope at 0 is 0"),
        )  # fmt: skip


def _under_root(source: Source, node: ast.AST) -> ast.expr | None:
    """The expression whose square root a node is."""
    if isinstance(node, ast.Call) and last_name(source, node) == "sqrt":
        return operand_of(source, node)
    if isinstance(node, ast.Call) and last_name(source, node) == "pow":
        given = arguments_of(source, node)
        return operand_of(source, node) if given and constant(source, given[0]) == 0.5 else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and constant(source, node.right) == 0.5:
        return node.left
    return None


def _is_of_all_pairs(source: Source, squares: ast.expr) -> bool:
    """Whether an expression is a sum of squares of `x[:, None] - x[None]`, and nothing was added to it."""
    node: ast.expr | None = squares
    for _ in range(8):
        if isinstance(node, ast.Name):
            node = definition(source, node)
        elif isinstance(node, ast.Call) and last_name(source, node) in ("sum", "mean", "square", "squeeze", "pow"):
            node = operand_of(source, node)
        elif isinstance(node, ast.BinOp) and _is_square(node):
            node = node.left
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            return _is_pair(source, node.left, node.right) or _is_gram(source, node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return _is_gram(source, node)
        else:
            return False
    return False


def _is_square(node: ast.BinOp) -> bool:
    """Whether an expression is x ** n or x * x."""
    return isinstance(node.op, ast.Pow) or (isinstance(node.op, ast.Mult) and _same(node.left, node.right))


def _is_pair(source: Source, left: ast.expr, right: ast.expr) -> bool:
    """Whether both are one tensor with another dimension each: x[:, None] and x[None], x.unsqueeze(1) and
    x.unsqueeze(0)."""
    one, other = _spread(source, left), _spread(source, right)
    return one is not None and other is not None and _same(one[0], other[0]) and one[1] != other[1]


def _spread(source: Source, node: ast.expr) -> tuple[ast.expr, str] | None:
    """The tensor of which an expression is a view with a new dimension, and the place of the dimension as text."""
    written = definition(source, node) if isinstance(node, ast.Name) else node
    if isinstance(written, ast.Call) and last_name(source, written) in ("expand", "repeat"):
        written = operand_of(source, written)
    if isinstance(written, ast.Subscript):
        parts = written.slice.elts if isinstance(written.slice, ast.Tuple) else [written.slice]
        new = [index for index, each in enumerate(parts) if isinstance(each, ast.Constant) and each.value is None]
        plain = all(isinstance(each, ast.Slice) and each.lower is None and each.upper is None
                    for index, each in enumerate(parts) if index not in new and not _is_ellipsis(each))  # fmt: skip
        return (written.value, f"{new} of {len(parts)}") if new and plain else None
    if isinstance(written, ast.Call) and last_name(source, written) == "unsqueeze":
        operand, given = operand_of(source, written), arguments_of(source, written)
        dim = given[0] if given else keyword(written, "dim")
        return (operand, ast.dump(dim)) if operand is not None and dim is not None else None
    return None


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _is_gram(source: Source, node: ast.BinOp) -> bool:
    """Whether an expression is |x|^2 + |x|^2 - 2 x x^T of one tensor, with nothing added."""
    terms = _terms(node)
    below = [part for term in terms for part in source.walk(term)]
    products = [part for part in below if isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult)]
    if len(terms) != 3 or len(products) != 1:
        return False
    left, inner = products[0].left, _turned(source, products[0].right)
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mult) and constant(source, left.left) == 2:
        left = left.right
    if inner is None or not _same(left, inner):
        return False
    others = [each for each in terms if products[0] not in source.walk(each)]
    first, second = (_spread(source, each) for each in others)
    if first is not None and second is not None:
        return _same(first[0], second[0])
    return len({path_text(_turned(source, each) or each) for each in others} - {NO_TEXT}) == 1


def _turned(source: Source, node: ast.expr) -> ast.expr | None:
    """The x of x.T and x.t()."""
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "H"):
        return node.value
    is_turned = isinstance(node, ast.Call) and last_name(source, node) in ("t", "transpose")
    return operand_of(source, node) if is_turned and isinstance(node, ast.Call) else None


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]


def angle_without_clamp(source: Source) -> Mistakes:
    """acos or asin of a cosine that is differentiated, without a clamp inside of (-1, 1)."""
    for site in source.of(*_ANGLES)[:_MOST_CALLS]:
        operand = operand_of(source, site.node)
        if operand is None or not _is_cosine(source, operand) or not is_differentiated(source, operand):
            continue
        if _is_chosen(source, site):
            continue
        yield (
            site.line, "warning", Sentence(
                "the slope of {name} is infinite at 1 and -1, and rounding puts a cosine beyond them: NaN",
                name=_ANGLES[site.method],
            ),
            L_("cosine.clamp(-1 + 1e-6, 1 - 1e-6) before it, or torch.atan2(sine, cosine)"),
        )  # fmt: skip


def _is_cosine(source: Source, operand: ast.expr) -> bool:
    """Whether a value is a product or a sum as of a cosine, which nothing bounds."""
    own = _straight(source, operand)
    calls = calls_in(source, own)
    if any(last_name(source, each) in _BOUNDED for each in calls):
        return False
    below = [part for each in own for part in source.walk(each)]
    return any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult) for each in below) or any(
        last_name(source, each) in _OF_COSINES for each in calls
    )


def _straight(source: Source, operand: ast.expr) -> list[ast.AST]:
    """An expression and those that its variables certainly hold, two steps far."""
    found: list[ast.AST] = [operand]
    for each in found:  # which grows
        if len(found) > 8:
            break
        names = [part for part in source.walk(each) if isinstance(part, ast.Name)][:8]
        values = [value for name in names if (value := definition(source, name)) is not None]
        found += [value for value in values if value not in found]
    return found


def _is_chosen(source: Source, site: CallSite) -> bool:
    """Whether the angle is an argument of torch.where, of which another finding tells."""
    return any(isinstance(each, ast.Call) and last_name(source, each) == "where" for each in source.above(site.node))


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "chosen-too-late": chosen_too_late,
    "root-of-zero-distance": root_of_zero_distance,
    "angle-without-clamp": angle_without_clamp,
}
