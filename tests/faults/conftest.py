"""Every training of a fault has one thread, in a process in which nothing is compiled, whatever ran in it before."""

from __future__ import annotations

import pytest
import torch

from tests.compiled_code import forget_compiled


@pytest.fixture(autouse=True)
def one_thread_and_nothing_compiled() -> None:
    torch.set_num_threads(1)
    forget_compiled()
