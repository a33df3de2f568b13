"""State that modules carry from pass to pass is put into a copy as it was before a pass, and nothing else is."""

from __future__ import annotations

import copy
from collections import deque

import torch
from torch import Tensor, nn

from precgui.engine.telemetry.kept_state import KeptState


class _Carries(nn.Module):
    """Keeps a peak in a buffer, a history, a counter, and from the first pass on a tensor with a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peak", torch.zeros(()))
        self.register_buffer("table", torch.arange(4.0))
        self.inner, self.history, self.passes, self.fixed = nn.Linear(3, 2), deque[float]([], 2), 0, 0.5

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("peak").copy_(x.detach().abs().max())
        self.history.append(float(x.detach().sum()))
        self.passes += 1
        self.last = self.inner(x).sum()
        out: Tensor = self.last
        return out


class _Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.register = nn.Linear(3, 2), [1.0, 2.0]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def test_that_a_copy_begins_with_what_the_pass_began_with() -> None:
    model = _Carries()
    kept = KeptState(model)
    for number in (1.0, 2.0, 3.0, 4.0):
        kept.keep()
        model(torch.full((3,), number))
    twin = copy.deepcopy(model, {id(model.last): model.last})
    kept.restore(twin)
    assert float(twin.get_buffer("peak")) == 3.0
    assert (list(twin.history), twin.history.maxlen, twin.passes) == ([6.0, 9.0], 2, 3)
    assert not twin.last.requires_grad
    assert float(model.get_buffer("peak")) == 4.0
    assert (list(model.history), model.passes) == ([9.0, 12.0], 4)
    twin(torch.ones(3))
    assert float(model.get_buffer("peak")) == 4.0
    assert len(kept._before) == 4


def test_that_an_attribute_of_the_first_pass_is_taken_away_again() -> None:
    model = _Carries()
    kept = KeptState(model)
    kept.keep()
    model(torch.ones(3))
    kept.keep()
    del model.last
    kept.keep()
    model(torch.ones(3))
    twin = copy.deepcopy(model, {id(model.last): model.last})
    kept.restore(twin)
    assert not hasattr(twin, "last")


def test_that_models_that_carry_nothing_are_left_alone_from_the_second_pass_on() -> None:
    assert KeptState(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))).is_empty
    model = _Keeps()
    kept = KeptState(model)
    for _ in range(2):
        assert not kept.is_empty
        kept.keep()
        model(torch.ones(3))
    assert kept.is_empty
    model.register = [0.5] * 5000
    kept.keep()
    kept.restore(model)
    assert len(model.register) == 5000


def test_that_values_that_grow_large_or_contain_themselves_are_not_kept() -> None:
    model = _Keeps()
    kept = KeptState(model)
    kept.keep()
    model.register.append(3.0)
    kept.keep()
    assert not kept.is_empty
    model.register.append(model.register)
    kept.keep()
    kept.restore(model)
    assert len(model.register) == 4
