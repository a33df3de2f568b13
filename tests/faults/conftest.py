"""Every training of a fault has one thread, in a process in which nothing is compiled, whatever ran in it before."""

from __future__ import annotations

import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """In compiled steps the recorder sees neither the census nor the order of the first backward pass."""
    torch.set_num_threads(1)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
