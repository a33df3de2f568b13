"""Arguments and results of operations: tensors in tuples, lists and dictionaries, and nothing else.

torch's own trees know many more containers, which takes several times as long for each of the thousands of operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The same nesting with `function` of each leaf; a named tuple, as a layout of memory, is a leaf."""
    if type(value) is tuple:
        return tuple([mapped(function, part) for part in value])
    if isinstance(value, list):
        return [mapped(function, part) for part in value]
    if isinstance(value, dict):
        return {name: mapped(function, part) for name, part in value.items()}
    return function(value)


def leaves_of(value: Any) -> list[Any]:
    """All leaves in order, None among them."""
    leaves: list[Any] = []
    _collect(value, leaves)
    return leaves


def _collect(value: Any, leaves: list[Any]) -> None:
    if isinstance(value, tuple | list):
        for part in value:
            _collect(part, leaves)
    elif isinstance(value, dict):
        for part in value.values():
            _collect(part, leaves)
    else:
        leaves.append(value)
