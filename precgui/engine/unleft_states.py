"""Next states of a replay in which no transition begins, although targets of values go on behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from precgui.engine.operation_names import PRODUCTS
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_FEWEST, _MOST = 16, 4096  # samples of a step
_MOST_NUMBERS = 1 << 18  # of all states of a batch
_MOST_STATES = 256  # different ones: others are as good as continuous, and do not come again


class UnmaskedTarget(NamedTuple):
    """Rewards and discounted values that were added up, without a mask, and the outputs that were compared with it."""

    discount: float
    rewards: Tensor
    values: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class _Transitions:
    """Of one step; states as numbers that stand for all numbers of a state."""

    begun: Tensor
    reached: Tensor
    rewards: Tensor


class UnleftStates(Watcher):
    """Told of each operation outside of the optimizer; follows from which data values and outputs were computed.

    Each state of a replay that a transition leads to begins another one, but for those that end an episode. Equal
    states must come often for that to be seen; nothing is noted of others.
    """

    fact, most_rows = "unleft_states", 12  # one row of so many steps

    def __init__(self, is_made: Callable[[Any], bool], target: Callable[[], UnmaskedTarget | None]) -> None:
        """`is_made` says whether a tensor was computed with weights; `target` returns that of the step, at its end."""
        super().__init__()
        self._is_made, self._target = is_made, target
        self._of_data = TensorMarks[int]()  # data that met weights: their place in `_states`
        self._sources = TensorMarks[frozenset[int]]()
        self._states: list[Tensor | None] = []
        self._seen: dict[int, _Transitions] = {}

    def begin(self, step: int) -> None:
        super().begin(step)
        self._states = []

    def observe(self, call: OperationCall) -> None:
        sources = frozenset[int]()
        for each in call.tensors:
            sources |= self._sources.get(each) or frozenset()
        if not sources and (call.name in PRODUCTS or call.name == "embedding"):
            sources = self._met(call)
        if sources:
            for each in as_list(call.out):
                if isinstance(each, Tensor):
                    self._sources[each] = sources

    def _met(self, call: OperationCall) -> frozenset[int]:
        """The data that weights meet in a product, or in a table of vectors."""
        tensors = call.tensors
        data = [each for each in tensors if not self._is_made(each) and each.dim() and each.shape[0] >= _FEWEST]
        if len(data) != 1 or len(data) == len(tensors):
            return frozenset()
        place = self._of_data.get(data[0])
        if place is None:
            place = len(self._states)
            self._of_data[data[0]] = place
            self._states.append(_numbers_of(data[0]))
        return frozenset({place})

    def end(self) -> None:
        """The step is over."""
        target = self._target()
        begun, reached = (self._states_of(each) for each in (target.outputs, target.values)) if target else (None, None)
        if target is not None and begun is not None and reached is not None and len(self._seen) < self.most_rows:
            rewards, values = target.rewards.detach().flatten(), target.values.detach().flatten()
            if len(begun) == len(reached) == len(rewards) == len(values) and rewards.device.type == "cpu":
                known = values != 0  # of a row of zeros, as of a state that is none
                self._seen[self._step] = _Transitions(begun, reached[known], rewards[known].double())
                row = _row(list(self._seen.values()))
                self._rows = {0: row | {"step": self._step, "count": len(self._seen)}} if row else {}
        self._states = []
        super().end()

    def _states_of(self, tensor: Tensor) -> Tensor | None:
        """The states that numbers were computed from; None of more than one batch of states."""
        sources = self._sources.get(tensor) or frozenset()
        return self._states[next(iter(sources))] if len(sources) == 1 else None


@torch.no_grad()
def _numbers_of(states: Tensor) -> Tensor | None:
    """A number for each state, equal for equal ones; None on a device that would have to be waited for."""
    if states.device.type != "cpu" or states.layout != torch.strided or len(states) > _MOST:
        return None
    if states.numel() > _MOST_NUMBERS or states.is_complex():
        return None
    rows = states.detach().reshape(len(states), -1).double()
    factors = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64).sqrt()
    return (rows * factors).sum(1)


def _row(seen: list[_Transitions]) -> dict[str, Any] | None:
    """How many transitions lead to states that none begins with, and of these states those whose rewards are all beyond
    the rewards of the others."""
    if len(seen) < 2:
        return None
    reached, rewards = (torch.cat([getattr(each, name) for each in seen]) for name in ("reached", "rewards"))
    states, inverse, counts = reached.unique(return_inverse=True, return_counts=True)
    if not 1 < len(states) <= _MOST_STATES:
        return None
    left = torch.isin(states, torch.cat([each.begun for each in seen]))
    of_left = left[inverse]
    if bool(left.all()) or not bool(left.any()):
        return None
    low, high = rewards[of_left].aminmax()
    is_beyond = (rewards < low) | (rewards > high)
    beyond = torch.bincount(inverse[is_beyond], minlength=len(states)) == counts
    return {
        "samples": len(reached), "states": len(states), "unleft": int((~left).sum()),
        "unleft_samples": int((~of_left).sum()), "rewarded_samples": int(counts[beyond & ~left].sum()),
        "reward": float(rewards[~of_left].mean()), "reward_elsewhere": float(rewards[of_left].mean()),
    }  # fmt: skip
