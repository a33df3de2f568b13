"""The file of a run goes on in place: stopped, failed, killed and on a full disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precgui import config
from precgui.checkpoint_files import checkpoint_files
from precgui.cli.main import main
from precgui.events import Event, StepDone
from precgui.job import Job
from precgui.process.spawn import ChildProcess
from precgui.runs.errors import RunFileError
from precgui.runs.file import disk
from precgui.runs.file.reader import SavedRun, open_run

SETTINGS = [
    "device=cpu", "threads=1", "model.name=mlp", "train.epochs=2", "data.epoch_steps=5", "train.checkpoint_every=2",
    "optimizer.name=adamw",
]  # fmt: skip
LAST = 10


def chosen(*settings: str) -> config.RunConfig:
    return config.load("digits-quick", [*SETTINGS, *settings])


def job_that_ends(path: Path, step: int, end: Callable[[Job], None], *settings: str) -> None:
    """Train until `end` is called after a step."""

    def watch(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step:
            end(job)

    job = Job(chosen(*settings), path, [watch])
    job.run()


def killed_at(path: Path, step: int) -> None:
    job_that_ends(path, step, lambda _: os.kill(os.getpid(), signal.SIGKILL))


def broken(_: Job) -> None:
    raise RuntimeError("the model is broken")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    path = tmp_path_factory.mktemp("whole") / "run.h5"
    Job(chosen(), path).run()
    return open_run(path)


def check(path: Path, whole: SavedRun, step: int, how: str) -> None:
    """The run in the file went on after a step to the end of the whole one."""
    with open_run(path) as run:
        assert (run.status, run.notes, run.steps) == ("completed", [], LAST)
        for name in ("loss", "grad_norm", "lr", "val_loss"):
            steps, values = run.series(name)
            np.testing.assert_array_equal(steps, whole.series(name)[0])
            np.testing.assert_array_equal(values, whole.series(name)[1])
        assert np.all(np.diff(run.series("loss", "time_s")[0]) > 0)
        (event,) = run.events("resumed")
        assert event.step == step
        assert how in event.message
        assert run.environment["breaks"][0]["step"] == step
        assert run.environment["census"] == whole.environment["census"]
        assert (run.run_id != whole.run_id, run.model().parameters == whole.model().parameters) == (True, True)
        for kind, history in whole.tensors().items():
            assert history.names == run.tensors()[kind].names
            steps = run.tensors()[kind].steps().tolist()
            assert len(steps) == len(set(steps))  # none twice, as the weights of step 0
        assert run.summary["steps"] == LAST
    assert not checkpoint_files(path)


def test_that_a_stopped_run_goes_on_from_its_last_step(tmp_path: Path, whole: SavedRun) -> None:
    path = tmp_path / "run.h5"
    job_that_ends(path, 5, Job.stop)  # after the epoch, before its validation
    told: list[Event] = []
    assert Job.going_on(path, [told.append], retold=True).run().status == "completed"
    check(path, whole, 5, "it was stopped after step 5")
    assert [event.step for event in told if isinstance(event, StepDone)] == [*range(1, LAST + 1)]


def test_that_a_failed_run_goes_on_from_its_newest_checkpoint(tmp_path: Path, whole: SavedRun) -> None:
    path = tmp_path / "run.h5"
    job_that_ends(path, 7, broken)
    assert Job.going_on(path).run().status == "completed"
    check(path, whole, 6, "the model is broken")


def test_that_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_taken(tmp_path: Path, whole: SavedRun) -> None:
    path = tmp_path / "run.h5"
    job_that_ends(path, 7, broken)
    newest = checkpoint_files(path)[6]
    newest.write_bytes(newest.read_bytes()[:-100])
    assert Job.going_on(path).run().status == "completed"
    check(path, whole, 4, "a newer checkpoint was left out: ")


def test_that_a_killed_run_goes_on_and_no_checkpoint_is_ahead_of_its_file(tmp_path: Path, whole: SavedRun) -> None:
    path = tmp_path / "run.h5"
    child = ChildProcess(target=killed_at, args=(path, 9))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    with open_run(path) as run:
        assert run.steps >= max(checkpoint_files(path)) == 8
    assert main(["run", str(path), "--resume", "--json"]) == 0
    check(path, whole, 8, "it had failed after step")


def test_that_a_run_on_a_full_disk_goes_on_once_there_is_room(
    tmp_path: Path, whole: SavedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, free = tmp_path / "run.h5", disk.free_bytes
    with monkeypatch.context() as patch:

        def fill(job: Job) -> None:
            patch.setattr(disk, "free_bytes", lambda folder: 1 << 20)
            patch.setattr("precgui.engine.checkpoint.hook.free_bytes", lambda folder: 1 << 20)
            assert job._writer is not None
            job._writer.flush()

        job_that_ends(path, 5, fill)
        with pytest.raises(RunFileError, match="has only 1 MB left"):
            raise_fault(Job.going_on(path))
    assert disk.free_bytes is free
    with open_run(path) as run:
        assert run.status == "failed"
    assert Job.going_on(path).run().status == "completed"
    check(path, whole, 4, "Recording stopped after step")


def raise_fault(job: Job) -> None:
    ended = job.run()
    assert job.was_refused
    raise RunFileError(ended.message)


def test_that_a_run_breaks_twice(tmp_path: Path, whole: SavedRun) -> None:
    path = tmp_path / "run.h5"
    job_that_ends(path, 3, Job.stop)
    again = Job.going_on(
        path, [lambda event: again.stop() if isinstance(event, StepDone) and event.step == 7 else None]
    )
    assert again.run().status == "stopped"
    Job.going_on(path).run()
    with open_run(path) as run:
        assert [(each["step"], each["lost_steps"]) for each in run.environment["breaks"]] == [(3, 0), (7, 0)]
        np.testing.assert_array_equal(run.series("loss")[1], whole.series("loss")[1])


@pytest.mark.parametrize("change", ["torch", "complete", "none"])
def test_that_what_cannot_go_on_is_one_sentence_and_stays_as_it_is(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.h5"
    job_that_ends(path, 3 if change != "complete" else 99, Job.stop)
    if change == "torch":
        monkeypatch.setattr("torch.__version__", "9.9")
    if change == "none":
        for file in checkpoint_files(path).values():
            file.unlink()
    before = path.read_bytes()
    assert main(["run", str(path), "--resume"]) == 2
    told = capsys.readouterr().err
    sentence = {
        "torch": "here is 9.9",
        "complete": "nothing is left to train",
        "none": "or it was removed; run it again",
    }[change]
    assert sentence in told
    assert "Traceback" not in told
    assert path.read_bytes() == before


def test_that_the_code_of_a_file_runs_only_when_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')\n")
    path = tmp_path / "run.h5"
    job_that_ends(path, 3, Job.stop)
    with open_run(path) as run:
        own = run.config.model_copy(update={"task": f"{tmp_path / 'mine.py'}:make_task"})
    other = tmp_path / "own.h5"
    Job(own, other).run()
    next(iter(checkpoint_files(path).values())).rename(tmp_path / "own.h5.checkpoint-000000.safetensors")
    assert main(["run", str(other), "--resume", "--json"]) == 2
    assert "--own-code runs the code" in capsys.readouterr().err
