"""The only door to parts of torch that are not public, each as a name of ours.

Tried with torch 2.15.0. `tests/engine/test_torch_private.py` calls every name against the installed torch.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.exc import TorchDynamoException
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

__all__ = ["EXPORT_ERRORS", "quantized_operations", "tree_leaves", "tree_map", "tree_map_only"]

EXPORT_ERRORS = (
    TorchDynamoException, RuntimeError, ValueError, TypeError, AttributeError, AssertionError, KeyError,
)  # fmt: skip


def quantized_operations() -> Any:
    """The operations of PT2E quantisation, `torch.ops.quantized_decomposed`."""
    import torch.ao.quantization.fx._decomposed  # registers them

    return torch.ops.quantized_decomposed
