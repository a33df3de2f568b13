"""Operations on the pretended CUDA device, computed by the CPU in the same memory.

`install()` puts a function of Python in the place of each of torch's CUDA kernels that computes. What is left of
torch's own code is all that surrounds the kernels: autograd with a thread for each device, autocast, the gradient
scaler, the caching allocator, and copies between devices, which ask the runtime of C to copy and to wait.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import math
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from precgui.engine.emulation import triton_fp8
from precgui.engine.quantize import triton_blocks, triton_elements
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
from precgui.engine.telemetry import triton_kernels
from precgui.formats.model import BlockFormat

aten = torch.ops.aten
runtime = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])
driver = ctypes.CDLL("libcuda.so.1")
_ON_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

# Kernels that compute nothing: they make tensors, or ask how a tensor lies in memory.
NATIVE = {
    "empty", "empty_strided", "_efficientzerotensor", "set_", "resize_", "record_stream", "_pin_memory", "is_pinned",
    "is_set_to", "_has_same_storage_numel",
}  # fmt: skip
# Kernels that hold the host up until the device is done, because the size of a result, or a number, depends on it.
WAITING = {
    "nonzero", "masked_select", "equal", "bincount", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "repeat_interleave",
}  # fmt: skip
# Kernels that take no operand from the CPU, not even a single number.
STRICT = (
    "cat", "mm", "bmm", "addmm", "baddbmm", "addmv", "convolution", "native_batch_norm", "native_layer_norm", "cudnn",
    "embedding", "gather", "scatter", "nll_loss", "_softmax", "_log_softmax", "index_select", "_scaled_mm", "bucketize",
    "linalg_vector_norm",
)  # fmt: skip
# Operations that launch kernels, although torch registers them for all devices alike.
UNREGISTERED = (
    "aten::copy_", "aten::convolution", "aten::convolution_backward",
    "aten::ldexp.Tensor", "aten::ldexp.out", "aten::ldexp_",
)  # fmt: skip


class Record:
    """Counts since `clear`, of all threads; lines are those of precgui, the innermost first."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._begin = {name: counted(name) for name in ("waits", "uploads", "unpinned", "allocations", "pins")}
        self.waiting: collections.Counter[str] = collections.Counter()
        self.uploading: collections.Counter[str] = collections.Counter()
        self.operations: collections.Counter[str] = collections.Counter()

    def __getattr__(self, name: str) -> int:
        """Waits, uploads, uploads from pageable memory, allocations on the device and of pinned memory."""
        if name.startswith("_"):
            raise AttributeError(name)
        return counted(name) - self._begin[name]


def counted(name: str) -> int:
    """A counter of the runtime, see cuda_runtime.c."""
    return ctypes.c_long.in_dll(runtime, f"pretended_{name}").value


def records(device: int) -> int:
    """How many events were recorded while this device was current."""
    return (ctypes.c_long * 16).in_dll(runtime, "pretended_records")[device]


def touched() -> list[int]:
    """The devices on which something needed a context of this process."""
    touches = (ctypes.c_long * 16).in_dll(runtime, "pretended_touches")
    return [number for number, count in enumerate(touches) if count]


def lost() -> int:
    """Launches so far that nothing has computed: kernels of torch, and of those that were compiled at run time."""
    return counted("launches") + ctypes.c_long.in_dll(driver, "pretended_triton_launches").value


record = Record()
elsewhere: collections.Counter[str] = collections.Counter()  # lines of operations on a device that was not current


class Fault:
    """Raises at one of the operations to come, as their kernels would."""

    def __init__(self) -> None:
        self.operations = 0  # so far
        self.at = -1  # the number of the operation that raises
        self.loses_device = False  # then all later ones raise, too, and what torch asks of the runtime fails

    def plan(self, at: int, *, loses_device: bool) -> None:
        self.operations, self.at, self.loses_device = 0, at, loses_device
        ctypes.c_int.in_dll(runtime, "pretended_error").value = 0

    def meet(self) -> None:
        """Called before each operation."""
        self.operations += 1
        lost = ctypes.c_int.in_dll(runtime, "pretended_error")
        if self.operations == self.at and self.loses_device:
            lost.value = LAUNCH_FAILURE
        elif self.operations == self.at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has no more.")
        if lost.value:
            torch.cuda.check_error(lost.value)


refused: set[torch.dtype] = set()  # types in which the device cannot compute, nor hold a tensor


def _refuse_types(tensors: Iterable[Any]) -> None:
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.is_cuda and tensor.dtype in refused:
            raise RuntimeError(f"the pretended device has no {tensor.dtype}")


LAUNCH_FAILURE = 719  # cudaErrorLaunchFailure
fault = Fault()


class Graph:
    """A pretended CUDA graph: the operations that were captured, each computed when it is replayed."""

    def __init__(self) -> None:
        self.works: list[Callable[[], None]] = []

    def replay(self) -> None:
        runtime.pretended_queue()
        record.operations["graph"] += 1
        for work in self.works:
            work()


capturing: list[Graph] = []  # one at most


@contextlib.contextmanager
def _capture(graph: Graph) -> Iterator[None]:
    """Inside, operations compute nothing; random numbers are drawn by a replay only."""
    random = torch.get_rng_state()
    capturing.append(graph)
    try:
        yield
    finally:
        capturing.clear()
        torch.set_rng_state(random)


def _refuse_in_capture() -> None:
    if capturing:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def counts() -> dict[str, Any]:
    """The counts of `record`, with the lines that made the host wait or upload."""
    names = ("waits", "uploads", "unpinned", "allocations", "pins")
    return {**{name: getattr(record, name) for name in names}, "waiting": record.waiting, "uploading": record.uploading}


def memory_of(tensor: Tensor) -> Tensor:
    """A tensor of the CPU over the memory of one of the device."""
    storage = tensor.untyped_storage()
    if storage.nbytes():
        room = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
        plain = torch.frombuffer(room, dtype=torch.uint8).untyped_storage()
    else:
        plain = torch.empty(0, dtype=torch.uint8).untyped_storage()
    result = torch.empty(0, dtype=tensor.dtype).set_(plain, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_conj():
        result = result.conj()
    return torch._neg_view(result) if tensor.is_neg() else result


def on_device(value: Tensor, device: torch.device) -> Tensor:
    """A new tensor of the device with the numbers of one of the CPU."""
    result = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    if value.numel():
        memory_of(result).copy_(value)
    return result


@functools.cache
def install() -> None:
    """Compute all operations on CUDA tensors of this process from now on.

    LSTM, and attention of which no kernel is asked for, are plain products.
    """
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*(name for name in names if name.startswith("aten::")), *UNREGISTERED]:
            _replace(name)
        _library.impl("cudnn_is_acceptable", lambda tensor: False, "CUDA", allow_override=True)
    torch.cuda.CUDAGraph, torch.cuda.graph = Graph, _capture
    torch.cuda.is_current_stream_capturing = lambda: bool(capturing)
    for allow in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        getattr(torch.backends.cuda, allow)(False)


def install_compiled() -> None:
    """Compute what Triton would compile for precgui: the telemetry of tensors, and rounding."""
    for name, kernel in (("_piece", _piece), ("_alone", _alone), ("_keep", _keep), ("_change", _change)):
        setattr(triton_kernels, name, _Launched(kernel))
    triton_blocks.rounded_blocks = _rounded_blocks
    triton_elements.rounded_elements = _rounded_elements
    triton_elements.round_together = _round_together
    triton_fp8.scaled = _scaled_to_fp8


def _scaled_to_fp8(
    matrix: Tensor, amax: Tensor, largest: float, tiny: float, dtype: torch.dtype, *, straight: bool, turned: bool
) -> tuple[Tensor, ...]:
    check_current([matrix, amax])
    runtime.pretended_queue()
    record.operations["cast to FP8"] += 1
    peak, numbers = memory_of(amax), memory_of(matrix)
    factor = torch.where(peak > 0, largest / peak.clamp_min(tiny), torch.where(peak == 0, 1.0, peak))
    values = (numbers * factor).clamp(-largest, largest).to(dtype)
    results = values if straight else values[:0], values.t().contiguous() if turned else values[:0], factor.reciprocal()
    return tuple(on_device(result, matrix.device) for result in results)


def _rounded_elements(dense: Tensor, fmt: Any, cast_policy: Any, seed: int) -> Tensor:
    check_current([dense])
    runtime.pretended_queue()
    record.operations["element rounding"] += 1
    words = {"rounding": cast_policy.rounding, "overflow": cast_policy.overflow, "seed": seed}
    return on_device(quantize(memory_of(dense), fmt, **words), dense.device)


def _rounded_blocks(tensor: Tensor, chosen: BlockFormat, rule: Any, rounding: Any, seed: int, largest: Any) -> Tensor:
    check_current([tensor])
    runtime.pretended_queue()
    record.operations["block rounding"] += 1
    words = {"rule": rule, "rounding": rounding, "seed": seed, "largest": largest}
    return on_device(quantize_blocks(memory_of(tensor), chosen.name, **words), tensor.device)


def _round_together(sources: Any, targets: Any, fmt: Any, cast_policy: Any, seeds: Any) -> bool:
    check_current([*sources, *targets])
    runtime.pretended_queue()
    record.operations["rounding together"] += 1
    for source, target, seed in zip(sources, targets, seeds, strict=True):
        memory_of(target).copy_(quantize(memory_of(source), fmt, rounding=cast_policy.rounding, seed=seed))
    return True


def check_current(operands: Iterable[Tensor]) -> None:
    current = torch.cuda.current_device()
    for operand in operands:
        if operand.device.index != current:
            raise RuntimeError(f"a kernel with operands of {operand.device} was launched on cuda:{current}")


class _Launched:
    """Computes a kernel of `triton_kernels` by a function, on the device that is current or not at all."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._launch

    def _launch(self, *operands: Any, num_warps: int) -> None:
        check_current(each for each in operands if isinstance(each, Tensor))
        runtime.pretended_queue()
        record.operations["telemetry kernel"] += 1
        self._function(*(memory_of(each) if isinstance(each, Tensor) else each for each in operands))


def _piece(pieces: Tensor, places: Tensor, rows: Tensor, factor: float, kind: str, size: int, block: int) -> None:
    for row in pieces[:, 0].unique().tolist():
        _measure_row(_numbers(places[row, :4].tolist(), kind, block)[1] * factor, rows[row].numpy())


def _alone(
    rows: Tensor, address: int, numel: int, stride: int, first: int, row: int, factor: float, kind: str, size: int,
    block: int,
) -> None:  # fmt: skip
    _measure_row(_numbers([address, numel, stride, first], kind, block)[1] * factor, rows[row].numpy())


def _keep(pieces: Tensor, places: Tensor, kept: Tensor, kind: str, size: int, block: int) -> None:
    for row in pieces[:, 0].unique().tolist():
        lanes, values = _numbers(places[row, :4].tolist(), kind, block)
        kept[lanes + int(places[row, 4])] = values


def _change(
    pieces: Tensor, places: Tensor, kept: Tensor, halves: Tensor, rows: Tensor, kind: str, size: int, block: int
) -> None:
    for row in pieces[:, 0].unique().tolist():
        lanes, values = _numbers(places[row, :4].tolist(), kind, block)
        old = kept[lanes + int(places[row, 4])]
        change, into = values - old, rows[row].numpy()
        exponents, binades = (((each.view(torch.int32) & 0x7FFFFFFF) >> 23).numpy() for each in (change, old))
        moved = (change.view(torch.int32) & 0x7FFFFFFF).numpy() != 0
        into[9] += moved.sum()
        for place, (low, down) in enumerate(halves.tolist()):
            into[10 + place] += (moved & (exponents < np.maximum(binades - down, low))).sum()
        _measure_row(change, into)


def _numbers(place: list[int], kind: str, block: int) -> tuple[Tensor, Tensor]:
    """Where each sampled number of a tensor lies among the places for them, and these numbers in FP32.

    `place` is its address, size, stride and first block.
    """
    address, size, stride, first = place
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    room = (ctypes.c_byte * (size * dtype.itemsize)).from_address(address)
    values = torch.frombuffer(room, dtype=dtype).float()
    lane = torch.arange(-(-size // (stride * block)) * block)
    offset = ((lane // block) * stride + first) * block + lane % block
    return lane[offset < size], values[offset[offset < size]]


def _measure_row(tensor: Tensor, row: Any) -> None:
    values = tensor.numpy()
    magnitude = values.view(np.int32) & 0x7FFFFFFF
    finite, bad, infinite = magnitude < 0x7F800000, magnitude > 0x7F800000, magnitude == 0x7F800000
    kept = np.where(finite, values, 0).astype(np.float64)
    row[0] = max(row[0], np.where(finite, magnitude, 0).max(initial=0))
    row[1] = min(row[1], np.where(magnitude > 0, magnitude - 1, 0x7F800000).min(initial=0x7F800000))
    positive, negative = infinite & (values > 0), infinite & (values < 0)
    row[2:4] += [kept.sum(), (kept * kept).sum()]
    row[4:9] += [(magnitude == 0).sum(), bad.sum(), positive.sum(), negative.sum(), len(values)]
    row[15:] += np.bincount(magnitude >> 23, minlength=256)


_library = torch.library.Library("aten", "IMPL")  # torch forgets the functions when it goes


def _replace(name: str) -> None:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    operation = getattr(getattr(aten, packet), overload or "default", None)
    if operation is None or packet in NATIVE or _is_view(operation):
        return
    if packet in ("copy_", "_local_scalar_dense"):
        function = _watched(operation, torch.library.get_kernel(name, "CUDA"))
    else:
        function = _computed(operation)
    _library.impl(operation, function, "CUDA", allow_override=True)


def _is_view(operation: Any) -> bool:
    infos = [result.alias_info for result in operation._schema.returns]
    return any(info is not None and not info.is_write for info in infos)


def _watched(operation: Any, kernel: Any) -> Callable[..., Any]:
    """torch's own kernel, which copies and waits, with a note of the lines that asked for it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        operands = [value for value in args if isinstance(value, Tensor)]
        _refuse_types(operands)
        if all(value.is_cuda for value in operands) and len(operands) > 1 and operands[0].device == operands[1].device:
            record.operations[operation.overloadpacket.__name__] += 1

            def copy() -> None:
                runtime.pretended_queue()
                memory_of(operands[0]).copy_(memory_of(operands[1]))

            if capturing:
                capturing[0].works.append(copy)
            else:
                copy()
            return operands[0]
        _refuse_in_capture()
        waits, uploads = counted("waits"), counted("uploads")
        result = kernel.call_boxed(_ON_CUDA, *args, **kwargs)
        _note(record.waiting, counted("waits") - waits)
        _note(record.uploading, counted("uploads") - uploads)
        return result

    return call


def _note(lines: collections.Counter[str], times: int) -> None:
    if times:
        lines[_lines()] += times


def _lines() -> str:
    frames = [frame for frame in traceback.extract_stack(limit=80) if "/precgui/" in frame.filename]
    own = [f"{frame.filename.rpartition('/precgui/')[2]}:{frame.lineno}" for frame in reversed(frames[-3:])]
    return " < ".join(own) or "torch"


def _computed(operation: Any) -> Callable[..., Any]:
    name = operation.overloadpacket.__name__
    outs = [argument.name for argument in operation._schema.arguments if argument.is_out]

    substitute = SUBSTITUTES.get(name)
    tensors = [place for place, argument in enumerate(operation._schema.arguments) if str(argument.type) == "Tensor"]

    def call(*args: Any, **kwargs: Any) -> Any:
        operands = [value for value in _each((*args, *kwargs.values())) if isinstance(value, Tensor)]
        numbers = any(isinstance(args[place], (int, float, complex)) for place in tensors if place < len(args))
        compute = substitute or (operation.overloadpacket if numbers else operation)  # 2 in `x * 2` comes as a number
        if name.startswith("_foreach") and len({operand.device for operand in operands}) > 1:
            return _one_by_one(call, args, kwargs)
        place = _place(operation, name, operands, kwargs)
        if place.index != runtime.pretended_current():
            elsewhere[_lines()] += 1
        fault.meet()
        record.operations[name] += 1
        if capturing:
            return _captured(name, compute, args, kwargs, outs, place)
        runtime.pretended_queue()
        _wait_as(name, args)
        result = _result(compute, args, kwargs, outs, place)
        if refused:
            _refuse_types(_each([*operands, result]))
        return result

    return call


def _captured(name: str, compute: Any, args: Any, kwargs: Any, outs: list[str], place: torch.device) -> Any:
    """New tensors for the results, whose numbers come with a replay; operands stay as they are."""
    if _waits_of(name, args):
        _refuse_in_capture()
    results = _result(compute, args, kwargs, outs, place, memory=lambda tensor: memory_of(tensor).clone())

    def again() -> None:
        runtime.pretended_queue()
        for old, new in zip(_each([results]), _each([_result(compute, args, kwargs, outs, place)]), strict=True):
            if isinstance(old, Tensor) and old is not new:
                memory_of(old).copy_(memory_of(new))

    capturing[0].works.append(again)
    return results


def _one_by_one(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """An operation on lists for each of their elements, as torch does where they are not on one device."""
    size = len(args[0])
    results = []
    for n in range(size):
        own = [[value[n]] if isinstance(value, (list, tuple)) and len(value) == size else value for value in args]
        results.append(call(*own, **kwargs))
    return None if results[0] is None else [value for result in results for value in result]


def _each(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _each(value)
        else:
            yield value


def _result(
    compute: Any, args: Any, kwargs: Any, outs: list[str], place: torch.device,
    memory: Callable[[Tensor], Tensor] = memory_of,
) -> Any:  # fmt: skip
    """What `compute` returns for the memory of the operands: the operands themselves, or new tensors of the device."""
    known: dict[int, tuple[Tensor, Tensor]] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_cuda:
            result = memory(value)
            known[id(result)] = result, value
            return result
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value]
        if isinstance(value, torch.Generator):
            return None  # that of the CPU, from which a run on the CPU draws, too
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def back(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(back(each) for each in value)
        if not isinstance(value, Tensor):
            return value
        return known[id(value)][1] if id(value) in known else on_device(value, place)

    single = [name for name in outs if isinstance(kwargs.get(name), Tensor)]  # lists have the sizes of the results
    words = {key: plain(value) for key, value in kwargs.items() if key not in single and key != "pin_memory"}
    fresh = {name: torch.empty(0, dtype=kwargs[name].dtype) for name in single}
    result = compute(*[plain(value) for value in args], **words, **fresh)
    for name, value in fresh.items():
        own = kwargs[name]
        if own.shape != value.shape:
            own.resize_(value.shape)
        memory(own).copy_(value)
        known[id(value)] = value, own
    return back(result)


def _place(operation: Any, name: str, operands: list[Tensor], kwargs: Any) -> torch.device:
    """The device of an operation. Raises as torch does where its operands are on two."""
    devices = {operand.device for operand in operands if operand.is_cuda}
    strays = [operand for operand in operands if not operand.is_cuda and operand.device.type != "meta"]
    if name.startswith(("index_put", "_index_put", "index")) and name not in ("index_select", "index_add"):
        strays = []  # indices and single numbers may be in main memory, torch uploads them
    if len(devices) > 1 or any(stray.dim() or name.startswith(STRICT) for stray in strays):
        both = ", ".join(sorted({str(operand.device) for operand in operands}))
        raise RuntimeError(f"Expected all tensors to be on the same device, but {operation} was given {both}")
    generator = kwargs.get("generator")
    asked = kwargs.get("device")
    place = next(iter(devices), None) or torch.device("cuda", torch.cuda.current_device())
    if not devices and asked is not None and torch.device(asked).index is not None:
        place = torch.device(asked)
    if isinstance(generator, torch.Generator) and generator.device.type != "cuda":
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{generator.device.type}'")
    return place


def _waits_of(name: str, args: Any) -> int:
    waits = int(name in WAITING)
    if name in ("index", "index_put_", "_index_put_impl_"):
        masks = (torch.bool, torch.uint8)
        waits += sum(isinstance(index, Tensor) and index.dtype in masks for index in args[1])
    return waits


def _wait_as(name: str, args: Any) -> None:
    waits = _waits_of(name, args)
    for _ in range(waits):
        runtime.pretended_wait()
    _note(record.waiting, waits)


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
    kept = aten.native_batch_norm(x, weight, bias, *rest)
    return *kept, torch.empty(0, dtype=torch.uint8)


def _batch_norm_backward(
    x: Tensor, grad: Tensor, weight: Tensor, mean: Any, var: Any, batch_mean: Any, batch_std: Any,
    eps: float, _: Any,
) -> Any:  # fmt: skip
    running = (mean, var, batch_mean, batch_std)
    return aten.native_batch_norm_backward(grad, x, weight, *running, True, eps, [True, True, True])


def _histogram(values: Tensor, *args: Any) -> Tensor:
    return aten.histc(values.double(), *args).to(values.dtype)


def _lstm_cell(from_input: Tensor, from_hidden: Tensor, cell: Tensor, *biases: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, cell, and the gates after their functions: input, forget, new cell, output."""
    gates = from_input + from_hidden
    for bias in biases:
        gates = gates if bias is None else gates + bias
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * cell + i * g
    return o * new.tanh(), new, torch.cat((i, f, g, o), 1)


def _lstm_cell_backward(grad_out: Any, grad_cell: Any, cell: Tensor, new: Tensor, gates: Tensor, has_bias: bool) -> Any:
    i, f, g, o = gates.chunk(4, 1)
    grad_out = torch.zeros_like(new) if grad_out is None else grad_out
    bent = new.tanh()
    through = grad_out * o * (1 - bent * bent) + (0 if grad_cell is None else grad_cell)
    parts = (
        through * g * i * (1 - i), through * cell * f * (1 - f), through * i * (1 - g * g),
        grad_out * bent * o * (1 - o),
    )  # fmt: skip
    grad_gates = torch.cat(parts, 1)
    return grad_gates, through * f, grad_gates.sum(0) if has_bias else None


def _scaled_product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Computes `_scaled_mm`. Raises RuntimeError for what cuBLASLt refuses."""
    if scale_a.dtype != torch.float32 or scale_b.dtype != torch.float32:
        raise RuntimeError("_scaled_mm: scales are float32")
    if a.stride(1) != 1 or b.stride(0) != 1:
        raise RuntimeError(f"_scaled_mm: a is row-major, b column-major; the strides are {a.stride()} and {b.stride()}")
    if math.gcd(a.shape[1], b.shape[1]) % 16:
        raise RuntimeError(f"_scaled_mm: trailing dimensions of {a.shape} and {b.shape} are no multiples of 16")
    if a.dtype == b.dtype == torch.float8_e5m2:
        raise RuntimeError("_scaled_mm: two float8_e5m2 matrices are not supported")
    return aten._scaled_mm(a, b, scale_a, scale_b, *args, **kwargs)


def _flash_attention(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *_: Any, scale: Any = None
) -> Any:
    """Output, logarithms of sums, and what the kernel returns beside them. Raises RuntimeError as it does for FP64."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    made = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout_p, is_causal, scale=scale)
    state = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return *made, None, None, q.shape[2], k.shape[2], *state, q.new_empty(0)


def _flash_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, *rest: Any, scale: Any = None
) -> Any:
    words = {"dropout_p": rest[4], "is_causal": rest[5], "scale": scale}
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, sums, **words)


def _flat_weights(weights: Any, *_: Any) -> Tensor:
    return torch.cat([weight.reshape(-1) for weight in weights])


# Kernels that the CPU has not, or not so.
SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "_cudnn_rnn_flatten_weight": _flat_weights,
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    "histc": _histogram,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_scaled_mm": _scaled_product,
    "_scaled_dot_product_flash_attention": _flash_attention,
    "_scaled_dot_product_flash_attention_backward": _flash_attention_backward,
}
