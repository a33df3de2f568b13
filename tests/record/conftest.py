"""Recorders work in a process in which nothing is compiled, whatever ran in it before."""

from __future__ import annotations

import pytest

from tests.compiled_code import forget_compiled


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    forget_compiled()
