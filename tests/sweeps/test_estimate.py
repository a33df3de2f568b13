"""Before a sweep: its time and the differences it can tell, from what this machine has run before."""

import platform
from pathlib import Path
from typing import Any

import pytest

from precgui.errors import SentenceError
from precgui.runs.verdict.targets import DEFAULT_TARGETS, Targets
from precgui.sweeps.earlier import EarlierRuns
from precgui.sweeps.estimate import TYPICAL_SD, estimate_sweep
from precgui.sweeps.folder import TARGET_CHANGES, TARGETS, SweepFolder, create_sweep, read_targets, write_targets
from precgui.sweeps.state import START_S
from precgui.sweeps.study import SweepReader
from precgui.sweeps.target_changes import change_notes
from tests.sweeps.sample_sweep import small_spec, small_sweep, write_member


def _earlier_study(folder: Path, host: str = "", **options: Any) -> SweepFolder:
    """A study of 4 seeds whose bf16-amp differs by 0, 1, 2 and 3 points, and whose twin does by 2."""
    sweep = small_sweep(folder, seeds=4, twins=1, **options)
    for member in sweep.plan.members:
        worse = 0.01 * member.seed if member.precision != "fp32" else 0.02 * (member.kind == "twin")
        write_member(sweep, member, accuracy=0.9 - worse, host=host or platform.node())
    return sweep


@pytest.fixture(autouse=True)
def no_kept_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "state"))


def test_that_time_and_spread_come_from_an_earlier_study(tmp_path: Path) -> None:
    _earlier_study(tmp_path)
    spec = small_spec(seeds=5)
    found = estimate_sweep(spec, tmp_path)
    assert found.total_s == pytest.approx(5 * 2 * (0.6 + START_S) + 3 * (0.6 + START_S) + START_S)
    assert found.by_arm.keys() == {"bf16-amp"}
    # sd of 0, 1, 2, 3 points is 1.29; (t(1 - 0.0294 / 2, 4) + t(0.8, 4)) / sqrt(5) is 1.905
    assert found.detectable == pytest.approx(0.0129 * (3.319 + 0.941) / 5**0.5, rel=2e-3)
    assert any("as in the study sweep of this machine" in source for source in found.sources)
    assert any("rounding alone moved the results there by up to 2.00 points" in source for source in found.sources)


def test_that_a_study_of_another_machine_or_other_settings_says_nothing(tmp_path: Path) -> None:
    _earlier_study(tmp_path, host="another")
    assert estimate_sweep(small_spec(seeds=5), tmp_path).total_s is None
    assert not estimate_sweep(small_spec(seeds=5), tmp_path).by_arm


def test_that_varied_fields_count_with_their_own_times(tmp_path: Path) -> None:
    _earlier_study(tmp_path, vary={"train.max_steps": [5, 6]})
    known = estimate_sweep(small_spec(seeds=3, vary={"train.max_steps": [5, 6]}), tmp_path)
    assert known.total_s is not None
    unknown = estimate_sweep(small_spec(seeds=3, vary={"train.max_steps": [5, 7]}), tmp_path)
    assert unknown.total_s is None
    assert "fp32 train.max_steps=7" in unknown.sources[0]


def test_that_a_typical_spread_stands_in_for_images(tmp_path: Path) -> None:
    spec = small_spec(seeds=5)
    images = spec.model_copy(update={"config": {**spec.config, "task": "digits"}})
    found = estimate_sweep(images, tmp_path)
    assert found.detectable == pytest.approx(TYPICAL_SD * (3.319 + 0.941) / 5**0.5, rel=2e-3)


def test_that_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _earlier_study(tmp_path)
    earlier = EarlierRuns(tmp_path)
    first = estimate_sweep(small_spec(seeds=5), tmp_path, earlier)
    monkeypatch.setattr("precgui.sweeps.earlier.open_run", lambda path: pytest.fail("read again"))
    assert estimate_sweep(small_spec(seeds=5), tmp_path, earlier) == first


# Targets ---------------------------------------------------------------------------------------------------


def test_that_the_targets_of_a_sweep_are_kept_in_its_folder(tmp_path: Path) -> None:
    wanted = Targets(speedup=1.1, memory_saved=None)
    folder = create_sweep(tmp_path / "sweep", small_spec(seeds=3), wanted)
    assert read_targets(folder.path) == wanted
    for member in folder.plan.members:
        write_member(folder, member, step_s=0.01 if member.precision == "fp32" else 0.008)
    group = SweepReader(SweepFolder(folder.path)).study().groups[1]
    assert group.verdicts["speedup"].margin == pytest.approx(1.1)
    assert "memory_saved" not in group.verdicts
    write_targets(folder.path, DEFAULT_TARGETS)
    study = SweepReader(folder).study()
    assert study.groups[1].verdicts["speedup"].margin == pytest.approx(2.0)
    (note,) = [note for note in study.notes if note.startswith("The targets were changed after ")]
    assert "speedup from 1.1 to 2.0" in note and "memory_saved from none" in note


def test_that_targets_chosen_before_any_result_leave_no_note(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    write_targets(folder.path, Targets(speedup=1.1))
    assert change_notes(folder.path / TARGET_CHANGES, read_targets(folder.path), 0) == []


def test_that_targets_edited_by_hand_after_results_are_told_with_the_time_of_the_edit(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=3)
    path = folder.path / TARGETS
    path.write_text("speedup = 1.5\n", encoding="utf-8")  # before any run has ended: a plan, no change
    folder.note_edited_targets()
    for member in folder.plan.members:
        write_member(folder, member, step_s=0.01 if member.precision == "fp32" else 0.008)
    assert not [note for note in SweepReader(folder).study().notes if note.startswith("The targets")]
    path.write_text("speedup = 1.1\n", encoding="utf-8")
    for _ in range(2):  # told once, however often it is read
        study = SweepReader(SweepFolder(folder.path)).study()
        (note,) = [note for note in study.notes if note.startswith("The targets were changed by hand")]
    assert f"after {folder.ended_runs()} runs had ended" in note
    assert "speedup from 1.5 to 1.1" in note
    write_targets(folder.path, DEFAULT_TARGETS)
    notes = SweepReader(folder).study(targets=Targets(speedup=3.0)).notes
    assert sum(note.startswith("The targets were changed") for note in notes) == 2
    assert notes[-1].startswith("The verdicts are by other targets than those of the study")


def test_that_a_folder_that_cannot_be_written_still_tells_of_edited_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_sweep(tmp_path, seeds=3)
    for member in folder.plan.members:
        write_member(folder, member)
    (folder.path / TARGETS).write_text("speedup = 1.1\n", encoding="utf-8")

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("precgui.sweeps.target_changes._append", refuse)
    assert any("changed by hand" in note for note in SweepReader(folder).study().notes)


def test_that_broken_lines_about_changed_targets_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / TARGET_CHANGES
    path.write_text('nonsense\n[]\n{"targets": 3}\n{"targets": {"a": [1]}, "ended_runs": 1}\n', encoding="utf-8")
    assert change_notes(path, DEFAULT_TARGETS, 3) == []
    path.write_bytes(b"\xff\xfe")
    (note,) = change_notes(path, DEFAULT_TARGETS, 3)
    assert "cannot be read" in note


def test_that_targets_changed_by_hand_to_nonsense_are_named(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    (folder.path / TARGETS).write_text("speed = 2\n", encoding="utf-8")
    with pytest.raises(SentenceError, match="speed is not a target"):
        read_targets(folder.path)
