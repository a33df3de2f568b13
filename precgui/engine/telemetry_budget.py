"""What looking at tensors may cost: intervals, sampling strides, and an account in seconds for each kind of tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from precgui.config import RecordConfig

MOST_STRIDE = 256
_PARTS = {"gradient": 4, "sentinel": 3, "update": 2, "activation": 2}  # of the budget; the other kinds have 1
_SAVED = 4.0  # intervals whose allowance can be saved up: a burst after a pause stays small


@dataclass
class _Account:
    """One kind: `credit_s` is the allowance not yet spent, `last_s` the cost of the latest look."""

    every: int
    part: float
    credit_s: float = 0.0
    last_s: float = 0.0
    stride: int = 1


class Budget:
    """Decides in which step which kind is looked at, and how closely, so that all together cost `share` of the time.

    Each kind earns its part of the share at every step and pays what its looks cost. After a look that cost
    more than an interval earns, the stride grows; who is in debt waits; who could pay twice as much halves its stride.
    """

    def __init__(self, config: RecordConfig, kinds: Mapping[str, int]) -> None:
        """`kinds` maps each kind to its interval in steps, 0 for never."""
        self._share = config.budget
        wanted = {kind: every for kind, every in kinds.items() if every}
        parts = sum(_PARTS.get(kind, 1) for kind in wanted)
        self._accounts = {kind: _Account(every, _PARTS.get(kind, 1) / parts) for kind, every in wanted.items()}
        self.spent_s = self.elapsed_s = 0.0

    def due(self, step: int) -> dict[str, int]:
        """The kinds to look at in this step (counted from 1), each with its stride."""
        kinds = {}
        for kind, account in self._accounts.items():
            if (step - 1) % account.every:
                continue
            if account.credit_s < 0:
                continue
            if account.credit_s > 3 * account.last_s:  # half the stride costs up to twice as much
                account.stride = max(account.stride // 2, 1)
            kinds[kind] = account.stride
        return kinds

    def settle(self, step_s: float, costs_s: Mapping[str, float]) -> None:
        """Book one step of `step_s` seconds in which the kinds cost `costs_s`."""
        self.elapsed_s += step_s
        self.spent_s += sum(costs_s.values())
        for kind, account in self._accounts.items():
            allowance = self._share * step_s * account.part
            cost = costs_s.get(kind, 0.0)
            if cost > allowance * account.every:
                dearer = min(math.ceil(math.log2(cost / max(allowance * account.every, 1e-12))), 3)
                account.stride = min(account.stride << dearer, MOST_STRIDE)
            account.last_s = cost or account.last_s
            most = max(_SAVED * allowance * account.every, 4 * account.last_s)
            account.credit_s = min(account.credit_s + allowance, most) - cost

    @property
    def share(self) -> float:
        """What was spent so far, as a share of the time."""
        return self.spent_s / self.elapsed_s if self.elapsed_s else 0.0
