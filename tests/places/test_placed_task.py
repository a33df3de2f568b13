"""Tasks of the engine at a place: their events as from a child process, their files brought home, their faults."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from precgui.places import agent, runner
from precgui.places.jobs import RUN_FILE, JobFolder, all_jobs
from precgui.places.messages import ONLY_COMMANDS, OrderError, StartCommand
from precgui.places.models import ModelError, model_there, quantize_there
from precgui.places.placed_job import JobError
from precgui.places.placed_task import TaskPlace, done_there, name_there
from precgui.places.runner import JobConnection
from precgui.places.tasks import TASKS
from precgui.sentences import Sentence, filled
from tests.places.played_agent import JOB, PLACE, PlayedAgents, real_job

HERE = TaskPlace(PLACE)
Serve = Callable[..., None]
Play = Callable[..., None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Lets a function stand for every task of a place; `cuts` are the bytes after which the first links are cut."""
    threads: list[threading.Thread] = []

    def run(folder: JobFolder) -> None:
        order = folder.order()
        assert isinstance(order, StartCommand)
        runner.work_on_task(folder, JobFolder(order.of) if order.of else folder, order, JobConnection(folder))

    def start(job: str) -> None:
        folder = JobFolder(job)
        assert folder.claim()
        threads.append(threading.Thread(target=run, args=(folder,)))
        threads[-1].start()

    def serve_by(serve: Serve, cuts: list[int | None] | None = None) -> None:
        def work(connection: Any, task: Any) -> None:
            serve(lambda event: connection.send([event]), **task.arguments)

        monkeypatch.setattr(agent, "_runner", start)
        monkeypatch.setattr(runner, "work", work)
        PlayedAgents(monkeypatch, cuts or [])

    yield serve_by
    for thread in threads:
        thread.join()


def test_that_events_come_as_they_are_said_and_leave_no_job(play: Play) -> None:
    said = Sentence("{done} of {count} branches", done=3, count=16)

    def serve(emit: Callable[[Any], None], *, config: dict[str, Any]) -> None:
        emit({"kind": "plan", "plan": {"rise": math.nan, "batch": config["data"]["batch_size"], "sizes": (1, 2)}})
        emit({"kind": "progress", "text": said, "name": "\x1b[2J"})

    play(serve)
    plan, progress = done_there(HERE, TASKS["plan"], {"config": {"data": {"batch_size": 7}}})
    assert (plan["plan"]["batch"], plan["plan"]["sizes"], math.isnan(plan["plan"]["rise"])) == (7, [1, 2], True)
    assert (progress["text"].template, progress["name"]) == (said.template, "\\x1b[2J")  # so it can be translated
    assert all_jobs() == []


@pytest.mark.parametrize("cut", [700, 1300, 4000])
def test_that_no_event_is_lost_or_told_twice_when_the_link_is_cut(play: Play, cut: int) -> None:
    states: list[str] = []

    def serve(emit: Callable[[Any], None], **arguments: Any) -> None:
        for number in range(40):
            emit({"kind": "attempt", "batch": number, "random": f"{number * 7919:x}" * 9})

    play(serve, [cut, cut + 500])
    events = done_there(HERE, TASKS["search"], {}, states.append)
    assert [event["batch"] for event in events] == list(range(40))
    if states:
        assert ("the work goes on there" in states[0] or "next try" in states[0], states[-1]) == (True, "")


def test_that_a_task_of_a_run_reads_its_file_there_and_its_results_come_beside_it_here(
    play: Play, tmp_path: Path
) -> None:
    folder = real_job(5)
    home = tmp_path / "home.h5"
    home.touch()

    def serve(emit: Callable[[Any], None], *, path: str, step: int) -> None:
        assert path == str(folder.out / RUN_FILE)
        Path(f"{path}.replay-{step}.json").write_text("{}")
        emit({"kind": "kept", "verdict": "healthy"})

    play(serve)
    arguments = {"path": str(home), "step": 3}
    events = done_there(TaskPlace(PLACE, JOB, home), TASKS["replay"], arguments)
    assert events == [{"kind": "kept", "verdict": "healthy"}]
    assert (tmp_path / "home.h5.replay-3.json").read_text() == "{}"
    assert [line.job for line in all_jobs()] == [JOB]


def test_that_only_what_was_asked_for_comes_home_under_its_name_here(play: Play, tmp_path: Path) -> None:
    real_job(5)
    run, script, package = tmp_path / "run.h5", tmp_path / "my run.py", tmp_path / "my_run_parts"

    def serve(emit: Callable[[Any], None], *, path: str, target: str) -> None:
        parts = Path(target).with_name("my_run_parts")
        (parts / "inner").mkdir(parents=True)
        (parts / "inner" / "a.py").write_text("a")
        Path(target).write_text("script")
        Path(target).with_name("sitecustomize.py").write_text("not asked for")
        emit({"kind": "written", "files": [target, str(parts)]})

    play(serve)
    there = TaskPlace(PLACE, JOB, run, (script, package))
    (written,) = done_there(there, TASKS["export"], {"path": str(run), "target": str(script)})
    assert written["files"] == [str(script), str(package)]
    assert (script.read_text(), (package / "inner" / "a.py").read_text()) == ("script", "a")
    assert not (tmp_path / "sitecustomize.py").exists()


def test_that_a_file_that_is_here_already_stays(play: Play, tmp_path: Path) -> None:
    target = tmp_path / "weights.safetensors"
    target.write_text("mine")

    def serve(emit: Callable[[Any], None], *, target: str) -> None:
        Path(target).write_text("theirs")

    play(serve)
    with pytest.raises(JobError, match="is there already; the file from gpu1 stays at"):
        done_there(TaskPlace(PLACE, homes=(target,)), TASKS["export"], {"target": str(target)})
    assert target.read_text() == "mine"


def test_that_a_task_that_raises_is_its_last_line(play: Play) -> None:
    def serve(emit: Callable[[Any], None], **arguments: Any) -> None:
        raise RuntimeError("the engine is broken")

    play(serve)
    with pytest.raises(JobError, match=r"^gpu1: RuntimeError: the engine is broken$"):
        done_there(HERE, TASKS["plan"], {})


@pytest.mark.parametrize("line", ["no JSON", "[1]", '{"kind": 3}', "[" * 100_000])
def test_that_what_is_no_event_is_refused(play: Play, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(runner, "event_line", lambda event: line + "\n")
    play(lambda emit, **arguments: emit({"kind": "plan"}))
    with pytest.raises(JobError, match="told of its work in a way that this precgui does not read"):
        done_there(HERE, TASKS["plan"], {})


def test_that_an_earlier_precgui_there_is_one_sentence_with_the_command_that_upgrades(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(order: object) -> None:
        raise OrderError(filled(ONLY_COMMANDS, commands="detect, bench"))

    play(lambda emit, **arguments: None)
    monkeypatch.setattr(agent, "_check", refuse)
    with pytest.raises(JobError, match=r"^precgui at gpu1 is too old for this; upgrade it with .*pip install"):
        done_there(HERE, TASKS["plan"], {})


def test_that_a_place_works_on_known_tasks_only_and_needs_torch(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play(lambda emit, **arguments: None)
    for words in (("task",), ("task", "os:system"), ("task", "plan", "more")):
        with pytest.raises(OrderError, match="a place works on the tasks plan, search"):
            agent._check(StartCommand(JOB, words))
    monkeypatch.setattr(agent, "torch_version", lambda: "")
    with pytest.raises(JobError, match="torch is not installed at this place"):
        done_there(HERE, TASKS["plan"], {})


def test_that_names_there_are_plain() -> None:
    names = {
        "my run.py": "my_run.py",
        "größe.h5": "gr__e.h5",
        ".hidden": "_hidden",
        "a" * 120 + ".py": "a" * 97 + ".py",
    }
    assert {name: name_there(Path(name)) for name in names} == names


def test_that_a_model_is_sent_where_it_is_small_and_named_where_it_is_there(tmp_path: Path) -> None:
    weights, task = tmp_path / "model.safetensors", tmp_path / "mine.py"
    weights.write_bytes(b"x" * 100)
    task.write_text("")
    sent = model_there(PLACE, str(weights), f"{task}:make")
    assert (sent.source, sent.task, sent.files) == ("model.safetensors", "mine.py:make", (weights, task))
    folder = model_there(PLACE, f"hf:{tmp_path}")
    assert (folder.source, folder.files) == ("hf:.", (task, weights))
    there = model_there(PLACE, "hf:gpu1:llama", "digits-quick")
    assert (there.source, there.task, there.files) == ("hf:~/llama", "digits-quick", ())
    assert model_there(PLACE, "gpu1:/data/a.safetensors").source == "/data/a.safetensors"
    with pytest.raises(ModelError, match="a model that is at gpu1 is named gpu1:PATH"):
        model_there(PLACE, str(tmp_path / "none.safetensors"))
    with weights.open("wb") as file:
        file.truncate(40 << 20)  # sparse
    with pytest.raises(ModelError, match=r"has 40 MiB, and at most 32 MiB are sent; copy it to gpu1, such as with scp"):
        model_there(PLACE, str(weights))


def test_that_a_measurement_at_a_place_gets_a_free_name_and_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "a.model.h5").touch()
    order = {"source": "gpu1:/data/a.safetensors", "task": "", "folder": str(tmp_path / "a-vllm"), "formats": ["fp16"]}
    there, named, output = quantize_there(PLACE, order, tmp_path / "a.model.h5")
    assert (output, there.homes) == (tmp_path / "a-2.model.h5", (tmp_path / "a-2.model.h5", tmp_path / "a-vllm"))
    assert named == order | {"source": "/data/a.safetensors"}
    (tmp_path / "a-vllm").mkdir()
    with pytest.raises(ModelError, match="already exists"):
        quantize_there(PLACE, order, tmp_path / "a.model.h5")
