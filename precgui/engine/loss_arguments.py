"""Losses of torch that are given other numbers than they take: probabilities for their logarithms, 0 for -1."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from precgui.engine.operation_names import JOINS, NLL_LOSSES, PICKS, SOFTMAXES
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_MADE = {
    **dict.fromkeys((*SOFTMAXES, "sigmoid"), "probabilities"),
    "_log_softmax": "logarithms",
    "log_sigmoid_forward": "logarithms",
}
_KEEPING = PICKS | JOINS
_BOUNDED = {"sigmoid", "tanh", "relu"}
_POSITIVE = {"exp", "softplus", "relu", "sigmoid"}
_PAIRS = 64  # sequences of a CTC loss that are looked at
_COMPARED = ("eq", "ne")  # with 1 and with -1, by losses of pairs
_NUMBERS = 1 << 16  # that are looked at
_ABOVE_ZERO, _NOT_NORMAL, _SUMS_TO_ONE = 0.01, 0.5, 1e-2  # of log-probabilities; of their logsumexp; of probabilities
_AT_THE_ENDS = 0.3  # share of clamped numbers

_Reference = weakref.ref[Tensor]


class LossArguments(Watcher):
    """Told of each operation outside of the optimizer; reads the operands of losses that learn, and changes nothing."""

    fact, most_rows = "loss_arguments", 16

    def __init__(self) -> None:
        super().__init__()
        self._made = TensorMarks[str]()  # `probabilities`, `logarithms`, or `clamped`
        self._products = TensorMarks[tuple[_Reference, _Reference]]()
        self._entropies = TensorMarks[_Reference]()  # t log t, of a target
        self._classes = TensorMarks[tuple[float, _Reference]]()  # what targets of pairs were compared with, and these
        self._pairs = TensorMarks[set[float]]()  # targets, and with what their comparison chose terms of a loss
        self._bounded = TensorMarks[tuple[str, float]]()  # results of these functions; and the share of rows of zeros
        self._positive = TensorMarks[str]()  # results of functions that have no others
        self._of_number = TensorMarks[tuple[str, _Reference]]()  # what `exp`, `log` or `neg` was computed of
        self._signed = TensorMarks[_Reference]()  # the negative of a target times what learns: the target

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        name, args, out, module, first = call.name, call.args, call.out, call.module, call.args[0]
        if name in _KEEPING and not isinstance(first, Tensor):  # cat and stack take a list
            self._keep(first, out)
        elif not isinstance(first, Tensor):
            return
        elif name in NLL_LOSSES:
            self._of_logarithms("nll_loss", first, 1 if first.dim() > 1 else 0, module)
            if first.requires_grad and (bounded := self._bounded.get(first)) is not None:
                self._note("cross_entropy", f"{bounded[0]}_scores", first, module, share=bounded[1])
        elif name == "_ctc_loss":
            self._of_logarithms("ctc_loss", first, -1, module)
            self._of_sequences(args, call.kwargs, module)
        elif name.startswith("binary_cross_entropy"):
            if not first.requires_grad and isinstance(args[1], Tensor) and args[1].requires_grad:
                self._note(name, "swapped", args[1], module)
            elif name == "binary_cross_entropy":
                self._of_clamped(first, module)
        elif name == "soft_margin_loss":
            self._of_pairs(name, args[1], module)
        elif name == "where" and len(args) > 2:
            self._chosen(first, args[1], args[2], module)
        else:
            self._follow(call, out)

    def _follow(self, call: OperationCall, out: Any) -> None:
        name, args, first, second = call.name, call.args, call.args[0], call.second
        self._follow_rates(call, out)
        if call.base in _BOUNDED and isinstance(out, Tensor):
            self._bounded[out] = call.base, 0.0
        elif name == "_log_softmax" and (bounded := self._bounded.get(first)) is not None and first.shape[args[1]] > 1:
            zeros = float((first.detach() == 0).all(args[1]).float().mean()) if bounded[0] == "relu" else 0.0
            self._bounded[out] = bounded[0], zeros
        if call.base in _MADE:
            self._made[as_list(out)[0]] = _MADE[call.base]
        elif call.base == "clamp" and self._made.get(first) is None:
            ends = [each for each in args[1:3] if isinstance(each, int | float)]
            if len(ends) == 2 and ends[0] >= 0 and ends[1] <= 1:
                self._made[out] = "clamped"
        elif name == "xlogy" and args[1] is first:
            self._entropies[out] = weakref.ref(first)
        elif name == "mul" and isinstance(second, Tensor) and first.requires_grad != second.requires_grad:
            self._products[out] = weakref.ref(first), weakref.ref(second)
            if self._made.get(first) == "logarithms" and second.requires_grad and second.shape == first.shape:
                self._of_swapped(second, call.module)
        elif name == "sub" and isinstance(second, Tensor):
            self._of_divergence(first, second, call.module)
        elif name in _COMPARED and isinstance(second, int | float) and abs(second) == 1 and not first.requires_grad:
            self._classes[out] = float(second), weakref.ref(first)
        elif call.keeps_numbers or name in _KEEPING or call.base == "clamp":
            self._keep(first, out)

    def _keep(self, operand: Any, out: Any) -> None:
        """Results stand for the same numbers as an operand, or the first one of several."""
        if (made := self._made.get(next(iter(as_list(operand)), None))) is not None:
            for each in as_list(out):
                self._made[each] = made
        source = next(iter(as_list(operand)), None)
        for each in as_list(out):
            if (bounded := self._bounded.get(source)) is not None:
                self._bounded[each] = bounded
            if (positive := self._positive.get(source)) is not None:
                self._positive[each] = positive

    def _follow_rates(self, call: OperationCall, out: Any) -> None:
        """Follow exp(x) - t x and x - t log(x), of a Poisson distribution, and -t (a - b), of a ranking."""
        name, first, second = call.name, call.args[0], call.second
        if not isinstance(out, Tensor):
            return
        if call.base in _POSITIVE:
            self._positive[out] = call.base
        if name in ("exp", "log", "neg"):
            of = self._of_number.get(first)  # of x + eps
            is_above = name == "log" and of is not None and of[0] == "add"
            self._of_number[out] = name, of[1] if of is not None and is_above else weakref.ref(first)
        elif name == "add" and isinstance(second, float) and 0 < second < _ABOVE_ZERO:
            self._of_number[out] = "add", weakref.ref(first)
        elif name == "mul" and isinstance(second, Tensor):
            for one, other in ((first, second), (second, first)):
                of = self._of_number.get(one)
                if of is not None and of[0] == "neg" and other.requires_grad and not one.requires_grad:
                    self._signed[out] = of[1]
        elif name in ("add", "add_", "clone") and (target := self._signed.get(first)) is not None:
            self._signed[out] = target
        elif name in ("clamp_min", "clamp_min_", "relu", "clamp") and (target := self._signed.get(first)) is not None:
            if (values := target()) is not None:
                self._of_pairs("margin_ranking_loss", values, call.module)
        elif name == "sub" and isinstance(second, Tensor):
            self._of_counts(first, second, call.module)

    def _of_counts(self, first: Tensor, second: Tensor, module: str | None) -> None:
        """The difference of which poisson_nll_loss is the mean."""
        of, pair = self._of_number.get(first), self._products.get(second)
        factors = [each for reference in pair or () if (each := reference()) is not None]
        if of is not None and of[0] == "exp" and any(each is of[1]() for each in factors):
            given = of[1]()
            if given is not None and given.requires_grad and self._positive.get(given):
                self._note("poisson_nll_loss", "rates", given, module)
        elif first.requires_grad and any(_is_log_of(self._of_number.get(each), first) for each in factors):
            share = float((first.detach() < 0).float().mean())
            if share:
                self._note("poisson_nll_loss", "negative_rates", first, module, share=share)

    def _of_sequences(self, args: Any, kwargs: Any, module: str | None) -> None:
        """The targets of a CTC loss: they hold no blank, and are no longer than their inputs."""
        if len(args) < 4 or not isinstance(args[1], Tensor):
            return
        blank = int(args[4] if len(args) > 4 else kwargs.get("blank", 0))
        keeps_infinity = not (args[5] if len(args) > 5 else kwargs.get("zero_infinity", False))
        sequences = ctc_sequences(*args[1:4])[:_PAIRS]
        rows, needed = [row for row, _ in sequences], [places_needed(row) for row, _ in sequences]
        blanks = sum(bool((row == blank).any()) for row in rows)
        if blanks:
            self._note("ctc_loss", "blank_targets", args[1], module, share=blanks / len(rows))
        long = sum(least > size for least, (_, size) in zip(needed, sequences, strict=True))
        if long and keeps_infinity:
            self._note("ctc_loss", "long_targets", torch.tensor(needed), module, share=long / len(rows))

    def _of_divergence(self, entropy: Tensor, product: Tensor, module: str | None) -> None:
        """The difference t log t - t x, of which kl_div is the mean or the sum."""
        own, pair = self._entropies.get(entropy), self._products.get(product)
        target = own() if own is not None else None
        factors = [reference() for reference in pair] if pair is not None else []
        if target is None or not any(each is target for each in factors):
            return
        outputs = next((each for each in factors if each is not None and each is not target), None)
        if bool((target < 0).any()):
            self._note("kl_div", "negative_targets", target, module)
        elif outputs is not None and outputs.requires_grad:
            self._of_logarithms("kl_div", outputs, -1, module)

    def _of_logarithms(self, loss: str, given: Tensor, axis: int, module: str | None) -> None:
        """A loss that takes log-probabilities of classes along an axis."""
        made = self._made.get(given)
        if not given.requires_grad or made == "logarithms" or not given.dim() or given.shape[axis] < 2:
            return
        if made == "probabilities":
            self._note(loss, "probabilities", given, module)
            return
        rows = given.detach().movedim(axis, -1).reshape(-1, given.shape[axis])
        rows = rows[: max(_NUMBERS // rows.shape[1], 1)].float()
        if bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < _SUMS_TO_ONE).all()):
            self._note(loss, "probabilities", given, module)
        elif bool((rows > _ABOVE_ZERO).any()) and float(rows.logsumexp(-1).abs().median()) > _NOT_NORMAL:
            self._note(loss, "scores", given, module)

    def _of_swapped(self, given: Tensor, module: str | None) -> None:
        """Numbers that learn stand where a cross entropy takes probabilities, beside logarithms that do not learn."""
        if self._made.get(given) == "probabilities" or given.dim() < 2 or given.shape[-1] < 2:
            return
        rows = given.detach().reshape(-1, given.shape[-1])[: max(_NUMBERS // given.shape[-1], 1)].float()
        if bool((rows < 0).any()):
            self._note("cross_entropy", "swapped", given, module)

    def _of_clamped(self, given: Tensor, module: str | None) -> None:
        """Probabilities that are scores cut off at 0 and 1."""
        if self._made.get(given) != "clamped" or not given.requires_grad or not given.numel():
            return
        values = given.detach().flatten()[:_NUMBERS].float()
        ends = (values == values.amin()) | (values == values.amax())
        share = float(ends.float().mean())
        if share > _AT_THE_ENDS:
            self._note("binary_cross_entropy", "clamped_scores", given, module, share=share)

    def _chosen(self, condition: Tensor, one: Any, other: Any, module: str | None) -> None:
        """Terms of a loss of pairs, chosen by a comparison of its targets with 1 or -1."""
        compared = self._classes.get(condition)
        learns = any(isinstance(each, Tensor) and each.requires_grad for each in (one, other))
        if compared is None or not learns:
            return
        value, target = compared[0], compared[1]()
        if target is None:
            return
        seen = self._pairs.get(target) or set()
        self._pairs[target] = seen | {value}
        if seen | {value} == {1.0, -1.0} and value not in seen:
            self._of_pairs("embedding_loss", target, module)

    def _of_pairs(self, loss: str, target: Tensor, module: str | None) -> None:
        """A loss whose targets are 1 and -1."""
        values = target.detach().flatten()[:_NUMBERS]
        if bool(((values == 0) | (values == 1)).all()) and bool((values == 0).any()):
            self._note(loss, "zero_targets", target, module, share=float((values == 0).float().mean()))

    def _note(self, loss: str, mistake: str, given: Tensor, module: str | None, share: float = 0.0) -> None:
        values = given.detach().flatten()[:_NUMBERS].float()
        key = self._step, loss, mistake
        if self._has_room(key):
            self._rows[key] = {
                "loss": loss, "mistake": mistake, "module": module, "step": self._step, "share": share,
                "low": float(values.amin()), "high": float(values.amax()),
            }  # fmt: skip


def _is_log_of(number: tuple[str, _Reference] | None, tensor: Tensor) -> bool:
    return number is not None and number[0] == "log" and number[1]() is tensor


def ctc_sequences(targets: Tensor, given: Any, wanted: Any) -> list[tuple[Tensor, int]]:
    """The targets of each sample of a CTC loss and the places that its input has; `given` and `wanted` are the lengths
    of the inputs and of the targets, `targets` one row for each sample or all in one."""
    places, sizes = (
        [int(one) for one in (each.tolist() if isinstance(each, Tensor) else each)] for each in (given, wanted)
    )
    if targets.dim() > 1:
        return [(row[:size], place) for row, size, place in zip(targets, sizes, places, strict=True)]
    return list(zip(targets.split(sizes), places, strict=False))


def places_needed(targets: Tensor) -> int:
    """By a CTC loss: one for each target, and one between two equal ones."""
    return len(targets) + int((targets[1:] == targets[:-1]).sum())
