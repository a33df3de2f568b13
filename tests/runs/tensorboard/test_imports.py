"""Event files of other tools as runs: written by torch's own writer, renamed, cut, damaged, hostile."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

import precgui
from precgui.events import RunEnded, Status
from precgui.runs.compare import compare
from precgui.runs.errors import RunFileError
from precgui.runs.open import open_run_or_events
from precgui.runs.tensorboard.export import export_events
from precgui.runs.tensorboard.imported_run import ImportedRun
from precgui.runs.tensorboard.imports import open_events

LOSSES = [2.0, 1.5, math.nan, math.inf, 0.75]


def logged(folder: Path, tags: dict[str, list[float]], every: int = 1, **style: bool) -> Path:
    """An event file by torch; returns the folder. One second lies between two steps."""
    with SummaryWriter(str(folder)) as writer:
        for tag, values in tags.items():
            for row, value in enumerate(values):
                writer.add_scalar(tag, value, row * every, walltime=1e9 + row * every, **style)
    return folder


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


@pytest.mark.parametrize("style", [{}, {"new_style": True}, {"new_style": True, "double_precision": True}])
def test_that_scalars_of_torch_are_a_run(tmp_path: Path, style: dict[str, bool]) -> None:
    tags = {"Loss/train": LOSSES, "Accuracy/val": [0.25, 0.5], "learning_rate": [0.1] * 5, "images_per_day": [1.0]}
    run = open_run_or_events(logged(tmp_path / "my run", tags, every=10, **style))
    assert isinstance(run, ImportedRun)
    assert_array_equal(run.series("loss"), ([0, 10, 20, 30, 40], LOSSES))
    assert run.series("val_accuracy")[1].tolist() == [0.25, 0.5]
    assert run.series("lr")[1].tolist() == [0.1 if "double_precision" in style else float(np.float32(0.1))] * 5
    assert_array_equal(run.series("step_s")[1][1:], np.ones(4))
    assert [event.step for event in run.events("nonfinite_loss")] == [20, 30]
    assert (run.title, run.status, run.config.precision, run.tensors()) == ("my run", "imported", "unknown", {})
    (note,) = run.notes
    assert "loss is Loss/train" in note
    assert "Not shown: images_per_day" in note


def test_that_an_imported_run_stands_beside_one_of_ours(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = logged(tmp_path / "other", {"loss": [1.0, 0.5]})
    with precgui.open_run(write()) as ours, open_run_or_events(folder) as other:
        seen = compare([other, ours])
        theirs = seen.runs[0]
        assert (seen.baseline, theirs.run, theirs.precision, theirs.train_loss) == ("other", "other", "unknown", 0.5)
        assert (theirs.speedup, theirs.energy_j, theirs.samples_per_s, theirs.skipped_steps) == (None,) * 4
        assert theirs.step_s_median == 1.0


@pytest.mark.parametrize("status", ["completed", "stopped", "failed"])
def test_that_our_own_export_comes_back(write: Callable[..., Path], tmp_path: Path, status: Status) -> None:
    path = write(end=RunEnded(4.0, status))
    with precgui.open_run(path) as run:
        export_events(run, tmp_path / "logs")
        back = open_events(tmp_path / "logs")
        for name in ("loss", "grad_norm", "scale", "skipped", "samples", "val_loss", "val_accuracy"):
            steps, values = run.series(name)
            assert_array_equal(back.series(name), (steps, values.astype(np.float32)))
        assert_allclose(back.series("loss", "time_s")[0], run.series("loss", "time_s")[0], atol=1e-6)
        assert (back.config, back.title, back.created, back.notes) == (run.config, run.title, run.created, [])
        assert back.status == run.status == status


def test_that_training_and_validation_may_lie_in_folders_of_their_own(tmp_path: Path) -> None:
    for part, value in (("train", 1.0), ("validation", 3.0)):
        logged(tmp_path / "keras" / part, {"epoch_loss": [value, value], "epoch_accuracy": [value / 4]})
    run = open_events(tmp_path / "keras")
    assert run.series("loss")[1].tolist() == [1, 1]
    assert run.series("val_loss")[1].tolist() == [3, 3]
    assert run.series("val_accuracy")[1][0] == 0.75


def test_that_a_folder_without_an_event_file_is_told_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFileError, match=r"neither run files .* nor TensorBoard event files; name a run file"):
        open_events(tmp_path)
    logged(tmp_path / "first", {"loss": [1.0]})
    logged(tmp_path / "second", {"loss": [1.0]})
    with pytest.raises(RunFileError, match="choose one of first, second in it"):
        open_events(tmp_path)


def test_that_a_restart_replaces_what_it_does_again(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path / "logs"))
    for step, loss in [(1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0), (3, 30.0), (4, 40.0)]:
        writer.add_event(Event(step=step, wall_time=1e9, summary={"value": [{"tag": "loss", "simple_value": loss}]}))
    writer.close()
    assert_array_equal(open_events(tmp_path / "logs").series("loss"), ([1, 2, 3, 4], [1, 20, 30, 40]))


@pytest.mark.parametrize(
    ("tags", "signal", "best"),
    [
        (["train/loss", "train/loss_box", "val/loss"], "loss", "train/loss"),
        (["train/loss", "eval/loss"], "val_loss", "eval/loss"),
        (["train_loss_step", "val_loss_epoch"], "loss", "train_loss_step"),
        (["loss", "loss_scale"], "scale", "loss_scale"),
        (["loss", "train/learning_rate"], "lr", "train/learning_rate"),
        (["loss", "lr-AdamW"], "lr", "lr-AdamW"),
        (["loss", "grad_2.0_norm_total"], "grad_norm", "grad_2.0_norm_total"),
        (["loss", "testAccuracy", "trainAccuracy"], "val_accuracy", "testAccuracy"),
    ],
)
def test_that_the_names_of_other_libraries_are_understood(
    tmp_path: Path, tags: list[str], signal: str, best: str
) -> None:
    folder = logged(tmp_path / "logs", {tag: [float(place)] for place, tag in enumerate(tags, 1)})
    assert open_events(folder).chosen[signal].value.tolist() == [tags.index(best) + 1]


def test_that_a_scalar_can_be_named_when_none_is_understood(tmp_path: Path) -> None:
    folder = logged(tmp_path / "logs", {"objective": [3.0, 2.0]})
    with pytest.raises(RunFileError, match=r"but objective; say which one is it with --tag loss=NAME"):
        open_events(folder)
    assert open_events(folder, {"loss": "objective"}).series("loss")[1].tolist() == [3, 2]
    with pytest.raises(RunFileError, match="no scalar is called nothing; there are objective"):
        open_events(folder, {"loss": "nothing"})
    with pytest.raises(RunFileError, match="perplexity is not a signal; choose loss, scale"):
        open_events(folder, {"perplexity": "objective"})


def test_that_a_cut_file_shows_what_is_left(tmp_path: Path) -> None:
    file = only_file(logged(tmp_path / "logs", {"loss": [float(n) for n in range(100)]}))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 + 3])
    run = open_events(file)
    assert 30 < run.steps < 70
    assert run.series("loss")[1].tolist() == list(range(run.steps))
    assert "is cut short; what comes before is shown" in run.notes[0]
    file.write_bytes(content[:5])
    with pytest.raises(RunFileError, match=r"holds no scalars \(.* is cut short\); choose another"):
        open_events(file)
    file.write_bytes(b"")
    with pytest.raises(RunFileError, match="holds no scalars; choose another"):
        open_events(file)


def record(message: bytes, length: int | None = None) -> bytes:
    """A record with right checksums, whatever it claims."""

    def checksum(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    head = struct.pack("<Q", len(message) if length is None else length)
    return head + checksum(head) + message + checksum(message)


def test_that_a_hostile_file_is_a_sentence(tmp_path: Path) -> None:
    loss = Event(step=1, summary={"value": [{"tag": "loss", "simple_value": 0.5}]}).SerializeToString()
    huge = {"dtype": 1, "tensor_shape": {"dim": [{"size": 1 << 40}]}, "float_val": [1.0]}
    bomb = Event(step=2, summary={"value": [{"tag": "loss", "tensor": huge}]}).SerializeToString()
    odd = {"dtype": 999, "tensor_content": b"1234"}
    strange = Event(step=3, summary={"value": [{"tag": "loss", "tensor": odd}]}).SerializeToString()
    file = tmp_path / "events.out.tfevents.1"
    file.write_bytes(record(loss) + record(bomb) + record(strange) + record(b"", 1 << 62))
    run = open_events(file)
    assert run.series("loss")[1].tolist() == [0.5]
    assert "is cut short" in run.notes[0]
    file.write_bytes(record(loss) + record(b"\xff" * 30))
    assert "holds a record that is no event" in open_events(file).notes[0]
    file.write_bytes(record(b"\xff" * 30))
    with pytest.raises(RunFileError, match="holds no scalars"):
        open_events(file)


def test_that_mutations_never_do_more_than_note(tmp_path: Path) -> None:
    file = only_file(logged(tmp_path / "logs", {"loss": [float(n) for n in range(30)], "val/loss": [1.0, 2.0]}))
    content = file.read_bytes()
    rng = random.Random(0)
    for _ in range(300):
        data = bytearray(content)
        for _ in range(rng.choice([1, 4])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data[: rng.randrange(1, len(data) + 1)] if rng.random() < 0.3 else data)
        try:
            run = open_events(file)
            assert run.notes
            compare([run])
        except RunFileError as error:
            assert str(error).count("\n") == 0
