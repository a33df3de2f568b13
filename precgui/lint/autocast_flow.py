"""Values and calls followed through regions of autocast: the format that these give, and what certainly is in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precgui.lint.arguments import keyword
from precgui.lint.constants import constant, given_for
from precgui.lint.flow import (
    EXACT_UP_TO,
    cast_of,
    definition,
    dtype_of,
    innermost_autocast,
    last_module,
    region_is_fp16,
)
from precgui.lint.lightning import steps_in_autocast, trainer_precision
from precgui.lint.method_names import FP32_IN_AUTOCAST, PRODUCTS, SAME_FORMAT
from precgui.lint.origins import calls_of_module, calls_of_variable, last_name, operand_of, returns_of
from precgui.lint.source import CallSite, Source, is_disabled
from precgui.lint.variables import Variable

_MOST_DEPTH = 16  # from one expression to the next
_MOST_LEVELS = 6  # of functions and classes that call one another
_MOST_CALLS = 16  # of one function or object
_ELSEWHERE = ("cpu", "mps", "xpu", "hpu", "xla")  # devices that treat an operation otherwise than CUDA
_SUMS = (PRODUCTS - {"einsum"}) | {"conv1d", "conv2d", "conv3d", "conv_transpose2d", "scaled_dot_product_attention"}
_KEEPING = (SAME_FORMAT - FP32_IN_AUTOCAST - {"to", "type"}) | {
    "gelu", "silu", "leaky_relu", "tanh", "sigmoid", "dropout", "expand", "repeat", "mT", "flip", "roll", "neg",
}  # fmt: skip
_LAYERS = {"linear", "conv1d", "conv2d", "conv3d", "convtranspose1d", "convtranspose2d", "convtranspose3d", "bilinear"}
_KEEPING_LAYERS = {
    "relu", "gelu", "silu", "leakyrelu", "tanh", "sigmoid", "elu", "dropout", "identity", "flatten", "unflatten",
    "maxpool2d", "adaptiveavgpool2d", "batchnorm1d", "batchnorm2d", "avgpool2d",
}  # fmt: skip
_NO_CHANGE = ("no_grad", "inference_mode", "staticmethod", "compile", "checkpoint")  # decorators


def format_around(source: Source, node: ast.AST, level: int = 0) -> str:
    """The format of 16 bits that autocast on CUDA certainly gives to a place in some call of its function; else ''."""
    around = innermost_autocast(source, node)
    if around is not None:
        return _format_of_region(source, around)
    function = source.scope(node)
    if not isinstance(function, ast.FunctionDef) or level == _MOST_LEVELS or not _is_plain(source, function):
        return ""
    return source.cached(("format_around", function), lambda: _format_of_callers(source, function, level + 1))


def _format_of_region(source: Source, call: ast.Call) -> str:
    device = keyword(call, "device_type", 0)
    if isinstance(device, ast.Constant) and str(device.value).startswith(_ELSEWHERE):
        return ""
    if "cpu.amp" in source.name_of(call.func) or is_disabled(source, call):
        return ""
    low = "fp16" if region_is_fp16(source, call) else dtype_of(source, keyword(call, "dtype", 1))
    return low if low in EXACT_UP_TO else ""


def _is_plain(source: Source, function: ast.FunctionDef) -> bool:
    """Whether no decorator of a function may change autocast."""
    names = [source.name_of(each.func if isinstance(each, ast.Call) else each) for each in function.decorator_list]
    return all(each.endswith(_NO_CHANGE) for each in names)


def _format_of_callers(source: Source, function: ast.FunctionDef, level: int) -> str:
    if function in steps_in_autocast(source):
        precision = trainer_precision(source)
        return "bf16" if precision.startswith("bf16") else "fp16"
    found = (format_around(source, each, level) for each in callers(source, function))
    return next((each for each in found if each), "")


def callers(source: Source, function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The calls of a function of this script, of `forward` those of objects of its class; where the object is held by
    another class, a place in its `forward`."""
    own = source.parent(function)
    if not isinstance(own, ast.ClassDef) or function.name not in ("forward", "__call__"):
        if function.name in source.functions:
            sites = source.of(function.name)[:_MOST_CALLS]
            yield from (each.node for each in sites if each.owner in ("", "self") or isinstance(own, ast.ClassDef))
        return
    for made in [each for each in source.of(own.name) if each.name == own.name][:_MOST_CALLS]:
        yield from calls_of_object(source, made)


def calls_of_object(source: Source, made: CallSite) -> list[ast.Call]:
    """The calls of an object that a call makes, also by an argument that a function of this script gets it as, and of
    each of several in nn.ModuleList."""
    found = [*calls_of_module(source, made), *_calls_of_each(source, made)]
    above = source.parent(made.node)
    while isinstance(above, ast.Call | ast.Attribute):  # Net().to(device)
        above = source.parent(above)
    variable = source.variable(above.targets[0]) if isinstance(above, ast.Assign) else None
    return [*found, *(_calls_by_arguments(source, variable) if variable is not None else [])]


def _calls_by_arguments(source: Source, variable: Variable) -> list[ast.Call]:
    """The calls of what a variable holds: by itself, and by arguments of functions that get it."""
    found = list(calls_of_variable(source, variable))
    handed = source.cached("functions_by_argument", lambda: _by_argument(source))
    for function in handed.get(variable, []):
        for argument in (*function.args.args, *function.args.kwonlyargs):
            own = Variable(function, argument.arg)
            if any(source.variable(each) == variable for each in given_for(source, own)):
                found += calls_of_variable(source, own)
    return found[:_MOST_CALLS]


def _by_argument(source: Source) -> dict[Variable, list[ast.FunctionDef]]:
    """The functions of this script whose calls get what a variable holds."""
    groups: dict[Variable, list[ast.FunctionDef]] = {}
    for site in source.calls:
        function = source.functions.get(site.method)
        for each in [*site.node.args, *(own.value for own in site.node.keywords)] if function is not None else ():
            variable = source.variable(each) if isinstance(each, ast.Name | ast.Attribute) else None
            known = groups.setdefault(variable, []) if variable is not None else []
            if function is not None and function not in known:
                known.append(function)
    return groups


def _calls_of_each(source: Source, made: CallSite) -> list[ast.Call]:
    """The calls of the variable of a loop over nn.ModuleList, of which an object is one."""
    above = source.parent(made.node)
    while isinstance(above, ast.expr):
        if isinstance(above, ast.Call) and source.name_of(above.func).rpartition(".")[2] not in ("ModuleList",):
            return []
        above = source.parent(above)
    held = source.variable(above.targets[0]) if isinstance(above, ast.Assign) else None
    found: list[ast.Call] = []
    for node in source.nodes if held is not None else ():
        if isinstance(node, ast.For) and source.variable(node.iter) == held:
            each = source.variable(node.target)
            found += [
                call for call in source.walk(node)
                if isinstance(call, ast.Call) and each is not None and source.variable(call.func) == each
            ]  # fmt: skip
    return found[:_MOST_CALLS]


def given_in(source: Source, argument: ast.AST) -> list[ast.expr]:
    """The expressions that calls of this script give for an argument of a function or of `forward`."""
    variable = source.variable(argument)
    function = variable.scope if variable is not None else None
    if variable is None or not isinstance(function, ast.FunctionDef) or source.variables.assignments(variable):
        return []
    names = [each.arg for each in function.args.args]
    own = source.parent(function)
    if not isinstance(own, ast.ClassDef) or function.name not in ("forward", "__call__"):
        return given_for(source, variable)
    if variable.text not in names:
        return []
    place = names.index(variable.text) - 1
    calls = [each for each in callers(source, function) if isinstance(each, ast.Call)]
    return [given for each in calls if (given := keyword(each, variable.text, place)) is not None]


def is_low(source: Source, node: ast.AST | None, depth: int = 0) -> bool:
    """Whether a value is certainly in 16 bits where autocast is on around it: computed by a product, a convolution or a
    layer, and by operations that keep the format."""
    if node is None or depth > _MOST_DEPTH:
        return False
    known: dict[ast.AST, bool] = source.cached("low_in_autocast", dict)
    if node not in known:
        known[node] = False  # where it is computed from itself
        known[node] = _is_computed_low(source, node, depth)
    return known[node]


def _is_computed_low(source: Source, node: ast.AST, depth: int) -> bool:
    if isinstance(node, ast.expr) and (cast := cast_of(source, node)) is not None:
        return cast[0] in EXACT_UP_TO
    around = innermost_autocast(source, node)
    if around is not None and is_disabled(source, around):
        return False
    match node:
        case ast.Name():
            held = definition(source, node)
            given = given_in(source, node) if held is None else []
            return is_low(source, held, depth + 1) or (
                bool(given) and all(is_low(source, each, depth + 1) for each in given)
            )
        case ast.Attribute(attr="T" | "mT" | "H" | "mH", value=value) | ast.Subscript(value=value):
            return is_low(source, value, depth + 1)
        case ast.UnaryOp(operand=value):
            return is_low(source, value, depth + 1)
        case ast.BinOp(left=left, op=op, right=right):
            if isinstance(op, ast.MatMult):
                return True
            sides = [each for each in (left, right) if not _is_number(source, each)]
            if isinstance(op, ast.Pow) or (isinstance(op, ast.Div) and left not in sides):
                return False  # which autocast computes in FP32
            return bool(sides) and all(is_low(source, each, depth + 1) for each in sides)
        case ast.Call():
            return _is_low_call(source, node, depth + 1)
    return False


def _is_low_call(source: Source, call: ast.Call, depth: int) -> bool:
    name, full = last_name(source, call), source.name_of(call.func)
    if keyword(call, "dtype") is not None or full.startswith(("numpy.", "np.", "math.", "scipy.")):
        return False
    operand = operand_of(source, call)
    own = name in source.functions or full.startswith("self.")
    if not own and name in _SUMS and (full.startswith("torch.") or isinstance(call.func, ast.Attribute)):
        return True
    if not own and name in ("cat", "stack") and full.startswith("torch."):
        parts = call.args[0].elts if call.args and isinstance(call.args[0], ast.List | ast.Tuple) else []
        return bool(parts) and all(is_low(source, each, depth) for each in parts)
    if not own and name in _KEEPING and operand is not None:
        return is_low(source, operand, depth)
    if returned := returns_of(source, call):
        return all(is_low(source, each, depth) for each in returned)
    held = definition(source, call.func)
    given = given_in(source, call.func) if held is None and isinstance(call.func, ast.Name) else []
    makers = [held] if held is not None else [definition(source, each) for each in given]
    return bool(makers) and all(_is_low_module(source, call, each, depth) for each in makers)


def _is_number(source: Source, node: ast.expr) -> bool:
    """Whether an expression is a number of Python, which keeps the format of a tensor: written out, or a size."""
    if constant(source, node) is not None:
        return True
    held = definition(source, node) if isinstance(node, ast.Name) else node
    inner = held.value if isinstance(held, ast.Subscript) else held.func if isinstance(held, ast.Call) else None
    name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
    return name in ("shape", "size", "numel", "len", "item", "int")


def _is_low_module(source: Source, call: ast.Call, made: ast.expr | None, depth: int) -> bool:
    """Whether what a module gives is in 16 bits: by its last layer, or by what `forward` of its class returns."""
    given = call.args[0] if len(call.args) == 1 else None
    for layer in reversed(_layers_of(source, made)):
        kind = source.name_of(layer.func)
        if kind.startswith("torch.nn.") and kind.rpartition(".")[2].lower() in _LAYERS:
            return keyword(layer, "dtype") is None
        if kind.startswith("torch.nn.") and kind.rpartition(".")[2].lower() in _KEEPING_LAYERS:
            continue
        own = source.classes.get(kind)
        forward = [each for each in own.body if getattr(each, "name", "") == "forward"] if own is not None else []
        returned = [
            each.value for method in forward for each in source.walk(method)
            if isinstance(each, ast.Return) and source.scope(each) is method
        ]  # fmt: skip
        return bool(returned) and all(is_low(source, each, depth) for each in returned)
    return made is not None and bool(_layers_of(source, made)) and is_low(source, given, depth)


def _layers_of(source: Source, made: ast.expr | None) -> list[ast.Call]:
    """The calls that make the layers of nn.Sequential, or the one that makes a module; [] where not all are known."""
    whole = last_module(source, made)
    base_call = made
    while (
        isinstance(base_call, ast.Call)
        and isinstance(base_call.func, ast.Attribute)
        and last_name(source, base_call) in ("to", "cuda", "train", "eval")
    ):
        base_call = base_call.func.value
    if isinstance(base_call, ast.Call) and source.name_of(base_call.func).rpartition(".")[2] == "Sequential":
        parts = [each for each in base_call.args if isinstance(each, ast.Call)]
        return parts if len(parts) == len(base_call.args) else []
    return [whole] if whole is not None else []
