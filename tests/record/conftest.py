"""Recorders look at a process in which nothing is compiled, whatever ran in it before."""

from __future__ import annotations

import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Forget what earlier tests of the process compiled: a recorder leaves the census out where anything is."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
