"""What torch.compile needs of a machine, and what it leaves in a process of tests."""

from __future__ import annotations

import sys

import pytest
import torch

from precgui.engine.execution import missing_for_compilation

MISSING = missing_for_compilation()
needs_compiler = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def forget_compiled() -> None:
    """Forget what earlier tests compiled: else a recorder leaves out the census and the order of the backward pass."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
