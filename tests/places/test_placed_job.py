"""A job at a place, whatever happens to the link: each message once, and the file as it is there."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from precgui.events import RunEnded, StepDone
from precgui.places import link
from precgui.places.channel import PlaceChannel
from precgui.places.contact import ContactError
from precgui.places.hello import hello
from precgui.places.jobs import RUN_FILE, JobFolder
from precgui.places.messages import REPLIES, JobEvents
from precgui.places.placed_job import MOST_FUTILE, Detached, JobError, PlacedJob
from precgui.places.runner import JobConnection
from precgui.places.settings import NamedPlace
from precgui.process.child import ChildTask
from precgui.process.frames import WITHOUT_SENTENCES
from tests.places.played_agent import JOB, PLACE, PlayedAgents, ended_job, make_job, real_job, step

CUTS = 100 if os.environ.get("PLACES_LONG") else 10


def followed(job: PlacedJob) -> list[Any]:
    """All events until the last one of the run."""
    events: list[Any] = []
    while not events or not isinstance(events[-1], RunEnded):
        message = job.receive(0.05)
        if isinstance(message, JobEvents):
            events += message.events
    return events


def test_that_a_run_is_followed_and_its_file_brought_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)  # of several parts
    ended_job(content)
    PlayedAgents(monkeypatch, [])
    job = PlacedJob(PLACE, JOB)
    job.open()
    assert [event.step for event in followed(job)[:-1]] == list(range(1, 40))
    assert job.files() == (RUN_FILE,)
    job.fetch(RUN_FILE, tmp_path / "home" / "run.h5")
    assert (tmp_path / "home" / "run.h5").read_bytes() == content
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["run.h5"]
    job.close()


def test_that_a_run_at_an_earlier_precgui_is_let_go_followed_again_and_brought_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(REPLIES, "_protocol", WITHOUT_SENTENCES)  # that of its agents
    folder = real_job(20, ends=False)
    PlayedAgents(monkeypatch, [])
    first = PlacedJob(PLACE, JOB)
    first.open()
    steps = [event.step for event in until_step(first, 12)]
    first.close()
    connection = JobConnection(folder, after=21)
    connection.send([step(21)])
    connection.send([RunEnded(5.0, "completed")])
    again = PlacedJob(PLACE, JOB, after=first.number, after_row=first.row_number)
    again.open()
    steps += [event.step for event in followed(again) if isinstance(event, StepDone)]
    assert steps == list(range(1, 22))
    again.fetch(RUN_FILE, tmp_path / "run.h5")
    again.close()
    assert (tmp_path / "run.h5").read_bytes() == (folder.out / RUN_FILE).read_bytes()
    assert folder.frames.read_bytes()[4] == WITHOUT_SENTENCES


def until_step(job: PlacedJob, number: int) -> list[StepDone]:
    """The steps of a job, until the message with this one."""
    steps: list[StepDone] = []
    while not steps or steps[-1].step < number:
        message = job.receive(0.05)
        if isinstance(message, JobEvents):
            steps += [event for event in message.events if isinstance(event, StepDone)]
    return steps


def test_that_a_link_cut_at_any_byte_loses_nothing_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content, source = os.urandom(200_000), random.Random(3)
    ended_job(content)
    for number in range(CUTS):
        agents = PlayedAgents(monkeypatch, [source.randrange(700, 40_000), source.randrange(700, 210_000)])
        job = PlacedJob(PLACE, JOB)
        job.open()
        events = followed(job)
        job.fetch(RUN_FILE, home := tmp_path / f"{number}.h5")
        job.close()
        assert [event.step for event in events if isinstance(event, StepDone)] == list(range(1, 40))
        assert home.read_bytes() == content
        assert agents.started > 1
        agents.cuts.clear()


def test_that_an_order_goes_at_once_while_a_message_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedAgents(monkeypatch, [])
    channel = PlaceChannel(PLACE)
    channel.job.open()
    received: list[Any] = []
    waits = threading.Thread(target=lambda: received.append(channel.receive(600.0)))
    waits.start()
    channel.send(ChildTask("precgui.job:serve", {}))
    waits.join(60.0)
    assert (waits.is_alive(), received) == (False, [None])
    channel.close()


def test_that_the_state_of_a_lost_link_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    make_job([[step(number)] for number in range(1, 200)])
    PlayedAgents(monkeypatch, [5000])
    job = PlacedJob(PLACE, JOB)
    job.open()
    assert job.state == ""

    def refuse(place: NamedPlace) -> None:
        raise ContactError("it is off", is_final=False)

    monkeypatch.setattr(link, "start_command", refuse)
    while not job.state.endswith("(it is off)"):
        job.receive(0.05)
    assert job.state.startswith("no answer from gpu1 for 0 s, the run goes on there; next try in 0 s")
    job.detach()
    with pytest.raises(Detached, match="the run goes on at gpu1"):
        job.receive(1.0)
    job.close()


def test_that_an_agent_that_ends_at_each_order_is_given_up_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    make_job([[step(number)] for number in range(1, 200)])
    monkeypatch.setattr("precgui.places.placed_job.LONGEST_WAIT_S", 0.02)
    agents = PlayedAgents(monkeypatch, [5000, *[len(REPLIES.encode(hello())) + 30] * 100])
    job = PlacedJob(PLACE, JOB)
    job.open()
    with pytest.raises(ContactError, match=f"gpu1 answered {MOST_FUTILE} times, and ended each time") as raised:
        while True:
            job.receive(0.05)
    assert raised.value.is_final
    assert job.number > 0
    assert agents.started == 1 + MOST_FUTILE


def test_that_an_agent_that_is_stopped_by_the_system_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_job()
    agents = PlayedAgents(monkeypatch, [4000], freezes=True)
    for name, seconds in (("PING_S", 0.1), ("SILENT_S", 0.4), ("_END_S", 0.1)):
        monkeypatch.setattr(link, name, seconds)
    job = PlacedJob(PLACE, JOB)
    job.open()
    events = followed(job)
    job.close()
    assert [event.step for event in events if isinstance(event, StepDone)] == list(range(1, 40))
    assert agents.started == 2


def test_that_a_refused_key_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    make_job([[step(number)] for number in range(1, 200)])
    PlayedAgents(monkeypatch, [5000])
    job = PlacedJob(PLACE, JOB)
    job.open()
    tries = []

    def refuse(place: NamedPlace) -> None:
        tries.append(place)
        raise ContactError("gpu1 takes none of your ssh keys")

    monkeypatch.setattr(link, "start_command", refuse)
    with pytest.raises(ContactError, match="none of your ssh keys"):
        followed(job)
    assert len(tries) == 1


def test_that_a_file_that_arrives_other_than_it_is_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended_job()
    PlayedAgents(monkeypatch, [])
    monkeypatch.setattr("precgui.places.jobs.digest", lambda path: "0" * 64)
    job = PlacedJob(PLACE, JOB)
    job.open()
    followed(job)
    with pytest.raises(JobError, match="other than it is there"):
        job.fetch(RUN_FILE, tmp_path / "run.h5")
    assert list(tmp_path.glob("*.h5")) == []
    job.close()


@pytest.mark.parametrize("name", ["../order", "/etc/passwd", "out/../../order", ".hidden", "missing.h5"])
def test_that_no_file_outside_the_folder_of_a_job_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    ended_job()
    PlayedAgents(monkeypatch, [])
    job = PlacedJob(PLACE, JOB)
    job.open()
    with pytest.raises(JobError, match="the job has no file"):
        job.fetch(name, tmp_path / "home.h5")
    job.close()


def test_that_messages_of_another_part_are_not_taken_for_those_of_the_one_that_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended_job()
    part = JobFolder(JOB).begin_part(1)
    assert part.claim()
    JobConnection(part).send([step(1)])
    PlayedAgents(monkeypatch, [])
    job = PlacedJob(PLACE, JOB, after=7, part=0)
    job.open()
    with pytest.raises(JobError, match="let go on by somebody else"):
        while job.receive(0.2) is None:
            pass
    job.close()
