"""Sums of exponentials and differences of squares that overflow or cancel, though another form does neither."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import keyword, number
from precgui.lint.constants import constant
from precgui.lint.flow import cast_of, definition, is_half, statement
from precgui.lint.origins import (
    arguments_of,
    calls_in,
    is_differentiated,
    is_model,
    last_layer,
    last_name,
    operand_of,
    origins,
    takes_gradients,
)
from precgui.lint.source import Mistakes, Source
from precgui.lint.variables import NO_TEXT, path_text
from precgui.sentences import L_

_MOST_CALLS = 64  # of one kind in a script
_MOST_STEPS = 8  # from one definition to the next
_BOUNDING = {
    "max", "amax", "maximum", "clamp", "clamp_", "clamp_max", "clip", "minimum", "min", "amin", "tanh", "sigmoid",
    "softmax", "log_softmax", "logsigmoid", "logsumexp", "normalize", "cosine_similarity", "hardtanh", "relu6", "where",
    "abs", "norm", "square", "cdist", "log", "log_prob", "layer_norm", "sin", "cos", "softsign", "erf", "topk", "sort",
}  # fmt: skip
_BOUNDED_LAYERS = {  # classes of torch.nn in lower case
    "tanh", "sigmoid", "softmax", "logsoftmax", "logsigmoid", "hardtanh", "relu6", "softsign", "layernorm", "rmsnorm",
    "batchnorm1d", "hardsigmoid", "cosinesimilarity",
}  # fmt: skip
_LOG_OF_SUM = (
    L_("the logarithm of a sum of exponentials overflows where an exponent exceeds 88 in FP32, 11 in FP16"),
    "torch.logsumexp(x, dim)",
)  # fmt: skip
_SOFTPLUS = (
    L_("log(1 + exp(x)) overflows where x exceeds 88 in FP32, 11 in FP16"), "torch.nn.functional.softplus(x)"
)  # fmt: skip
_SOFTMAX = (
    L_("exp(x) / sum(exp(x)) is Inf / Inf = NaN where x exceeds 88 in FP32, 11 in FP16"), "torch.softmax(x, dim)"
)  # fmt: skip


def exponentials(source: Source) -> Mistakes:
    """log(1 + exp(x)), log(sum(exp(x))) and exp(x) / sum(exp(x)) of what a model gives, its maximum not taken off."""
    if not takes_gradients(source):
        return
    for site in source.of("log", "log1p")[:_MOST_CALLS]:
        operand = operand_of(source, site.node)
        if operand is None or (site.method == "log1p" and _exponent(source, operand) is None):
            continue
        exponent, text = _exponent(source, operand), _SOFTPLUS
        if site.method == "log":
            exponent = _in_softplus(source, operand)
            if exponent is None:
                exponent, text = _in_sum(source, operand), _LOG_OF_SUM
        if exponent is not None and _is_unbounded(source, exponent) and not _is_chosen(source, site.node):
            yield site.line, "warning", text[0], text[1]
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            exponent = _exponent(source, node.left)
            total = _in_sum(source, node.right) if exponent is not None else None
            if exponent is None or total is None or not _same(exponent, total):
                continue
            if _is_unbounded(source, exponent):
                yield node.lineno, "warning", _SOFTMAX[0], _SOFTMAX[1]


def _written(source: Source, node: ast.expr) -> ast.expr:
    return (definition(source, node) or node) if isinstance(node, ast.Name) else node


def _exponent(source: Source, node: ast.expr) -> ast.expr | None:
    """The x of exp(x)."""
    written = _written(source, node)
    return (
        operand_of(source, written) if isinstance(written, ast.Call) and last_name(source, written) == "exp" else None
    )


def _in_softplus(source: Source, node: ast.expr) -> ast.expr | None:
    """The x of 1 + exp(x)."""
    written = _written(source, node)
    if not isinstance(written, ast.BinOp) or not isinstance(written.op, ast.Add):
        return None
    sides = (written.left, written.right)
    if not any(constant(source, each) == 1 for each in sides):
        return None
    return next((found for each in sides if (found := _exponent(source, each)) is not None), None)


def _in_sum(source: Source, node: ast.expr) -> ast.expr | None:
    """The x of sum(exp(x)), also behind a mask, an epsilon and a change of shape."""
    for _ in range(_MOST_STEPS):
        node = _written(source, node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            node = node.left if constant(source, node.right) is not None else node.right
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and last_name(source, node) in ("sum", "unsqueeze", "squeeze", "view"):
            inner = operand_of(source, node)
            if inner is None:
                return None
            if last_name(source, node) == "sum":
                return _summed(source, inner)
            node = inner
        else:
            return None
    return None


def _summed(source: Source, node: ast.expr) -> ast.expr | None:
    """The x of exp(x), or of exp(x) * mask."""
    written = _written(source, node)
    if isinstance(written, ast.BinOp) and isinstance(written.op, ast.Mult):
        sides = (written.left, written.right)
        return next((found for each in sides if (found := _exponent(source, each)) is not None), None)
    return _exponent(source, written)


def _same(one: ast.expr, other: ast.expr) -> bool:
    return (path_text(one) != NO_TEXT and path_text(one) == path_text(other)) or ast.dump(one) == ast.dump(other)


def _is_unbounded(source: Source, exponent: ast.expr) -> bool:
    """Whether an exponent is certainly what a model gives, or made of it, and nothing on the way bounds it."""
    if not is_differentiated(source, exponent):
        return False
    from_model = False
    for each in origins(source, exponent):
        for part in source.walk(each):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow):
                return False
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult) and _same(part.left, part.right):
                return False
            if not isinstance(part, ast.Call):
                continue
            if last_name(source, part) in _BOUNDING or last_layer(source, part) in _BOUNDED_LAYERS:
                return False
            from_model = from_model or is_model(source, part.func)
    return from_model


def _is_chosen(source: Source, node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and last_name(source, each) == "where" for each in source.above(node))


def one_pass_variance(source: Source) -> Mistakes:
    """A variance as E[x^2] - E[x]^2 that is in 16 bits, or whose root or quotient is taken without a floor."""
    if not takes_gradients(source):
        return
    for node in source.nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
            continue
        tensor = _squares_less_square(source, node)
        if tensor is None or _is_wide(source, tensor):
            continue
        low = _is_low(source, tensor)
        if low or (_is_rooted(source, node) and _is_in_model(source, node, tensor)):
            yield (
                node.lineno, "warning", L_(
                    "E[x^2] - E[x]^2 cancels: in 16 bits few digits are left where the mean is large"
                ) if low else L_(
                    "E[x^2] - E[x]^2 cancels and may be negative where the mean is large: its root is NaN"
                ),
                L_("torch.var(x, correction=0), or the mean of (x - mean)^2"),
            )  # fmt: skip


def _squares_less_square(source: Source, node: ast.BinOp) -> ast.expr | None:
    """The x of mean(x^2) - mean(x)^2."""
    mean = squared(source, node.right)
    squares = _averaged(source, node.left)
    if mean is None or squares is None:
        return None
    tensor, own = _averaged(source, mean), squared(source, squares)
    return own if tensor is not None and own is not None and _same(tensor, own) else None


def squared(source: Source, node: ast.expr) -> ast.expr | None:
    """The x of x * x, x ** 2, x.pow(2) and torch.square(x)."""
    written = _written(source, node)
    if isinstance(written, ast.BinOp) and isinstance(written.op, ast.Mult):
        return written.left if _same(written.left, written.right) else None
    if isinstance(written, ast.BinOp) and isinstance(written.op, ast.Pow):
        return written.left if number(written.right) == 2 else None
    if isinstance(written, ast.Call) and last_name(source, written) == "square":
        return operand_of(source, written)
    if isinstance(written, ast.Call) and last_name(source, written) == "pow":
        given = [*arguments_of(source, written), keyword(written, "exponent")]
        return operand_of(source, written) if number(given[0]) == 2 else None
    return None


def _averaged(source: Source, node: ast.expr) -> ast.expr | None:
    """The x of x.mean(dim), torch.mean(x, dim) and x.sum(dim) / n."""
    written = _written(source, node)
    if isinstance(written, ast.BinOp) and isinstance(written.op, ast.Div):
        total = _written(source, written.left)
        is_sum = isinstance(total, ast.Call) and last_name(source, total) == "sum"
        return operand_of(source, total) if is_sum and isinstance(total, ast.Call) else None
    is_mean = isinstance(written, ast.Call) and last_name(source, written) == "mean"
    return operand_of(source, written) if is_mean and isinstance(written, ast.Call) else None


def _is_wide(source: Source, tensor: ast.expr) -> bool:
    """Whether a tensor is FP64, or may be."""
    if any(site.name == "torch.set_default_dtype" for site in source.of("set_default_dtype")):
        return True
    casts = [cast_of(source, each) for each in calls_in(source, origins(source, tensor))]
    return any(each is not None and each[0] == "fp64" for each in casts)


def _is_low(source: Source, tensor: ast.expr) -> bool:
    """Whether a tensor is certainly in 16 bits."""
    written = _written(source, tensor)
    cast = cast_of(source, written)
    return is_half(source, tensor) or (cast is not None and cast[0] == "bf16")


def _is_in_model(source: Source, node: ast.AST, tensor: ast.expr) -> bool:
    """Whether a value is computed in `forward` of a module of this script, or carries a gradient."""
    scope = source.scope(node)
    own = source.parent(scope)
    is_module = isinstance(own, ast.ClassDef) and any(source.name_of(each).endswith("Module") for each in own.bases)
    if is_module and isinstance(scope, ast.FunctionDef) and scope.name == "forward":
        return True
    return is_differentiated(source, tensor)


def _is_rooted(source: Source, node: ast.expr) -> bool:
    """Whether the root of a value is taken as it is, by itself or by the variable that holds it."""
    if _is_under_root(source, node):
        return True
    above, scope = statement(source, node), source.scope(node)
    if not isinstance(above, ast.Assign):
        return False
    names = {each.id for target in above.targets for each in source.walk(target) if isinstance(each, ast.Name)}
    below = source.nodes[source.end(above) + 1 : source.end(scope) + 1]
    reads = [each for each in below if isinstance(each, ast.Name) and each.id in names
             and isinstance(each.ctx, ast.Load) and source.scope(each) is scope]  # fmt: skip
    return any(_is_under_root(source, each) and definition(source, each) is node for each in reads)


def _is_under_root(source: Source, node: ast.AST) -> bool:
    """Whether an expression is that of sqrt(x), x.rsqrt(), x ** 0.5 or x.pow(-0.5), with nothing around it."""
    above = source.parent(node)
    if isinstance(above, ast.Attribute):
        call = source.parent(above)
        given = call.args[0] if isinstance(call, ast.Call) and call.args else None
        return above.attr in ("sqrt", "rsqrt") or (above.attr == "pow" and _is_half_power(source, given))
    if isinstance(above, ast.Call):
        name = source.name_of(above.func)
        first = bool(above.args) and above.args[0] is node
        is_power = name == "torch.pow" and len(above.args) > 1 and _is_half_power(source, above.args[1])
        return first and (name in ("torch.sqrt", "torch.rsqrt") or is_power)
    if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Pow):
        return above.left is node and _is_half_power(source, above.right)
    return False


def _is_half_power(source: Source, node: ast.expr | None) -> bool:
    return constant(source, node) in (0.5, -0.5)


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "overflowing-exponential": exponentials,
    "one-pass-variance": one_pass_variance,
}
