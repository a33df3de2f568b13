"""BF16 LSTMs under autocast on CPUs for which oneDNN has no LSTM kernel in BF16 (those without AVX-512)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from precgui.engine.torch_private import onednn


@cache
def has_lstm_kernel() -> bool:
    """Whether oneDNN runs an LSTM under BF16 autocast on this processor, found by running a small one."""
    layer = nn.LSTM(2, 2)
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            layer(torch.zeros(1, 1, 2))
    except RuntimeError:
        return False
    return True


def run_without_lstm_kernel(modules: Iterable[nn.Module]) -> int:
    """Let each LSTM compute by torch's own operations under autocast where oneDNN has no kernel; returns how many."""
    if has_lstm_kernel():
        return 0
    layers = [module for module in modules if isinstance(module, nn.LSTM)]
    for layer in layers:
        layer.forward = partial(_by_torch, layer.forward)  # type: ignore[method-assign]
    return len(layers)


def _by_torch(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Products are BF16 as in the fused kernel; the state between them is FP32."""
    if not torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.is_available():
        return forward(*args, **kwargs)
    with onednn(allowed=False):
        return forward(*args, **kwargs)
