"""Times, counts and running totals that a floating-point format of few digits does not hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from precgui.lint.arguments import keyword, number
from precgui.lint.constants import constant
from precgui.lint.flow import EXACT_UP_TO, cast_of, definition, dtype_of, is_half, statement, whole_chain
from precgui.lint.fp16_range_rules import is_outside_autocast
from precgui.lint.integer_rules import difference
from precgui.lint.kept_rules import made_low
from precgui.lint.method_names import CASTS
from precgui.lint.origins import calls_in, is_truth, last_name, operand_of, origins
from precgui.lint.overflow_rules import squared
from precgui.lint.source import Mistakes, Source
from precgui.sentences import L_, Sentence

_MOST_CALLS = 64  # of one kind in a script
_MOST_STEPS = 12  # from one expression to the next
_LOW_WORDS = ("half", "float16")  # bfloat16, too
_CASTS = {*CASTS, "to", "type", "item", "long", "int"}


def seconds_in_fp32(source: Source) -> Mistakes:
    """Differences of Unix seconds that were cast to FP32 as they are, which holds multiples of 128 of them only."""
    if not source.of("timestamp", "time", "to_datetime", "read_csv", "read_table", "date_range"):
        return
    for node in source.nodes:
        for cast, value in _casts_to_fp32(source, node):
            if _is_unix_time(source, value) and _is_differenced(source, cast):
                yield (
                    getattr(node, "lineno", 1), "warning", L_(
                        "Unix seconds in FP32 are multiples of 128: smaller differences between them are lost"
                    ),
                    L_("subtract first, in integers or FP64, and cast the difference"),
                )  # fmt: skip


def _casts_to_fp32(source: Source, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """A node that casts to FP32, with what it casts."""
    if not isinstance(node, ast.Call):
        return
    name, given = source.name_of(node.func), keyword(node, "dtype", 1)
    if (cast := cast_of(source, node)) is not None:
        if cast[0] == "fp32":
            yield node, cast[1]
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "astype" and node.args:
        if _is_fp32_name(source, node.args[0]):
            yield node, node.func.value
    elif name in ("torch.tensor", "torch.as_tensor", "numpy.array", "numpy.asarray") and given is not None:
        if _is_fp32_name(source, given):
            yield node, node.args[0]
    elif name == "torch.FloatTensor" and node.args:
        yield node, node.args[0]


def _is_fp32_name(source: Source, node: ast.expr) -> bool:
    return source.text_of(node) in ("float32", "torch.float32", "torch.float", "numpy.float32", "f4")


def _is_unix_time(source: Source, value: ast.expr) -> bool:
    """Whether an expression is certainly a time since 1970 in seconds, with nothing taken off."""
    current: ast.expr | None = value
    for _ in range(_MOST_STEPS):
        if isinstance(current, ast.Name):
            current = definition(source, current)
        elif isinstance(current, ast.ListComp):
            current = current.elt
        elif isinstance(current, ast.List | ast.Tuple):
            current = next(iter(current.elts), None)
        elif isinstance(current, ast.BinOp) and isinstance(current.op, ast.Div | ast.FloorDiv):
            scale = constant(source, current.right)
            return scale in (1e9, 10.0**9) and _is_nanoseconds(source, current.left)
        elif isinstance(current, ast.Call):
            last, name = last_name(source, current), source.name_of(current.func)
            if name == "time.time" or (last == "timestamp" and not current.args):
                return True
            if last in ("to_numpy", "numpy", "copy", "tolist") and isinstance(current.func, ast.Attribute):
                current = current.func.value
            elif name in ("int", "float", "list", "numpy.array", "numpy.asarray", "torch.tensor", "torch.from_numpy"):
                current = next(iter(current.args), None)
            else:
                return False
        elif isinstance(current, ast.Attribute) and current.attr == "values":
            current = current.value
        else:
            return False
    return False


def _is_nanoseconds(source: Source, node: ast.expr) -> bool:
    """Whether an expression is a column of dates of pandas as integers."""
    calls = calls_in(source, [node, *origins(source, node)])
    as_integers = any(last_name(source, each) in ("astype", "view") and any(_is_int64(source, arg) for arg in each.args)
                      for each in calls)  # fmt: skip
    return as_integers and _is_date(source, node)


def _is_int64(source: Source, node: ast.expr) -> bool:
    return source.text_of(node) in ("int64", "numpy.int64", "int")


def _is_date(source: Source, node: ast.expr) -> bool:
    """Whether pandas made a column a date: to_datetime, or parse_dates of read_csv; not where two were subtracted."""
    below = [part for each in [node, *origins(source, node)] for part in source.walk(each)]
    if any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) for each in below):
        return False
    if any(isinstance(each, ast.Call) and last_name(source, each) in ("to_datetime", "date_range") for each in below):
        return True
    columns = {_key(each) for each in below} - {""}
    parsed = [keyword(site.node, "parse_dates") for site in source.of("read_csv", "read_table")]
    texts = [
        part for each in parsed if each is not None for part in source.walk(each) if isinstance(part, ast.Constant)
    ]
    named = {str(each.value) for each in texts}
    made = {_key(node.targets[0]) for node in source.nodes if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call) and last_name(source, node.value) == "to_datetime"}  # fmt: skip
    return bool(columns & (named | made))


def _key(node: ast.AST) -> str:
    """The column of table["column"] and table.column."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_differenced(source: Source, cast: ast.expr) -> bool:
    """Whether two numbers of a tensor are subtracted after its cast: neighbours, or all from one of them."""
    above = statement(source, cast)
    targets = above.targets if isinstance(above, ast.Assign) and above.value is whole_chain(source, cast) else []
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    for node in source.nodes:
        pair = difference(source, node)
        if len(pair) != 2:
            continue
        owners = [each.value if isinstance(each, ast.Subscript) else each for each in pair]
        own = [each for each in owners if isinstance(each, ast.Name) and each.id in names
               and definition(source, each) is whole_chain(source, cast)]  # fmt: skip
        if len(own) == 2:
            return True
    return False


def counts_in_16_bits(source: Source) -> Mistakes:
    """Counts that are added up in FP16 or BF16 over a loop, which hold no odd number above 2048 and 256."""
    if not any(word in source.text for word in _LOW_WORDS):
        return
    for node in source.nodes:
        target, value = _added(node)
        if target is None or value is None or not source.repeats(node):
            continue
        low = _count_format(source, value) or _total_format(source, target)
        if not low or not _is_count(source, value) or not _is_low_total(source, target, node, low):
            continue
        if _is_bounded(source, node, value, EXACT_UP_TO[low]):
            continue
        yield (
            getattr(node, "lineno", 1), "warning", Sentence(
                "counts are added up in {format_name}, which holds no odd number above {largest}: more are lost",
                format_name=low.upper(), largest=EXACT_UP_TO[low],
            ),
            L_("count in integers (torch.long), or in FP32"),
        )  # fmt: skip


def _added(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """The target and the value of `total += count` and `total.add_(count)`."""
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            return target, value
        case ast.Call(func=ast.Attribute(attr="add_", value=owner), args=[value]):
            return owner, value
    return None, None


def _is_count(source: Source, value: ast.expr) -> bool:
    """Whether a value is a number of things: of elements that are equal, of rows, one."""
    current: ast.expr | None = value
    for _ in range(_MOST_STEPS):
        if isinstance(current, ast.Name):
            current = definition(source, current)
        elif isinstance(current, ast.Subscript) and isinstance(current.value, ast.Attribute):
            return current.value.attr == "shape"
        elif isinstance(current, ast.Constant):
            return number(current) == 1
        elif isinstance(current, ast.Call):
            last = last_name(source, current)
            if last in ("numel", "size", "len"):
                return True
            if last == "sum":
                return is_truth(source, operand_of(source, current))
            if last not in _CASTS or not isinstance(current.func, ast.Attribute):
                return False
            current = current.func.value
        else:
            return False
    return False


def _count_format(source: Source, value: ast.expr) -> str:
    """The 16-bit format that a count certainly has, as (a == b).half().sum() and (a == b).sum().half()."""
    written = definition(source, value) if isinstance(value, ast.Name) else value
    if not isinstance(written, ast.Call) or keyword(written, "dtype") is not None:
        return ""
    inner = operand_of(source, written) if last_name(source, written) == "sum" else None
    casts = [cast_of(source, each) for each in (written, inner) if each is not None]
    return next((cast[0] for cast in casts if cast is not None and cast[0] in EXACT_UP_TO), "")


def _total_format(source: Source, target: ast.expr) -> str:
    """The 16-bit format in which a total certainly begins, in all places that make it."""
    variable = source.variable(target)
    values = source.variables.values(variable) if variable is not None else []
    begun = [each for each in values if each is not None]
    for site in source.of("register_buffer") if variable is not None else ():
        name = site.node.args[0] if len(site.node.args) > 1 else None
        if isinstance(name, ast.Constant) and variable is not None and variable.text == f"self.{name.value!s}":
            begun.append(site.node.args[1])
    formats = {made_low(source, each) for each in begun}
    return next(iter(formats)) if len(formats) == 1 else ""


def _is_low_total(source: Source, target: ast.expr, node: ast.AST, low: str) -> bool:
    """Whether a total is in 16 bits all the time: begun so, or as the number 0, and not begun anew in the same loop."""
    variable, loop = source.variable(target), source.loop(node)
    bindings = source.variables.assignments(variable) if variable is not None else []
    begun = [each for each in bindings if each.value is not None]
    if loop is not None and any(source.contains(loop, each.place) for each in begun):
        return False
    if _total_format(source, target) == low:
        return True
    return bool(begun) and isinstance(node, ast.AugAssign) and all(number(each.value) == 0 for each in begun)


def _is_bounded(source: Source, node: ast.AST, value: ast.expr, largest: int) -> bool:
    """Whether ones are added in a loop over a range that is short enough."""
    loop = source.loop(node)
    items = loop.iter if isinstance(loop, ast.For) else None
    is_range = isinstance(items, ast.Call) and source.name_of(items.func) == "range" and len(items.args) == 1
    length = constant(source, items.args[0]) if is_range and isinstance(items, ast.Call) else None
    return number(value) == 1 and length is not None and length <= largest


def totals_of_squares(source: Source) -> Mistakes:
    """Sums of squares or of absolute values that are added up over a loop in FP16 or BF16."""
    if not any(word in source.text for word in _LOW_WORDS):
        return
    for node in source.nodes:
        target, value = _added(node)
        low = _total_format(source, target) if target is not None and value is not None else ""
        if target is None or value is None or not low or not _is_low_total(source, target, node, low):
            continue
        if (source.repeats(node) or _is_of_object(source, target, node)) and _is_sum_of_squares(source, value):
            yield (
                getattr(node, "lineno", 1), "warning", Sentence(
                    "squares are added up in FP16: beyond 65504 the total is Inf, and what is below 1/2048 of it is "
                    "lost"
                ) if low == "fp16" else Sentence(
                    "squares are added up in BF16: what is below 1/256 of the total is lost, so that it stops growing"
                ),
                L_("add them up in FP32"),
            )  # fmt: skip


def _is_of_object(source: Source, target: ast.expr, node: ast.AST) -> bool:
    """Whether a total belongs to an object whose method adds to it, once for each batch."""
    variable = source.variable(target)
    is_own = variable is not None and isinstance(variable.scope, ast.ClassDef)
    return is_own and getattr(source.scope(node), "name", "") not in ("", "__init__", "reset")


def _is_sum_of_squares(source: Source, value: ast.expr) -> bool:
    """Whether a value is a sum of squares or of absolute values, in whatever shape and format."""
    current: ast.expr | None = value
    for _ in range(_MOST_STEPS):
        if isinstance(current, ast.Name):
            current = definition(source, current)
        elif isinstance(current, ast.Call) and last_name(source, current) == "sum":
            inner = operand_of(source, current)
            written = definition(source, inner) if isinstance(inner, ast.Name) else inner
            is_size = isinstance(written, ast.Call) and last_name(source, written) == "abs"
            return inner is not None and (is_size or squared(source, inner) is not None)
        elif isinstance(current, ast.Call) and last_name(source, current) in _CASTS | {"detach", "cpu", "cuda"}:
            current = operand_of(source, current)
        else:
            return False
    return False


def differences_of_totals(source: Source) -> Mistakes:
    """Entries of a cumulative sum in 16 bits that are subtracted from one another: the sums of segments."""
    if not any(word in source.text for word in _LOW_WORDS):
        return
    for site in source.of("cumsum", "cumsum_")[:_MOST_CALLS]:
        operand, given = operand_of(source, site.node), keyword(site.node, "dtype")
        low = _format_of(source, operand) if given is None and operand is not None else dtype_of(source, given)
        if low not in EXACT_UP_TO or not is_outside_autocast(source, site.node):
            continue
        pairs = [pair for node in source.walk(source.scope(site.node)) if len(pair := difference(source, node)) == 2]
        if any(all(_is_part_of(source, each, site.node) for each in pair) for pair in pairs):
            yield (
                site.line, "warning", Sentence(
                    "entries of a cumulative sum in {format_name} are subtracted: differences below 1/{count} of the "
                    "running total are lost",
                    format_name=low.upper(), count=EXACT_UP_TO[low],
                ),
                L_("cumulate in FP32: cumsum(dim, dtype=torch.float32)"),
            )  # fmt: skip


def _format_of(source: Source, node: ast.expr) -> str:
    """The format in 16 bits that a tensor is certainly in; '' for others."""
    written = definition(source, node) if isinstance(node, ast.Name) else node
    cast = cast_of(source, written) if written is not None else None
    return cast[0] if cast is not None else "fp16" if is_half(source, node) else ""


def _is_part_of(source: Source, node: ast.expr, whole: ast.Call) -> bool:
    """Whether an expression is an entry of what a call gives, or several."""
    current: ast.expr | None = node
    indexed = False
    for _ in range(_MOST_STEPS):
        if current is whole:
            return indexed
        if isinstance(current, ast.Name):
            current = definition(source, current)
        elif isinstance(current, ast.Subscript):
            current, indexed = current.value, True
        elif isinstance(current, ast.Call) and cast_of(source, current) is not None:
            current = operand_of(source, current)
        else:
            break
    return False


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "unix-seconds-in-fp32": seconds_in_fp32,
    "counts-in-16-bits": counts_in_16_bits,
    "squares-added-up-in-16-bits": totals_of_squares,
    "cumulative-sum-in-16-bits": differences_of_totals,
}
