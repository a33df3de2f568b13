"""Every training of a fault has one thread, in a process in which nothing is compiled, whatever ran in it before.

Its steps in FP64 have time enough on a busy machine, too.
"""

from __future__ import annotations

import pytest
import torch

from precgui.record import exact_steps
from tests.compiled_code import forget_compiled


@pytest.fixture(autouse=True)
def one_thread_and_nothing_compiled() -> None:
    torch.set_num_threads(1)
    forget_compiled()


@pytest.fixture(autouse=True)
def time_for_steps_in_fp64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_steps, "FIRST_S", 120.0)
