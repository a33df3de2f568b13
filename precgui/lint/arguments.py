"""Arguments of calls, and the numbers that are written into a script."""

from __future__ import annotations

import ast


def keyword(call: ast.Call, name: str, place: int = -1) -> ast.expr | None:
    """An argument by its name, or by its place."""
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return named if named is not None or not 0 <= place < len(call.args) else call.args[place]


def number(node: ast.AST | None) -> float | None:
    """The value of a number that is written out, also a negative one or a power (`2.0**16`)."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.left, ast.Constant):
        return _power(number(node.left), number(node.right) if not isinstance(node.right, ast.BinOp) else None)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        try:
            return float(node.value)
        except OverflowError:
            return float("inf")
    return None


def _power(base: float | None, exponent: float | None) -> float | None:
    if base is None or exponent is None:
        return None
    try:
        value = base**exponent
    except (OverflowError, ZeroDivisionError):
        return None
    return value if isinstance(value, float) else None
