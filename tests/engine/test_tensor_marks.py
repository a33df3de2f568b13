"""Marks stay with the very tensor that was marked."""

from __future__ import annotations

import torch

from precgui.engine.tensor_marks import TensorMarks


def test_that_a_mark_is_of_a_tensor_and_not_of_its_numbers_views_or_place() -> None:
    marks, tensor = TensorMarks[int](), torch.ones(2)
    marks[tensor] = 0
    assert marks and marks.get(tensor) == 0
    assert [marks.get(other) for other in (tensor.clone(), tensor.view(2), 1.0, None)] == [None] * 4
    marks.forget(tensor)
    assert not marks and marks.get(tensor) is None


def test_that_a_dead_tensor_has_no_mark_though_another_takes_its_place() -> None:
    marks = TensorMarks[int]()
    for _ in range(100):
        tensor = torch.ones(2)
        assert marks.get(tensor) is None
        marks[tensor] = 1
        del tensor
