"""Variables of a script by scope, and the values that are assigned to them."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

SHARED_NODES = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)  # one object for the whole tree
NO_TEXT = "(...)"
_MOST_PARTS = 16
_LONGEST_NAME = 40  # characters of a name in a title
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Variable:
    """A name in the function, class or module that binds it. `text` is the name as written, `self.net` included."""

    scope: ast.AST
    text: str

    @property
    def last_part(self) -> str:
        return self.text.rpartition(".")[2]

    def __str__(self) -> str:
        return self.text if len(self.text) <= _LONGEST_NAME else f"{self.text[: _LONGEST_NAME - 3]}..."


@dataclass(frozen=True)
class NameBinding:
    """One assignment. `value` is None where it is no single expression (a loop variable, part of a tuple, `+=`)."""

    place: int
    node: ast.AST
    value: ast.expr | None


class VariableTable:
    """All variables of one script."""

    def __init__(
        self, nodes: list[ast.AST], scope: Callable[[ast.AST], ast.AST], parent: Callable[[ast.AST], ast.AST | None]
    ) -> None:
        self._scope, self._parent = scope, parent
        self._bound: dict[ast.AST, set[str]] = {}
        for node in nodes:
            for name in _bound_names(node):
                self._bound.setdefault(scope(node), set()).add(name)
        for node in nodes:
            if isinstance(node, ast.Global):
                self._bound.get(scope(node), set()).difference_update(node.names)
        self._assignments: dict[Variable, list[NameBinding]] = {}
        for place, node in enumerate(nodes):
            for target, value in _assigned(node):
                if (variable := self.variable(target, scope(node))) is not None:
                    self._assignments.setdefault(variable, []).append(NameBinding(place, node, value))

    def variable(self, node: ast.AST, scope: ast.AST) -> Variable | None:
        """The variable of an expression that stands in a scope; None where it is no path of names."""
        text = path_text(node)
        if text in ("", NO_TEXT):
            return None
        root = text.partition(".")[0].partition("[")[0]
        while root not in self._bound.get(scope, ()) and self._parent(scope) is not None:
            scope = self._scope(scope)
        owner = self._parent(scope)
        if "." in text and isinstance(owner, ast.ClassDef) and _first_argument(scope) == root:
            return Variable(owner, text)
        return Variable(scope, text)

    def assignments(self, variable: Variable) -> list[NameBinding]:
        return self._assignments.get(variable, [])

    def values(self, variable: Variable) -> list[ast.expr | None]:
        return [each.value for each in self.assignments(variable)]

    def last_before(self, variable: Variable, place: int) -> NameBinding | None:
        """The last assignment before a place, in the order of the text."""
        known = self.assignments(variable)
        index = bisect_left(known, place, key=lambda each: each.place)
        return known[index - 1] if index else None


def path_text(node: ast.AST) -> str:
    """A path of names as text, `self.nets[0].head`; a placeholder for every other expression and for long paths."""
    parts: list[str] = []
    while not isinstance(node, ast.Name):
        if len(parts) >= _MOST_PARTS:
            return NO_TEXT
        if isinstance(node, ast.Attribute):
            parts.append(f".{node.attr}")
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
            parts.append(f"[{node.slice.id}]")
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and _is_short(node.slice.value):
            parts.append(f"[{node.slice.value!r}]")
        else:
            return NO_TEXT
        node = node.value
    return "".join([node.id, *reversed(parts)])


def _is_short(value: object) -> bool:
    return (isinstance(value, str) and len(value) < 80) or (isinstance(value, int) and abs(value) < 1 << 31)


def _first_argument(node: ast.AST) -> str:
    arguments = node.args.args if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
    return arguments[0].arg if arguments else ""


def _bound_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [each.asname or each.name.partition(".")[0] for each in aliases]
    return []


def _assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    """The targets of a statement with their values."""
    match node:
        case ast.Assign(targets=targets, value=value):
            return [pair for target in targets for pair in _pairs(target, value)]
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            return [(target, value)]
        case ast.AugAssign(target=target):
            return [(target, None)]
        case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
            return _pairs(target, None)
        case ast.withitem(optional_vars=ast.expr() as target):
            return _pairs(target, None)
    return []


def _pairs(target: ast.expr, value: ast.expr | None) -> list[tuple[ast.expr, ast.expr | None]]:
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, value)]
    several = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
    return [
        pair
        for index, each in enumerate(target.elts)
        for pair in _pairs(each.value if isinstance(each, ast.Starred) else each, several[index] if several else None)
    ]
