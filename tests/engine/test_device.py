"""The number of CPU threads that a run takes when it asks for none."""

from __future__ import annotations

import pytest

from precgui.engine import device


@pytest.mark.parametrize(
    ("limit", "threads"),
    [(None, 7), ("1", 1), ("3,2", 3), (" 4 ", 4), ("64", 7), ("", 7), ("0", 7), ("-2", 7), ("many", 7)],
)
def test_that_one_core_is_left_and_the_limit_of_openmp_holds(
    limit: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "physical_cores", lambda: 8)
    if limit is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert device.default_threads() == threads


def test_that_one_core_gives_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "physical_cores", lambda: 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert device.default_threads() == 1
