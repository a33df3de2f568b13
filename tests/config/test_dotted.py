"""Values at dotted paths."""

from __future__ import annotations

from typing import Any

from precgui.config.dotted import put_at


def test_that_a_value_is_set_at_its_path_and_sections_are_made() -> None:
    tree: dict[str, Any] = {"optimizer": {"lr": 0.1, "name": "sgd"}}
    put_at(tree, "optimizer.lr", 0.5)
    put_at(tree, "seed", 3)
    put_at(tree, "a.b.c", None)
    assert tree == {"optimizer": {"lr": 0.5, "name": "sgd"}, "seed": 3, "a": {"b": {"c": None}}}
