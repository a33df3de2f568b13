"""Numbers that a script holds in names: constants, attributes, dictionaries of settings, defaults of arguments."""

from __future__ import annotations

import ast

from precgui.lint.arguments import keyword, number
from precgui.lint.source import Source
from precgui.lint.variables import Variable

_MOST_STEPS = 8  # from one name to the next
_MOST_CALLS = 64  # of one function


def constant(source: Source, node: ast.AST | None) -> float | None:
    """The number that an expression is: written out, or held in a name that is assigned once.

    So are an attribute of an object or its class, the entry of a dictionary that is written out, and the default of an
    argument that no call in the script gives. None where it may be another number.
    """
    sign = 1.0
    for _ in range(_MOST_STEPS):
        if node is None:
            return None
        if (value := number(node)) is not None:
            return sign * value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign, node = -sign, node.operand
        else:
            node = _held_value(source, node)
    return None


def computed(source: Source, node: ast.AST | None, depth: int = 0) -> float | None:
    """As `constant`, also the sum, difference, product or quotient of such numbers."""
    value = constant(source, node)
    if value is not None or depth > _MOST_STEPS:
        return value
    if isinstance(node, ast.Name) and (variable := source.variable(node)) is not None:
        values = source.variables.values(variable)
        return computed(source, values[0], depth + 1) if len(values) == 1 else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = computed(source, node.left, depth + 1), computed(source, node.right, depth + 1)
    return None if left is None or right is None else _applied(node.op, left, right)


def _held_value(source: Source, node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Call):
        is_cast = source.name_of(node.func) == "float" and len(node.args) == 1 and not node.keywords
        return node.args[0] if is_cast else None
    variable = source.variable(node) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else None
    if variable is None:
        return None
    if values := source.variables.values(variable):
        return values[0] if len(values) == 1 else None
    if isinstance(node, ast.Name):
        return _default(source, variable)
    if isinstance(node, ast.Attribute):
        return _attribute(source, node, variable)
    return _entry(source, node) if isinstance(node, ast.Subscript) else None


def _attribute(source: Source, node: ast.Attribute, variable: Variable) -> ast.expr | None:
    """The value that a class gives to an attribute in its body."""
    if isinstance(variable.scope, ast.ClassDef) and variable.text.count(".") == 1:
        return _in_body(variable.scope, node.attr)
    if not isinstance(node.value, ast.Name):
        return None
    own = source.classes.get(node.value.id) or _class_of(source, node.value)
    return _in_body(own, node.attr) if own is not None else None


def _class_of(source: Source, node: ast.Name) -> ast.ClassDef | None:
    """The class of an object that a name holds, created once and without arguments."""
    variable = source.variable(node)
    values = source.variables.values(variable) if variable is not None else []
    made = values[0] if len(values) == 1 else None
    if not isinstance(made, ast.Call) or made.args or made.keywords or not isinstance(made.func, ast.Name):
        return None
    return source.classes.get(made.func.id)


def _in_body(own: ast.ClassDef, name: str) -> ast.expr | None:
    found = [
        each.value for each in own.body
        if (isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in each.targets))
        or (isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id == name)
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


def _entry(source: Source, node: ast.Subscript) -> ast.expr | None:
    """The value of a key in a dictionary that is written out and assigned once."""
    variable = source.variable(node.value)
    values = source.variables.values(variable) if variable is not None else []
    held, key = values[0] if len(values) == 1 else None, node.slice
    if not isinstance(key, ast.Constant):
        return None
    if isinstance(held, ast.Dict):
        pairs = zip(held.keys, held.values, strict=True)
        found = [value for own, value in pairs if isinstance(own, ast.Constant) and own.value == key.value]
        return found[0] if len(found) == 1 and None not in held.keys else None
    if isinstance(held, ast.Call) and source.name_of(held.func) == "dict" and not held.args:
        return next((each.value for each in held.keywords if each.arg == key.value), None)
    return None


def _default(source: Source, variable: Variable) -> ast.expr | None:
    """The default of an argument, where no call of its function in the script gives another value."""
    scope, default = variable.scope, default_of(variable)
    if not isinstance(scope, ast.FunctionDef) or default is None:
        return None
    names = [each.arg for each in (*scope.args.posonlyargs, *scope.args.args)]
    owner = source.parent(scope)
    place = names.index(variable.text) - isinstance(owner, ast.ClassDef) if variable.text in names else len(names)
    calls = source.cached(("calls", scope), lambda: _calls_of(source, scope))
    if len(calls) > _MOST_CALLS or any(_may_give(each, variable.text, place) for each in calls):
        return None
    return default


def default_of(argument: Variable) -> ast.expr | None:
    """The default that a function has for an argument."""
    if not isinstance(argument.scope, ast.FunctionDef):
        return None
    given = argument.scope.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    defaults = dict(zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True))
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    defaults |= {each.arg: value for each, value in pairs if value is not None}
    return defaults.get(argument.text)


def possible(source: Source, node: ast.AST | None, depth: int = 0) -> frozenset[float]:
    """The numbers that an expression may be where each is known, as `computed`; of an argument the default and each
    that a call gives, of `min(c, a / b)`, which grows to c, the number c."""
    value = constant(source, node)
    if value is not None or node is None or depth > _MOST_STEPS:
        return frozenset() if value is None else frozenset({value})
    known: dict[ast.AST, frozenset[float]] = source.cached("possible_numbers", dict)
    if node not in known:
        known[node] = frozenset()  # where it is computed from itself
        known[node] = _possible(source, node, depth)
    return known[node]


def _possible(source: Source, node: ast.AST, depth: int) -> frozenset[float]:
    match node:
        case ast.Name() | ast.Attribute():
            variable = source.variable(node)
            values = source.variables.values(variable) if variable is not None else []
            if variable is None or len(values) > 1:
                return frozenset()
            held = values or [*given_for(source, variable), default_of(variable)]
            return frozenset(found for each in held[:_MOST_STEPS] for found in possible(source, each, depth + 1))
        case ast.IfExp(body=body, orelse=other):
            return possible(source, body, depth + 1) | possible(source, other, depth + 1)
        case ast.Call(func=ast.Name(id="min"), args=[one, other]):
            return frozenset().union(*(
                possible(source, limit, depth + 1) for limit, rising in ((one, other), (other, one))
                if isinstance(rising, ast.BinOp) and isinstance(rising.op, ast.Div)
            ))  # fmt: skip
        case ast.BinOp(left=left, op=op, right=right):
            pairs = [(a, b) for a in possible(source, left, depth + 1) for b in possible(source, right, depth + 1)]
            results = [_applied(op, a, b) for a, b in pairs[: _MOST_STEPS**2]]
            return frozenset(each for each in results if each is not None)
    return frozenset()


def _applied(op: ast.operator, left: float, right: float) -> float | None:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div() if right != 0:
            return left / right
    return None


def _calls_of(source: Source, function: ast.FunctionDef) -> list[ast.Call]:
    """The calls of a function or method by its name; those of a constructor are those of its class and subclasses."""
    owner = source.parent(function)
    if function.name != "__init__" or not isinstance(owner, ast.ClassDef):
        return [each.node for each in source.of(function.name)[: _MOST_CALLS + 1]]
    inherited = [
        each.node for each in source.of("__init__")
        if isinstance(own := source.parent(source.scope(each.node)), ast.ClassDef)
        and any(source.name_of(base).rpartition(".")[2] == owner.name for base in own.bases)
    ]  # fmt: skip
    return [each.node for each in source.of(owner.name)[: _MOST_CALLS + 1]] + inherited[: _MOST_CALLS + 1]


def given_for(source: Source, argument: Variable) -> list[ast.expr]:
    """The expressions that calls of this script give for an argument of a function."""
    function = argument.scope
    if not isinstance(function, ast.FunctionDef):
        return []
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if argument.text not in [*names, *(each.arg for each in function.args.kwonlyargs)]:
        return []
    is_method = isinstance(source.parent(function), ast.ClassDef)
    is_method = is_method and not any(source.name_of(each) == "staticmethod" for each in function.decorator_list)
    place = names.index(argument.text) - is_method if argument.text in names else -1
    calls = source.cached(("calls", function), lambda: _calls_of(source, function))
    return [given for each in calls if (given := keyword(each, argument.text, place)) is not None
            and not any(isinstance(part, ast.Starred) for part in each.args)]  # fmt: skip


def _may_give(call: ast.Call, name: str, place: int) -> bool:
    spread = any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args)
    return spread or len(call.args) > place or any(each.arg == name for each in call.keywords)
