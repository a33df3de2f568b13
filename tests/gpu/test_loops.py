"""The recorder in training loops of other people on the GPU: it changes no bit, and waits once in a step."""

from __future__ import annotations

import collections
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("pydantic", reason="what is recorded is configured with pydantic, which is not installed here")

from precgui import open_run
from tests.devices.foreign_loops import LOOPS, OWN_WAITS, WATCHED, run_loop, spread
from tests.gpu.place import DEVICE, REHEARSED
from tests.gpu.waits import counted_waits

pytestmark = pytest.mark.gpu
STEPS = 10
CAPTURED = 3  # the step in which torch captures a graph, for which it waits
TWICE = min(2, 1 if REHEARSED else torch.cuda.device_count())


@pytest.fixture(autouse=True)
def repeating(monkeypatch: pytest.MonkeyPatch):
    """Kernels of torch that repeat themselves, also those of cuDNN and cuBLAS, in true FP32."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def rehearsed_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loops ask of CUDA alone is asked of the CPU where they are rehearsed there."""
    if REHEARSED:
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


def of_name(name: str) -> str:
    if REHEARSED and name in ("scaled", "fused", "graph", "accumulated", "attending"):
        pytest.skip("this loop needs CUDA")
    return name


@pytest.fixture(autouse=True)
def second_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second half of the model on two devices is on the CPU where there is one GPU."""
    if TWICE < 2:
        monkeypatch.setitem(LOOPS, "spread", partial(spread, second="cpu"))


@pytest.mark.parametrize("name", LOOPS)
def test_that_a_recorder_changes_no_bit_of_a_loop(name: str, tmp_path: Path, tell: Callable[[str], None]) -> None:
    file = tmp_path / "run.h5"
    alone, again, recorded = (run_loop(of_name(name), DEVICE, STEPS, each) for each in (None, None, file))
    tell(f"loop {name}: repeats itself {alone == again}, equal with a recorder {alone == recorded}")
    with open_run(file) as run:
        tell(f"loop {name}: {run.status}. {run.message}")
        assert alone == again, (alone, again)
        assert recorded == alone, (recorded, alone)
        assert (run.status, run.message) == ("completed", "")
        assert run.series("loss")[1].tolist() == alone[0]
        made = run.environment["exact_steps"]["all"]
        for row in made:
            tell(f"loop {name}: step {row['step']} in FP64: {_exact(row)}")
        assert [row["step"] for row in made] == [step for step in WATCHED if step <= STEPS]
        if name == "scaled":
            assert {bool(each) for each in run.series("skipped")[1].tolist()} == {True, False}
        if name in ("attending", "recurrent"):  # whose kernels have no FP64 form
            assert "unavailable" not in made[0], made[0]
        for row in made:
            if "unavailable" not in row and row.get("loss_fp64") is not None:
                assert row["loss"] == pytest.approx(row["loss_fp64"], rel=0.02)


def _exact(row: dict[str, object]) -> str:
    if "unavailable" in row:
        return f"not made: {row['unavailable']}"
    return f"loss {row.get('loss')} there {row.get('loss_fp64')}, gradients differ by {row.get('gradient_error')}"


@pytest.mark.parametrize("name", LOOPS)
def test_that_a_recorder_makes_the_host_wait_once_in_a_step(
    name: str, tmp_path: Path, tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: dict[str, list[collections.Counter[str]]] = {"alone": [], "recorded": []}
    with counted_waits(monkeypatch) as waits:
        for way, file in (("alone", None), ("recorded", tmp_path / "run.h5")):
            waits.taken()
            run_loop(of_name(name), DEVICE, STEPS, file, lambda way=way: steps[way].append(waits.taken()))
    with open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.message, run.steps) == ("completed", "", STEPS)
    for way, counted in steps.items():
        tell(f"waits of loop {name}, {way}: {[sum(each.values()) for each in counted]}")
    if REHEARSED:
        return
    for number, (alone, recorded) in enumerate(zip(*steps.values(), strict=True), 1):
        if number in WATCHED or (name == "graph" and number == CAPTURED):
            continue
        own = sum(alone.values())
        if name != "spread" or TWICE > 1:  # a part on the CPU waits for the other
            assert own == OWN_WAITS[name], alone
        looked = any("finite_in_fp32" in line for line in recorded)
        most = own + (2 if number + 1 in WATCHED or looked else 1)
        assert sum(recorded.values()) <= most, (number, recorded)
