"""The size of one dimension of a tensor, where layers and arguments of the script tell it."""

from __future__ import annotations

import ast

from precgui.lint.arguments import keyword
from precgui.lint.autocast_flow import given_in
from precgui.lint.constants import computed
from precgui.lint.flow import cast_of, definition, last_module
from precgui.lint.method_names import SAME_SHAPE
from precgui.lint.origins import last_name, operand_of
from precgui.lint.shapes import sizes_of
from precgui.lint.source import Source

_MOST_STEPS = 12  # from one expression to the next
_MOST_DEPTH = 3  # of arguments that are followed into calls


def size_at(source: Source, node: ast.expr, dim: int, rank: int = 0, depth: int = 0) -> int | None:
    """The size of a dimension, counted from 0 where the rank is known, else from -1. All calls must agree."""
    current: ast.expr | None = node
    for _ in range(_MOST_STEPS):
        rank = rank or (_rank(source, current) if current is not None else 0)
        if dim >= 0 and rank:
            dim -= rank
        if isinstance(current, ast.Name):
            held = definition(source, current)
            if held is None:
                return _given_size(source, current, dim, rank, depth)
            current = held
        elif not isinstance(current, ast.Call):
            return None
        elif (sizes := sizes_of(source, current)) is not None:
            found = computed(source, sizes[dim]) if -len(sizes) <= dim < len(sizes) else None
            return int(found) if found is not None else None
        elif (cast := cast_of(source, current)) is not None:
            current = cast[1]
        elif last_name(source, current) == "transpose":
            pair = [computed(source, each) for each in current.args[-2:]]
            if None in pair or len(pair) != 2:
                return None
            places = [int(each) - rank if rank and each >= 0 else int(each) for each in pair if each is not None]
            if dim in places:
                dim = places[1 - places.index(dim)]
            elif any((each < 0) != (dim < 0) for each in places):
                return None
            current = operand_of(source, current)
        elif last_name(source, current) in SAME_SHAPE:
            current = operand_of(source, current)
        else:
            return _size_of_layer(source, current, dim)
    return None


def _size_of_layer(source: Source, call: ast.Call, dim: int) -> int | None:
    """The number of outputs of nn.Linear, in the last dimension."""
    module = last_module(source, definition(source, call.func))
    if module is None or source.name_of(module.func) != "torch.nn.Linear" or dim != -1:
        return None
    found = computed(source, keyword(module, "out_features", 1))
    return int(found) if found is not None else None


def _given_size(source: Source, argument: ast.Name, dim: int, rank: int, depth: int) -> int | None:
    given = given_in(source, argument) if depth < _MOST_DEPTH else []
    sizes = {size_at(source, each, dim, rank, depth + 1) for each in given}
    return next(iter(sizes)) if len(sizes) == 1 else None


def _rank(source: Source, node: ast.expr) -> int:
    """The number of names that the shape of a variable is unpacked to in its function: `b, t, n = x.shape`."""
    variable = source.variable(node) if isinstance(node, ast.Name) else None
    for each in source.walk(source.scope(node)) if variable is not None else ():
        if not isinstance(each, ast.Assign) or not isinstance(each.targets[0], ast.Tuple):
            continue
        shape = each.value.func if isinstance(each.value, ast.Call) and not each.value.args else each.value
        if (
            isinstance(shape, ast.Attribute)
            and shape.attr in ("shape", "size")
            and source.variable(shape.value) == variable
        ):
            names = each.targets[0].elts
            return 0 if any(isinstance(name, ast.Starred) for name in names) else len(names)
    return 0
