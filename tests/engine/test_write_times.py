"""Rare writes to tensors in 16 bits are noticed, however they are made, and expected again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from precgui.engine.write_times import WriteTimes


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.randn(40, 40).bfloat16(), requires_grad=False)
        self.trained = nn.Parameter(torch.zeros(3))


def _in_place(model: _Model) -> None:
    model.frozen += 1


def _through_data(model: _Model) -> None:
    model.frozen.data += 1


def _with_new_data(model: _Model) -> None:
    model.frozen.data = model.frozen.data + 1


@torch.no_grad()
def _lost_beside_a_restart(model: _Model) -> None:
    model.frozen.data += 1e-9
    model.trained.zero_()


def _expected(steps: int, write: Callable[[int], None], model: _Model) -> list[int]:
    times, expected = WriteTimes(model), []
    times.follow([model.trained])
    for step in range(1, steps + 1):
        is_expected = times.is_expected(step)
        expected += [step] if is_expected else []
        with torch.no_grad():
            model.trained.add_(1)
            write(step)
        if (bits := times.probe()) is not None:
            times.changed(float(bits))
        times.end(step, watched=is_expected)
    return expected


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("write", [_in_place, _through_data, _with_new_data, _lost_beside_a_restart])
def test_that_a_rare_write_is_expected_again(write: Callable[[_Model], None], first: int) -> None:
    model = _Model()
    expected = _expected(200, lambda step: write(model) if step % 20 == first and step > 1 else None, model)
    assert len({40 + first, 60 + first} & set(expected)) == 2
    assert len(expected) <= 4


def test_that_nothing_is_expected_where_nothing_is_written() -> None:
    assert _expected(50, lambda step: None, _Model()) == []


def test_that_irregular_writes_cost_few_steps() -> None:
    model = _Model()
    generator = torch.Generator().manual_seed(0)
    due = {int(step) for step in torch.randint(2, 2000, (80,), generator=generator)}
    assert len(_expected(2000, lambda step: _in_place(model) if step in due else None, model)) <= 8


def test_that_a_tensor_of_the_loop_is_followed_while_it_lives() -> None:
    times, table = WriteTimes(nn.Linear(2, 2)), torch.zeros(4, dtype=torch.float16)
    times.begin(2)
    times.met([[table], 1.0, torch.zeros(3)], set())
    assert times.count(table.untyped_storage().data_ptr()) is None
    for step in (5, 9):
        table += 1
        times.end(step, watched=False)
        times.end(step + 1, watched=False)
    times.begin(13)
    assert times.is_expected(13) and times.count(table.untyped_storage().data_ptr()) == 3 * 13 / 11
    address = table.untyped_storage().data_ptr()
    del table
    times.end(14, watched=False)
    assert times.count(address) is None


def test_that_new_memory_is_not_followed() -> None:
    times, made = WriteTimes(nn.Linear(2, 2)), torch.zeros(4, dtype=torch.float16)
    times.met([made], {made.untyped_storage().data_ptr()})
    assert times.count(made.untyped_storage().data_ptr()) is None


def _kinds() -> list[Tensor]:
    return [torch.zeros(2), torch.zeros(0).bfloat16(), torch.zeros(2, device="meta").bfloat16(),
            torch.eye(2).to_sparse().bfloat16()]  # fmt: skip


@pytest.mark.parametrize("place", range(4))
def test_that_tensors_without_numbers_in_16_bits_are_passed_over(place: int) -> None:
    times, tensor = WriteTimes(nn.Linear(2, 2)), _kinds()[place]
    times.met([tensor], set())
    times.follow([])
    times.end(1, watched=False)
    assert times.probe() is None
