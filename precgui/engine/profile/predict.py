"""The ledger of a step before it is run: from shapes alone, or from two steps with a small part of the batch."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine.backend_flags import restored
from precgui.engine.errors import EngineError
from precgui.engine.memory import MemoryEvents, workspace_bytes
from precgui.engine.profile.account import StepPeak, ledger, peak, presence
from precgui.engine.profile.measure import measured_ledger
from precgui.engine.profile.one_step import StepParts, build_step, step, tracked
from precgui.engine.profile.tracker import TensorShape, Trace, TracedOperation
from precgui.engine.torch_private import fake_shape_errors, tree_leaves, tree_map_only
from precgui.planner.ledger import PARTS, Ledger
from precgui.sentences import L_, Sentence, first_line, message_of, together

FROM_SHAPES = L_("predicted from shapes")
_PROBE_S = 4.0  # kernels are tried for this long at most
_MOST_PROBED = 64
_BOUND = 5  # a kernel's own buffers are taken to be at most this many times its operands and results
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class NotPredictableError(RuntimeError):
    """The step cannot be gone through on shapes alone; the message says why."""


def predicted_ledger(config: RunConfig) -> Ledger:
    """The ledger of the second step of a run of `config`, without its batch ever being computed where that is possible.

    Where results depend on the numbers (detection), where kernels are chosen by what they are given (recurrent layers),
    and where operands are rounded by precgui (emulation), two real steps on a part of the batch are measured
    and carried on in a straight line. Raises EngineError for faults that the user can correct, and for a model that
    takes no step.
    """
    with restored():
        devices.pin_threads(config.threads)  # convolutions take buffers for each thread
        try:
            return _predicted(config)
        except (RuntimeError, ValueError) as error:
            raise EngineError(
                Sentence(
                    "the model takes no step as the config has it: {kind}: {error}",
                    kind=type(error).__name__,
                    error=first_line(error),
                )
            ) from error


def _predicted(config: RunConfig) -> Ledger:
    try:
        return _from_shapes(config)
    except NotPredictableError as reason:
        return _from_small_steps(config, message_of(reason))


def _from_shapes(config: RunConfig) -> Ledger:
    parts = build_step(config, fake=True)
    if parts.precision.labels:
        raise NotPredictableError(
            Sentence("the arithmetic of {precision} is emulated on this device", precision=config.precision)
        )
    if any(isinstance(module, nn.RNNBase) for module in parts.model.modules()):
        raise NotPredictableError(L_("recurrent layers choose their kernel by the device"))
    trace = _fake_trace(parts)
    device = devices.choose(config.device)
    scratch, complete = kernel_buffers(trace) if device.type == "cpu" else ({}, True)
    notes = [] if complete else [L_("not all kernels were tried: their buffers may be larger")]
    if config.train.compile:
        notes.append(L_("as without torch.compile, which fuses operations and keeps less"))
    best, fixed = peak(trace, scratch), workspace_bytes(device)
    most = StepPeak(best.total_bytes + fixed, best.place, best.scratch_bytes + fixed)
    return ledger(trace, most, FROM_SHAPES, notes)


def _fake_trace(parts: StepParts) -> Trace:
    try:
        with parts.fake:
            step(parts)  # makes the optimizer's state
            with tracked(parts, keep_operations=True) as tracker:
                step(parts, tracker)
    except fake_shape_errors() as error:
        raise NotPredictableError(
            Sentence("shapes alone do not tell its results ({error})", error=first_line(error, 160))
        ) from error
    return tracker.trace


def kernel_buffers(trace: Trace) -> tuple[dict[int, int], bool]:
    """Bytes that kernels take for themselves, by operation number, for those that could set the peak; and whether all
    of them were tried. Each different one is run alone, on zeros of the same shapes."""
    line = presence(trace)
    bytes_of = [_operands_bytes(operation) for operation in trace.operations]
    before = [line[operation.place - 1] if operation.place else 0 for operation in trace.operations]
    best, probed, end = max(line, default=0), dict[Any, int](), time.monotonic() + _PROBE_S
    scratch: dict[int, int] = {}
    for number in sorted(range(len(before)), key=lambda i: -(before[i] + _BOUND * bytes_of[i])):
        operation = trace.operations[number]
        if before[number] + _BOUND * bytes_of[number] <= best:
            break
        key = (operation.function, repr(operation.arguments))
        if key not in probed:
            if len(probed) >= _MOST_PROBED or time.monotonic() > end:
                return scratch, False
            probed[key] = _own_bytes(operation)
        scratch[number] = probed[key]
        best = max(best, before[number] + probed[key])
    return scratch, True


def _operands_bytes(operation: TracedOperation) -> int:
    leaves = tree_leaves(operation.arguments, is_leaf=lambda leaf: isinstance(leaf, TensorShape))
    return sum(leaf.size_bytes for leaf in leaves if isinstance(leaf, TensorShape))


def _own_bytes(operation: TracedOperation) -> int:
    """The peak of the operation alone beyond what it returns; 0 where it cannot be tried."""
    args, kwargs = tree_map_only(
        TensorShape, _zeros, operation.arguments, is_leaf=lambda leaf: isinstance(leaf, TensorShape)
    )
    try:
        with torch.no_grad():
            operation.function(*args, **kwargs)  # the first call of a kernel also takes what stays
            events = MemoryEvents()
            events.start()
            try:
                out = operation.function(*args, **kwargs)
            finally:
                most = events.stop()
    except (RuntimeError, IndexError, TypeError, ValueError):
        return 0
    operands = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
    results = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
               for t in tree_leaves(out) if isinstance(t, Tensor)}  # fmt: skip
    return max(0, (most or 0) - sum(size for place, size in results.items() if place not in operands))


def _zeros(shape: TensorShape) -> Tensor:
    created = torch.empty_strided(shape.shape, shape.stride, dtype=shape.dtype)
    return created.zero_()


def _from_small_steps(config: RunConfig, reason: str) -> Ledger:
    whole = config.data.batch_size
    sizes = sorted({max(1, whole // 4), max(2, whole // 2)})
    results = [measured_ledger(with_batch(config, size)) for size in sizes]
    parts = {name: _carried_on(sizes, [f.parts[name] for f in results], whole) for name in PARTS}
    # The allocator reserves by blocks of 2 and 20 MiB: this grows by steps, not with the batch.
    parts["fragmentation"] = max(each.parts["fragmentation"] for each in results)
    text = Sentence(
        "predicted from steps with {sizes} of {batch} samples",
        sizes=together(*map(str, sizes), between=" and "),
        batch=whole,
    )
    last = results[-1]
    return Ledger(parts, sum(parts.values()), last.phase, text, last.owners, (), (), (reason,))


def _carried_on(sizes: list[int], values: list[int], whole: int) -> int:
    if len(sizes) == 1 or sizes[0] == whole:
        return values[-1]
    slope = (values[1] - values[0]) / (sizes[1] - sizes[0])
    return max(0, round(values[1] + slope * (whole - sizes[1])))


def with_batch(config: RunConfig, size: int) -> RunConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"batch_size": size})})
