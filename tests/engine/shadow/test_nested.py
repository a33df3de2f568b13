"""Nested arguments of operations."""

from __future__ import annotations

import torch

from precgui.engine.shadow.nested import leaves_of, mapped
from precgui.engine.shadow.numbering import MemoryLayout


def test_that_nesting_and_order_are_kept() -> None:
    value = (1, [2, None, (3,)], {"a": 4, "b": [5]})
    assert leaves_of(value) == [1, 2, None, 3, 4, 5]
    assert mapped(lambda leaf: leaf and -leaf, value) == (-1, [-2, None, (-3,)], {"a": -4, "b": [-5]})


def test_that_a_layout_is_a_leaf_and_a_named_result_is_not() -> None:
    layout = MemoryLayout((2,), (1,), 0, torch.float32)
    assert mapped(lambda leaf: leaf, (layout,))[0] is layout
    values, indices = leaves_of(torch.ones(3).max(0))
    assert (float(values), indices.dtype) == (1.0, torch.int64)
