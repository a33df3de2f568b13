"""Whole numbers that a type does not hold: bytes that are subtracted, codes that are not clamped or not rounded."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.lint.arguments import keyword, number
from precgui.lint.constants import constant
from precgui.lint.flow import definition, handed_on
from precgui.lint.origins import arguments_of, calls_in, is_truth, last_name, operand_of, origins
from precgui.lint.source import Mistakes, Source
from precgui.sentences import L_, Sentence

_MOST_CALLS = 64  # of one kind in a script
_MOST_STEPS = 12  # from one expression to the next
_NARROW = {"uint8": "uint8", "int8": "int8", "uint16": "uint16"}
_NARROW_WORDS = ("int8", "uint16", "byte", "char", "imread", "imdecode", "decode_", "read_image", "PIL")
_METHODS = {"byte": "uint8", "char": "int8"}
_IMAGES = {"cv2.imread", "cv2.imdecode", "torchvision.io.read_image", "torchvision.io.decode_image",
           "torchvision.io.decode_jpeg", "torchvision.io.decode_png", "imageio.imread", "imageio.v2.imread",
           "imageio.v3.imread", "skimage.io.imread"}  # fmt: skip
_SAME_NUMBERS = {
    "view", "reshape", "permute", "transpose", "flatten", "squeeze", "unsqueeze", "contiguous", "clone", "copy", "cuda",
    "cpu", "detach", "expand", "flip", "roll", "numpy", "pin_memory", "repeat", "t", "movedim", "swapaxes",
}  # fmt: skip
_WRAPPERS = {"numpy.asarray", "numpy.array", "numpy.stack", "numpy.ascontiguousarray", "torch.from_numpy",
             "torch.as_tensor", "torch.tensor", "torch.stack", "torch.cat", "numpy.concatenate", "torch.roll",
             "numpy.roll", "torch.flip", "numpy.flip", "numpy.transpose"}  # fmt: skip
_ROUNDING = {"round", "round_", "rint", "floor", "floor_", "ceil", "ceil_", "trunc", "trunc_"}
_CLAMPS = {"clamp", "clamp_", "clip", "clip_", "clamp_max", "clamp_min", "minimum", "maximum", "hardtanh", "min", "max",
           "tanh", "sigmoid", "where"}  # fmt: skip
_LARGEST = {"max", "amax", "aminmax", "norm", "finfo", "iinfo"}
_BELOW_MAXIMUM = {"quantile", "nanquantile", "percentile", "kthvalue", "std", "var", "mean", "median", "Parameter"}
_LIMITS = {"int8": 128.0, "uint8": 256.0}
_LARGEST_CODES = {"int8": {127.0, 127.5, 128.0, 7.0}, "uint8": {255.0, 15.0}}
_BOUNDS = {"clamp", "clamp_", "clip", "clip_", "clamp_max", "clamp_min"}
_IN_PLACE = {"round_", "floor_", "ceil_", "trunc_", "add_", "clamp_", "clip_"}
_FRACTION = "+"  # something is added that may be half a step, or noise
_MIDDLES = (127, 128)  # zero points of bytes: numbers below them wrap around


def wrapping_difference(source: Source) -> Mistakes:
    """A difference of bytes, or of other narrow whole numbers, that is taken before they are widened."""
    if not any(word in source.text for word in _NARROW_WORDS):
        return
    for node in source.nodes:
        pair = difference(source, node)
        kinds = {_narrow_type(source, each) for each in pair if number(each) is None}
        kind = next(iter(kinds), "")
        if len(kinds) != 1 or not kind or _is_compared(source, node):
            continue
        if any(number(each) is not None for each in pair) and not (kind == "uint8" and _is_middle(pair[1])):
            continue
        yield (
            getattr(node, "lineno", 1), "warning", Sentence(
                "a difference of {kind} wraps around: what is below the range comes out at its other end", kind=kind
            ),
            L_("widen before it is taken: .float(), .to(torch.int16), or .astype(np.int16)"),
        )  # fmt: skip


def _is_middle(node: ast.expr) -> bool:
    """Whether a number that is subtracted is the zero point of bytes."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value in _MIDDLES


def difference(source: Source, node: ast.AST) -> list[ast.expr]:
    """Both sides of a difference; of diff(x), x twice; of what is none, nothing."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return [node.left, node.right]
    if not isinstance(node, ast.Call) or keyword(node, "dtype") is not None or keyword(node, "out") is not None:
        return []
    name, last, given = source.name_of(node.func), last_name(source, node), node.args
    if name.startswith(("torch.", "numpy.")):
        if last == "diff" and given:
            return [given[0], given[0]]
        return given if last in ("sub", "subtract") and len(given) == 2 else []
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if owner is None or last not in ("sub", "subtract", "diff"):
        return []
    return [owner, owner] if last == "diff" else [owner, *given] if len(given) == 1 else []


def _is_compared(source: Source, node: ast.AST) -> bool:
    """Whether a difference is only asked whether it is 0."""
    above = source.parent(node)
    while isinstance(above, ast.Attribute | ast.Call) and not isinstance(above, ast.Compare):
        above = source.parent(above)
    is_compare = isinstance(above, ast.Compare) and len(above.ops) == 1
    return is_compare and isinstance(above, ast.Compare) and isinstance(above.ops[0], ast.Eq | ast.NotEq)


def _narrow_type(source: Source, node: ast.expr, depth: int = 0) -> str:
    """The narrow whole type that a tensor or an array certainly has, '' where it is another one or not certain."""
    current: ast.expr | None = node
    for _ in range(_MOST_STEPS if depth < 4 else 0):
        if isinstance(current, ast.Name):
            certain = definition(source, current)
            if certain is None:
                held = handed_on(source, current)
                certain = held[0] if len(held) == 1 and len(_bindings(source, current)) <= 1 else None
            current = certain
        elif isinstance(current, ast.Subscript):
            current = current.value
        elif isinstance(current, ast.Call):
            known, current = _of_call(source, current)
            if known is not None:
                return known
        else:
            return ""
    return ""


def _bindings(source: Source, node: ast.expr) -> list[object]:
    variable = source.variable(node)
    return list(source.variables.assignments(variable)) if variable is not None else []


def _of_call(source: Source, call: ast.Call) -> tuple[str | None, ast.expr | None]:
    """The narrow type of a call's value ('' for another one), or else the expression that has the same one."""
    name, last = source.name_of(call.func), last_name(source, call)
    given = keyword(call, "dtype")
    if given is not None:
        return _type_named(source, given), None
    if last in _METHODS and isinstance(call.func, ast.Attribute) and not call.args:
        return ("" if is_truth(source, call.func.value) else _METHODS[last]), None
    if last in ("to", "type", "astype") and isinstance(call.func, ast.Attribute):
        if is_truth(source, call.func.value):
            return "", None
        kinds = [_type_named(source, each) for each in call.args]
        if any(kinds):
            return next(each for each in kinds if each), None
        is_device = last == "to" and len(call.args) == 1 and _is_device(source, call.args[0])
        return (None, call.func.value) if is_device else ("", None)
    if name in _IMAGES:
        return ("uint8" if len(call.args) == 1 and not call.keywords else ""), None
    if name in ("numpy.asarray", "numpy.array") and call.args and _is_picture(source, call.args[0]):
        return "uint8", None
    if name in _WRAPPERS and call.args:
        if name in ("torch.as_tensor", "torch.tensor", "numpy.asarray", "numpy.array") and len(call.args) > 1:
            return "", None
        first = call.args[0]
        if isinstance(first, ast.List | ast.Tuple):
            return None, next(iter(first.elts), None)
        return None, first
    if last in _SAME_NUMBERS and isinstance(call.func, ast.Attribute) and not name.startswith(("torch.", "numpy.")):
        return None, call.func.value
    return "", None


def _type_named(source: Source, node: ast.expr) -> str:
    return _NARROW.get(source.text_of(node).rpartition(".")[2], "")


def _is_device(source: Source, node: ast.expr) -> bool:
    text = source.text_of(node)
    return "device" in text or text.startswith(("cuda", "cpu", "mps"))


def _is_picture(source: Source, node: ast.expr) -> bool:
    """Whether an object is certainly a picture of PIL in bytes: opened, or converted to gray or RGB."""
    current: ast.expr | None = node
    for _ in range(_MOST_STEPS):
        if isinstance(current, ast.Name):
            current = definition(source, current)
        elif isinstance(current, ast.Call):
            if source.name_of(current.func) == "PIL.Image.open":
                return True
            if last_name(source, current) == "convert":
                mode = current.args[0] if current.args else None
                if not isinstance(mode, ast.Constant) or mode.value not in ("L", "RGB", "RGBA"):
                    return False
            is_method = isinstance(current.func, ast.Attribute)
            if not is_method or last_name(source, current) not in ("convert", "resize", "crop", "rotate", "copy"):
                return False
            current = current.func.value if isinstance(current.func, ast.Attribute) else None
        else:
            return False
    return False


def codes_without_clamp(source: Source) -> Mistakes:
    """Numbers divided by a scale that is none of their maximum, rounded and cast to a byte without a clamp."""
    for line, kind, quotient, passed in _codes(source):
        if not passed & _ROUNDING or passed & _CLAMPS or _is_product(source, quotient):
            continue
        if not _may_exceed(source, quotient, _LIMITS[kind]):
            continue
        yield (
            line, "warning", Sentence(
                "rounded numbers are cast to {kind} without a clamp: those beyond its range wrap around, also to the "
                "other sign",
                kind=kind,
            ),
            Sentence("clamp to the range of {kind} between round() and the cast", kind=kind),
        )  # fmt: skip


def codes_not_rounded(source: Source) -> Mistakes:
    """Numbers over a scale that is made of their maximum, cast to a byte without being rounded."""
    for line, kind, quotient, passed in _codes(source):
        if passed & (_ROUNDING | {_FRACTION}) or not _is_over_maximum(source, quotient, kind):
            continue
        yield (
            line, "warning", Sentence(
                "codes are cast to {kind} without rounding: the cast cuts off the fraction, which moves all values "
                "towards zero by half a step on average",
                kind=kind,
            ),
            Sentence("round() before the cast to {kind}", kind=kind),
        )  # fmt: skip


def _codes(source: Source) -> Iterator[tuple[int, str, ast.expr, set[str]]]:
    """The casts of quotients or products to a byte: the line, the type, the quotient, and the functions between."""
    for site in source.of("to", "type", "astype", "char", "byte")[:_MOST_CALLS]:
        call = site.node
        if not isinstance(call.func, ast.Attribute):
            continue
        named = keyword(call, "dtype")
        kinds = [_type_named(source, each) for each in [*call.args, *([named] if named is not None else [])]]
        kind = _METHODS.get(site.method) or next((each for each in kinds if each), "")
        quotient, passed = _quotient(source, call.func.value) if kind in _LIMITS else (None, set())
        if quotient is not None:
            yield site.line, kind, quotient, passed


def _quotient(source: Source, node: ast.expr) -> tuple[ast.expr | None, set[str]]:
    """The quotient or product that an expression is made of, and the functions between; None for others."""
    current: ast.expr | None = node
    passed: set[str] = set()
    for _ in range(_MOST_STEPS):
        if isinstance(current, ast.Name):
            passed |= _changes_in_place(source, current)
            current = definition(source, current)
        elif isinstance(current, ast.BinOp) and isinstance(current.op, ast.Add | ast.Sub):
            passed |= set() if _is_whole(source, current.right) else {_FRACTION}
            current = current.left  # a zero point
        elif isinstance(current, ast.BinOp) and isinstance(current.op, ast.Div | ast.Mult):
            return current, passed
        elif isinstance(current, ast.Call):
            name = last_name(source, current)
            passed.add(name)
            if name in ("div", "true_divide", "mul"):
                return current, passed
            if name not in _ROUNDING | _BOUNDS | _SAME_NUMBERS | {"to", "float", "add", "sub", "cpu"}:
                return None, passed
            is_function = source.name_of(current.func).startswith(("torch.", "numpy.")) or isinstance(
                current.func, ast.Name
            )
            inner = keyword(current, "input", 0) if is_function else None
            current = inner if is_function else current.func.value if isinstance(current.func, ast.Attribute) else None
        else:
            break
    return None, passed


def _changes_in_place(source: Source, name: ast.Name) -> set[str]:
    """The functions that change a variable in place, as x.round_(), or write to it, as torch.round(x, out=x)."""
    variable = source.variable(name)
    owned = source.calls_of(variable, *_IN_PLACE) if variable is not None else []
    written = [each for each in source.of("round", "clamp", "add", "floor") if (out := keyword(each.node, "out"))
               is not None and source.variable(out) == variable]  # fmt: skip
    return {_FRACTION if "add" in each.method else each.method for each in [*owned, *written]}


def _is_whole(source: Source, addend: ast.expr) -> bool:
    """Whether what is added is certainly a whole number: written so, or a zero point by its name."""
    value = constant(source, addend)
    return value == int(value) if value is not None else "zero" in source.name_of(addend).lower()


def _is_product(source: Source, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return last_name(source, node) == "mul"
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def _is_over_maximum(source: Source, quotient: ast.expr, kind: str) -> bool:
    """Whether a quotient is that of a tensor over its maximum and the largest code, in one of the ways to write it."""
    if kind == "uint8" and (_is_product(source, quotient) or "quant" not in source.text.lower()):
        return False  # a picture
    sides = [quotient.left, quotient.right] if isinstance(quotient, ast.BinOp) else []
    if isinstance(quotient, ast.Call):
        operand = operand_of(source, quotient)
        sides = [*([operand] if operand is not None else []), *arguments_of(source, quotient)]
    codes = _LARGEST_CODES[kind]
    times = any(_is_times(source, each, codes) for each in [quotient, *sides])
    for each in sides if _is_product(source, quotient) else sides[-1:]:
        below = [part for own in origins(source, each) for part in source.walk(own)]
        over = any(
            isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div)
            and {constant(source, part.left), constant(source, part.right)} & codes for part in below
        )  # fmt: skip
        calls = {last_name(source, part) for part in below if isinstance(part, ast.Call)}
        if calls & {"max", "amax", "aminmax"} and (over or times):
            return True
    return False


def _is_times(source: Source, node: ast.expr, codes: set[float]) -> bool:
    """Whether an expression is a product with the largest code."""
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    factors = [node.left, node.right] if is_product and isinstance(node, ast.BinOp) else []
    return any(constant(source, each) in codes for each in factors)


def _may_exceed(source: Source, quotient: ast.expr, limit: float) -> bool:
    """Whether a scale is certainly none that takes the largest number of the tensor to the limit: made of a quantile, a
    deviation or a mean, a parameter that is learned, or the maximum over one more than the largest code."""
    given = arguments_of(source, quotient) if isinstance(quotient, ast.Call) else []
    scale = quotient.right if isinstance(quotient, ast.BinOp) else next(iter(given), None)
    divided = quotient.left if isinstance(quotient, ast.BinOp) else quotient
    if scale is None or any(last_name(source, each) in _CLAMPS for each in calls_in(source, origins(source, divided))):
        return False
    own = origins(source, scale)
    names = {last_name(source, each) for each in calls_in(source, own)}
    if names & _LARGEST:
        over = any(isinstance(each, ast.BinOp) and constant(source, each.right) == limit for each in own)
        return over and "abs" in names and limit == _LIMITS["int8"]
    return bool(names & _BELOW_MAXIMUM)


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "bytes-subtracted": wrapping_difference,
    "codes-without-clamp": codes_without_clamp,
    "codes-not-rounded": codes_not_rounded,
}
