"""The batches that the model gets: samples that are all alike, one batch again and again, NaN in that of a step."""

from __future__ import annotations

import contextlib
import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import dtype_name
from precgui.engine.samples import sampled_table
from precgui.engine.telemetry.readable import address_of, dense, readable, unseen
from precgui.record.later_numbers import LaterNumbers

_MOST_TENSORS, _MOST_ROWS, _MOST_BROKEN = 3, 24, 6  # of one pass; of the facts
_SAMPLES, _NUMBERS = 256, 1 << 16  # of a batch that are looked at
_COMPARED = 40  # steps whose batches are compared with each other
_MARKED = 256  # elements of a batch that are compared
_SMALL_BYTES = 1 << 20  # of a tensor that is kept to the end of the step
_DEEPEST = 4  # containers in each other
_IGNORED = -100  # the class that torch's losses leave out

Named = Iterable[tuple[str, Any]]


class Batches:
    """Told of each forward pass, with its arguments; reads, and changes nothing.

    Tensors that learn are no data, and left out, as masks of true and false are.
    """

    def __init__(self, later: LaterNumbers) -> None:
        self._later = later
        self._step, self._in_full, self._is_given = 0, False, True
        self._held: list[tuple[str, Callable[[], Tensor | None]]] = []
        self._rows: list[dict[str, Any]] = []
        self._broken: list[dict[str, Any]] = []
        self._marks: tuple[float, ...] = ()
        self._compared, self._differ, self._samples = 0, False, 0
        self._address, self._moves = 0, False
        self._now, self._most = 0, 0  # samples of passes without gradients between two steps

    def begin(self, step: int, *, in_full: bool) -> None:
        """A step begins; `in_full`: its samples are compared with each other."""
        self._step, self._in_full, self._is_given, self._held = step, in_full, False, []
        self._most, self._now = max(self._most, self._now), 0

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A forward pass for training begins with these arguments; the first one of a step counts."""
        if self._is_given:
            return
        self._is_given = True
        named = [*_tensors(_arguments(args, kwargs))]
        self._held = [(name, _held(each)) for name, each in named]
        compares = self._step <= _COMPARED and not self._differ
        if not named or not (self._in_full or compares):
            return
        try:
            with unseen():
                if self._in_full and len(self._rows) < _MOST_ROWS:
                    self._rows += [{"step": self._step, "input": name} | _described(each) for name, each in named]
                if compares:
                    self._compare([each for _, each in named])
        except Exception:  # noqa: BLE001 - whatever a tensor of somebody's class raises; the recording goes on
            self._differ, self._rows = True, []

    def evaluated(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A forward pass without gradients begins."""
        first = next(_tensors(_arguments(args, kwargs)), None)
        self._now += _samples(first[1]) if first is not None else 0

    def _compare(self, tensors: list[Tensor]) -> None:
        """Ask for a number of each tensor of a batch, to be compared with those of the step before."""
        address, self._samples = address_of(tensors[0]), _samples(tensors[0])
        self._moves |= self._address not in (0, address)
        self._address = address
        self._later.ask([_mark(each) for each in tensors], self._answered)

    def _answered(self, numbers: list[float]) -> None:
        marks = tuple(numbers)
        self._differ |= not all(map(math.isfinite, marks)) or (self._compared > 0 and marks != self._marks)
        self._marks, self._compared = marks, self._compared + 1

    def alarm(self, *, loss_is_finite: bool) -> None:
        """The loss or the gradients of this step are not finite: what its batch holds that no loss can bear.

        On a GPU a batch is not waited for where the loss is finite: a scaler that looks for its scale skips steps, too.
        """
        for name, reference in self._held:
            tensor = reference()
            own, row = readable(tensor.detach()) if tensor is not None else None, dict[str, Any]()
            if own is None or len(self._broken) >= _MOST_BROKEN or (loss_is_finite and not own.is_cpu):
                continue
            with unseen(), contextlib.suppress(Exception):  # as in `given`
                row = _broken(own)
                if row and "ignored" not in row:
                    row["format"] = _format_of(own)
            if row:
                self._broken.append({"step": self._step, "input": name, "numbers": own.numel()} | row)

    def facts(self) -> dict[str, list[dict[str, Any]]]:
        """`batches`, `broken_batches` and `repeated_batch`, see docs/run-file.md."""
        repeated: list[dict[str, Any]] = []
        if self._compared >= _COMPARED and not self._differ:
            sizes = {"samples": self._samples, "evaluated": max(self._most, self._now)}
            repeated = [{"steps": self._compared, **sizes, "moves": self._moves}]
        return {"batches": self._rows, "broken_batches": self._broken, "repeated_batch": repeated}


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Named:
    return itertools.chain(((str(place), each) for place, each in enumerate(args)), kwargs.items())


def _tensors(named: Named) -> Iterator[tuple[str, Tensor]]:
    """At most _MOST_TENSORS tensors of data, each with its place among the arguments: '0', '1.mask', 'labels'."""
    return itertools.islice(_found(named), _MOST_TENSORS)


def _found(named: Named, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    for name, value in named:
        if isinstance(value, Tensor):
            is_data = not value.requires_grad and value.dtype is not torch.bool and value.numel() > 0
            if is_data and readable(value) is not None:
                yield name, value
        elif depth < _DEEPEST and isinstance(value, Mapping):
            yield from _found(((f"{name}.{key}", each) for key, each in value.items()), depth + 1)
        elif depth < _DEEPEST and isinstance(value, list | tuple):
            yield from _found(((f"{name}.{place}", each) for place, each in enumerate(value)), depth + 1)


def _held(tensor: Tensor) -> Callable[[], Tensor | None]:
    """A function that returns a tensor, if it still lives; a small one does, to the end of the step."""
    return (lambda: tensor) if tensor.numel() * tensor.element_size() <= _SMALL_BYTES else weakref.ref(tensor)


def _samples(tensor: Tensor) -> int:
    return len(tensor) if tensor.dim() else 0


def _mark(tensor: Tensor) -> Tensor:
    """One number of at most _MARKED elements, another one where these are others or stand elsewhere."""
    own = readable(tensor.detach())
    flat = dense(tensor if own is None else own)
    chosen = flat[:: -(-flat.numel() // _MARKED) | 1].float()  # odd, so that not one column alone is looked at
    return torch.dot(chosen, torch.arange(1, len(chosen) + 1, dtype=torch.float32, device=chosen.device))


def _described(tensor: Tensor) -> dict[str, Any]:
    """The size of a batch and whether its samples are all alike."""
    own = readable(tensor.detach())
    if own is None or not own.dim():
        return {"samples": 0, "numbers": 0, "alike": False, "short": False, "holes": False}
    table = sampled_table(own, _SAMPLES, _NUMBERS)
    alike = bool((table == table[:1]).all())
    return {
        "samples": len(own),
        "numbers": own[0].numel(),
        "alike": alike,
        "short": alike and _is_short(table[0]),
        "holes": "nan" in _broken(table),
    }


def _is_short(numbers: Tensor) -> bool:
    """Whether numbers have no more digits than 16 bits."""
    if not numbers.is_floating_point():
        return True
    return any(bool((numbers.to(each).to(numbers.dtype) == numbers).all()) for each in (torch.bfloat16, torch.float16))


def _format_of(tensor: Tensor) -> str:
    """The format of 16 bits whose numbers all finite ones of a tensor are; '' without one or without numbers.

    Whole numbers are also numbers of a short format in which they were never held. That counts where Inf is among
    them, which a cast makes; NaN is made by computing, which leaves fractions.
    """
    held = dtype_name(tensor.dtype)
    if held in ("fp16", "bf16"):
        return held
    known = tensor[tensor.isfinite() & (tensor != 0)]
    if not len(known) or (not bool((tensor == math.inf).any()) and bool((known == known.round()).all())):
        return ""
    short = ((dtype_name(each), each) for each in (torch.float16, torch.bfloat16))
    return next((name for name, each in short if bool((known.to(each).to(known.dtype) == known).all())), "")


def _broken(tensor: Tensor) -> dict[str, Any]:
    """How many numbers are NaN and Inf, or how many classes there are where all are to be ignored; {} of a sound one.

    A mask holds -Inf, which is left alone.
    """
    if tensor.is_floating_point():
        nan, infinite = int(tensor.isnan().sum()), int((tensor == math.inf).sum())
        return {"nan": nan, "infinite": infinite} if nan or infinite else {}
    return {"ignored": tensor.numel()} if bool((tensor == _IGNORED).all()) else {}
