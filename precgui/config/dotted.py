"""Values at dotted paths of a tree of plain values, such as `optimizer.lr` of a config."""

from __future__ import annotations

from typing import Any


def put_at(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a path; sections that are not there are made."""
    *sections, name = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value
