"""A forward pass once more, to see which module was the first to put out NaN or Inf, without leaving a trace."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from precgui.engine.hook import Hook
from precgui.engine.telemetry_tensors import unseen

_KNOWN = ("torch", "torchvision", "precgui")


def repeat_forward(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Call `model.forward` again: random numbers and buffers are afterwards as they were before.

    Nothing is done where that may not be all there is, see `leaves_no_trace`, and where several processes train
    together, since the others would not answer. A pass that fails ends early; then so much was seen.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    if not leaves_no_trace(model, args, kwargs):
        return
    numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 - what models may use
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng(devices=_gpus(model)), unseen():
            model.forward(*args, **kwargs)
    except Exception:  # noqa: BLE001 - whatever a model raises the second time, the training goes on
        pass
    finally:
        for buffer, before in buffers:
            buffer.data.copy_(before)  # `data`, so that autograd does not take it for a change of what it needs
        random.setstate(numbers[0])
        np.random.set_state(numbers[1])  # noqa: NPY002


def leaves_no_trace(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a pass changes nothing but random numbers and buffers.

    That is known of the modules of torch and of precgui, without hooks of others, called with tensors. A module of
    somebody else may count its calls, keep a state from pass to pass, or read on from its input.
    """
    return all(map(_is_known, model.modules())) and all(
        isinstance(each, (Tensor, int, float, str, NoneType)) for each in (*args, *kwargs.values())
    )


def _is_known(module: nn.Module) -> bool:
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return type(module).__module__.partition(".")[0] in _KNOWN and all(isinstance(hook, Hook) for hook in hooks)


def _gpus(model: nn.Module) -> list[int]:
    return sorted({parameter.device.index for parameter in model.parameters() if parameter.is_cuda})
