"""`precgui cluster`: the files for sbatch, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.config import load
from precgui.engine.parallel.link_trial import LinkTrial
from precgui.planner.communication import link_rate

CONFIG = ["gpt-quick", "--set", "parallel.strategy=ddp"]


def test_that_the_files_start_one_config_on_all_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a job; it's mine"
    options = ["--nodes", "3", "--ranks-per-node", "4", "--gpus-per-node", "4", "--minutes", "90", "--account", "lab"]
    assert main(["cluster", *CONFIG, "-o", str(folder), *options]) == 0
    assert str(folder / "run.sbatch") in capsys.readouterr().out
    script = (folder / "run.sbatch").read_text()
    for line in ("nodes=3", "ntasks-per-node=1", "gpus-per-node=4", "time=90", "account=lab", "requeue"):
        assert f"#SBATCH --{line}\n" in script
    assert "partition" not in script
    assert load(folder / "config.toml").parallel.ranks == 12


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("resumes", [False, True])
def test_that_the_script_runs_tries_the_link_resumes_and_queues_again(tmp_path: Path, *, resumes: bool) -> None:
    folder, tools, said = tmp_path / "it's a job", tmp_path / "tools", tmp_path / "said"
    main(["cluster", *CONFIG, "-o", str(folder)])
    tools.mkdir()
    for name, text in (("srun", f'echo "$@" >> {said}'), ("scontrol", f'echo "$@" >> {said}; echo host1; echo host2')):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    if resumes:
        (folder / "run.h5").touch()
        (folder / "run.h5.checkpoint-000004.safetensors").touch()
    slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "host[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    environment = {**os.environ, **slurm, "PATH": f"{tools}:{os.environ['PATH']}"}
    script = ["bash", str(folder / "run.sbatch")]
    assert subprocess.run(script, env=environment, check=False, timeout=300).returncode == 0
    lines = said.read_text().splitlines()
    if resumes:
        assert lines[1].endswith("--rdzv-endpoint host1:20077 -m precgui run run.h5 --resume")
        assert lines[-1] == "requeue 77"
    else:
        assert lines[1].endswith("-m precgui cluster --try-link")
        assert lines[-1].endswith("--rdzv-endpoint host1:20077 -m precgui run config.toml -o run.h5")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gpt-quick", "-o", "new"], "the config has one process; add --set parallel.strategy=ddp"),
        ([*CONFIG], "name a config and, with -o, a new folder"),
        ([*CONFIG, "-o", "new", "--account", "a\nb"], "is no word that sbatch reads"),
        ([*CONFIG, "-o", "."], "already exists"),
        (["--try-link"], "start it with torchrun"),
        (["gpt-quick", "--rendezvous", "a:1"], "the config has one process"),
        ([*CONFIG, "--rendezvous", "gpu1"], "write HOST:PORT"),
        ([*CONFIG, "--rendezvous", "gpu1:70000"], "write HOST:PORT"),
        ([*CONFIG, "--rendezvous", "_x:1"], "write HOST:PORT"),
    ],
)
def test_that_what_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str],
    sentence: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["cluster", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_that_each_host_gets_its_command_without_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--nodes", "2", "--ranks-per-node", "4", "--rendezvous", "[fd00::1]:29400", "-o", "it's.h5"]
    assert main(["cluster", *CONFIG, *words, "--json"]) == 0
    commands = [shlex.split(command) for command in json.loads(capsys.readouterr().out)["commands"]]
    assert [command[command.index("--node-rank") + 1] for command in commands] == ["0", "1"]
    for command in commands:
        assert command[command.index("--master-addr") + 1] == "fd00::1"
        assert command[command.index("-m", 3) :] == ["-m", "precgui", "run", *CONFIG, "-o", "it's.h5"]
        assert command[command.index("--nproc-per-node") + 1] == "4"


def test_that_the_measured_link_is_one_that_the_plan_reads() -> None:
    trial = LinkTrial(2, "gloo", 1.17e9, 4e-5, 0.013, 0.015)
    assert trial.link == "9.36Gb/s"
    assert link_rate(trial.link) == pytest.approx(1.17e9, rel=1e-3)
