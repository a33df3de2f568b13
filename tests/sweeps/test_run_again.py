"""A run of a study that was killed from outside: no answer about its arm, and it can run again."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.sweeps.errors import SweepError
from precgui.sweeps.events import SweepEvent, SweepWaits
from precgui.sweeps.folder import SweepFolder
from precgui.sweeps.plan import Member
from precgui.sweeps.runner import next_member, run_sweep
from precgui.sweeps.state import KILLED
from precgui.sweeps.study import SweepReader
from tests.sweeps.sample_sweep import small_sweep, write_member


def kill(folder: SweepFolder, member: Member) -> Path:
    """The file of a run whose process was killed, as its runner closes it."""
    message = f"{KILLED} SIGKILL: somebody ended it, or the system was out of memory"
    return write_member(folder, member, status="failed", message=message)


def leave_running(folder: SweepFolder, member: Member) -> None:
    """The file of a run that this process writes, if the name of its machine is that of now."""
    write_member(folder, member, status=None, host=socket.gethostname())


def of_arm(folder: SweepFolder, arm: str) -> list[Member]:
    return [member for member in folder.plan.members if member.arm == arm and member.kind == "run"]


def test_that_killed_runs_give_no_arm_up_and_are_no_failures_of_it(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=4)
    killed = of_arm(folder, "bf16-amp")[:2]
    for member in killed:
        kill(folder, member)
    states = {state.member.name: state for state in folder.states()}
    assert [states[member.name].status for member in killed] == ["failed", "failed"]
    assert all(states[member.name].was_killed for member in killed)
    assert [states[member.name].status for member in of_arm(folder, "bf16-amp")[2:]] == ["waiting", "waiting"]
    assert SweepReader(folder).figures() == []


def test_that_runs_that_fail_by_themselves_give_their_arm_up_as_before(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=4)
    for member in of_arm(folder, "bf16-amp")[:2]:
        write_member(folder, member, status="failed")
    states = {state.member.name: state.status for state in folder.states()}
    assert [states[member.name] for member in of_arm(folder, "bf16-amp")[2:]] == ["given up", "given up"]
    assert len(SweepReader(folder).figures()) == 2


def test_that_a_run_that_has_ended_runs_again_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_sweep(tmp_path)
    for member in folder.plan.members:
        write_member(folder, member)
    name = "s01-bf16-amp"
    folder.path_of(folder.plan.member(name)).unlink()
    kill(folder, folder.plan.member(name))
    assert next_member(folder.states()) is None
    assert main(["sweep", str(folder.path), "--again", name, "--plan", "--json"]) == 0
    rows = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)["members"]}
    assert rows.pop(name) == "waiting" and set(rows.values()) == {"completed"}
    assert next_member(folder.states()) == folder.plan.member(name)
    assert (folder.path / "discarded" / f"{name}.1.h5").is_file()
    with pytest.raises(SweepError, match="is waiting, so there is nothing of it to run again"):
        folder.run_again(name)
    assert main(["sweep", str(folder.path), "--again", "nothing", "--plan"]) == 2
    assert "has no run nothing" in capsys.readouterr().err


def test_that_a_run_of_a_lost_machine_is_named_and_runs_again_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_sweep(tmp_path)
    first, *others = folder.plan.members
    for member in others:
        write_member(folder, member)
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "node1")
        leave_running(folder, first)
    said: list[SweepEvent] = []
    run_sweep(folder, said.append, lambda: bool(said), lambda: bool(said))
    assert [event.why for event in said if isinstance(event, SweepWaits)] == [
        f"{first.name} is written by process {os.getpid()} on node1, which cannot be asked from here; it runs again "
        f"when that process has given no sign of life for 180 s, at once with --give-up {first.name}"
    ]
    assert main(["sweep", str(folder.path), "--give-up", first.name, "--plan", "--json"]) == 0
    rows = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)["members"]}
    assert rows[first.name] == "waiting"


def test_that_a_run_of_this_machine_that_goes_on_does_not_run_again(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    first = folder.plan.members[0]
    leave_running(folder, first)
    assert not folder.state_of(first).is_out_of_reach
    with pytest.raises(SweepError, match="is running, so there is nothing of it to run again"):
        folder.run_again(first.name)
    with pytest.raises(SweepError, match="only a run of another machine can be given up"):
        folder.give_up(first.name)
