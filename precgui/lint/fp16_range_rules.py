"""Results in FP16 that exceed its range: sums of squares, numbers over squares, losses that are scaled in it, and
numbers that are stored in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from precgui.lint.arguments import keyword, number
from precgui.lint.constants import constant
from precgui.lint.dtype_rules import may_run_in_autocast
from precgui.lint.flow import cast_of, definition, dtype_of, innermost_autocast, is_half
from precgui.lint.half_gradients import gradient_of, is_of_half_weights
from precgui.lint.origins import arguments_of, calls_in, last_name, operand_of, origins
from precgui.lint.overflow_rules import squared
from precgui.lint.source import Mistakes, Source, is_disabled
from precgui.sentences import L_, Sentence

_FP16_LARGEST = 65504.0
_LARGEST_LOSS = 11.0  # of cross entropy at the beginning, for 50 000 classes
_MOST_STEPS = 8  # from one expression to the next
_MOST_CALLS = 64  # of one kind in a script
LOW_WORDS = (".half()", "float16")
_SHAPES = {"flatten", "view", "reshape", "contiguous", "squeeze", "unsqueeze"}
_HOUSE_PRICES = re.compile(r"(sale|house|home)_?prices?|median_house_value", re.IGNORECASE)
_UNSCALED = {"to_numpy", "values", "copy", "tolist", "astype", "reshape", "view", "squeeze", "unsqueeze", "read_csv"}
_KEEPING = {"detach", "clone", "cuda", "cpu", "numpy", "requires_grad_"}
_PROBABILITIES = {"softmax", "sigmoid", "normalize", "tanh", "one_hot", "clamp", "clip"}
_ABOVE_ZERO = {"clamp", "clamp_", "clamp_min", "clip", "maximum", "max", "amax", "arange"}


def squares_summed(source: Source) -> Mistakes:
    """A sum of squares or of absolute values over all elements of a tensor that is certainly FP16."""
    if not any(word in source.text for word in LOW_WORDS):
        return
    for site in source.of("sum", "norm", "mse_loss", "l1_loss")[:_MOST_CALLS]:
        summed = _summed(source, site.node)
        gradient = gradient_of(summed) if summed is not None else None
        if summed is None or not is_outside_autocast(source, site.node):
            continue
        if gradient is not None and is_of_half_weights(source, gradient):
            yield (
                site.line, "warning", L_(
                    "squares of FP16 gradients are added up in FP16: those of gradients below 1.7e-4 are zero, and a "
                    "sum beyond 65504 is Inf"
                ),
                L_("widen first: grad.float()"),
            )  # fmt: skip
        elif is_half(source, summed) and not _is_bounded(source, summed):
            yield (
                site.line, "warning", L_(
                    "a sum over all elements is FP16: beyond 65504 it is Inf, also where each element is small"
                ),
                L_("widen before the sum: .float(), or sum(dtype=torch.float32)"),
            )  # fmt: skip


def _summed(source: Source, call: ast.Call) -> ast.expr | None:
    """The tensor whose squares or absolute values a call adds up over all elements, in the format of the tensor."""
    name = last_name(source, call)
    if keyword(call, "dtype") is not None:
        return None
    if name in ("mse_loss", "l1_loss"):
        reduction, given = keyword(call, "reduction"), keyword(call, "input", 0)
        is_sum = isinstance(reduction, ast.Constant) and reduction.value == "sum"
        by_hand = any(cast_of(source, each) is not None for each in call.args)  # another rule names it
        return given if is_sum and not by_hand and is_half(source, keyword(call, "target", 1)) else None
    operand = operand_of(source, call)
    if operand is None:
        return None
    if name == "norm":
        is_whole = not arguments_of(source, call) and not call.keywords
        return operand if is_whole and _is_squared(source, call) else None
    if not is_over_all(source, call, operand):
        return None
    written = _without_shape(source, operand)
    if isinstance(written, ast.Call) and last_name(source, written) == "abs":
        return operand_of(source, written)
    return squared(source, written)


def is_over_all(source: Source, call: ast.Call, operand: ast.expr) -> bool:
    """Whether a sum is over all elements, or over all of a sample: several dimensions, or one after flatten()."""
    given = keyword(call, "dim", 1 if source.name_of(call.func).startswith("torch.") else 0)
    if given is None:
        return True
    if isinstance(given, ast.Tuple | ast.List):
        return len(given.elts) > 1
    return isinstance(operand, ast.Call) and last_name(source, operand) == "flatten"


def _without_shape(source: Source, node: ast.expr) -> ast.expr:
    for _ in range(_MOST_STEPS):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPES:
            node = node.func.value
        elif isinstance(node, ast.Name) and (held := definition(source, node)) is not None:
            node = held
        else:
            break
    return node


def _is_squared(source: Source, call: ast.Call) -> bool:
    """Whether a value is squared as it is: `x.norm() ** 2`, `x.norm().pow(2)`."""
    above = source.parent(call)
    whole = source.parent(above) if isinstance(above, ast.Attribute) else above
    return isinstance(whole, ast.expr) and squared(source, whole) is call


def _is_bounded(source: Source, node: ast.expr) -> bool:
    """Whether a tensor is certainly small: made of probabilities, clamped, or divided by what is no number."""
    own = [each for each in origins(source, node) if isinstance(each, ast.expr)]
    divided = any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) and constant(source, part.right) is None
        for each in own for part in source.walk(each)
    )  # fmt: skip
    return divided or any(last_name(source, each) in _PROBABILITIES for each in calls_in(source, [*own]))


def is_outside_autocast(source: Source, node: ast.AST) -> bool:
    """Whether code runs outside of autocast, which computes sums, powers and norms of FP16 in FP32."""
    if not source.autocasts:
        return True
    around = innermost_autocast(source, node)
    return is_disabled(source, around) if around is not None else not may_run_in_autocast(source, source.scope(node))


def quotient_of_square(source: Source) -> Mistakes:
    """A number over the square, or a higher power, of a tensor in FP16 that nothing keeps from small values."""
    if not any(word in source.text for word in LOW_WORDS):
        return
    for node in source.nodes:
        above, base, exponent = _quotient(source, node)
        if base is None or exponent < 2 or not is_half(source, base) or _is_kept_from_zero(source, base):
            continue
        if is_outside_autocast(source, node):
            yield (
                getattr(node, "lineno", 1), "warning", Sentence(
                    "a number over x ** {exponent:g} in FP16 is Inf where x is below {limit:.2g}",
                    exponent=exponent, limit=(above / _FP16_LARGEST) ** (1 / exponent),
                ),
                L_("widen before the power: x.float(), or clamp x"),
            )  # fmt: skip


def _quotient(source: Source, node: ast.AST) -> tuple[float, ast.expr | None, float]:
    """The a, x and n of a / x ** n and x ** -n; None for x where an expression is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        above = constant(source, node.left)
        base, exponent = _power(source, node.right)
        return (abs(above), base, exponent) if above else (1.0, None, 0.0)
    if isinstance(node, ast.Call) and last_name(source, node) == "reciprocal":
        operand = operand_of(source, node)
        return (1.0, *(_power(source, operand) if operand is not None else (None, 0.0)))
    is_power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    if isinstance(node, ast.BinOp | ast.Call) and (is_power or _is_call_of_pow(source, node)):
        base, exponent = _power(source, node)
        return 1.0, base, -exponent
    return 1.0, None, 0.0


def _is_call_of_pow(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(source, node) == "pow"


def _power(source: Source, node: ast.expr) -> tuple[ast.expr | None, float]:
    """The x and n of x ** n and x.pow(n), 2 for x * x."""
    written = definition(source, node) if isinstance(node, ast.Name) else node
    if written is None:
        return None, 0.0
    if isinstance(written, ast.BinOp) and isinstance(written.op, ast.Pow):
        return written.left, number(written.right) or 0.0
    if isinstance(written, ast.Call) and last_name(source, written) == "pow":
        given = [*arguments_of(source, written), keyword(written, "exponent")]
        return operand_of(source, written), number(given[0]) or 0.0
    base = squared(source, written)
    return base, 2.0 if base is not None else 0.0


def _is_kept_from_zero(source: Source, base: ast.expr) -> bool:
    """Whether a tensor is certainly not near 0: clamped, counted, or with a number added to it."""
    for each in origins(source, base):
        for part in source.walk(each):
            if isinstance(part, ast.Call) and last_name(source, part) in _ABOVE_ZERO:
                return True
            sides = [part.left, part.right] if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add) else []
            if any(constant(source, side) is not None for side in sides):
                return True
    return False


def loss_in_fp16(source: Source) -> Mistakes:
    """A loss that is cast to FP16 before it is multiplied by the scale."""
    for site in source.of("scale")[:_MOST_CALLS]:
        scaler = source.owner(site)
        given = site.node.args[0] if len(site.node.args) == 1 else None
        if given is None or scaler not in source.scaling or not _is_cast(source, given):
            continue
        made = source.scalers.get(scaler, []) if scaler is not None else []
        if not any(each.arg in ("growth_interval", "growth_factor") for call in made for each in call.keywords):
            yield (
                site.line, "warning", L_(
                    "the loss is cast to FP16 before it is scaled: its gradient is the scale, which is Inf in FP16 "
                    "from 65536 on, where torch begins, so that the scaler skips such steps"
                ),
                L_("scale the loss in FP32: scaler.scale(loss.float())"),
            )  # fmt: skip
    for site in source.of("backward")[:_MOST_CALLS]:
        owner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
        product = definition(source, owner) if isinstance(owner, ast.Name) else owner
        if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
            continue
        sides = [(product.left, product.right), (product.right, product.left)]
        scale = next((found for loss, other in sides if _is_cast(source, loss)
                      and (found := constant(source, other)) is not None), None)  # fmt: skip
        if scale is None or scale * _LARGEST_LOSS <= _FP16_LARGEST:
            continue
        is_inf = scale > _FP16_LARGEST
        yield (
            product.lineno, "error" if is_inf else "warning", Sentence(
                "an FP16 loss is multiplied by {scale:g}: its gradient is this number, which is Inf in FP16",
                scale=scale,
            ) if is_inf else Sentence(
                "an FP16 loss times {scale:g} is Inf where the loss exceeds {limit:.2g}",
                scale=scale, limit=_FP16_LARGEST / scale,
            ),
            L_("multiply in FP32: loss.float() * scale"),
        )  # fmt: skip


def _is_cast(source: Source, node: ast.expr) -> bool:
    """Whether a value is cast to FP16 by hand, in its expression or in that of its name."""
    written = definition(source, node) if isinstance(node, ast.Name) else node
    cast = cast_of(source, written) if written is not None else None
    return cast is not None and cast[0] == "fp16"


def stored_beyond_fp16(source: Source) -> Mistakes:
    """Numbers that are stored in FP16 and are certainly beyond its range, by what they are made of."""
    if not any(word in source.text for word in LOW_WORDS):
        return
    for node in source.nodes:
        stored = _stored(source, node) if isinstance(node, ast.Call) else None
        limits = _limits(source, stored, 0) if stored is not None else None
        largest = max(abs(limits[0]), abs(limits[1])) if limits is not None else 0.0
        if _FP16_LARGEST < largest < float("inf"):
            yield (
                getattr(node, "lineno", 1), "error", Sentence(
                    "numbers up to {largest:.3g} are stored in FP16, where those beyond 65504 are Inf",
                    largest=largest,
                ),
                L_("keep them in FP32, or divide them before the cast"),
            )  # fmt: skip
        elif stored is not None and _is_price_of_houses(source, stored):
            yield (
                getattr(node, "lineno", 1), "warning", L_(
                    "prices of houses are stored in FP16, where those beyond 65504 are Inf"
                ),
                L_("keep them in FP32, or divide them before the cast"),
            )  # fmt: skip


def _is_price_of_houses(source: Source, stored: ast.expr) -> bool:
    """Whether numbers are prices of houses by the name of their column or variable, and nothing makes them smaller."""
    current: ast.expr | None = stored
    for _ in range(2 * _MOST_STEPS):
        match current:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                if _HOUSE_PRICES.fullmatch(name):
                    held = [each for each in origins(source, current) if isinstance(each, ast.expr)]
                    return not any(isinstance(part, ast.BinOp) for each in held for part in source.walk(each)) and all(
                        last_name(source, each) in _UNSCALED for each in calls_in(source, [*held]))  # fmt: skip
                current = definition(source, current) if isinstance(current, ast.Name) else current.value
            case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
                if _HOUSE_PRICES.fullmatch(key):
                    return True
                current = value
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in _UNSCALED and name != "read_csv":
                current = value
            case _:
                return False
    return False


def _stored(source: Source, call: ast.Call) -> ast.expr | None:
    """The x of x.half(), torch.tensor(x, dtype=torch.float16) and x.astype("float16"), which store it in FP16."""
    if (cast := cast_of(source, call)) is not None:
        return cast[1] if cast[0] == "fp16" else None
    name = source.name_of(call.func)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "astype" and call.args:
        return call.func.value if source.text_of(call.args[0]).rpartition(".")[2] == "float16" else None
    if name in ("torch.tensor", "torch.as_tensor", "numpy.array", "numpy.asarray") and call.args:
        given = keyword(call, "dtype", 1)
        is_low = dtype_of(source, given) == "fp16" or (given is not None and source.text_of(given) == "numpy.float16")
        return call.args[0] if is_low else None
    return None


def _limits(source: Source, node: ast.expr | None, depth: int) -> tuple[float, float] | None:
    """The range that the numbers of an expression certainly reach nearly, from random numbers and constants."""
    if node is None or depth > 2 * _MOST_STEPS:
        return None
    if (value := constant(source, node)) is not None:
        return value, value
    match node:
        case ast.Name():
            return _limits(source, definition(source, node), depth + 1)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            values = [constant(source, each) for each in parts]
            known = [each for each in values if each is not None]
            return (min(known), max(known)) if known and len(known) == len(values) else None
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(op, _limits(source, left, depth + 1), _limits(source, right, depth + 1))
        case ast.Call(func=ast.Attribute(attr=name)) if name in _SHAPES | _KEEPING:
            return None if cast_of(source, node) is not None else _limits(source, operand_of(source, node), depth + 1)
        case ast.Call():
            return _drawn(source, node)
    return None


def _combined(
    op: ast.operator, one: tuple[float, float] | None, other: tuple[float, float] | None
) -> tuple[float, float] | None:
    """The range of a sum, difference or product, one side of which is a number; a ratio is not followed."""
    if one is None or other is None or (one[0] != one[1] and other[0] != other[1]):
        return None
    match op:
        case ast.Add():
            return one[0] + other[0], one[1] + other[1]
        case ast.Sub():
            return one[0] - other[1], one[1] - other[0]
        case ast.Mult():
            ends = [a * b for a in one for b in other]
            return min(ends), max(ends)
    return None


def _drawn(source: Source, call: ast.Call) -> tuple[float, float] | None:
    """The range of random numbers, by torch or numpy."""
    if not source.name_of(call.func).startswith(("torch.", "numpy.random.", "rng.")):
        return None
    is_numpy = not source.name_of(call.func).startswith("torch.")
    given = [constant(source, each) for each in call.args]
    match last_name(source, call):
        case "rand" | "random":
            return 0.0, 1.0
        case "randn" | "standard_normal":
            return -2.0, 2.0
        case "uniform" if is_numpy and len(given) > 1 and given[0] is not None and given[1] is not None:
            return given[0], given[1]
        case "normal" if is_numpy and len(given) > 1 and given[0] is not None and given[1] is not None:
            return given[0] - 2 * given[1], given[0] + 2 * given[1]
        case "randint" | "integers" if len(given) > 1 and given[0] is not None and given[1] is not None:
            return given[0], given[1] - 1
    return None


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "sum-in-fp16": squares_summed,
    "quotient-beyond-fp16": quotient_of_square,
    "loss-in-fp16": loss_in_fp16,
    "stored-beyond-fp16": stored_beyond_fp16,
}
