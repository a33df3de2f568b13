"""The loss that one answer for all inputs has on the same targets: the level of chance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.operation_names import MEAN, NLL_LOSSES, SUM, keeps_numbers, reduction_of
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher
from precgui.sentences import L_

_BINARY = ("binary_cross_entropy_with_logits", "binary_cross_entropy")
_CROSS_ENTROPY, _BINARY_ENTROPY = L_("cross entropy"), L_("binary cross entropy")  # kinds, in the run file
_SQUARED_ERROR = L_("squared error")
_ABSOLUTE_ERROR, _HUBER_LOSS = L_("absolute error"), L_("Huber loss")  # smooth L1 is Huber's over its width
_HUBER = ("huber_loss", "smooth_l1_loss")
_SAMPLES_OF_A_CLASS = 8  # with fewer, frequencies of classes are not known
_FEWEST_SAMPLES = 8
_MOST_COLUMNS = 1 << 12  # of a target, and classes whose frequencies are counted
_MOST_CALLS = 16
_MOST_VALUES, _QUANTILES = 1 << 16, 33  # numbers of a target that are kept, and answers that are tried


@dataclass
class _Call:
    """One loss: its kind, its mean, how many samples it is of, and what a constant needs to know of the targets: shares
    of classes (of all `classes`), or the mean and the mean of the squares of each column."""

    kind: str
    loss: Tensor
    samples: int
    first: Tensor
    second: Tensor | None = None
    classes: int = 0
    of_layer: bool = False  # its scores are those of a layer with a bias for each class
    values: Tensor | None = None  # the targets, [samples, columns], where moments do not tell the loss of a constant
    width: float = 0.0  # of the squared part of a Huber loss
    factor: float = 1.0
    counts: Tensor | None = None  # samples of each class, where each sample has one target


_Pair = tuple[Tensor, Tensor]  # outputs and their target


class ConstantAnswers(Watcher):
    """Told of each operation outside of the optimizer; compares losses of targets with those of a constant.

    Cross entropies, binary ones, squared and absolute errors and Huber losses of outputs that learn. A step is `void`
    where a constant would be a perfect answer, as of a discriminator that is shown one kind at a time, and where
    targets are made with weights, as those of a target network, a teacher or a value function: they move. Of fixed
    targets of numbers `compared` is told.
    """

    fact, most_rows = "constant_answers", 12

    def __init__(self) -> None:
        super().__init__()
        self._made = TensorMarks[bool]()  # with weights
        self._differences, self._squares, self._sizes = TensorMarks[_Pair](), TensorMarks[_Pair](), TensorMarks[_Pair]()
        self._scores = TensorMarks[int]()  # of a layer with a bias for each class, and how many these are
        self.compared: Callable[[str, Tensor, Tensor], None] = lambda kind, outputs, target: None
        self._calls: list[_Call | None] = []  # None: void
        self._steps: dict[int, list[_Call | None]] = {}

    def begin(self, step: int) -> None:
        super().begin(step)
        self._calls = []

    def observe(self, call: OperationCall) -> None:
        name, args, kwargs, out, first = call.name, call.args, call.kwargs, call.out, call.args[0]
        if self._are_made(args):
            for each in as_list(out):  # the maximum over an axis comes with its places
                if isinstance(each, Tensor):
                    self._made[each] = True
        if not isinstance(first, Tensor):
            return
        if name in NLL_LOSSES:
            of_layer = self._scores.get(first) == first.shape[1 if first.dim() > 1 else 0]
            self._note("", first, args[1], lambda: _of_classes(first, args, out[0], of_layer=of_layer))
        elif name in _BINARY:
            weights = (*args[2:4], kwargs.get("weight"), kwargs.get("pos_weight"))
            if not any(isinstance(each, Tensor) for each in weights):
                reduction = reduction_of(name, args)
                self._note(
                    _BINARY_ENTROPY, first, args[1], lambda: _of_columns(_BINARY_ENTROPY, args[1], out, reduction)
                )
        elif name == "mse_loss":
            reduction = reduction_of(name, args)
            self._note(_SQUARED_ERROR, first, args[1], lambda: _of_columns(_SQUARED_ERROR, args[1], out, reduction))
        elif name in _HUBER:
            self._note(_HUBER_LOSS, first, args[1], lambda: _of_huber(name, args, out))
        else:
            self._follow(name, args, out)
            self._follow_scores(call.func, name, args, out)

    def is_made(self, value: Any) -> bool:
        """Whether a number was computed with weights in this step, or is one."""
        return isinstance(value, nn.Parameter) or self._made.get(value) is not None

    def _are_made(self, args: Any) -> bool:
        return any(self.is_made(part) for each in args for part in as_list(each))

    def _follow(self, name: str, args: Any, out: Any) -> None:
        """Follow the mean of the squares of a difference."""
        first, second = args[0], args[1] if len(args) > 1 else None
        if name in ("sub", "rsub") and isinstance(second, Tensor) and first.shape == second.shape:
            if first.requires_grad != second.requires_grad:
                self._differences[out] = (first, second) if first.requires_grad else (second, first)
        elif (pair := self._differences.get(first)) is not None and (
            (name == "pow" and second == 2) or (name == "mul" and second is first)
        ):
            self._squares[out] = pair
        elif pair is not None and name == "abs":
            self._sizes[out] = pair
        elif name == "mean" and out.dim() == 0 and (pair := self._squares.get(first)) is not None:
            outputs, target = pair
            self._note(_SQUARED_ERROR, outputs, target, lambda: _of_columns(_SQUARED_ERROR, target, out))
        elif name == "mean" and out.dim() == 0 and (pair := self._sizes.get(first)) is not None:
            outputs, target = pair
            self._note(_ABSOLUTE_ERROR, outputs, target, lambda: _of_values(_ABSOLUTE_ERROR, target, out))

    def _follow_scores(self, func: Any, name: str, args: Any, out: Any) -> None:
        """Follow what a layer with a bias for each class returns, through views and casts, to its log-softmax."""
        bias = {"addmm": 0, "convolution": 2}.get(name)
        if bias is not None and isinstance(out, Tensor) and out.dim() > 1 and isinstance(args[bias], Tensor):
            if args[bias].requires_grad and args[bias].shape == out.shape[1:2]:
                self._scores[out] = out.shape[1]
        elif (keeps_numbers(func, name) or name == "_log_softmax") and (
            (classes := self._scores.get(args[0])) is not None
        ):
            for each in as_list(out):
                if isinstance(each, Tensor):
                    self._scores[each] = classes

    def _note(self, kind: str, outputs: Tensor, target: Tensor, call: Any) -> None:
        if outputs.requires_grad and len(self._calls) < _MOST_CALLS:
            moves = target.requires_grad or self._made.get(target) is not None
            self._calls.append(None if moves or target.dim() == 0 else call())
            if kind and not moves:
                self.compared(kind, outputs, target)

    def end(self) -> None:
        """The step is over: all steps are compared with the constant that suits all of them."""
        super().end()
        calls, self._calls = self._calls, []
        if not calls or len(self._steps) >= self.most_rows:
            return
        for call in calls:
            if call is not None:
                call.loss = call.loss.cpu()
        self._steps[self._step] = calls
        self._rows = {step: self._row(step) for step in self._steps}

    def _row(self, step: int) -> dict[str, Any]:
        calls = self._steps[step]
        constants = [self._constant(place, call) for place, call in enumerate(calls) if call is not None]
        losses = [float(call.loss) for call in calls if call is not None]
        known = all(value > 0 and math.isfinite(value) for value in (*constants, *losses))
        return {
            "step": step, "loss": sum(losses) if known else 0.0, "constant": sum(constants) if known else 0.0,
            "kind": next((call.kind for call in calls if call is not None), ""),
            "samples": sum(call.samples for call in calls if call is not None),
            "best": min((a / b for a, b in zip(losses, constants, strict=True)), default=0.0) if known else 0.0,
            "void": not known or len(losses) < len(calls),
        } | _classes_of(calls) | self._alike(calls)  # fmt: skip

    def _alike(self, calls: list[_Call | None]) -> dict[str, Any]:
        """The chance that two targets are of one class, of the batch and of those of all steps together, where the only
        loss is a cross entropy with one target a sample."""
        own = calls[0] if len(calls) == 1 else None
        if own is None or own.counts is None or own.samples < _FEWEST_SAMPLES:
            return {}
        every = [
            each[0].counts for each in self._steps.values() if len(each) == 1 and each[0] is not None
            and each[0].counts is not None and each[0].classes == own.classes
        ]  # fmt: skip
        together = torch.stack(every).sum(0)
        return {"classes": own.classes, "alike": _equal(own.counts), "alike_in_all": _equal(together)}

    def _constant(self, place: int, call: _Call) -> float:
        """The loss of the answer that suits the targets of the calls at this place of all steps; 0 where it is not
        known."""
        others = [calls[place] for calls in self._steps.values() if place < len(calls)]
        alike = [
            each for each in others
            if each is not None and each.kind == call.kind and each.first.shape == call.first.shape
        ]  # fmt: skip
        count = sum(each.samples for each in alike)
        if call.values is not None:
            return _of_best_value(call, [each.values for each in alike if each.values is not None])
        mean = torch.stack([each.first * (each.samples / max(count, 1)) for each in alike]).sum(0)
        if call.samples < _FEWEST_SAMPLES:
            return 0.0
        if call.second is not None and call.kind == _SQUARED_ERROR:
            error = (call.second - 2 * mean * call.first + mean.square()).mean()
            return float(error) * count / (count - 1)
        if call.kind == _CROSS_ENTROPY:
            seen = int((mean > 0).sum())
            if count < _SAMPLES_OF_A_CLASS * seen or call.classes > _MOST_COLUMNS:
                return math.log(call.classes)  # equally frequent: the largest that a best constant has
            # Miller 1955: what the entropy of a sample lacks on average.
            return float(-torch.xlogy(call.first, mean).sum()) + (seen - 1) / (2 * count) if seen > 1 else 0.0
        entropy = -(torch.xlogy(call.first, mean) + torch.xlogy(1 - call.first, 1 - mean))
        return float(entropy.mean())


def _equal(counts: Tensor) -> float:
    """The chance that two samples of these are of the same class."""
    count = float(counts.sum())
    return float((counts * (counts - 1)).sum()) / max(count * (count - 1), 1.0)


def _classes_of(calls: list[_Call | None]) -> dict[str, Any]:
    """The most frequent class among the targets of a step with one cross entropy, its share, and whether the scores are
    those of a layer with a bias for each class."""
    own = calls[0] if len(calls) == 1 else None
    if own is None or own.kind != "cross entropy" or not len(own.first):
        return {}
    return {"class": int(own.first.argmax()), "share": float(own.first.max()), "of_layer": own.of_layer}


def _of_classes(scores: Tensor, args: Any, out: Tensor, *, of_layer: bool) -> _Call:
    """The mean of a cross entropy; classes count with their weights."""
    target, weight, reduction, ignored = args[1], args[2], int(args[3]), int(args[4])
    labels = target.flatten()
    labels = labels[labels != ignored]
    classes = scores.shape[1 if scores.dim() > 1 else 0]
    factors = weight.detach().cpu().double() if weight is not None else torch.ones(classes, dtype=torch.float64)
    shares, loss = torch.zeros(0), out.detach()
    if reduction == MEAN and classes > _MOST_COLUMNS:
        return _Call(_CROSS_ENTROPY, loss, len(labels), shares, classes=classes)
    own = torch.bincount(labels, minlength=classes).cpu().double()
    counts = own * factors
    if classes <= _MOST_COLUMNS:
        shares = counts / counts.sum()
    if reduction != MEAN:
        loss = loss.float().sum().cpu() / counts.sum()
    has_one_each = scores.dim() == 2 and classes <= _MOST_COLUMNS
    return _Call(
        _CROSS_ENTROPY, loss, len(labels), shares, classes=classes, of_layer=of_layer,
        counts=own if has_one_each else None,
    )  # fmt: skip


def _of_columns(kind: str, target: Tensor, out: Tensor, reduction: int = MEAN) -> _Call:
    """The mean of a loss of a target [samples, ...], also where the loop takes the sum."""
    columns = target.detach().reshape(len(target), -1)
    columns = columns[:, :: max(columns.shape[1] // _MOST_COLUMNS, 1)].cpu().double()  # not each device has FP64
    loss = out.detach().float().mean() / (max(target.numel(), 1) if reduction == SUM else 1)
    return _Call(kind, loss, len(columns), columns.mean(0), columns.square().mean(0))


def _of_values(
    kind: str, target: Tensor, out: Tensor, reduction: int = MEAN, width: float = 0.0, factor: float = 1.0
) -> _Call | None:
    """The mean of a loss whose best constant is no mean; None of a large target, and where the loss is a sum."""
    values = target.detach().reshape(len(target), -1)
    if values.numel() > _MOST_VALUES or (reduction != MEAN and out.dim() == 0):
        return None
    first = torch.zeros(values.shape[1])  # calls are alike where they have as many columns
    loss = out.detach().float().mean()
    return _Call(kind, loss, len(values), first, values=values.cpu().double(), width=width, factor=factor)


def _of_huber(name: str, args: Any, out: Tensor) -> _Call | None:
    width = float(args[3]) if len(args) > 3 else 1.0
    factor = 1 / width if name == "smooth_l1_loss" and width else 1.0
    return _of_values(_HUBER_LOSS, args[1], out, reduction_of(name, args), width, factor)


def _of_best_value(call: _Call, known: list[Tensor]) -> float:
    """The mean loss of the targets of a call, beside the best answer to all that are known, one for each column."""
    own = call.values
    if own is None or call.samples < _FEWEST_SAMPLES:
        return 0.0
    every = torch.cat(known)
    tried = torch.quantile(every, torch.linspace(0, 1, _QUANTILES, dtype=torch.float64), 0)
    losses = torch.stack([_loss_of(every - each, call.width).mean(0) for each in tried])
    best = tried.gather(0, losses.argmin(0)[None])[0]
    return call.factor * float(_loss_of(own - best, call.width).mean()) * len(every) / (len(every) - 1)


def _loss_of(difference: Tensor, width: float) -> Tensor:
    """The absolute error, or a Huber loss, of each element."""
    size = difference.abs()
    return torch.where(size <= width, size.square() / 2, width * (size - width / 2)) if width else size
