"""Files that are cut, overwritten or hostile: a sentence, or what can be saved; never a crash, never another file."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.runs.errors import RunFileError
from precgui.runs.file import process
from precgui.runs.file.snapshot import lookup3
from tests.runs.synthetic import synthetic_events

# Reads everything of each file in a process of its own, and says per file how that went.
READ_ALL = """
import sys, precgui
from precgui.runs.errors import RunFileError
from precgui.runs.signals import SIGNALS
from precgui.runs.summary import summarise
for path in sys.argv[1:]:
    print("begin", flush=True)
    try:
        with precgui.open_run(path) as run:
            for name in SIGNALS:
                run.series(name), run.series(name, "time_s")
            run.events(), run.machine, run.environment, run.config, summarise(run)
            print("ok" if not run.notes else "noted", run.steps, flush=True)
    except RunFileError as error:
        assert str(error).startswith(path) and chr(10) not in str(error), error
        print("refused", 0, flush=True)
"""


def read_all(paths: list[Path]) -> list[tuple[str, int]]:
    """How reading each file went: "ok", "noted" or "refused", and the steps read; a crash fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, *map(str, paths)], capture_output=True, text=True, check=False, timeout=500
    )
    lines = done.stdout.split("begin\n")[1:]
    assert done.returncode == 0, f"{paths[len(lines) - 1]}: {done.returncode}, {done.stderr[-2000:]}"
    return [(word, int(steps)) for word, steps in (line.split() for line in lines)]


@pytest.fixture
def small(write: Callable[..., Path]) -> Path:
    return write(steps=60)


def test_that_every_cut_is_told_and_what_is_left_is_shown(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    cuts = []
    for size in [*range(64, 24_000, 320), *range(24_000, len(content), 6400), len(content) - 1]:
        cuts.append(tmp_path / f"cut{size}.h5")
        cuts[-1].write_bytes(content[:size])
    outcomes = read_all(cuts)
    assert {word for word, _ in outcomes} == {"refused", "noted"}
    assert outcomes[-1] == ("noted", 60) or outcomes[-1][0] == "noted"
    assert max(steps for _, steps in outcomes) == 60


def test_that_a_cut_is_told_in_a_few_sentences_and_is_no_run_that_goes_on(small: Path, tmp_path: Path) -> None:
    """Each lost part had a sentence of its own, and the run, which had completed, was "running" for ever."""
    content, cut = small.read_bytes(), tmp_path / "cut.h5"
    kinds = set()
    for size in range(400, len(content), 1600):
        cut.write_bytes(content[:size])
        try:
            with precgui.open_run(cut) as run:
                run.series("loss"), run.series("power_w"), run.events()
                notes, status = run.notes, run.status
        except RunFileError as error:
            assert "cut short" in str(error) or "damaged" in str(error)
            kinds.add("refused")
            continue
        assert notes[0].startswith("The file is cut short by")
        assert status in ("completed", "failed")
        assert not any("is damaged (" in note for note in notes)
        assert len(notes) <= 8
        kinds.add(status)
    assert {"refused", "completed"} <= kinds


@pytest.mark.parametrize("living", [True, False])
def test_that_a_run_whose_status_is_lost_goes_on_only_while_its_process_lives(
    write: Callable[..., Path], living: bool
) -> None:
    path = write(steps=60)
    with h5py.File(path, "r+") as file:
        del file["status"], file["environment"]
        writer = process.this_process() if living else {}
        file["environment"] = np.bytes_(json.dumps({"writer": writer}))
    with precgui.open_run(path) as run:
        assert run.status == ("running" if living else "failed")
        assert ("broke off" in " ".join(run.notes)) is not living


def test_that_defaults_are_named_where_the_config_is_lost(small: Path) -> None:
    with h5py.File(small, "r+") as file:
        del file["config"]
    with precgui.open_run(small) as run:
        assert "The config cannot be read; defaults are shown in its place." in run.notes
    with h5py.File(small, "r+") as file:
        del file["status"], file["steps"]
    with pytest.raises(RunFileError, match="neither its settings nor its steps can be read; restore a copy"):
        precgui.open_run(small)


def test_that_flipped_bits_never_crash_the_reader(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    rng = random.Random(5)
    broken = []
    for number in range(100):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 4, 64])):
            damaged[rng.randrange(rng.choice([2_000, 30_000, len(content)]))] ^= 1 << rng.randrange(8)
        broken.append(tmp_path / f"flip{number}.h5")
        broken[-1].write_bytes(damaged)
    assert {word for word, _ in read_all(broken)} >= {"noted", "refused"}


def test_that_what_is_no_run_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("I am not HDF5")
    (tmp_path / "empty.h5").write_bytes(b"")
    (tmp_path / "folder.h5").mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = [1, 2, 3]
    with h5py.File(tmp_path / "later.h5", "w") as file:
        file.attrs["schema"] = 2
    expected = {
        "text.h5": "is not an HDF5 file; choose",
        "empty.h5": "is empty; restore",
        "folder.h5": "is not a file; choose",
        "missing.h5": "is not there; choose",
        "other.h5": "not a run of precgui; choose",
        "later.h5": "has schema 2, this precgui reads schema 1; update",
    }
    for name, words in expected.items():
        with pytest.raises(RunFileError, match=f"{name} .*{words}"):
            precgui.open_run(tmp_path / name)


def test_that_a_file_of_an_older_version_has_no_use_of_devices_and_nothing_to_note(small: Path) -> None:
    """As this version writes it, less the tables that came later."""
    with h5py.File(small, "r+") as file:
        del file["power/state"]
        counters, names = file["rows_valid"][:], file["rows_valid"].attrs["tables"]
        kept = [index for index, name in enumerate(names) if not name.startswith(b"power/state")]
        assert len(kept) == len(names) - 2
        del file["rows_valid"]
        file["rows_valid"] = counters[kept]
        file["rows_valid"].attrs["tables"] = names[kept]
    with precgui.open_run(small) as run:
        assert run.state_devices() == []
        assert len(run.series("tensor_use")[1]) == len(run.series("clock_held", "time_s")[1]) == 0
        assert len(run.series("power_w")[1]) == 6
        assert run.notes == []


@pytest.mark.parametrize("group", ["steps", "power", "evaluation", "tensors", "events", "config", "machine", "status"])
def test_that_a_missing_part_costs_only_that_part(small: Path, group: str) -> None:
    with h5py.File(small, "r+") as file:
        del file[group]
    with precgui.open_run(small) as run:
        assert len(run.series("loss")[1]) == (0 if group == "steps" else 60)
        assert len(run.series("val_loss")[1]) == (0 if group == "evaluation" else 2)
        assert len(run.events()) == (0 if group == "events" else 1)
        run.series("power_w")
        assert (run.notes != []) == (group != "tensors")  # which nothing here has asked for


def outside(tmp_path: Path) -> Path:
    """A file with data that a hostile run file would like to be read."""
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["steps/loss"] = np.full(60, 42.0)
        file["config"] = np.bytes_(b'{"title": "secret"}')
    (tmp_path / "secret.raw").write_bytes(np.full(60, 42.0).tobytes())
    return tmp_path / "secret.h5"


def external_link(file: h5py.File, secret: Path) -> None:
    del file["steps/loss"], file["config"]
    file["steps/loss"] = h5py.ExternalLink(str(secret), "/steps/loss")
    file["config"] = h5py.ExternalLink(str(secret), "/config")


def external_group(file: h5py.File, secret: Path) -> None:
    del file["steps"]
    file["steps"] = h5py.ExternalLink(str(secret), "/steps")


def soft_link(file: h5py.File, _: Path) -> None:
    file.move("steps/loss", "elsewhere")
    file["steps/loss"] = h5py.SoftLink("/elsewhere")


def loop(file: h5py.File, _: Path) -> None:
    del file["steps/loss"]
    file["steps/loss"] = file["steps"]


def external_storage(file: h5py.File, secret: Path) -> None:
    del file["steps/loss"]
    raw = secret.with_suffix(".raw")
    file.create_dataset("steps/loss", (60,), "<f8", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])


def virtual_dataset(file: h5py.File, secret: Path) -> None:
    del file["steps/loss"]
    layout = h5py.VirtualLayout((60,), "<f8")
    layout[:] = h5py.VirtualSource(str(secret), "steps/loss", (60,))
    file.create_virtual_dataset("steps/loss", layout)


def unknown_filter(file: h5py.File, _: Path) -> None:
    del file["steps/loss"]
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk((60,))
    creation.set_filter(32_000, h5py.h5z.FLAG_OPTIONAL)
    space = h5py.h5s.create_simple((60,))
    h5py.h5d.create(file.id, b"steps/loss", h5py.h5t.IEEE_F64LE, space, dcpl=creation)


def wild_shape(file: h5py.File, _: Path) -> None:
    for name in list(file["steps"]):
        del file[f"steps/{name}"]
        file.create_dataset(f"steps/{name}", (1 << 50,), "<f8", chunks=(1 << 16,))
    file["rows_valid"][0] = 1 << 50


def huge_contiguous(file: h5py.File, _: Path) -> None:
    del file["steps/loss"]
    file.create_dataset("steps/loss", (1 << 40,), "<f8")
    file["rows_valid"][0] = 1 << 40


def objects(file: h5py.File, _: Path) -> None:
    del file["steps/loss"]
    file.create_dataset("steps/loss", data=["text"] * 60, dtype=h5py.string_dtype())


def references(file: h5py.File, _: Path) -> None:
    del file["steps/loss"]
    file.create_dataset("steps/loss", data=[file.ref] * 60, dtype=h5py.ref_dtype)


def matrix(file: h5py.File, _: Path) -> None:
    del file["steps/loss"]
    file["steps/loss"] = np.zeros((60, 60))


@pytest.mark.parametrize(
    "attack",
    [external_link, external_group, soft_link, loop, external_storage, virtual_dataset, unknown_filter, wild_shape,
     huge_contiguous, objects, references, matrix],
)  # fmt: skip
def test_that_a_hostile_part_is_refused_with_a_note(
    small: Path, tmp_path: Path, attack: Callable[[h5py.File, Path], None]
) -> None:
    secret = outside(tmp_path)
    with h5py.File(small, "r+") as file:
        attack(file, secret)
    with precgui.open_run(small) as run:
        assert len(run.series("loss")[1]) == 0
        assert run.title != "secret"
        assert any("steps" in note for note in run.notes)
        assert len(run.series("val_loss")[1]) == 2


def test_that_hostile_texts_are_refused(small: Path) -> None:
    with h5py.File(small, "r+") as file:
        for name in ("machine", "environment", "config", "engine"):
            del file[name]
        file["machine"] = np.bytes_(b"[" * 100_000)
        file["environment"] = np.bytes_(b'{"writer": {"pid": -1, "host": 7}}')
        file["config"] = np.bytes_(b'{"precision": "fp32", "seed": -4, "from_the_future": 1, "train": {"epochs": 7}}')
        file["engine"] = np.bytes_(b'{"total_steps": "many", "engine": 5}')
        file.attrs["title"] = "x" * 60_000
    with precgui.open_run(small) as run:
        assert (run.machine, run.total_steps) == ({}, 0)
        assert (run.config.precision, run.config.train.epochs, run.config.seed) == ("fp32", 7, 0)
        assert any("seed" in note for note in run.notes)
        assert any("from_the_future" in note for note in run.notes)
        assert len(run.title) < 60_000


def test_that_a_run_with_torn_last_rows_ends_before_them(small: Path) -> None:
    with h5py.File(small, "r+") as file:
        file["rows_valid"][0] = 50
    with precgui.open_run(small) as run:
        assert run.steps == len(run.series("loss")[1]) == 50


def test_that_columns_of_different_length_end_with_the_shortest(small: Path) -> None:
    with h5py.File(small, "r+") as file:
        file["steps/loss"].resize((40,))
    with precgui.open_run(small) as run:
        assert len(run.series("lr")[1]) == len(run.series("loss")[1]) == 40


def test_that_a_repacked_file_is_still_a_run(small: Path, tmp_path: Path) -> None:
    with h5py.File(small, "r") as old, h5py.File(tmp_path / "copy.h5", "w") as new:
        for name in old:
            old.copy(name, new)
        for name, value in old.attrs.items():
            new.attrs[name] = value
    with precgui.open_run(tmp_path / "copy.h5") as run:
        assert len(run.series("loss")[1]) == 60
        assert run.notes == []


def test_that_reading_leaves_a_file_as_it_is(small: Path, tmp_path: Path) -> None:
    shutil.copy(small, tmp_path / "before.h5")
    small.chmod(0o444)
    with precgui.open_run(small) as run:
        run.series("loss"), run.events(), run.refresh()
    assert small.read_bytes() == (tmp_path / "before.h5").read_bytes()


def test_that_the_checksum_is_that_of_jenkins() -> None:
    # The test vectors of lookup3.c itself.
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551


def test_that_the_damage_tests_start_from_a_run_with_everything() -> None:
    kinds = {type(event).__name__ for event in synthetic_events(60)}
    assert kinds == {
        "RunStarted",
        "StepDone",
        "Evaluated",
        "PowerRead",
        "DeviceRead",
        "HostRead",
        "Incident",
        "RunEnded",
    }
