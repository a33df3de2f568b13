"""A frozen weight of a class of the user's that makes its numbers up from other tensors does not end the recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import return_and_correct_aliasing

import precgui


class _EightBits(Tensor):
    """A matrix kept as INT8 and one scale."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return return_and_correct_aliasing(func, args, kwargs or {}, cls(args[0].codes, args[0].scale))
        wide = lambda v: v.codes.to(v.scale.dtype) * v.scale if isinstance(v, cls) else v  # noqa: E731
        return func(*pytree.tree_map(wide, args), **pytree.tree_map(wide, kwargs or {}))


def test_that_a_weight_without_memory_of_its_own_is_recorded_beside_others(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    weight = model[2].weight.detach()
    scale = weight.abs().amax() / 127
    model[2].weight = nn.Parameter(_EightBits((weight / scale).round().to(torch.int8), scale), requires_grad=False)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-2)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    for _ in range(12):
        x = torch.randn(32, 8)
        loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert len(run.series("loss")[0]) == 12
