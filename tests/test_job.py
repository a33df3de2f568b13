"""A job: events reach the file and the listeners alike, and every end leaves a readable file."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from precgui import config, job, words
from precgui.engine import tasks
from precgui.engine.tasks import Digits
from precgui.engine.tasks.base import Batch
from precgui.events import TENSOR_KINDS, Event, Incident, RunEnded, RunStarted, StepDone
from precgui.runs.errors import RunFileError
from precgui.runs.file import disk
from precgui.runs.file.reader import open_run
from tests import needs

SHORT = ["device=cpu", "threads=1", "train.max_steps=6", "record.tensors=false"]


def run_job(path: Path, *settings: str) -> tuple[RunEnded, list[Event]]:
    events: list[Event] = []
    wanted = config.load("digits-quick", ["device=cpu", "threads=1", "train.max_steps=30", *settings])
    return job.Job(wanted, path, [events.append]).run(), events


def test_that_file_and_listener_hold_the_same_run(tmp_path: Path) -> None:
    ended, events = run_job(tmp_path / "a.h5", "precision=fp16-amp", "scaling.initial_scale=1e9")
    steps = [event for event in events if isinstance(event, StepDone)]
    with open_run(tmp_path / "a.h5") as saved:
        assert saved.status == ended.status == "completed"
        np.testing.assert_array_equal(saved.series("loss")[1], [s.loss for s in steps])
        np.testing.assert_array_equal(saved.series("scale")[1], [s.scale for s in steps])
        assert saved.events() == [event for event in events if isinstance(event, Incident)]
        assert saved.config.precision == "fp16-amp"


def test_that_the_listener_learns_which_sensors_were_looked_for(tmp_path: Path) -> None:
    _, events = run_job(tmp_path / "a.h5")
    started = next(event for event in events if isinstance(event, RunStarted))
    assert {sensor["name"] for sensor in started.engine["power_sensors"]}
    assert all(sensor["reason"] for sensor in started.engine["power_sensors"])


def test_that_a_torch_that_cannot_be_loaded_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ended, _ = run_job(tmp_path / "a.h5")
    assert ended.status == "failed"
    assert re.fullmatch(r"torch cannot be loaded: .*; install it again", ended.message)


class _BreaksAtStep3(Digits):
    def train_batches(self) -> Iterable[Batch]:
        for number, batch in enumerate(super().train_batches(), 1):
            if number == 3:
                raise RuntimeError("the third batch is cursed")
            yield batch


def test_that_an_exception_fails_the_run_and_keeps_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _BreaksAtStep3)
    ended, _ = run_job(tmp_path / "a.h5")
    assert ended.status == "failed"
    assert ended.message == "RuntimeError at step 3: the third batch is cursed"
    assert "_BreaksAtStep3" in ended.details or "train_batches" in ended.details
    with open_run(tmp_path / "a.h5") as saved:
        assert saved.status == "failed"
        assert len(saved.series("loss")[0]) == 2
        assert saved.events("failure")[0].message == ended.message


class _InfAtStep3(Digits):
    def train_batches(self) -> Iterable[Batch]:
        for number, (inputs, targets) in enumerate(super().train_batches(), 1):
            yield (inputs * math.inf if number == 3 else inputs), targets


@needs.babel
def test_that_a_run_that_an_english_process_recorded_is_read_in_chinese(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event and the end of the run; its file is English."""
    monkeypatch.setitem(tasks.TASKS, "digits", _InfAtStep3)
    ended, _ = run_job(tmp_path / "a.h5", "train.stop_at_nonfinite=true")
    words.use("zh_CN")
    try:
        with open_run(tmp_path / "a.h5") as saved:
            told = [(event.message, words.translated(event.message)) for event in saved.events()]
            told.append((saved.message, words.translated(saved.message)))
    finally:
        words.use("en")
    assert saved.message == ended.message == (
        "stopped after step 3 of 30: the loss is not finite in step 3 (train.stop_at_nonfinite)"
    )  # fmt: skip
    assert len(told) > 2
    assert [english for english, chinese in told if re.search("[a-z]{3,} [a-z]{2,} [a-z]{2,}", chinese)] == []
    with h5py.File(tmp_path / "a.h5", "r") as file:
        assert [row["message"].decode()[:150] for row in file["events"]] == [english[:150] for english, _ in told[:-1]]


class _TooLarge(Digits):
    def model(self) -> nn.Module:
        raise torch.OutOfMemoryError("tried to allocate 64.00 GiB\nmore text")


def test_that_running_out_of_memory_names_cures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _TooLarge)
    ended, _ = run_job(tmp_path / "a.h5")
    told = r"out of memory before the first step: tried to allocate 64.00 GiB \(the most in use before: .* GiB\);"
    assert re.match(told, ended.message)


def test_that_a_missing_device_fails_with_one_sentence_and_a_file(tmp_path: Path) -> None:
    ended, _ = run_job(tmp_path / "a.h5", "device=cuda:9")
    assert ended.status == "failed"
    assert "device cuda:9 is not there" in ended.message
    assert ended.details == ""
    with open_run(tmp_path / "a.h5") as saved:
        assert saved.status == "failed"


def test_that_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    run_job(tmp_path / "a.h5")
    before = (tmp_path / "a.h5").read_bytes()
    with pytest.raises(RunFileError, match=r"a\.h5"):
        run_job(tmp_path / "a.h5")
    assert (tmp_path / "a.h5").read_bytes() == before


class _Sleeps(Digits):
    entered = threading.Event()
    release = threading.Event()

    def train_batches(self) -> Iterable[Batch]:
        for number, batch in enumerate(super().train_batches(), 1):
            if number == 3:
                self.entered.set()
                self.release.wait(120)
            yield batch


def test_that_an_abandoned_run_is_stopped_with_its_steps_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _Sleeps)
    one = job.Job(config.load("digits-quick", ["device=cpu", "threads=1"]), tmp_path / "a.h5")
    thread = threading.Thread(target=one.run)
    thread.start()
    assert _Sleeps.entered.wait(120)
    one.stop()
    one.abandon()
    with open_run(tmp_path / "a.h5") as saved:
        assert saved.status == "stopped"
        assert len(saved.series("loss")[0]) == 2
    _Sleeps.release.set()
    thread.join()
    assert one.ended is not None
    assert "inside step 3" in one.ended.message


def test_that_a_file_has_room_for_every_tensor_and_no_more_than_in_proportion(tmp_path: Path) -> None:
    often = [f"record.{kind}_every=1" for kind in ("gradients", "weights", "optimizer", "activations")]
    often += ["record.activation_gradients_every=1", "record.budget=100", "train.max_steps=2", "optimizer.name=adamw"]
    _, events = run_job(tmp_path / "a.h5", *often)
    counted = next(event.tensors for event in events if isinstance(event, RunStarted))
    with open_run(tmp_path / "a.h5") as run, h5py.File(tmp_path / "a.h5", "r") as file:
        longest = file["tensors/gradient/exponents"].maxshape[1]
        kinds = run.tensors()
        assert set(kinds) == set(TENSOR_KINDS) - {"ema"}
        assert counted < len(kinds["gradient"].names) < longest < 20 * counted
        assert [event.message for event in run.events() if "room" in event.message] == []


# A record that is not whole, and a second Ctrl+C ------------------------------------------------------------------


def test_that_a_run_whose_disk_is_full_does_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 3:
            monkeypatch.setattr(disk, "free_bytes", lambda _: 3 << 20)

    one = job.Job(config.load("digits-quick", SHORT), tmp_path / "a.h5", [listen])
    ended = one.run()
    assert ended.status == "failed"
    assert "3 MB are left on the disk" in ended.message
    assert one.fault == ended.message
    with open_run(tmp_path / "a.h5") as saved:
        assert (saved.status, saved.message) == ("failed", ended.message)


@pytest.mark.parametrize("replaced", [False, True])
def test_that_a_run_whose_file_was_removed_does_not_complete(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "a.h5"

    def listen(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 3:
            path.unlink()
            if replaced:
                path.write_text("another file")

    one = job.Job(config.load("digits-quick", SHORT), path, [listen])
    ended = one.run()
    assert ended.status == "failed"
    assert ("another file took its place" if replaced else "was removed or renamed") in ended.message
    assert path.exists() == replaced


def test_that_an_interrupt_while_an_event_is_kept_ends_the_run_after_it(tmp_path: Path) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 2:
            one.interrupt()

    one = job.Job(config.load("digits-quick", SHORT), tmp_path / "a.h5", [listen])
    assert one.run().status == "stopped"
    with open_run(tmp_path / "a.h5") as saved:
        assert (saved.status, saved.steps) == ("stopped", 2)


def test_that_an_interrupt_while_the_run_is_ended_leaves_the_end_whole(tmp_path: Path) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, RunEnded):
            one.interrupt()

    one = job.Job(config.load("digits-quick", SHORT), tmp_path / "a.h5", [listen])
    assert one.run().status == "completed"
    one.interrupt()  # after it, too
    with open_run(tmp_path / "a.h5") as saved:
        assert (saved.status, saved.notes) == ("completed", [])
        assert saved.summary
