"""The number of CPU threads that a run takes when it asks for none."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_that_random_states_are_those_of_the_accelerator(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, held = torch.device(kind, 0), [torch.tensor([7], dtype=torch.uint8)]

    class Module:
        def get_rng_state(self, *where: torch.device) -> torch.Tensor:
            assert where == (() if kind == "mps" else (place,))
            return held[0]

        def set_rng_state(self, state: torch.Tensor, *where: torch.device) -> None:
            assert where == (() if kind == "mps" else (place,))
            held[0] = state

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module())
    before = device.random_state(place)
    assert before is not None
    device.set_random_state(place, before + 1)
    assert held[0].tolist() == [8]
    assert device.random_state(torch.device("cpu")) is None


@pytest.mark.parametrize(("kind", "has_fp64"), [("cuda", True), ("xpu", False), ("xpu", True), ("mps", False)])
def test_that_fp64_is_not_asked_of_a_gpu_that_has_none(
    kind: str, has_fp64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Properties:
        pass

    Properties.has_fp64 = has_fp64  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _: Properties)
    assert device.has_fp64(torch.device(kind, 0)) is has_fp64


def test_that_numbers_of_a_device_without_fp64_are_widened_in_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has the numbers in main memory already; what is widened has left it before."""

    class Held:
        device = torch.device("mps", 0)
        left = False

        def cpu(self) -> torch.Tensor:
            self.left = True
            return torch.ones(2)

    held = Held()
    assert device.in_fp64(held).dtype is torch.float64
    assert held.left
