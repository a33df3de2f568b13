"""Detection of NaN and Inf: which output of a step is the first that is not finite."""

from __future__ import annotations

import math
import time
import weakref
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from precgui.engine.compiled_loops import compiled
from precgui.engine.telemetry.cpu_kernels import FASTMATH, carray
from precgui.engine.telemetry.llvm_intrinsics import LINE, as_floats, as_longs, as_words, prefetch
from precgui.engine.telemetry.readable import dense, floats, readable, unseen

_SPAN = 512  # numbers that are read while those two spans before them come into the cache
_LIMITS = {  # bytes of a number, and the bits of Inf
    torch.float16: (2, 0x7C00),
    torch.bfloat16: (2, 0x7F80),
    torch.float32: (4, 0x7F800000),
    torch.float64: (8, 0x7FF << 52),
}


_NOTHING: tuple[Any, int] = (lambda: None, 0)  # like a reference to a tensor that no longer exists


class BadOutput(NamedTuple):
    """The first module whose output was not finite, '' for none; why not all modules were checked, '' where all were;
    and the operation that made it so, with its line, '' where these are not known."""

    module: str = ""
    why_not: str = ""
    operation: str = ""
    line: str = ""


class NonFiniteDetector:
    """Detects NaN and Inf in outputs of modules, in the order of the calls of `check`.

    On the CPU a compiled loop reads each output while it is in the cache. Elsewhere the largest magnitudes stay on the
        device until `first_nonfinite` is called.
    """

    OF_STEP: ClassVar[tuple[str, ...]] = ("_names", "_largest", "_first", "_last", "_last_bad", "spent_s")

    def __init__(self) -> None:
        self.begin()
        self._check_one("", torch.ones(3, dtype=torch.float32, device="cpu"))  # loads the loop before it is timed

    def begin(self) -> None:
        """A step begins."""
        self.spent_s = 0.0  # CPU time of the step
        self._last: tuple[Any, int] = _NOTHING
        self._first, self._last_bad = "", False
        self._names: list[str] = []
        self._largest: list[Tensor] = []

    def check(self, name: str, outputs: Any) -> bool:
        """Checks the output of a module. Returns whether it is known to be not finite; on a GPU always False."""
        begin, bad = time.thread_time(), False
        if type(outputs) is Tensor:  # without the search for them, which takes as long as a small tensor
            if outputs.is_floating_point() or outputs.is_complex():
                bad = self._check_one(name, outputs)
        else:
            for path, output in floats(outputs):
                bad = self._check_one(name + path, output) or bad
        self.spent_s += time.thread_time() - begin
        return bad

    def correct(self, name: str) -> None:
        """The first was this one."""
        self._first = name

    def first_of_cpu(self) -> str:
        """The first so far, without waiting for a device."""
        return self._first

    @property
    def is_pending(self) -> bool:
        """Whether `take` is to be called."""
        return bool(self._largest)

    def pending(self) -> Tensor | None:
        """The tensor that `take` needs, where it is still on a device."""
        if not self._largest:
            return None
        device = self._largest[0].device
        return torch.stack([each.to(device) for each in self._largest])

    def take(self, largest: NDArray[Any]) -> None:
        """Takes the values of `pending`, copied from the device."""
        bad = ~np.isfinite(largest)
        if bad.any() and not self._first:
            self._first = self._names[int(bad.argmax())]
        self._names.clear()
        self._largest.clear()

    def first_nonfinite(self) -> str:
        """The first module of the step whose output is not finite, or ''. Waits for the device."""
        pending = self.pending()
        if pending is not None:
            self.take(pending.cpu().double().numpy())
        return self._first

    def _check_one(self, name: str, output: Tensor) -> bool:
        (last, version), now = self._last, _version(output)
        known = last()
        if known is not None and now == version != -1 and (output is known or output._base is known):
            return self._last_bad  # another view of the output checked last, as the outputs of many models are
        self._last, self._last_bad = (weakref.ref(output), now), False
        tensor = output if _is_at_hand(output) else _prepared(output)
        if tensor is None:
            return False
        if tensor.is_cpu:
            self._last_bad = not _is_finite(tensor)
            if self._last_bad and not self._first:
                self._first = name
            return self._last_bad
        with unseen():
            self._largest.append(torch.linalg.vector_norm(tensor, math.inf))
        self._names.append(name)
        return False


def _version(output: Tensor) -> int:
    """How often it was written to, -1 where that is not counted."""
    return -1 if output.is_inference() else output._version


def _is_at_hand(tensor: Tensor) -> bool:
    """Whether its numbers lie side by side in the main memory, in whatever order, as most of them do."""
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and tensor.dtype in _LIMITS
        and tensor.layout is torch.strided
        and (tensor.is_contiguous() or _is_packed(tensor.shape, tensor.stride()))
        and tensor.data_ptr() != 0
    )


@lru_cache(1024)
def _is_packed(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor fills its memory without a gap, as one of which axes were exchanged."""
    place = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != place:
            return False
        place *= size
    return True


def _prepared(output: Tensor) -> Tensor | None:
    """The readable form of any other output, None where there is none."""
    with unseen():
        tensor = readable(output)
        if tensor is None or not tensor.numel():
            return None
        if tensor.dtype not in _LIMITS:
            tensor = tensor.float()
        return dense(tensor) if tensor.is_cpu else tensor


def _is_finite(tensor: Tensor) -> bool:
    """Whether all elements are, of a contiguous tensor in the main memory."""
    width, infinite = _LIMITS[tensor.dtype]
    result: int = largest(tensor.data_ptr(), tensor.numel(), width)
    return result < infinite


@numba.njit(inline="always")
def _most(words: Any, magnitude: Any, address: Any) -> Any:
    """The largest of `words` under the mask `magnitude`, from the last to the first: the end is still in the cache."""
    largest = np.uint64(0)
    for start in range((words.size - 1) // _SPAN * _SPAN, -1, -_SPAN):
        for line in range(0, _SPAN * words.itemsize, LINE):
            prefetch(address + (start - 2 * _SPAN) * words.itemsize + line)
        part = words[start : start + _SPAN]
        most = part.dtype.type(0)
        for i in range(part.size):
            most = max(most, part.dtype.type(part[i] & magnitude))
        largest = max(largest, np.uint64(most))
    return largest


def _largest(address: Any, size: Any, width: Any) -> Any:
    """The largest magnitude of numbers of `width` bytes, as bits: not below those of Inf where one is not finite."""
    if width == 2:
        return _most(carray(as_words(address), (size,)), np.uint16(0x7FFF), address)
    if width == 4:
        return _most(carray(as_floats(address), (size,)).view(np.uint32), np.uint32(0x7FFFFFFF), address)
    return _most(carray(as_longs(address), (size,)), np.uint64(0x7FFFFFFFFFFFFFFF), address)


largest = compiled(_largest, fastmath=FASTMATH)
