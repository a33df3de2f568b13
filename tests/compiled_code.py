"""What torch.compile leaves in a process of tests."""

from __future__ import annotations

import sys

import torch


def forget_compiled() -> None:
    """Forget what earlier tests compiled: else a recorder leaves out the census and the order of the backward pass."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
