"""A forward pass once more, to see which module was the first to put out NaN or Inf, without leaving a trace."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from precgui.engine.telemetry_tensors import unseen


def repeat_forward(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Call `model.forward` again: random numbers and buffers are afterwards as they were before.

    It ends early where the model cannot be called twice; then so much was seen. Nothing is done where several processes
    train together, since the others would not answer.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - what models may use
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with unseen():
            model.forward(*args, **kwargs)
    except Exception:  # noqa: BLE001 - whatever a model raises the second time, the training goes on
        pass
    finally:
        for buffer, before in buffers:
            buffer.data.copy_(before)  # `data`, so that autograd does not take it for a change of what it needs
        torch.set_rng_state(numbers[0])
        random.setstate(numbers[1])
        np.random.set_state(numbers[2])  # noqa: NPY002
