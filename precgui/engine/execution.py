"""Switches of the training loop that change how a model runs, not what it computes."""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from precgui.engine.errors import EngineError
from precgui.engine.torch_private import BatchNormNd, attention_backends, compile_in_place, function_modes
from precgui.process.spawn import keep_safe_path
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.config import TrainConfig
    from precgui.engine.precisions.base import Precision

_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_Containers = nn.Sequential | nn.ModuleList


def prepare_model(model: nn.Module, config: TrainConfig, precision: Precision) -> nn.Module:
    """The same model with checkpoints, memory format and compilation as configured. Raises EngineError."""
    if config.checkpointing and config.compile and precision.rounds_by_itself:
        raise EngineError(
            Sentence(
                "train.compile with train.checkpointing: in {precision} precgui rounds operands here in code that "
                "torch.compile leaves out, which a checkpoint inside of compiled code does not allow; set one of the "
                "two to false",
                precision=precision.config.precision,
            )
        )
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    if config.checkpointing:
        checkpoint_segments(model)
    if config.compile:
        _require_compiler()
        compile_model(model)
    return model


def compile_model(model: nn.Module) -> None:
    """Compile in place, around layers whose rounding is compiled code already (`eager_only`)."""
    for module in model.modules():
        if getattr(module, "eager_only", False):
            module.forward = torch.compiler.disable(module.forward)
    _cache_by_instruction_set()
    keep_safe_path()
    compile_in_place(model)


def _cache_by_instruction_set() -> None:
    """Keep Inductor's cache of graphs apart by instruction set: it gives code made for AVX-512 to a process with AVX2.

    Such code steps by the width of the other vectors. A folder that the user has chosen stays.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        name = f"torchinductor_{getpass.getuser()}_{torch.backends.cpu.get_cpu_capability().lower()}"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / re.sub(r"\W", "_", name))


def missing_for_compilation() -> str:
    """The part of this machine that torch.compile lacks, in a sentence with the cure; empty where it has all."""
    if "CXX" not in os.environ and not any(map(shutil.which, ("g++", "clang++", "c++", "cl", "icx"))):
        return L_(
            "train.compile needs a C++ compiler and there is none on the PATH; install g++, clang++ or MSVC, or set "
            "train.compile = false"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return L_(
            "train.compile needs the header Python.h, which this Python came without; install the development package "
            "of Python (python3-dev, python3-devel), or set train.compile = false"
        )
    return ""


def _require_compiler() -> None:
    """Raises EngineError where torch.compile would fail at the first step for want of a compiler or of headers."""
    missing = missing_for_compilation()
    if missing:
        raise EngineError(missing)


def channels_last(inputs: Any) -> Any:
    """Batches of images as NHWC in memory; everything else as it is."""
    is_image = isinstance(inputs, Tensor) and inputs.dim() == 4
    return inputs.contiguous(memory_format=torch.channels_last) if is_image else inputs


def attention(backend: str) -> contextlib.AbstractContextManager[Any]:
    """The context in which scaled dot-product attention uses one back end; `auto` leaves the choice to torch."""
    return contextlib.nullcontext() if backend == "auto" else sdpa_kernel(_BACKENDS[backend])


def forward(
    model: Callable[[Any], Any], precision: Precision, config: TrainConfig, batch: tuple[Any, Any]
) -> tuple[Any, Any]:
    """The outputs of a batch (inputs, targets), and its targets, both converted by the precision."""
    inputs, targets = precision.convert_input(*batch)
    if config.channels_last:
        inputs = channels_last(inputs)
    saved = saved_tensors(config, precision.device)
    with precision.forward_context(), attention(config.attention), saved:
        outputs = model(inputs)
    return precision.convert_output(outputs), targets


def saved_tensors(config: TrainConfig, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The context in which tensors that are saved for the backward pass wait in the host's memory, where asked for."""
    if not config.offload_activations:
        return contextlib.nullcontext()
    return torch.autograd.graph.save_on_cpu(pin_memory=device.type == "cuda")


def switch_to_blame(error: RuntimeError, config: TrainConfig) -> str:
    """One sentence for what torch cannot do with a switch of the config, or ''."""
    words = str(error)
    if "No viable backend for scaled_dot_product_attention" in words or "No available kernel" in words:
        return Sentence(
            "train.attention = {backend} has no kernel for this device, format and shape (CPUs have math and flash; on "
            "GPUs flash and cudnn take 16 bits only); set train.attention = auto",
            backend=config.attention,
        )
    if config.deterministic and "does not have a deterministic implementation" in words:
        operation = words.partition(" does not have")[0].split()[-1]
        return Sentence(
            "train.deterministic: {operation} has no reproducible form on this device; set it to false",
            operation=operation,
        )
    return ""


def checkpoint_segments(model: nn.Module) -> list[str]:
    """Checkpoint segments of the model: the backward pass computes their activations again. Returns their names.

    A segment is a block (a module with parts) in an nn.Sequential or nn.ModuleList, or, in an nn.Sequential of single
    layers, a run of about sqrt(n) of them. Raises EngineError when the model has neither.
    """
    names = list(_segments(model, ""))
    if not names and isinstance(model, nn.Sequential):
        names = list(_cut(model, "(model)"))
    if not names:
        raise EngineError(
            L_(
                "train.checkpointing: the model has no nn.Sequential or nn.ModuleList to cut into segments; "
                "set train.checkpointing = false"
            )
        )
    return names


def _segments(module: nn.Module, prefix: str) -> Iterator[str]:
    for name, child in module.named_children():
        yield from _cut(child, f"{prefix}{name}")


def _cut(module: nn.Module, path: str) -> Iterator[str]:
    if isinstance(module, _Containers) and any(list(part.children()) for part in module):
        for place, part in module.named_children():
            part.forward = partial(_recomputed, part, part.forward)
            yield f"{path}.{place}"
    elif isinstance(module, nn.Sequential) and len(module) > 1:
        module.forward = partial(_in_segments, module)  # type: ignore[method-assign]
        yield path
    else:
        yield from _segments(module, f"{path}.")


def _in_segments(layers: nn.Sequential, value: Any) -> Any:
    size = math.ceil(math.sqrt(len(layers)))
    for part in _batched(list(layers), size):
        value = _recomputed(nn.ModuleList(part), partial(_chain, part), value)
    return value


def _batched(layers: Sequence[nn.Module], size: int) -> Iterator[Sequence[nn.Module]]:
    return (layers[start : start + size] for start in range(0, len(layers), size))


def _chain(layers: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    for layer in layers:
        value = layer(value)
    return value


def _recomputed(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if torch.compiler.is_compiling():  # the compiled graph recomputes by itself, in the state that it was made for
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    backends, modes = attention_backends(with_priority=True), function_modes()
    learning = [(parameter, parameter.requires_grad) for parameter in module.parameters()]

    def contexts() -> tuple[Any, Any]:
        return contextlib.nullcontext(), _as_the_first_time(module, backends, modes, learning)

    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


@contextlib.contextmanager
def _as_the_first_time(
    module: nn.Module,
    backends: Sequence[SDPBackend],
    modes: Sequence[Any],
    learning: Sequence[tuple[nn.Parameter, bool]],
) -> Iterator[None]:
    """The second forward pass runs as the first one: same attention kernels and modes (torch restores autocast only).

    And with the same parameters learning: a model may hold some still for a part of its forward pass, as a GAN does.
    """
    with contextlib.ExitStack() as entered:
        for parameter, learns in learning:
            if parameter.requires_grad != learns:
                entered.callback(parameter.requires_grad_, parameter.requires_grad)
                parameter.requires_grad_(learns)
        entered.enter_context(sdpa_kernel([*backends], set_priority=True))
        for mode in modes:
            if mode not in function_modes():
                entered.enter_context(mode)
        entered.enter_context(_statistics_frozen(module))
        yield


@contextlib.contextmanager
def _statistics_frozen(module: nn.Module) -> Iterator[None]:
    """Batch norm counts a batch once, although the forward pass runs twice."""
    norms = [m for m in module.modules() if isinstance(m, BatchNormNd) and m.training]
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, _, batches in before:
        norm.momentum = 0.0
        norm.num_batches_tracked = None if batches is None else batches.clone()
    try:
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches
