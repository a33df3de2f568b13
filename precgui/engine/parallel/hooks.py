"""Communication hooks of DDP: gradients summed in FP32, FP16, BF16, 8 bits or fewer, or by PowerSGD; all are measured.

A hook takes a bucket of gradients and gives the mean over the ranks. Bytes are those that one rank sends, by the
algorithm of the collective: 2 (W - 1) / W times the bucket for an all-reduce as a ring (Patarasuk and Yuan 2009),
(W - 1) / W for an all-to-all, for an all-gather, and for a reduce-scatter but with gloo, which makes it an all-reduce.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from precgui.config.parallel import ALLREDUCED, POWERSGD, ParallelConfig
from precgui.engine.parallel.codes import BlockCodec

Reduced = torch.futures.Future[Tensor]
WARM_UP = 10  # steps that PowerSGD sends whole gradients, as its authors advise

_ALL_REDUCE: Any = default_hooks.allreduce_hook
_POWER_SGD: Any = powerSGD_hook.powerSGD_hook
_HALF: dict[str, Any] = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class GradientBucket(Protocol):
    """The part of `torch.distributed.GradBucket` that hooks use."""

    def buffer(self) -> Tensor: ...
    def index(self) -> int: ...


class GradientTraffic:
    """Counts of one step of one rank: bytes, seconds of waiting, squared error against the FP32 sum."""

    def __init__(self) -> None:
        self._hook_failed = False
        self._reducing: list[Reduced] = []
        self.begin(measured=False)

    def begin(self, *, measured: bool) -> None:
        """A step begins; `measured`: its gradients are compared with their FP32 sum."""
        self.measured = measured
        self.sent_bytes = 0.0
        self.wait_s = 0.0
        self._error = self._norm = 0.0
        self._last_hook_s = math.nan
        self._reducing.clear()

    def all_reduced(self, size_bytes: float) -> None:
        world = dist.get_world_size()
        self.sent_bytes += 2 * (world - 1) / world * size_bytes

    def gathered(self, size_bytes: float) -> None:
        """An all-gather to that many bytes."""
        world = dist.get_world_size()
        self.sent_bytes += (world - 1) / world * size_bytes

    def scattered(self, size_bytes: float, *, by_all_reduce: bool) -> None:
        """A reduce-scatter of that many bytes, which gloo does as an all-reduce."""
        (self.all_reduced if by_all_reduce else self.gathered)(size_bytes)

    def hook_left(self, reducing: Reduced) -> None:
        """A hook returns its result, which may still be on its way."""
        self._reducing.append(reducing)
        self._last_hook_s = time.perf_counter()

    def hook_failed(self) -> None:
        """The exchange inside of a hook has raised."""
        self._hook_failed = True

    @property
    def has_failed(self) -> bool:
        """Whether an exchange of this step has failed, in a hook or afterwards."""
        return self._hook_failed or any(_is_failed(future) for future in self._reducing)

    def backward_ended(self) -> None:
        """All reduced gradients are there: what has passed since the last hook was spent waiting for them."""
        if not math.isnan(self._last_hook_s):
            self.wait_s += time.perf_counter() - self._last_hook_s

    def compare(self, reduced: Tensor, exact: Tensor) -> None:
        """Adds the squared norms of a bucket; both are the mean over the ranks."""
        self._error += float((reduced.double() - exact.double()).square().sum())
        self._norm += float(exact.double().square().sum())

    @property
    def error(self) -> float:
        """L2 norm of the error of the reduced gradient over that of the gradient; NaN where not measured."""
        return math.sqrt(self._error / self._norm) if self.measured and self._norm > 0 else math.nan


class GradientHook:
    """Base class: measures; subclasses reduce."""

    def __init__(self, traffic: GradientTraffic) -> None:
        self.traffic = traffic

    def __call__(self, bucket: GradientBucket) -> Reduced:
        try:
            future = self._measured(bucket)
        except RuntimeError:
            self.traffic.hook_failed()
            raise
        self.traffic.hook_left(future)
        return future

    def _measured(self, bucket: GradientBucket) -> Reduced:
        traffic, exact = self.traffic, None
        is_exact = self.is_fp32_sum(bucket.buffer().dtype)
        if traffic.measured and not is_exact:
            exact = bucket.buffer().float() / dist.get_world_size()
            dist.all_reduce(exact)
        future = self.reduce(bucket)
        if traffic.measured:
            future = future.then(lambda done: self._compared(done, exact))
        return future

    def is_fp32_sum(self, stored: torch.dtype) -> bool:
        """Whether the sum of gradients stored so is the one in FP32, without an error to measure."""
        return False

    def reduce(self, bucket: GradientBucket) -> Reduced:
        """The mean of the bucket over the ranks, in its dtype."""
        raise NotImplementedError

    def _compared(self, done: Reduced, exact: Tensor | None) -> Tensor:
        reduced = done.value()
        self.traffic.compare(reduced, reduced if exact is None else exact)
        return reduced


class AllReduceHook(GradientHook):
    """All-reduce in the dtype of the gradients."""

    def is_fp32_sum(self, stored: torch.dtype) -> bool:
        return stored is torch.float32

    def reduce(self, bucket: GradientBucket) -> Reduced:
        buffer = bucket.buffer()
        self.traffic.all_reduced(buffer.nbytes)
        return _ALL_REDUCE(dist.group.WORLD, bucket)  # type: ignore[no-any-return]


class AllReducedAs(GradientHook):
    """All-reduce in one of three dtypes; those of 16 bits by torch's own hooks."""

    def __init__(self, traffic: GradientTraffic, name: str) -> None:
        super().__init__(traffic)
        self._name, self._dtype = name, _DTYPES[name]

    def is_fp32_sum(self, stored: torch.dtype) -> bool:
        return stored is self._dtype is torch.float32

    def reduce(self, bucket: GradientBucket) -> Reduced:
        buffer = bucket.buffer()
        self.traffic.all_reduced(buffer.numel() * self._dtype.itemsize)
        if hook := _HALF.get(self._name):
            return hook(dist.group.WORLD, bucket)  # type: ignore[no-any-return]
        wide = buffer.float().div_(dist.get_world_size())
        begin = time.perf_counter()
        dist.all_reduce(wide)
        self.traffic.wait_s += time.perf_counter() - begin
        return _finished(buffer.copy_(wide))


class CodedSum(GradientHook):
    """Codes of 8 bits or fewer: all-to-all, sum in FP32, codes again, all-gather.

    2 (W - 1) / W bytes a value of 8 bits on any number of ranks, where gathering all codes would take W - 1. Every
    rank decodes the same bytes, so that all have the same gradients to the last bit. With error feedback a rank adds
    what rounding took from its bucket, and from its part of the sum, to those of the next step (Karimireddy et al.
    2019); `scale` gives the loss scale, in whose units the residuals are kept.
    """

    def __init__(self, traffic: GradientTraffic, parallel: ParallelConfig, scale: Callable[[], float]) -> None:
        super().__init__(traffic)
        self._codec = BlockCodec(parallel.gradient_format, parallel.block)
        self._feedback, self._scale = parallel.error_feedback, scale
        self._residuals: dict[tuple[int, str], tuple[Tensor, float]] = {}

    def reduce(self, bucket: GradientBucket) -> Reduced:
        buffer, codec, world = bucket.buffer(), self._codec, dist.get_world_size()
        size = codec.padded_size(buffer.numel(), world)
        values = torch.zeros(size, device=buffer.device)
        values[: buffer.numel()] = buffer
        own = self._encoded(values.view(world, -1), (bucket.index(), "bucket"))
        received = torch.empty_like(own)
        begin = time.perf_counter()
        dist.all_to_all_single(received, own)
        waited = time.perf_counter() - begin
        mean = codec.decode(received).sum(0, keepdim=True).div_(world)
        part = self._encoded(mean, (bucket.index(), "sum"))
        parts = torch.empty((world, part.shape[1]), dtype=torch.uint8, device=part.device)
        begin = time.perf_counter()
        dist.all_gather_into_tensor(parts, part)
        self.traffic.wait_s += waited + time.perf_counter() - begin
        self.traffic.sent_bytes += 2 * (world - 1) * part.nbytes
        buffer.copy_(codec.decode(parts).view(-1)[: buffer.numel()])
        return _finished(buffer)

    def _encoded(self, values: Tensor, place: tuple[int, str]) -> Tensor:
        if not self._feedback:
            return self._codec.encode(values)
        scale = self._scale()
        residual, unit = self._residuals.get(place, (values.new_zeros(()), scale))
        if residual.shape in (values.shape, ()):  # DDP cuts its buckets anew after the first step
            values = values + residual * (scale / unit)
        message = self._codec.encode(values)
        residual = (values - self._codec.decode(message)).nan_to_num_(0.0, 0.0, 0.0)  # of a step that is skipped
        self._residuals[place] = residual, scale
        return message


class PowerSgd(GradientHook):
    """Low-rank sums by torch's own hook, with error feedback (Vogels et al. 2019)."""

    def __init__(self, traffic: GradientTraffic, rank: int) -> None:
        super().__init__(traffic)
        self._state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=rank, start_powerSGD_iter=WARM_UP
        )

    def reduce(self, bucket: GradientBucket) -> Reduced:
        before = self._state.total_numel_after_compression
        buffer = bucket.buffer()
        whole = buffer.nbytes
        future: Reduced = _POWER_SGD(self._state, bucket)
        compressed = self._state.total_numel_after_compression - before
        self.traffic.all_reduced(compressed * buffer.element_size() if compressed else whole)
        return future


def make_hook(parallel: ParallelConfig, traffic: GradientTraffic, scale: Callable[[], float]) -> GradientHook:
    """The hook of the configured format."""
    name = parallel.gradient_format
    if name == "auto":
        return AllReduceHook(traffic)
    if name in ALLREDUCED:
        return AllReducedAs(traffic, name)
    if match := POWERSGD.fullmatch(name):
        return PowerSgd(traffic, int(match[1]))
    return CodedSum(traffic, parallel, scale)


def _is_failed(future: Reduced) -> bool:
    if not future.done():
        return False
    try:
        future.value()
    except RuntimeError:
        return True
    return False


def _finished(value: Tensor) -> Reduced:
    future: Reduced = torch.futures.Future()
    future.set_result(value)
    return future
