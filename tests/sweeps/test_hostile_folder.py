"""The folder of a study that somebody else made: nothing outside it is written, runs are counted before they exist."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.errors import SentenceError
from precgui.runs.verdict.targets import Targets
from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import SweepFolder, create_sweep, write_targets
from precgui.sweeps.listing import StudyList
from precgui.sweeps.runner import run_sweep
from precgui.sweeps.spec import SweepSpec, check_spec
from precgui.sweeps.study import SweepReader
from tests import needs
from tests.sweeps.sample_sweep import small_spec, small_sweep, write_member

VICTIM = "a file of the user\n" * 100


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text(VICTIM, encoding="utf-8")
    return path


def change_the_plan(path: Path) -> None:
    SweepFolder(path).skip("s01-fp32")


def run_it(path: Path) -> None:
    folder = SweepFolder(path)
    run_sweep(folder, lambda event: None, stopped=lambda: True)


def take_over(path: Path) -> None:
    folder = SweepFolder(path)
    with SweepFolder(path).runner.held():
        run_sweep(folder, lambda event: None, stopped=lambda: True, take_over=True)


def pause(path: Path) -> None:
    SweepFolder(path).pause()


def change_targets(path: Path) -> None:
    write_targets(path, Targets(speedup=1.2))


def judge(path: Path) -> None:
    SweepReader(SweepFolder(path)).study()


def discard(path: Path) -> None:
    folder = SweepFolder(path)
    folder.discard(folder.plan.member("s01-fp32"))


@needs.links
@pytest.mark.parametrize("exists", [True, False], ids=["to a file", "to nothing"])
@pytest.mark.parametrize(
    ("name", "act"),
    [
        (".plan.json.new", change_the_plan),
        ("plan.json", change_the_plan),
        ("plan.lock", change_the_plan),
        ("runner.lock", run_it),
        ("successor.lock", take_over),
        ("pause", pause),
        ("targets.toml", change_targets),
        (".targets.toml.new", change_targets),
        ("targets-changes.jsonl", change_targets),
    ],
)
def test_that_no_link_in_a_folder_is_written_through(
    tmp_path: Path, victim: Path, name: str, act: Callable[[Path], None], exists: bool
) -> None:
    path = small_sweep(tmp_path).path
    goal = victim if exists else tmp_path / "not-there"
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(goal)
    try:
        act(path)
    except SentenceError as error:
        assert name in str(error)
    assert victim.read_text(encoding="utf-8") == VICTIM
    assert not (tmp_path / "not-there").exists()


@needs.links
def test_that_a_linked_folder_of_runs_moves_nothing_of_another(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "s01-fp32.h5").write_text(VICTIM, encoding="utf-8")
    path = small_sweep(tmp_path).path
    (path / "members").rmdir()
    (path / "members").symlink_to(other)
    with pytest.raises(SweepError, match="members is not a folder of the sweep itself"):
        discard(path)
    assert (other / "s01-fp32.h5").read_text(encoding="utf-8") == VICTIM


@needs.links
def test_that_judging_a_folder_of_others_leaves_the_record_of_ones_own_alone(tmp_path: Path) -> None:
    own, theirs = small_sweep(tmp_path / "own"), small_sweep(tmp_path / "theirs")
    write_member(theirs, theirs.plan.members[1])
    record = (own.path / "targets-changes.jsonl").read_text(encoding="utf-8")
    (theirs.path / "targets.toml").write_text("speedup = 1.2\n", encoding="utf-8")
    (theirs.path / "targets-changes.jsonl").unlink()
    (theirs.path / "targets-changes.jsonl").symlink_to(own.path / "targets-changes.jsonl")
    with pytest.raises(SweepError, match="targets-changes"):
        judge(theirs.path)
    assert (own.path / "targets-changes.jsonl").read_text(encoding="utf-8") == record


@needs.named_pipes
@pytest.mark.parametrize("name", ["runner.lock", "plan.lock", "pause", "targets-changes.jsonl", "plan.json", "members"])
def test_that_a_pipe_in_the_place_of_a_file_is_a_sentence(tmp_path: Path, name: str) -> None:
    path = small_sweep(tmp_path).path
    (path / name).rmdir() if name == "members" else (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with pytest.raises(SweepError, match=name):
        run_it(path) if name == "runner.lock" else change_the_plan(path)


def many_arms(values: int) -> dict[str, object]:
    names = "weight_decay", "lr", "momentum"
    fields = [f"optimizer.{name}" for name in names] + [
        "train.clip_norm", "scaling.growth_factor", "scaling.backoff_factor"
    ]  # fmt: skip
    tree = small_spec().model_dump(exclude_none=True)
    return tree | {"vary": {name: [0.1 + 0.001 * n for n in range(values)] for name in fields}}


def test_that_a_million_of_millions_of_arms_is_counted_and_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object) -> None:
        raise AssertionError("the arms were built before they were counted")

    tree = many_arms(100)
    monkeypatch.setattr(SweepSpec, "arms", built)
    with pytest.raises(SweepError, match="4000000000000 runs are more than 2000"):
        check_spec(tree)


def test_that_rounds_and_seeds_count_too(tmp_path: Path) -> None:
    varied = {"timing_rounds": 100, "vary": {"optimizer.lr": [0.001 * n for n in range(1, 101)]}}
    with pytest.raises(SweepError, match="30600 runs with those for times are more than 10000; choose fewer rounds"):
        check_spec(small_spec().model_dump(exclude_none=True) | varied)
    folder = small_sweep(tmp_path)
    for _ in range(4):
        folder.add_seeds(1000)
    with pytest.raises(SweepError, match="more than 10000; add fewer"):
        folder.add_seeds(1000)


def test_that_a_plan_of_too_many_runs_is_a_sentence(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    tree = json.loads((folder.path / "plan.json").read_text(encoding="utf-8"))
    first = tree["members"][0]
    tree["members"] = [first | {"name": f"r{number}"} for number in range(20_000)]
    (folder.path / "plan.json").write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(SweepError, match="20000 runs, more than 10000"):
        SweepFolder(folder.path)


DEEP = "[" * 100_000
ODD_FILES = {
    "plan.json": [DEEP, '{"members":' + DEEP, '{"members": 3}', "[]", '{"members": [3]}', '{"members": [{"name": 1}]}'],
    "targets-changes.jsonl": [
        DEEP,
        '{"changed":"2026-01-01T00:00:00","ended_runs":Infinity,"targets":{}}',
        '{"changed":"2026-01-01T00:00:00","ended_runs":NaN,"targets":{}}',
        '{"planned":' + DEEP + "}",
        '{"planned":{}}\n{"changed":"2026-01-01T00:00:00","ended_runs":1e400,"targets":{"a":[1,2]}}',
    ],
    "sweep.toml": ["a = " + DEEP, "seeds = 1e999", "vary = 3"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in ODD_FILES.items() for text in texts])
def test_that_one_odd_file_costs_its_own_study_only(tmp_path: Path, name: str, text: str) -> None:
    good, bad = small_sweep(tmp_path / "good"), small_sweep(tmp_path / "bad")
    for folder in (good, bad):
        write_member(folder, folder.plan.members[1])
        folder.path.rename(tmp_path / f"{folder.path.parent.name}-study")
    (tmp_path / "bad-study" / name).write_text(text, encoding="utf-8")
    entries = {entry.path.name: entry for entry in StudyList(tmp_path).entries()}
    assert set(entries) == {"good-study", "bad-study"}
    assert entries["good-study"].error == ""
    assert bool(entries["bad-study"].error) == (name != "targets-changes.jsonl")
    try:
        judge(tmp_path / "bad-study")
    except SentenceError as error:
        assert name in str(error)


def test_that_a_folder_with_a_task_of_ones_own_runs_no_code_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "evil.py"
    task.write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\n", encoding="utf-8")
    spec = small_spec()
    named = spec.model_copy(update={"config": spec.config | {"task": f"{task}:make_task"}})
    create_sweep(tmp_path / "theirs", named)
    assert main(["sweep", str(tmp_path / "theirs")]) == 2
    assert "--own-code runs the code that it names" in capsys.readouterr().err
    assert not (tmp_path / "PWNED").exists()
    assert main(["sweep", str(tmp_path / "theirs"), "--plan"]) == 0
