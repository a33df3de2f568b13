"""Steps that are too large or too slow to be computed in FP64 are left out before they do harm, with the reason."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.engine.memory import MemoryEvents
from precgui.engine.shadow import loop_step, replay
from precgui.engine.shadow.loop_tape import LoopTape
from precgui.engine.shadow.replay_memory import replay_bytes
from precgui.engine.telemetry.recorder import Weight
from precgui.hardware import free_memory
from precgui.record import exact_steps


def _train(path: Path, steps: int = 9, width: int = 16, depth: int = 2) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    layers = [each for _ in range(depth) for each in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(nn.Linear(6, width), *layers, nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = precgui.Recorder(path, model, optimizer)
    for _ in range(steps):
        x = torch.randn(64, 6)
        loss = F.mse_loss(model(x)[:, 0], x[:, 0].tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.close()
    with precgui.open_run(path) as run:
        return list(run.environment["exact_steps"]["all"])


def test_that_the_memory_of_a_replay_is_known_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, taken = [], []

    def counted(tape: Any, requested: list[int], **options: Any) -> dict[int, Tensor]:
        known.append(replay_bytes(tape, requested))
        events = MemoryEvents()
        events.start()
        table = replay.replay_exact(tape, requested, **options)
        taken.append(events.stop())
        return table

    monkeypatch.setattr(loop_step, "replay_exact", counted)
    _train(tmp_path / "run.h5", steps=3, width=128, depth=6)
    pairs = [(estimate, peak) for estimate, peak in zip(known, taken, strict=True) if peak]
    if not pairs:
        pytest.skip("this torch does not tell of memory of the CPU")
    assert all(0.9 * peak < estimate < 2.5 * peak for estimate, peak in pairs), pairs


def test_that_a_replay_that_does_not_fit_is_left_out_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_steps, "_OF_REPLAY", 0.0)
    rows = _train(tmp_path / "run.h5")
    assert [row["step"] for row in rows] == [1, 2, 8]
    assert all("MiB" in row["unavailable"] and "half of the free memory" in row["unavailable"] for row in rows), rows


def test_that_the_values_of_a_step_are_let_go_of_before_the_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([1 << 40])
    monkeypatch.setattr(exact_steps, "free_bytes", lambda _: next(free, 1 << 20))
    monkeypatch.setattr("precgui.engine.shadow.loop_tape._ASK_EVERY", 1 << 10)
    held: list[int] = []
    give_up = LoopTape.give_up

    def noted(tape: LoopTape, reason: str) -> None:
        give_up(tape, reason)
        held.append(len(tape.tape.operations) + len(tape.tape.values))

    monkeypatch.setattr(LoopTape, "give_up", noted)
    rows = _train(tmp_path / "run.h5", steps=1)
    assert "would leave less than" in rows[0]["unavailable"] and held == [0], (rows, held)


def test_that_a_long_replay_is_ended_early_and_tried_again_when_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_steps, "FIRST_S", 0.5)
    monkeypatch.setattr(loop_step, "_EARLY_S", 0.0)
    monkeypatch.setattr(loop_step, "_FAR_TOO_LONG", -1.0)  # as if each operation took very long
    rows = _train(tmp_path / "run.h5")
    assert "longer than the recorder may" in rows[0]["unavailable"], rows
    assert [row["step"] for row in rows] == [1, 2, 8]
    monkeypatch.undo()
    steps = exact_steps.ExactSteps()
    steps._needed_s = 1000.0
    weight = nn.Parameter(torch.zeros(3))
    steps.begin(2, [Weight("w", weight, weight)], lambda: None)
    assert steps.tape is None and "would take about" in str(steps.facts()[0]["unavailable"])
    steps._needed_s, steps._spent_s = 0.0, 1000.0
    steps.begin(8, [Weight("w", weight, weight)], lambda: None)
    assert steps.tape is None and "that it may" in str(steps.facts()[1]["unavailable"])
    steps._begun_s -= 1e6  # a run of 11 days has earned more
    steps.begin(2048, [Weight("w", weight, weight)], lambda: None)
    assert steps.tape is not None
    steps.close()


def test_that_time_in_which_others_have_the_processor_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where ten seconds go by between any two looks at the clock, as on a busy machine, a cause is searched as ever."""
    passes = itertools.count(step=10)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(passes)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for _ in range(2):
            x = torch.randn(64, 6)
            difference = (model(x)[:, 0] + 3000).bfloat16() - 3000  # keeps nothing
            loss = (difference.float() - x[:, 0]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        rows = run.environment["exact_steps"]["all"]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["gradient_error"] > 0.05 and "cause" in row and "updates" in row for row in rows), rows


def test_that_the_share_of_a_run_is_counted_in_the_thread_that_makes_its_steps() -> None:
    steps, weight = exact_steps.ExactSteps(), nn.Parameter(torch.zeros(3))
    steps._begun_s -= 1e6
    left: list[float] = []

    def step() -> None:
        steps.begin(2, [Weight("w", weight, weight)], lambda: None)
        left.append(steps._left_s())
        steps.close()

    step()
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert left[0] > 1e4 and 0 < left[1] <= exact_steps.FIRST_S + 0.1, left


def test_that_many_steps_that_are_left_out_take_no_place_from_one_that_is_compared() -> None:
    steps = exact_steps.ExactSteps()
    for power in range(12):
        steps._leave_out(2 * 4**power, "too slow")
    assert [row["step"] for row in steps.facts()] == [*(2 * 4**power for power in range(7)), 2 * 4**11]


@pytest.mark.parametrize("second", [True, False])
def test_that_the_memory_of_a_container_is_its_own(
    second: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / ("job" if second else "memory/job")
    group.mkdir(parents=True)
    names = free_memory._SECOND if second else free_memory._FIRST
    for name, text in zip(
        (*names[:2], "memory.stat"), ("1000000\n", "700000\n", f"anon 5\n{names[2]} 200000\n"), strict=True
    ):
        (group / name).write_text(text)
    if second:
        (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "own").write_text("0::/job\n" if second else "5:cpu:/x\n4:memory:/job\n")
    monkeypatch.setattr(free_memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(free_memory, "_OWN_GROUPS", tmp_path / "own")
    assert free_memory.free_memory_bytes() == 500_000
    monkeypatch.setattr(free_memory, "_OWN_GROUPS", tmp_path / "nothing")
    assert free_memory.free_memory_bytes() > 500_000
