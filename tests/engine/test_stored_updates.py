"""The order in which updates of tensors in 16 bits are compared, whatever objects Python makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from precgui.engine import stored_updates
from precgui.engine.stored_updates import StoredUpdates
from precgui.engine.write_times import WriteTimes


class _Watch(TorchDispatchMode):
    """Tells of each operation; its results get the next of `identities`."""

    def __init__(self, updates: StoredUpdates, identities: Iterator[int]) -> None:
        super().__init__()
        self.updates, self.identities = updates, identities

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        after = self.updates.before(func, args, kwargs or {}, None, in_optimizer=False)
        out = func(*args, **(kwargs or {}))
        out.identity = next(self.identities)
        self.updates.after(func, args, out, None)
        if after is not None:
            after(out)
        return out


def test_that_the_results_of_a_step_keep_the_order_in_which_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_updates, "id", lambda each: getattr(each, "identity", id(each)), raising=False)
    model = nn.Linear(1, 1)
    updates = StoredUpdates(model, WriteTimes(model))
    stored = [torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.bfloat16)]
    values = [torch.tensor([1.0, 0.0, 1.0, 0.0]).bfloat16(), torch.tensor([0.0, 1.0, 0.0, 1.0]).bfloat16()]
    for step in range(2, 8):
        updates.begin(step)
        # 0.9 a, 0.1 b, their sum, and again; in each second step the last sum gets the identity of the first product
        last = 1 if step % 2 else 6
        with _Watch(updates, iter([1, 2, 3, 4, 5, last])):
            for place in range(2):
                stored[place] = 0.9 * stored[place] + 0.1 * values[place]
        updates.end()
    steps = updates.facts()["stored_updates"][0]["steps"]
    assert all(row["direction"] > 0.9 for row in steps[1:]), [row["direction"] for row in steps]
