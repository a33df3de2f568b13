"""Tables of the names of operations."""

from __future__ import annotations

import pytest
import torch

from precgui.engine import operation_names
from precgui.engine.operation_names import (
    CLAMPS,
    EXTREMES,
    JOINS,
    PICKS,
    ROUNDINGS,
    SAME_NUMBERS,
    base_of,
    cast_operand,
    is_elementwise,
    keeps_numbers,
)
from precgui.engine.torch_private import operation_name

aten = torch.ops.aten
_X = torch.tensor([[0.5, -1.25, 3.0], [2.75, 0.0, -8.0]])
_PLACES = torch.tensor([1, 0])
_ARGUMENTS = {
    "_to_copy": (_X,), "clone": (_X,), "_unsafe_view": (_X, [6]), "_reshape_copy": (_X, [3, 2]),
    "index": (_X, [_PLACES]), "index_select": (_X, 1, _PLACES), "gather": (_X, 1, _PLACES[:, None]),
    "take": (_X, _PLACES), "take_along_dim": (_X, _PLACES[:, None], 1), "masked_select": (_X, _X > 0),
    "embedding": (_X, _PLACES), "cat": ([_X, _X],), "stack": ([_X, _X],),
}  # fmt: skip


def _tables() -> dict[str, frozenset[str]]:
    return {name: table for name, table in vars(operation_names).items() if isinstance(table, frozenset)}


@pytest.mark.parametrize("table", _tables())
def test_that_names_are_those_of_operations_as_a_loop_is_told_of_them(table: str) -> None:
    for name in _tables()[table]:
        assert operation_name(getattr(getattr(aten, name), getattr(aten, name).overloads()[0])) == name


@pytest.mark.parametrize("name", sorted(SAME_NUMBERS | PICKS | JOINS))
def test_that_results_hold_numbers_of_the_operand_alone(name: str) -> None:
    out = getattr(aten, name)(*_ARGUMENTS[name])
    assert set(out.flatten().tolist()) <= set(_X.flatten().tolist())
    if name in SAME_NUMBERS:
        assert sorted(out.flatten().tolist()) == sorted(_X.flatten().tolist())


def test_that_views_need_no_name() -> None:
    assert not any(getattr(aten, name).default.is_view for name in SAME_NUMBERS)
    views = (aten.detach, aten.alias, aten.lift_fresh, aten.view, aten.reshape, aten.contiguous, aten.resolve_neg)
    assert all(keeps_numbers(view.default, operation_name(view.default)) for view in views)
    assert not keeps_numbers(aten.mul.Tensor, "mul")


def test_that_the_name_of_one_in_place_is_that_of_the_other() -> None:
    assert [base_of(name) for name in ("mul", "mul_", "_to_copy", "__and__")] == ["mul", "mul", "_to_copy", "__and__"]


def test_that_operations_by_element_are_told_from_others() -> None:
    assert all(map(is_elementwise, (aten.mul.Tensor, aten.relu_.default, aten.where.self)))
    assert not any(map(is_elementwise, (aten.mm.default, aten.sum.default, aten.view.default)))


def test_that_a_cast_has_its_numbers_from_one_operand() -> None:
    assert cast_operand("_to_copy", (_X,)) is _X
    assert cast_operand("copy_", (_PLACES, _X)) is _X
    assert cast_operand("clone", (_X,)) is None


def test_that_roundings_and_bounds_are_told_apart() -> None:
    assert not ROUNDINGS & (CLAMPS | EXTREMES)
