"""The only module that uses parts of torch that are not public, each under a name of this package.

Tried with torch 2.9.0, the oldest that pyproject.toml allows, and 2.15.0. `tests/engine/test_torch_private.py` uses
every name against the installed torch, and `tests/test_layers.py` keeps them out of all other modules.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo as disable_dynamo
from torch.nn.attention import _cur_sdpa_kernel_backends as attention_backends
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._python_dispatch import _disable_current_modes as dispatch_modes_disabled
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.flop_counter import flop_registry

__all__ = [
    "BatchNormNd", "ConvNd", "ConvTransposeNd", "DisableTorchFunction", "TorchDispatchMode", "aten_names",
    "attention_backends", "autograd_node", "backward_code", "compile_in_place", "current_stream_number",
    "disable_dynamo",
    "dispatch_mode_at", "dispatch_modes",
    "dispatch_modes_disabled",
    "export_errors", "fake_shape_errors", "fake_tensor_mode", "flop_formula", "foreach_copy_", "foreach_lerp_",
    "foreach_norm",
    "function_modes", "graph_task", "has_avx2", "int_mm", "is_anything_compiled", "is_compiled",
    "is_dispatch_mode_here",
    "is_traceable_wrapper_subclass", "may_be_compiled", "memory_profiler", "named_fused_kernels", "node_number",
    "onednn", "onednn_enabled", "operation_name", "operation_types", "process_group_store", "quantized_operations",
    "recorded_events", "release_unfinished_backward", "scaled_mm",
    "sequence_number", "set_grad_enabled", "tracing_state", "transform_level", "tree_leaves", "tree_map",
    "tree_map_only",
]  # fmt: skip

# Classes of layers. Public are only those of a number of dimensions.
ConvNd = nn.modules.conv._ConvNd
ConvTransposeNd = nn.modules.conv._ConvTransposeNd
BatchNormNd = nn.modules.batchnorm._BatchNorm

# The state of the running thread.
DisableTorchFunction = torch._C.DisableTorchFunction
set_grad_enabled = torch._C._set_grad_enabled  # a context manager is slow in hooks
graph_task = torch._C._current_graph_task_id  # of the backward pass that runs, -1 outside
autograd_node: Any = torch._C._current_autograd_node  # None outside of a backward pass
backward_code = torch.autograd.graph._engine_run_backward.__code__  # of the frame that runs a backward pass
sequence_number: Any = torch._C._autograd._get_sequence_nr  # that the next autograd node gets  # type: ignore[attr-defined]
dispatch_modes = torch._C._len_torch_dispatch_stack  # how many are entered
dispatch_mode_at = torch._C._get_dispatch_stack_at
tracing_state = torch._C._get_tracing_state  # None where torch.jit traces nothing
transform_level = torch._C._functorch.maybe_current_level  # None outside of torch.func transforms
onednn_enabled = torch._C._get_mkldnn_enabled

# Operations.
foreach_norm = torch._foreach_norm
foreach_lerp_ = torch._foreach_lerp_
foreach_copy_ = torch._foreach_copy_
scaled_mm = torch._scaled_mm
int_mm = torch._int_mm
has_avx2 = torch.cpu._is_avx2_supported
operation_types = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def is_dispatch_mode_here(mode: object) -> bool:
    """Whether a dispatch mode is entered in this thread."""
    return any(dispatch_mode_at(place) is mode for place in range(dispatch_modes()))


@functools.cache
def packet_name(func: Any) -> str:
    """The name of an operation that a dispatch mode is told of, with its library, such as `aten.mul_`."""
    return str(func.overloadpacket)


@functools.cache
def operation_name(func: Any) -> str:
    """As `packet_name`, without the library where that is `aten`, such as `mul_`."""
    return packet_name(func).removeprefix("aten.")


@functools.cache
def flop_formula(func: Any) -> Any:
    """torch's count of the FLOPs of an operation that a dispatch mode is told of; None where it has none.

    torch 2.11 has none of attention on the CPU, whose operands are those of the same operation on CUDA.
    """
    packet = func.overloadpacket
    on_cuda = operation_name(func).replace("_flash_attention_for_cpu", "_flash_attention")
    return flop_registry.get(packet) or flop_registry.get(getattr(torch.ops.aten, on_cuda, packet))


def as_list(value: Any) -> list[Any]:
    """The parts of an argument or a result that an operation has as a list, or the only one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def node_number(node: Any) -> int:
    """The sequence number of an autograd node."""
    return int(node._sequence_nr())


def release_unfinished_backward() -> None:
    """Release the autograd nodes that wait in the queue of this thread since a backward pass raised.

    torch keeps them until the thread ends. In the main thread that is after the end of the interpreter, where nodes
    with hooks on their saved tensors (checkpoints, activations off-loaded) crash the process. Later passes leave older
    nodes in the queue, newest first; so this pass goes back through a node of a new thread, whose numbers begin at 0.
    """
    losses: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: losses.append(torch.zeros((), requires_grad=True) * 1))
    thread.start()
    thread.join()
    losses[0].backward()


@contextlib.contextmanager
def onednn(*, allowed: bool) -> Iterator[None]:
    """Inside, oneDNN is allowed or not. torch's own context manager also writes TF32 flags, which warns."""
    before = onednn_enabled()
    torch._C._set_mkldnn_enabled(allowed)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextlib.contextmanager
def cudnn(*, allowed: bool) -> Iterator[None]:
    """Inside, cuDNN is allowed or not. torch's own context manager also reads TF32 flags, which may raise."""
    before = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(allowed)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(before)


def may_be_compiled() -> bool:
    """Whether torch.compile has been imported, which takes seconds."""
    return "torch._dynamo" in sys.modules


def is_anything_compiled() -> bool:
    """Whether torch.compile was called in this process; torch then keeps more than the one backend it begins with."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and len(getattr(frames, "cached_backends", ())) > 1


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile has taken a model, or a module of it."""
    if may_be_compiled() and isinstance(model, torch._dynamo.OptimizedModule):
        return True
    return any(module._compiled_call_impl is not None for module in model.modules())


def compile_in_place(model: nn.Module) -> None:
    """`nn.Module.compile`, also of a model whose `forward` is torch's own, such as `nn.Sequential`.

    torch 2.11 leaves that frame out, and with it all that it calls of torch: without a word, nothing is compiled.
    """
    from torch._dynamo import config, trace_rules

    with config.patch(wrap_top_frame=inspect.ismethod(model.forward) and trace_rules.check(model.forward)):
        model.compile()


class _LegacyProfiler:
    """The profiler of before Kineto, counting memory: the present one writes lines that no setting silences."""

    def is_available(self) -> bool:
        """Whether this torch has it and no profiler is at work."""
        autograd: Any = torch.autograd
        return hasattr(autograd, "_enable_profiler_legacy") and not autograd._profiler_enabled()

    def start(self) -> None:
        from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

        autograd: Any = torch.autograd
        autograd._enable_profiler_legacy(
            ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        )

    def stop(self) -> list[int]:
        """The bytes of each block that was taken (positive) or given back (negative), in their order."""
        autograd: Any = torch.autograd
        recorded = autograd._disable_profiler_legacy()
        return [e.cpu_memory_usage() for thread in recorded for e in thread if e.kind() == "memory_alloc"]


memory_profiler = _LegacyProfiler()


def current_stream_number(device: torch.device) -> int:
    """A number of the stream on which the calling thread queues work for a device; 0 where there is one alone."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


# Modules that take seconds to import, each where it is needed.
def named_fused_kernels() -> Any:
    """Inside, kernels that torch.compile makes for the CPU are events of the profiler, as those for GPUs always are."""
    from torch._inductor import config

    return config.patch({"cpp.enable_kernel_profile": True})


def aten_names() -> frozenset[str]:
    """The names of all operations of ATen without the name space and the overload."""
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    return frozenset(name.partition(".")[0] for space, _, name in names if space in ("aten", "prims"))


def export_errors() -> tuple[type[Exception], ...]:
    """The errors of `torch.export.export` for a model that it cannot follow."""
    from torch._dynamo.exc import TorchDynamoException

    return (
        TorchDynamoException, RuntimeError, ValueError, TypeError, AttributeError, AssertionError, KeyError,
    )  # fmt: skip


def fake_tensor_mode() -> Any:
    """A mode whose tensors have shapes and no numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def fake_shape_errors() -> tuple[type[Exception], ...]:
    """The errors of fake tensors for results whose shape depends on numbers."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    return DataDependentOutputException, DynamicOutputShapeException, NotImplementedError, RuntimeError


def quantized_operations() -> Any:
    """The operations of PT2E quantisation, `torch.ops.quantized_decomposed`."""
    import torch.ao.quantization.fx._decomposed  # registers them

    return torch.ops.quantized_decomposed


def process_group_store(prefix: str) -> Any:
    """The key-value store of the default process group, with a prefix of its own."""
    common = torch.distributed.distributed_c10d._get_default_store()
    return torch._C._distributed_c10d.PrefixStore(prefix, common)


def recorded_events(profiler: Any) -> list[Any]:
    """The events of a profiler, with `input_dtypes` also where an older torch keeps them to itself."""
    events = list(profiler.events() or [])
    if events and not hasattr(events[0], "input_dtypes"):
        raw = profiler.profiler.kineto_results.events()
        types = {(each.name(), each.correlation_id()): each.dtypes() for each in raw if each.dtypes()}
        for event in events:
            event.input_dtypes = types.get((event.name, event.id), [])
    return events
