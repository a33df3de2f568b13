"""A second forward pass through a copy of the model, which finds the module whose output was the first not finite."""

from __future__ import annotations

import contextlib
import copy
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.kept_state import KeptState
from precgui.engine.telemetry.nonfinite import NonFiniteDetector
from precgui.engine.telemetry.readable import unseen
from precgui.engine.telemetry.side_effects import side_effect
from precgui.sentences import L_, Sentence, first_line

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)


class CannotRepeat(Exception):
    """The forward pass is not repeated; the message is half a sentence that says why."""


@dataclass(frozen=True)
class SecondPass:
    """A repeated forward pass: the first module whose output was not finite, '' for none, what the model returned (None
    where it raised an exception), and that exception in one line, '' for none."""

    module: str
    outputs: Any
    error: str = ""


def second_pass(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    around: contextlib.AbstractContextManager[Any] | None = None,
    state: KeptState | None = None,
    *,
    widened: bool = False,
) -> SecondPass:
    """Repeat the forward pass on a copy of the model, inside `around`, from the `state` that it began with.

    The copy shares the parameters of the model and has buffers and attributes of its own; random numbers, the graph and
    what is printed are afterwards as if nothing had been done. With `widened` it has parameters and buffers of its own
    in FP32 in the place of those below 32 bits, since a convolution takes no input in FP32 beside weights in 16 bits.
    Raises CannotRepeat where that may not be all there is.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise CannotRepeat(L_("the other processes of the training would not take part"))
    for module in model.modules():
        if reason := _refused(module):
            raise CannotRepeat(reason)
    twin = _twin(model, widened=widened)
    if state is not None:
        state.restore(twin)
    if widened:
        _widen_buffers(twin)
    own_args, own_kwargs = _copied(list(args)), _copied(dict(kwargs))
    with undisturbed(model), contextlib.redirect_stdout(io.StringIO()), around or contextlib.nullcontext():
        return _run(twin, own_args, own_kwargs)


def _run(twin: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SecondPass:
    """The forward pass of a copy, with a hook on each module. Raises CannotRepeat."""
    detector = NonFiniteDetector()
    handles = [
        module.register_forward_hook(_CopyOutputHook(detector, name))
        for name, module in twin.named_modules()
        if name and not isinstance(module, torch.jit.ScriptModule)
    ]
    outputs, error = None, ""
    try:
        outputs = twin.forward(*args, **kwargs)
    except CannotRepeat:
        raise
    except Exception as raised:  # noqa: BLE001 - whatever somebody's module raises
        error = first_line(raised, 100)
    for handle in handles:
        handle.remove()
    return SecondPass(detector.first_nonfinite(), outputs, error)


class _CopyOutputHook:
    """Shows a detector the output of a module of the copy."""

    def __init__(self, detector: NonFiniteDetector, name: str) -> None:
        self._detector, self._name = detector, name

    def __call__(self, _module: nn.Module, _inputs: Any, outputs: Any) -> None:
        self._detector.check(self._name, outputs)


def _refused(module: nn.Module) -> str:
    """Why a module must not be called a second time; '' where it may."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    if not all(isinstance(hook, Hook) for hook in hooks):
        return Sentence("{module} has forward hooks of others", module=type(module).__name__)
    own = module.__dict__.get("forward")
    if own is not None and not (isinstance(own, MethodType) and own.__self__ is module):
        return Sentence("the forward method of {module} has been replaced", module=type(module).__name__)
    kind: Any = type(module)
    return side_effect(kind)


def _twin(model: nn.Module, *, widened: bool) -> nn.Module:
    """A copy with the same parameters, or `widened` ones. Raises CannotRepeat."""
    memo: dict[int, Any] = {id(each): _wide(each) if widened else each for each in model.parameters()}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:  # noqa: BLE001 - whatever an attribute of somebody's module raises when it is copied
        raise CannotRepeat(
            Sentence("a copy of the model cannot be made: {error}", error=first_line(error, 100))
        ) from None


def _wide(parameter: nn.Parameter) -> nn.Parameter:
    """One of below 32 bits in FP32, any other as it is."""
    if type(parameter) is not nn.Parameter or not is_short(parameter):
        return parameter
    return nn.Parameter(parameter.detach().float(), parameter.requires_grad)


def _widen_buffers(twin: nn.Module) -> None:
    for module in twin.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and is_short(buffer):
                module._buffers[name] = buffer.float()


def is_short(value: Any) -> bool:
    """Whether this is a tensor of floating point below 32 bits."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.element_size() < 4


def _copied(value: Any) -> Any:
    """Arguments as new objects, so that a pass may change them. Raises CannotRepeat."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (list, tuple):
        return type(value)(_copied(each) for each in value)
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    raise CannotRepeat(Sentence("it was called with an object of class {name}", name=type(value).__name__))


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Afterwards the random numbers and the cache of autocast are as they were before."""
    numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 - models may use it
    cached = torch.is_autocast_cache_enabled()
    gpus = sorted({parameter.device.index for parameter in model.parameters() if parameter.is_cuda})
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.random.fork_rng(devices=gpus), unseen():
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        random.setstate(numbers[0])
        np.random.set_state(numbers[1])  # noqa: NPY002
