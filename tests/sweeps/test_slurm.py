"""Blocks as jobs, with submitit's local executor where it is installed."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from precgui import config
from precgui.cli.main import main
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import JOBS, create_sweep
from precgui.sweeps.jobs import SubmittedJob, job_states, keep_jobs, read_jobs
from precgui.sweeps.report import sweep_document
from precgui.sweeps.runner import SweepBusy, run_sweep
from precgui.sweeps.slurm import run_block, submit_blocks
from precgui.sweeps.spec import make_spec, parse_setting
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


def test_that_a_preempted_block_goes_on_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    settings = ["device=cpu", "threads=1", "model.name=mlp", "record.tensors=false", "train.epochs=1000"]
    base = config.load("digits-quick", [*settings, "data.batch_size=32", "train.max_steps=2500"])
    folder = create_sweep(tmp_path / "sweep", make_spec(base, ["fp32"], 1, twins=0))
    for member in folder.plan.members:
        if member.name != "s01-fp32":  # the warm-up
            write_member(folder, member)
    (job,) = submit_blocks(folder, {"timeout_min": 5}, cluster="local")
    run = folder.path_of(folder.plan.member("s01-fp32"))
    (state,) = job_states(read_jobs(folder.path / JOBS))
    assert (state.state, state.job.block) == ("running", 1)
    until = time.monotonic() + 90
    while time.monotonic() < until and not _steps(run) > 20:
        time.sleep(0.05)
    (task,) = psutil.Process(int(job.job_id)).children()  # of submitit's controller
    task.send_signal(signal.SIGUSR2)
    assert job.result() == 1
    with open_run(run) as saved:
        breaks = saved.environment["breaks"]
        assert saved.status == "completed"
        assert len(breaks) == 1
        assert breaks[0]["step"] > 20
        assert breaks[0]["lost_steps"] == 0  # the checkpoint was written when the signal came
    assert [each.state for each in job_states(read_jobs(folder.path / JOBS))] == ["ended"]


def _steps(run: Path) -> int:
    try:
        with open_run(run) as saved:
            return saved.steps
    except RunFileError:
        return 0


def test_that_states_and_reasons_come_from_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_sweep(tmp_path)
    (folder.path / JOBS).mkdir()
    jobs = [SubmittedJob("77_0", 1, "slurm"), SubmittedJob("77_1", 2, "slurm"), SubmittedJob("77_2", 3, "slurm")]
    keep_jobs(folder.path / JOBS, jobs)
    tools = tmp_path / "tools"
    tools.mkdir()
    said = tmp_path / "said"
    for name, text in (
        ("squeue", "echo '77_0|RUNNING|None'; echo '77_1|PENDING|QOSMaxJobsPerUserLimit'; echo '5|PENDING|None'"),
        ("scancel", f'echo "$@" > {said}'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert main(["sweep", str(folder.path), "--jobs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["jobs"]
    assert [(row["job"], row["state"], row["reason"]) for row in rows] == [
        ("77_0", "running", ""), ("77_1", "pending", "QOSMaxJobsPerUserLimit"), ("77_2", "ended", ""),
    ]  # fmt: skip
    shown = {row.block: row.job for row in sweep_document(folder).members}
    assert shown[2] == "job 77_1: pending (QOSMaxJobsPerUserLimit)"
    assert main(["sweep", str(folder.path), "--cancel-jobs"]) == 0
    assert said.read_text().split() == ["77_0", "77_1"]


def test_that_a_hostile_list_of_jobs_is_left_aside(tmp_path: Path) -> None:
    for text in ("[", "3", '[{"job_id": "1; rm -rf /", "block": 1, "cluster": "slurm"}]', '[{"job_id": "--all"}, 7]'):
        (tmp_path / "jobs.json").write_text(text)
        assert read_jobs(tmp_path) == []


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
