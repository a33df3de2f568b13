"""The formats that a script gives to objects of its own classes of modules."""

from __future__ import annotations

import ast

from precgui.lint.flow import SAME_MODEL, model_format, statement, weights_format, whole_chain
from precgui.lint.source import Function, Source

_CONTAINERS = SAME_MODEL | {"Sequential"}
_MOST_LEVELS = 4  # of classes that hold one another: attention, block, transformer, model
_MOST_OBJECTS = 8  # of one class


def class_format(source: Source, own: ast.ClassDef, level: int = 0) -> str:
    """`fp16` where the script certainly casts an object of a class to it, or an object that holds one; else ''."""
    if level == _MOST_LEVELS:
        return ""
    made = [site.node for site in source.of(own.name) if site.name == own.name][:_MOST_OBJECTS]
    return "fp16" if any(_format_of_object(source, each, level) == "fp16" for each in made) else ""


def _format_of_object(source: Source, made: ast.Call, level: int) -> str:
    """The format that an object ends in: cast in one expression, by its variable, or with the object that holds it."""
    whole: ast.AST = whole_chain(source, made)
    for _ in range(_MOST_LEVELS):
        around = source.parent(whole)
        if model_format(source, whole) or not isinstance(around, ast.Call) or whole is around.func:
            break
        if source.name_of(around.func).rpartition(".")[2] not in _CONTAINERS:
            break
        whole = whole_chain(source, around)
    if text := model_format(source, whole):
        return text
    assigned = statement(source, made)
    variable = source.variable(assigned.targets[0]) if isinstance(assigned, ast.Assign) else None
    if variable is not None and isinstance(assigned, ast.Assign) and assigned.value is whole:
        state = weights_format(source, variable, source.scope(made))
        if state is not None:
            return state[0]
    holder = enclosing_class(source, made)
    return class_format(source, holder, level + 1) if holder is not None else ""


def enclosing_class(source: Source, node: ast.AST) -> ast.ClassDef | None:
    """The class whose method a node is in, directly."""
    method = source.scope(node)
    while isinstance(method, ast.Lambda):
        method = source.scope(method)
    above = source.parent(method) if isinstance(method, Function) else None
    return above if isinstance(above, ast.ClassDef) else None
