"""A sweep read as a study: only whole runs that were planned count, and each other one is named."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import h5py
import pytest

from precgui.events import Metric
from precgui.runs.report.group_table import effect_rows
from precgui.sweeps.folder import SweepFolder
from precgui.sweeps.study import NOT_PLANNED, SweepReader
from tests.sweeps.sample_sweep import small_sweep, write_member


def _ended(tmp_path: Path, seeds: int = 5) -> SweepFolder:
    folder = small_sweep(tmp_path, seeds=seeds)
    for member in folder.plan.members:
        write_member(folder, member, accuracy=0.9 + 0.001 * member.seed)
    return folder


def _left_out(folder: SweepFolder) -> dict[str, str]:
    return {member.run: member.why for member in SweepReader(folder).study().members if not member.used}


def test_that_every_member_of_a_whole_study_is_used(tmp_path: Path) -> None:
    study = SweepReader(_ended(tmp_path)).study()
    assert len(study.members) == 13  # two arms of five seeds, and three twins
    assert all(member.used and not member.why for member in study.members)


def test_that_a_member_whose_seed_or_precision_is_not_the_planned_one_is_refused(tmp_path: Path) -> None:
    folder = _ended(tmp_path)
    paths = {member.name: folder.path_of(member) for member in folder.plan.members}
    shutil.copyfile(paths["s01-bf16-amp"], paths["s02-bf16-amp"])
    shutil.copyfile(paths["s03-fp32"], paths["s03-bf16-amp"])
    shutil.copyfile(paths["s04-fp32"], paths["s01-fp32-twin"])
    left_out = _left_out(folder)
    assert left_out.pop("s02-bf16-amp") == f"{NOT_PLANNED}: its seed is 0 and not 1"
    assert left_out.pop("s03-bf16-amp") == f"{NOT_PLANNED}: its precision is fp32 and not bf16-amp"
    assert left_out.pop("s01-fp32-twin") == f"{NOT_PLANNED}: its seed is 3 and not 0"
    assert left_out == {}


def test_that_values_of_a_field_in_one_precision_are_paired_with_the_first(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=5, precisions=("bf16-amp",), vary={"optimizer.lr": [0.1, 0.2]})
    for member in folder.plan.members:
        is_changed, own = member.arm.endswith("0.2"), 0.9 + 0.001 * member.seed
        write_member(folder, member, accuracy=own - 0.05 * is_changed, step_s=0.01 * (1 + is_changed))
    first, changed = SweepReader(folder).study().groups
    assert (first.group, changed.baseline) == ("bf16-amp optimizer.lr=0.1", "bf16-amp optimizer.lr=0.1")
    assert changed.metrics["metric"].difference == pytest.approx(-0.05)
    assert changed.metrics["step_s"].ratio == pytest.approx(2)
    assert effect_rows(changed, Metric(**SweepReader(folder).study().metric))[1][1].startswith("0.50x")


def test_that_a_run_of_another_value_of_the_varied_field_is_refused(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=1, vary={"optimizer.lr": [0.1, 0.2]})
    runs = [member for member in folder.plan.members if member.kind == "run" and member.precision == "fp32"]
    for member in folder.plan.members:
        write_member(folder, member)
    shutil.copyfile(folder.path_of(runs[0]), folder.path_of(runs[1]))
    assert "its optimizer.lr is" in _left_out(folder)[runs[1].name]


def test_that_a_member_cut_in_half_runs_again_and_changes_no_other(tmp_path: Path) -> None:
    folder = _ended(tmp_path)
    whole = {group.group: group for group in SweepReader(folder).study().groups}
    path = folder.path_of(folder.plan.member("s03-bf16-amp"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    study = SweepReader(SweepFolder(folder.path)).study()
    assert list(_left_out(SweepFolder(folder.path))) == ["s03-bf16-amp"]
    group = study.groups[1]
    assert (group.n, group.failed, group.verdicts["accuracy_lost"].n) == (4, 0, 4)
    assert whole["fp32"].metrics == study.groups[0].metrics


def test_that_a_last_validation_of_nan_is_a_failure_and_the_training_loss_does_not_stand_in(tmp_path: Path) -> None:
    folder = _ended(tmp_path)
    for name, column in (("s02-bf16-amp", "loss"), ("s03-bf16-amp", "accuracy")):
        with h5py.File(folder.path_of(folder.plan.member(name)), "r+") as file:
            file["evaluation"][column][-1] = math.nan
    folder = SweepFolder(folder.path)
    states = {state.member.name: state for state in folder.states()}
    assert not states["s02-bf16-amp"].came_through
    study = SweepReader(folder).study()
    group = study.groups[1]
    assert (group.n, group.failed) == (3, 2)
    assert group.verdicts["failures"].verdict == "missed"
    why = {member.run: member.why for member in study.members if member.why}
    assert why == {
        "s02-bf16-amp": "its last validation loss is not finite",
        "s03-bf16-amp": "its last validation metric is not finite",
    }


def test_that_a_file_that_is_exchanged_while_the_study_is_open_is_read_again(tmp_path: Path) -> None:
    folder = _ended(tmp_path)
    reader = SweepReader(folder)
    assert all(member.used for member in reader.study().members)
    paths = {member.name: folder.path_of(member) for member in folder.plan.members}
    shutil.copyfile(paths["s01-bf16-amp"], paths["s02-bf16-amp"])
    assert [member.run for member in reader.study().members if not member.used] == ["s02-bf16-amp"]
