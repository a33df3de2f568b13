"""A run at a place from end to end: a command here without torch, an agent there without PySide6 and environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from precgui.places.settings import add_place, command_place
from precgui.runs.file.reader import open_run
from precgui.runs.replays import REPLAYS

_WITHOUT = "import sys; sys.modules[{library!r}] = None; from precgui.cli.main import main; sys.exit(main())"
TIMEOUT_S = 400


def here(*words: object) -> subprocess.CompletedProcess[str]:
    """`precgui WORDS` in a Python that has no torch."""
    command = [sys.executable, "-c", _WITHOUT.format(library="torch"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A place that is as bare as a container: nothing of the environment, a folder of its own."""
    if shutil.which("env") is None:
        pytest.skip("there is no command env here")
    threads = os.environ["OMP_NUM_THREADS"]
    add_place(command_place("box", [
        "env", "-i", f"PRECGUI_STATE={tmp_path / 'there'}", f"HOME={tmp_path}", f"OMP_NUM_THREADS={threads}",
        sys.executable, "-c", _WITHOUT.format(library="PySide6"), "serve", "--stdio",
    ]))  # fmt: skip
    return "box"


def test_that_a_run_goes_on_without_its_agent_and_comes_home_whole(place: str, tmp_path: Path) -> None:
    home, settings = tmp_path / "home.h5", ("--set", "model.name=mlp", "--set", "train.max_steps=40")
    begun = here("run", "digits-quick", *settings, "--place", place, "--detach", "-o", home)
    assert begun.returncode == 0, begun.stderr
    assert "the run goes on at box" in begun.stderr
    job = begun.stderr.partition("attach box ")[2].split()[0]
    ended = here("places", "attach", place, job[:8], "-o", home, "--json")
    assert ended.returncode == 0, ended.stderr
    assert (report := json.loads(ended.stdout))["status"] == "completed"
    with open_run(home) as saved:
        assert (saved.run_id, saved.steps, saved.environment["place"]) == (job, 40, "box")
        assert report["run"] == str(home)
    replayed = here("replay", home, "--step", "2", "--place", place, "--json")
    assert json.loads(replayed.stdout)["step"] == 2, replayed.stderr
    assert [replay.step for replay in REPLAYS.all(home)] == [2]
    listed = json.loads(here("places", "jobs", place, "--json").stdout)["jobs"]
    runs = [line for line in listed if line["kind"] == "run"]
    assert [(line["job"], line["is_running"]) for line in runs] == [(job, False)]
    (kept,) = [name for name in runs[0]["files"] if "replay" in name]
    fetched = here("places", "fetch", place, job[:8], kept, "-o", tmp_path / "fetched")
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / "fetched" / kept).read_text() == REPLAYS.path(home, 2).read_text()
    elsewhere = here("run", "--resume", home, "--place", place)
    assert "has completed its 40 steps" in elsewhere.stderr


def test_that_code_of_ones_own_travels_only_with_consent(place: str, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def make_task(config):\n    raise RuntimeError('this ran at the place')\n", encoding="utf-8")
    words = ("run", "digits-quick", "--set", f"task={code}:make_task", "--place", place)
    refused = here(*words)
    assert refused.returncode == 2
    assert f"this run needs the code {code} (SHA-256 " in refused.stderr
    assert not (tmp_path / "there" / "jobs").exists()
    ran = here(*words, "--own-code")
    assert ran.returncode == 1
    assert "this ran at the place" in ran.stderr


def test_that_no_task_of_a_module_is_imported_at_a_place(tmp_path: Path) -> None:
    (tmp_path / "evilmod.py").write_text("open(__file__ + '.ran', 'w')\ndef make_task(config): ...\n", encoding="utf-8")
    state, threads = tmp_path / "there", os.environ["OMP_NUM_THREADS"]
    settings = [f"PRECGUI_STATE={state}", f"HOME={tmp_path}", f"OMP_NUM_THREADS={threads}", f"PYTHONPATH={tmp_path}"]
    add_place(command_place("box", ["env", *settings, sys.executable, "-m", "precgui", "serve", "--stdio"]))
    words = ("digits-quick", "--set", "task=evilmod:make_task", "--place", "box")
    for command in (("run", *words), ("run", *words, "--own-code"), ("profile", *words)):
        refused = here(*command)
        assert refused.returncode == 2
        assert "evilmod:make_task" in refused.stderr
    varied = here("sweep", "digits-quick", "--precisions", "fp32", "--vary", "task=digits,evilmod:make_task",
                  "-o", tmp_path / "study", "--place", "box")  # fmt: skip
    assert "evilmod:make_task is a task of your own" in varied.stderr
    assert not (state / "jobs").exists()
    program = "from precgui.cli.place_option import follow_command; follow_command('box', {words!r})"
    asked = ["profile", *words[:3]]  # of a client that does not refuse
    forced = subprocess.run([sys.executable, "-c", program.format(words=asked)], capture_output=True, text=True,
                            timeout=TIMEOUT_S, check=False)  # fmt: skip
    assert "a place runs no code that was not sent to it" in forced.stdout + forced.stderr
    assert not (tmp_path / "evilmod.py.ran").exists()


def test_that_a_module_beside_a_sent_task_is_named_with_its_cure(place: str, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("import helper\ndef make_task(config): ...\n", encoding="utf-8")
    (tmp_path / "helper.py").touch()
    ran = here("run", "digits-quick", "--set", f"task={code}:make_task", "--place", place, "--own-code")
    assert ran.returncode == 1
    assert ran.stderr.count("there is no module helper at this place; modules beside mine.py are not sent") == 1
    assert "Traceback" not in ran.stderr


def test_that_a_command_prints_here_what_it_prints_there(place: str) -> None:
    result = here("bench", "--list", "--json", "--place", place)
    assert (result.returncode, json.loads(result.stdout)) == (0, [])
    planned = here("plan", "digits-quick", "--place", place, "--json")
    assert json.loads(planned.stdout)["total_bytes"] > 0
    wrong = here("bench", "--sizes", "3", "--place", place)
    assert wrong.returncode == 2
    assert "--sizes 3: a size is a whole number" in wrong.stderr


def test_that_an_unknown_place_is_one_sentence() -> None:
    result = here("run", "digits-quick", "--place", "gpu7")
    assert (result.returncode, result.stdout) == (2, "")
    assert "there is no place gpu7" in result.stderr
