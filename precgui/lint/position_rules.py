"""Positions that are counted in 16 bits, also in the format of a buffer, and angles of positions that are rounded."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator

from precgui.events import Severity
from precgui.lint.arguments import keyword, number
from precgui.lint.constants import computed
from precgui.lint.dtype_rules import class_format, enclosing_class
from precgui.lint.flow import (
    EXACT_UP_TO,
    base,
    cast_of,
    definition,
    dtype_of,
    innermost_autocast,
    is_half,
    model_format,
    region_is_fp16,
    trains,
    weights_format,
    whole_chain,
)
from precgui.lint.kept_rules import made_low
from precgui.lint.method_names import PRODUCTS, SAME_VALUES
from precgui.lint.origins import calls_in, last_name, operand_of, origins
from precgui.lint.source import CallSite, Mistakes, Source, is_disabled
from precgui.lint.variables import Variable, path_text
from precgui.sentences import L_, Sentence

_LOW_WORDS = ("half", "float16")  # bfloat16, too
_MOST_STEPS = 12  # from one expression to the next
_MOST_CALLS = 64  # of one kind in a script
_COUNTS = ("torch.arange", "torch.randint")
_SAME_COUNTS = SAME_VALUES | {"expand", "repeat", "long", "int", "cuda", "tile", "expand_as", "broadcast_to"}
_STEPS_OF_DIFFUSION = 1000.0
_FEW = ("head", "dim", "expert", "class", "layer", "level", "channel", "group")  # what a model has few of
_SIDES = {"h", "w"}
_OF_PICTURES = ("height", "width", "patch", "grid", "image")
_POSITIONS = {"positions", "position_ids", "timesteps"}
_JOINED = {"cat", "concat", "stack", "repeat_interleave"}
_BELOW_1 = {"rand", "sigmoid", "rand_like"}
_LARGE_STEP, _LARGEST_STEP = 500, 10000  # numbers of steps of a diffusion
_ERROR_AT_1000 = {"bf16": 2.0, "fp16": 0.25}  # half of the distance of two numbers


def low_positions(source: Source) -> Mistakes:
    """Positions counted in 16 bits: BF16 has no odd integers above 256, FP16 none above 2048."""
    if not any(word in source.text for word in _LOW_WORDS):
        return
    counted = [(site.line, *_counted(source, site))
               for site in source.of("arange", "half", "bfloat16", "to", "type", "type_as")]  # fmt: skip
    for line, inner, low in [*counted, *_kept_positions(source)]:
        if inner is None or not low or _is_asked_for(source, inner, EXACT_UP_TO[low]):
            continue
        if _length(source, inner) > EXACT_UP_TO[low]:
            yield (
                line, "warning", L_(
                    "positions are counted in 16 bits: BF16 has no odd integers above 256, FP16 none above 2048"
                ),
                L_("count in FP32 and convert sine and cosine"),
            )  # fmt: skip


def _counted(source: Source, site: CallSite) -> tuple[ast.Call | None, str]:
    """The torch.arange or torch.randint whose whole numbers are in 16 bits: made so, or cast here, also by a name."""
    if site.name == "torch.arange":
        return site.node, _format_given(source, keyword(site.node, "dtype"))
    cast, given = cast_of(source, site.node), site.node.args[0] if len(site.node.args) == 1 else None
    if site.method == "type_as" and given is not None:
        low = _format_like(source, given)
    elif cast is not None and cast[0] in EXACT_UP_TO:
        low = cast[0]
    else:
        low = _format_given(source, given or keyword(site.node, "dtype")) if site.method == "to" else ""
    owner = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
    return (_count_of(source, owner) if low and owner is not None else None), low


def _count_of(source: Source, node: ast.expr) -> ast.Call | None:
    """The torch.arange or torch.randint whose numbers an expression has, whatever it is cast to and in any shape."""
    current: ast.expr | None = node
    for _ in range(_MOST_STEPS):
        if isinstance(current, ast.Name):
            current = definition(source, current)
        elif isinstance(current, ast.Subscript) and _keeps_all(current.slice):
            current = current.value
        elif isinstance(current, ast.Call) and source.name_of(current.func) in _COUNTS:
            return current
        elif isinstance(current, ast.Call) and last_name(source, current) in _SAME_COUNTS:
            current = operand_of(source, current)
        else:
            break
    return None


def _keeps_all(index: ast.expr) -> bool:
    """Whether an index only adds dimensions: `x[:, None]`, `x[None]`."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        (isinstance(each, ast.Constant) and each.value in (None, ...))
        or (isinstance(each, ast.Slice) and each.lower is None and each.upper is None and each.step is None)
        for each in parts
    )  # fmt: skip


def _length(source: Source, call: ast.Call) -> float:
    """The largest number given to a call, infinite where one of its arguments is none; 0 for the number of what a model
    has few of."""
    given = [each for each in call.args if not isinstance(each, ast.Tuple | ast.List)]
    texts = [source.name_of(part).lower() for each in given for part in source.walk(each)
             if isinstance(part, ast.Name | ast.Attribute)]  # fmt: skip
    if any(word in text.rpartition(".")[2] for text in texts for word in _FEW):
        return 0.0
    if any("timestep" in text for text in texts):
        return _STEPS_OF_DIFFUSION
    values = [0.0 if _is_counter(source, each) else computed(source, each) for each in given]
    known = [value for value in values if value is not None]
    return max(known, default=float("inf")) if len(known) == len(values) else float("inf")


def _is_counter(source: Source, node: ast.expr) -> bool:
    """Whether a number begins small and is counted up, of which nothing tells how far."""
    held = node.operand if isinstance(node, ast.UnaryOp) else node
    variable = source.variable(held) if isinstance(held, ast.Name) else None
    bindings = source.variables.assignments(variable) if variable is not None else []
    starts = [number(each.value) for each in bindings if each.value is not None]
    return None not in starts and bool(starts) and any(isinstance(each.node, ast.AugAssign) for each in bindings)


def _is_asked_for(source: Source, call: ast.Call, largest: int) -> bool:
    """Whether a function compares something with the largest count that the format holds."""
    compared = [each for each in source.walk(source.scope(call)) if isinstance(each, ast.Compare)]
    return any(number(side) == largest for each in compared for side in (each.left, *each.comparators))


def _format_given(source: Source, dtype: ast.expr | None) -> str:
    """The format in 16 bits that a dtype certainly is, also as that of a tensor, `x.dtype`."""
    if isinstance(dtype, ast.Attribute) and dtype.attr == "dtype":
        return _format_like(source, dtype.value)
    known = dtype_of(source, dtype)
    return known if known in EXACT_UP_TO else ""


def _format_like(source: Source, node: ast.expr) -> str:
    """The format in 16 bits that a tensor certainly has: cast to it, made in it, a buffer of a model that is cast."""
    if isinstance(node, ast.Name):
        held = definition(source, node)
        return ("fp16" if is_half(source, node) else made_low(source, held)) if held is not None else ""
    own, variable = enclosing_class(source, node), source.variable(node)
    if own is None or variable is None or _runs_at_creation(source, source.scope(node)):
        return ""
    for name, value in _buffers(source, own):
        if variable.text == f"self.{name}":
            return made_low(source, value) or (_format_of_class(source, own) if _is_floating(source, value) else "")
    return ""


def _runs_at_creation(source: Source, function: ast.AST) -> bool:
    """Whether a method runs in `__init__`, before a model is cast."""
    name = getattr(function, "name", "")
    calls = [source.scope(each.node) for each in source.of(name) if each.owner == "self"]
    return any(getattr(each, "name", "") == "__init__" for each in [function, *calls])


def _buffers(source: Source, own: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The buffers and parameters of a class with the values that they begin with."""
    for site in source.of("register_buffer")[:_MOST_CALLS]:
        name, value = keyword(site.node, "name", 0), keyword(site.node, "tensor", 1)
        if isinstance(name, ast.Constant) and value is not None and enclosing_class(source, site.node) is own:
            yield str(name.value), value
    for site in source.of("Parameter")[:_MOST_CALLS]:
        above = source.parent(site.node)
        variable = source.variable(above.targets[0]) if isinstance(above, ast.Assign) else None
        if variable is not None and variable.scope is own and site.node.args:
            yield variable.last_part, site.node.args[0]


def _is_floating(source: Source, value: ast.expr) -> bool:
    """Whether a tensor certainly holds floating-point numbers, which a cast of its module changes."""
    below = [part for each in origins(source, value) for part in source.walk(each)]
    if any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div | ast.Pow) for each in below):
        return True
    calls = {last_name(source, each) for each in below if isinstance(each, ast.Call)}
    return bool(calls & {"float", "linspace", "randn", "rand", "zeros", "ones", "exp"})


def _format_of_class(source: Source, own: ast.ClassDef) -> str:
    """The format in 16 bits that the script certainly casts objects of a class to: themselves, or the model that holds
    them, also one that a function which trains it gets from outside."""
    if (known := class_format(source, own)) or not trains(source):
        return known
    if any(enclosing_class(source, site.node) is None for site in source.of(own.name)):
        return ""  # made here, and not cast
    formats = set()
    for site in source.of("half", "bfloat16", "to")[:_MOST_CALLS]:
        first = base(whole_chain(source, site.node))
        model = source.variable(first)
        scope = source.scope(site.node)
        if model_format(source, whole_chain(source, site.node)) not in EXACT_UP_TO or model is None:
            continue
        state = weights_format(source, model, scope) if _is_given_model(source, model, scope) else None
        formats |= {state[0]} if state is not None else set()
    return next(iter(formats)) if len(formats) == 1 else ""


def _is_given_model(source: Source, model: Variable, scope: ast.AST) -> bool:
    """Whether a variable is an argument of a function, which asks for its parameters."""
    if not isinstance(scope, ast.FunctionDef) or model.text not in [each.arg for each in scope.args.args]:
        return False
    return any(source.scope(each.node) is scope for each in source.calls_of(model, "parameters", "named_parameters"))


def _kept_positions(source: Source) -> Iterator[tuple[int, ast.Call | None, str]]:
    """Buffers of positions in floating point, with the format that their module is cast to."""
    for site in source.of("register_buffer")[:_MOST_CALLS]:
        own, value = enclosing_class(source, site.node), keyword(site.node, "tensor", 1)
        inner = _count_of(source, value) if value is not None else None
        if own is None or value is None or inner is None or made_low(source, value):
            continue
        as_floats = _is_floating(source, value) or dtype_of(source, keyword(inner, "dtype")) == "fp32"
        yield site.line, inner, _format_of_class(source, own) if as_floats else ""


def low_frequencies(source: Source) -> Mistakes:
    """A buffer of the frequencies of positions that is rounded to 16 bits where the model that holds it is cast."""
    if not any(word in source.text for word in _LOW_WORDS) or not source.of("register_buffer"):
        return
    counted_low = {enclosing_class(source, each) for each in _counts_in_16_bits(source)}
    for site in source.of("register_buffer")[:_MOST_CALLS]:
        own, value, name = enclosing_class(source, site.node), keyword(site.node, "tensor", 1), _buffer_of(site)
        if own is None or value is None or own in counted_low or not name:
            continue
        if not _is_frequency(source, value) or made_low(source, value) or _is_made_again(source, own, name):
            continue
        low = _format_of_class(source, own)
        product = _product_with(source, own, name, EXACT_UP_TO[low]) if low else None
        if product is not None:
            yield (
                site.line, "warning", Sentence(
                    "the frequencies {buffer} are rounded to {weights} with the model that is cast: angles of position "
                    "1000 (line {line}) are off by up to {error:g}",
                    buffer=name, weights=low.upper(), line=product.lineno, error=_ERROR_AT_1000[low],
                ),
                L_("compute the frequencies in FP32 in forward(), with autocast off, and convert sine and cosine"),
            )  # fmt: skip


def _buffer_of(site: CallSite) -> str:
    """The attribute that a buffer is registered as."""
    name = keyword(site.node, "name", 0)
    return f"self.{name.value}" if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""


def _counts_in_16_bits(source: Source) -> list[ast.AST]:
    """The calls whose whole numbers are counted in 16 bits, which is the larger mistake."""
    found = [_counted(source, site) for site in source.of("arange", "half", "bfloat16", "to", "type", "type_as")]
    return [inner for inner, low in found if inner is not None and low]


def _is_frequency(source: Source, value: ast.expr) -> bool:
    """Whether a tensor is a falling power of whole numbers, 1 / base ** (arange / width), and no sine of it."""
    own = origins(source, value)
    below = [part for each in own for part in source.walk(each)]
    names = {last_name(source, each) for each in calls_in(source, own)}
    is_power = bool(names & {"exp", "pow"}) or any(
        isinstance(each, ast.BinOp) and isinstance(each.op, ast.Pow) for each in below
    )  # fmt: skip
    return is_power and "arange" in names and not names & {"sin", "cos", "polar", "outer", "einsum"}


def _is_made_again(source: Source, own: ast.ClassDef, text: str) -> bool:
    """Whether a class sets a buffer after it was made, or has its own way to be cast."""
    methods = {each.name for each in own.body if isinstance(each, ast.FunctionDef)}
    return bool(source.variables.assignments(Variable(own, text))) or "_apply" in methods


def _product_with(source: Source, own: ast.ClassDef, text: str, largest: int) -> ast.expr | None:
    """The product of a buffer with positions that are counted beyond a number, in a method that runs after a cast."""
    for node in source.walk(own):
        if not isinstance(node, ast.Attribute) or source.name_of(node) != text:
            continue
        if _runs_at_creation(source, source.scope(node)):
            continue
        for above in source.above(node):
            is_sum = isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult | ast.MatMult)
            is_call = isinstance(above, ast.Call) and last_name(source, above) in PRODUCTS | {"outer", "mul"}
            if isinstance(above, ast.expr) and (is_sum or is_call):
                counts = [each for each in calls_in(source, origins(source, above))
                          if source.name_of(each.func) == "torch.arange"]  # fmt: skip
                far = [each for each in counts if _length(source, each) > largest and not _is_of_pictures(source, each)]
                return above if far and not _is_asked_for(source, far[0], largest) else None
            if isinstance(above, ast.stmt):
                break
    return None


def _is_of_pictures(source: Source, count: ast.Call) -> bool:
    """Whether what is counted are rows, columns or patches of a picture, which are few."""
    names = {path_text(part).rpartition(".")[2].lower() for each in count.args for part in source.walk(each)}
    return any(each in _SIDES or any(word in each for word in _OF_PICTURES) for each in names)


def low_angles(source: Source) -> Mistakes:
    """Angles of positions that are rounded to 16 bits before their sine and cosine are taken."""
    if not any(word in source.text for word in _LOW_WORDS) and not source.autocasts:
        return
    told: set[ast.AST] = set()
    for site in source.of("cos", "sin")[:_MOST_CALLS]:
        operand = operand_of(source, site.node)
        steps = _rounded_steps(source, operand) if operand is not None and "bfloat16" in source.text else None
        if steps is not None and steps[0] not in told:
            told.add(steps[0])
            yield steps[0].lineno, *_off_steps(steps[1], site.line)
        rounded, low = _rounded(source, operand) if operand is not None else (None, "")
        if rounded is None or not low or rounded in told or not _is_of_positions(source, rounded):
            continue
        told.add(rounded)
        yield (
            rounded.lineno, "warning", Sentence(
                "angles of positions are rounded to {weights} before their sine and cosine are taken (line {line}): at "
                "1000 they are off by up to {error:g}",
                weights=low.upper(), line=site.line, error=_ERROR_AT_1000[low],
            ),
            L_("compute angles in FP32 with autocast off, and convert sine and cosine"),
        )  # fmt: skip


def _off_steps(largest: float, line: int) -> tuple[Severity, str, str]:
    return (
        "warning", Sentence(
            "time steps of up to {largest:g} are rounded to BF16 before their sine and cosine are taken (line {line}): "
            "they are off by up to {error:g}",
            largest=largest, line=line, error=2.0 ** (math.floor(math.log2(largest)) - 8),
        ),
        L_("keep time steps in FP32, and convert sine and cosine"),
    )  # fmt: skip


def _rounded(source: Source, node: ast.expr) -> tuple[ast.expr | None, str]:
    """The cast to 16 bits, or the product that autocast computes in them, that an angle comes from, with the format."""
    current: ast.expr | None = node
    for _ in range(_MOST_STEPS):
        if isinstance(current, ast.Name):
            current = definition(source, current)
        elif isinstance(current, ast.Subscript):
            current = current.value
        elif isinstance(current, ast.BinOp) and isinstance(current.op, ast.MatMult):
            return current, _autocast_format(source, current)
        elif isinstance(current, ast.Call):
            cast, name = cast_of(source, current), last_name(source, current)
            if cast is not None and cast[0] in EXACT_UP_TO:
                return current, cast[0]
            if name in PRODUCTS - {"einsum"}:  # which autocast leaves in FP32 where nothing is summed
                return current, _autocast_format(source, current)
            if name in _JOINED and current.args and isinstance(current.args[0], ast.Tuple | ast.List):
                current = next(iter(current.args[0].elts), None)
            elif name in _SAME_COUNTS | _JOINED:
                current = operand_of(source, current)
            else:
                break
        else:
            break
    return None, ""


def _rounded_steps(source: Source, operand: ast.expr) -> tuple[ast.Call, float] | None:
    """The cast to BF16 of random numbers below 1 times a large number, from which an angle is computed."""
    own = origins(source, operand)
    calls = calls_in(source, own)
    if "arange" not in {last_name(source, each) for each in calls}:
        return None
    for call in calls:
        cast = cast_of(source, call)
        if cast is None or cast[0] != "bf16":
            continue
        held = definition(source, cast[1]) if isinstance(cast[1], ast.Name) else cast[1]
        factors = (held.left, held.right) if isinstance(held, ast.BinOp) and isinstance(held.op, ast.Mult) else ()
        for one, other in (factors, factors[::-1]) if factors else ():
            largest = computed(source, other)
            drawn = {last_name(source, each) for each in calls_in(source, origins(source, one))}
            if largest is not None and _LARGE_STEP <= largest <= _LARGEST_STEP and drawn & _BELOW_1:
                return call, largest
    return None


def _autocast_format(source: Source, node: ast.AST) -> str:
    """The format of 16 bits that autocast computes a product in, by a region around it or around the model; else ''."""
    around, function = innermost_autocast(source, node), source.scope(node)
    regions = [around] if around is not None else [call for _, call in source.autocasts]
    if not regions or any(is_disabled(source, each) for each in regions):
        return ""
    is_forward = isinstance(function, ast.FunctionDef) and function.name == "forward" and not function.decorator_list
    if around is None and not is_forward:
        return ""
    formats = {"fp16" if region_is_fp16(source, each) else dtype_of(source, keyword(each, "dtype", 1))
               for each in regions}  # fmt: skip
    return next(iter(formats)) if len(formats) == 1 and formats <= set(EXACT_UP_TO) else ""


def _is_of_positions(source: Source, node: ast.expr) -> bool:
    """Whether a value is a product with positions: counted ones, or those that a function gets by this name."""
    own = origins(source, node)
    below = [part for each in own for part in source.walk(each)]
    calls = calls_in(source, own)
    is_product = any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult | ast.MatMult) for each in below)
    if not is_product and not {last_name(source, each) for each in calls} & (PRODUCTS | {"outer"}):
        return False
    counts = [each for each in calls if source.name_of(each.func) == "torch.arange"]
    named = any(isinstance(each, ast.Name) and each.id in _POSITIONS for each in below)
    return any(_length(source, each) > min(EXACT_UP_TO.values()) for each in counts) or (bool(counts) and named)


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "positions-in-16-bits": low_positions,
    "angles-in-16-bits": low_angles,
    "frequencies-in-16-bits": low_frequencies,
}
