"""Targets of a value function that go on behind the end of an episode, although the loop knows where one ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precgui.engine.operation_names import SAME_NUMBERS
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.unleft_states import UnmaskedTarget
from precgui.engine.watcher import OperationCall, Watcher

_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "sub", "rsub")
_COPIES = SAME_NUMBERS | {"detach", "lift_fresh", "alias"}
_CHOSEN = {"where", "masked_fill", "masked_fill_", "index_put", "index_put_", "_index_put_impl_", "masked_scatter",
           "masked_scatter_", "index_fill", "index_fill_", "index_copy_", "copy_", "mul", "mul_"}  # fmt: skip
_NOT_USED = {"sum", "mean", "any", "all", "_local_scalar_dense", "item"}  # what a loop prints
_LEAST_DISCOUNT = 0.5
_FEWEST, _MOST = 16, 1 << 16  # samples
_TAIL = 0.01  # of the rewards elsewhere: beyond it on either side one at an end is unlike them
_MOST_FLAGS = 256  # tensors of a step that are looked at
_MOST_NUMBERS = 1 << 18  # of all these


class BootstrappedTargets(Watcher):
    """Told of each operation outside of the optimizer; follows values that are multiplied by a discount and added to
    rewards, and numbers that the step computes and nobody reads.

    A mask (1 - done), in whatever form it is applied, ends the search: nothing is noted.
    """

    fact, most_rows = "bootstrapped_targets", 12

    def __init__(self, is_made: Callable[[Any], bool]) -> None:
        """`is_made` says whether a tensor was computed with weights."""
        super().__init__()
        self._is_made = is_made
        self._masked = TensorMarks[bool]()
        self._discounted = TensorMarks[float]()
        self._targets = TensorMarks[tuple[float, Tensor, Tensor]]()  # the discount, the rewards, and the values
        self._flags: dict[int, Tensor] = {}  # by id: small, and kept to the end of the step
        self._copied: dict[int, list[int]] = {}  # those that a copy or a view was made of, by id
        self._read: set[int] = set()  # of all these, by operations that use them
        self._numbers = 0
        self._found: UnmaskedTarget | None = None

    def begin(self, step: int) -> None:
        super().begin(step)
        self._clear()

    def _clear(self) -> None:
        self._flags, self._copied, self._read, self._found, self._numbers = {}, {}, set(), None, 0

    def observe(self, call: OperationCall) -> None:
        name, args, out = call.name, call.args, call.out
        operands = [part for each in (*args, *call.kwargs.values()) for part in as_list(each)]
        tensors = [each for each in operands if isinstance(each, Tensor)]
        is_copy = call.func.is_view or name in _COPIES
        if name not in _NOT_USED and not is_copy:
            for each in tensors:
                self._used(id(each))
        made = [each for each in tensors if self._is_made(each)]
        if not made:
            self._may_be_flag(out, [id(each) for each in tensors] if is_copy else [])
            return
        if any(self._masked.get(each) for each in tensors) or (name in _CHOSEN and self._is_mask(made, tensors)):
            for each in [*as_list(out), *made[:1]]:
                if isinstance(each, Tensor):
                    self._masked[each] = True
            return
        self._follow(call, tensors)

    def _used(self, key: int) -> None:
        """A tensor is read, and with it all that it is a copy of."""
        waiting = [key] if key in self._flags else []
        while waiting:
            if (one := waiting.pop()) not in self._read:
                self._read.add(one)
                waiting += self._copied.get(one, [])

    @staticmethod
    def _is_mask(made: list[Tensor], tensors: list[Tensor]) -> bool:
        """Whether values that weights made meet numbers of the loop, one for each, that no weights made."""
        return any(each.dim() > 0 and not any(each is one for one in made) for each in tensors)

    def _follow(self, call: OperationCall, tensors: list[Tensor]) -> None:
        name, out, first = call.name, call.out, call.args[0]
        if name in _LOSSES and len(tensors) > 1:
            for outputs, target in (tensors[:2], tensors[1::-1]):
                if outputs.requires_grad and (found := self._targets.get(target)) is not None:
                    self._found = UnmaskedTarget(*found, outputs)
        if not isinstance(first, Tensor) or not isinstance(out, Tensor):
            return
        second = call.second
        if name in ("mul", "mul_") and isinstance(second, float) and _LEAST_DISCOUNT < second < 1:
            if not first.requires_grad and _one_each(first):
                self._discounted[out] = second
        elif name in ("add", "add_") and isinstance(second, Tensor) and _one_each(out):
            self._added(first, second, out, float(call.kwargs.get("alpha", 1)))
        elif call.func.is_view or name in _COPIES or name == "add":
            if (discount := self._discounted.get(first)) is not None:
                self._discounted[out] = discount
            if (known := self._targets.get(first)) is not None:
                self._targets[out] = known

    def target(self) -> UnmaskedTarget | None:
        """That of the step, up to its end."""
        return self._found

    def _added(self, first: Tensor, second: Tensor, out: Tensor, alpha: float) -> None:
        """Rewards plus discounted values, in either order."""
        for rewards, values in ((first, second), (second, first)):
            discount = self._discounted.get(values)
            if discount is None and values is second and _LEAST_DISCOUNT < alpha < 1 and self._is_made(values):
                discount = alpha
            if discount is not None and not values.requires_grad and not self._is_made(rewards) and _one_each(rewards):
                self._targets[out] = discount, rewards, values

    def _may_be_flag(self, out: Any, copied: list[int]) -> None:
        for each in as_list(out):
            if not isinstance(each, Tensor) or not _one_each(each) or id(each) in self._flags:
                continue
            if len(self._flags) < _MOST_FLAGS and self._numbers + each.numel() <= _MOST_NUMBERS:
                self._flags[id(each)], self._numbers = each, self._numbers + each.numel()
                self._copied[id(each)] = [key for key in copied if key in self._flags]

    def end(self) -> None:
        """The step is over: numbers of which each is 0 or 1, both occur, and nobody has read."""
        if self._found is not None and self._has_room(self._step):
            discount, rewards = self._found[:2]
            unread = [each for key, each in self._flags.items() if key not in self._read]
            for flags in unread:
                if flags.numel() == rewards.numel() and (row := _row(flags, rewards)):
                    self._rows[self._step] = {"step": self._step, "discount": discount} | row
                    break
        self._clear()
        super().end()


def _one_each(tensor: Tensor) -> bool:
    """Whether a tensor has one number for each sample of a batch."""
    return tensor.dim() > 0 and _FEWEST <= tensor.shape[0] == tensor.numel() <= _MOST and not tensor.requires_grad


@torch.no_grad()
def _row(flags: Tensor, rewards: Tensor) -> dict[str, Any] | None:
    """Samples, how many are flagged, mean rewards of both kinds, and how many at ends are unlike those elsewhere."""
    values, rewards = flags.detach().flatten().double().cpu(), rewards.detach().flatten().double().cpu()
    if not bool(((values == 0) | (values == 1)).all()):
        return None
    marked = values == (1 if float(values.mean()) <= 0.5 else 0)  # ends are rare, whichever number stands for them
    one, rest = rewards[marked], rewards[~marked]
    if not len(one) or not len(rest):
        return None
    low, high = rest.quantile(_TAIL), rest.quantile(1 - _TAIL)
    return {
        "samples": len(rewards), "ends": len(one),
        "reward_at_ends": float(one.mean()), "reward_elsewhere": float(rest.mean()),
        "unusual": int(((one < low) | (one > high)).sum()),
    }  # fmt: skip
