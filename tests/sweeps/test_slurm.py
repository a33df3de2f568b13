"""Blocks as jobs, with submitit's local executor where it is installed."""

import sys
from pathlib import Path

import pytest

from precgui.sweeps.errors import SweepError
from precgui.sweeps.runner import SweepBusy, run_sweep
from precgui.sweeps.slurm import run_block, submit_blocks
from precgui.sweeps.spec import parse_setting
from tests.sweeps.sample_sweep import small_sweep, write_member


def test_that_each_block_with_runs_left_becomes_a_job_and_runs_them(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    folder = small_sweep(tmp_path, seeds=2, precisions=("fp32",), twins=0)
    write_member(folder, folder.plan.member("s01-fp32"))
    jobs = submit_blocks(folder, {"timeout_min": 5}, cluster="local")
    assert len(jobs) == 2  # the warm-up and the second seed
    for job in jobs:
        assert job.result() >= 1
    assert {state.status for state in folder.states()} == {"completed"}


def test_that_without_submitit_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SweepError, match=r"install precgui\[slurm\]"):
        submit_blocks(small_sweep(tmp_path), {})


def test_that_a_block_has_one_runner(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    lock = folder.lock_of_block(1)
    assert lock.acquire()
    with pytest.raises(SweepBusy):
        run_sweep(folder, lambda event: None, block=1)
    lock.release()


def test_that_a_block_that_is_done_is_left_alone(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=1)
    for member in folder.plan.members:
        write_member(folder, member)
    assert run_block(str(folder.path), 1) == 3


def test_that_settings_are_read_as_toml_where_they_are_some() -> None:
    assert parse_setting("timeout_min=60") == ("timeout_min", 60)
    assert parse_setting("slurm_partition=gpu") == ("slurm_partition", "gpu")
    assert parse_setting("slurm_exclude=a,b") == ("slurm_exclude", "a,b")
    with pytest.raises(SweepError, match="has no value"):
        parse_setting("gpu")
