"""A run at a place from end to end: a command here without torch, an agent there without PySide6 and environment."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.cli.place_option import follow_command
from precgui.places.settings import NamedPlace, add_place, command_place
from precgui.runs.file.reader import open_run
from precgui.runs.replays import REPLAYS
from tests.places.processes import none_left

pytestmark = pytest.mark.timeout(600)
_WITHOUT = "import sys; sys.modules[{library!r}] = None; from precgui.cli.main import main; sys.exit(main())"
STEPS = 10
TIMEOUT_S = 400


def without_torch(*words: object) -> subprocess.CompletedProcess[str]:
    """`precgui WORDS` in a Python that has no torch."""
    command = [sys.executable, "-c", _WITHOUT.format(library="torch"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def here(*words: object) -> subprocess.CompletedProcess[str]:
    """`precgui WORDS` in this process, which spares the start of one."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main([str(word) for word in words])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def bare_place(folder: Path) -> NamedPlace:
    """A place that is as bare as a container: nothing of the environment, a folder of its own."""
    if shutil.which("env") is None:
        pytest.skip("there is no command env here")
    threads = os.environ["OMP_NUM_THREADS"]
    return command_place("box", [
        "env", "-i", f"PRECGUI_STATE={folder / 'there'}", f"HOME={folder}", f"OMP_NUM_THREADS={threads}",
        sys.executable, "-c", _WITHOUT.format(library="PySide6"), "serve", "--stdio",
    ])  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    add_place(bare_place(tmp_path))
    with none_left(tmp_path / "there"):
        yield "box"


@dataclass(frozen=True)
class Trained:
    """A run that has come home from its place; `begun` and `ended` are the commands that started and brought it."""

    place: NamedPlace
    home: Path
    begun: subprocess.CompletedProcess[str]
    ended: subprocess.CompletedProcess[str]

    @property
    def job(self) -> str:
        return self.begun.stderr.partition("attach box ")[2].split()[0]


@pytest.fixture(scope="module")
def run_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("place")
    place, home = bare_place(folder), folder / "home.h5"
    with none_left(folder / "there"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRECGUI_STATE", str(folder / "state"))
        add_place(place)
        settings = ("--set", "model.name=mlp", "--set", f"train.max_steps={STEPS}")
        begun = without_torch("run", "digits-quick", *settings, "--place", "box", "--detach", "-o", home)
        assert begun.returncode == 0, begun.stderr
        job = begun.stderr.partition("attach box ")[2].split()[0]
        ended = without_torch("places", "attach", "box", job[:8], "-o", home, "--json")
        yield Trained(place, home, begun, ended)


@pytest.fixture
def trained(run_of_the_module: Trained) -> Trained:
    add_place(run_of_the_module.place)  # the settings of a test are its own
    return run_of_the_module


def test_that_a_run_goes_on_without_its_agent_and_comes_home_whole(trained: Trained) -> None:
    assert "the run goes on at box" in trained.begun.stderr
    assert trained.ended.returncode == 0, trained.ended.stderr
    assert (report := json.loads(trained.ended.stdout))["status"] == "completed"
    with open_run(trained.home) as saved:
        assert (saved.run_id, saved.steps, saved.environment["place"]) == (trained.job, STEPS, "box")
        assert report["run"] == str(trained.home)
    listed = json.loads(here("places", "jobs", "box", "--json").stdout)["jobs"]
    runs = [line for line in listed if line["kind"] == "run"]
    assert [(line["job"], line["is_running"]) for line in runs] == [(trained.job, False)]


def test_that_a_run_that_has_completed_does_not_go_on(trained: Trained) -> None:
    assert f"has completed its {STEPS} steps" in here("run", "--resume", trained.home, "--place", "box").stderr


def test_that_a_replay_at_a_place_comes_home_and_is_fetched_again(trained: Trained, tmp_path: Path) -> None:
    replayed = without_torch("replay", trained.home, "--step", "2", "--place", "box", "--json")
    assert json.loads(replayed.stdout)["step"] == 2, replayed.stderr
    assert [replay.step for replay in REPLAYS.all(trained.home)] == [2]
    listed = json.loads(here("places", "jobs", "box", "--json").stdout)["jobs"]
    (files,) = [line["files"] for line in listed if line["job"] == trained.job]
    (kept,) = [name for name in files if "replay" in name]
    fetched = here("places", "fetch", "box", trained.job[:8], kept, "-o", tmp_path / "fetched")
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / "fetched" / kept).read_text() == REPLAYS.path(trained.home, 2).read_text()


def test_that_code_of_ones_own_travels_only_with_consent_and_alone(place: str, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text(
        "open(__file__ + '.ran', 'w').close()\nimport helper\ndef make_task(config): ...\n", encoding="utf-8"
    )
    (tmp_path / "helper.py").touch()
    words = ("run", "digits-quick", "--set", f"task={code}:make_task", "--place", place)
    refused = here(*words)
    assert refused.returncode == 2
    assert f"this run needs the code {code} (SHA-256 " in refused.stderr
    assert not (tmp_path / "there" / "jobs").exists()
    ran = here(*words, "--own-code")
    assert ran.returncode == 1
    assert [path.name for path in (tmp_path / "there" / "jobs").rglob("*.ran")] == ["mine.py.ran"]
    assert not code.with_name("mine.py.ran").exists()
    assert ran.stderr.count("there is no module helper at this place; modules beside mine.py are not sent") == 1
    assert "Traceback" not in ran.stderr


def test_that_no_task_of_a_module_is_imported_at_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    with none_left(state):
        assert follow_command("box", ["profile", *words[:3]])  # of a client that does not refuse
    assert "a place runs no code that was not sent to it" in "".join(capsys.readouterr())
    assert not (tmp_path / "evilmod.py.ran").exists()


def test_that_a_command_prints_here_what_it_prints_there(place: str) -> None:
    listed = here("bench", "--list", "--json", "--place", place)
    assert (listed.returncode, json.loads(listed.stdout)) == (0, [])


@pytest.mark.skipif(not os.environ.get("PLACES_LONG"), reason="imports torch twice more; `make places` runs it")
def test_that_a_config_travels_with_its_command_and_a_fault_comes_back(place: str) -> None:
    planned = without_torch("plan", "digits-quick", "--place", place, "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["total_bytes"] > 0
    wrong = here("bench", "--sizes", "3", "--place", place)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--sizes 3: a size is a whole number" in wrong.stderr


def test_that_an_unknown_place_is_one_sentence() -> None:
    result = here("run", "digits-quick", "--place", "gpu7")
    assert (result.returncode, result.stdout) == (2, "")
    assert "there is no place gpu7" in result.stderr
