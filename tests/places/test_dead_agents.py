"""Agents that say hello and then read nothing, or die: this end never hangs, and never says that a run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precgui.places import link
from precgui.places.contact import ContactError
from precgui.places.messages import SentFile, StartRun
from precgui.places.placed_job import PlacedJob
from precgui.places.settings import NamedPlace, add_place, command_place

JOB = "0123456789abcdef" * 2
_AGENT = """
import os, pathlib, time
from precgui.places.messages import REPLIES, PlaceHello
os.write(1, REPLIES.encode(PlaceHello("1", "3", "2", "box", "linux")))
pathlib.Path({marker!r}).touch()
time.sleep({seconds})
"""
_CLIENT = "import sys; sys.modules['torch'] = None; from precgui.cli.main import main; sys.exit(main())"
HANG_S = 60


def deaf_agent(tmp_path: Path, seconds: float) -> NamedPlace:
    """An agent that never reads, and ends after so many seconds."""
    program = _AGENT.format(marker=str(tmp_path / "hello"), seconds=seconds)
    return command_place("box", [sys.executable, "-c", program])


@pytest.fixture
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precgui.places.placed_job.FIRST_WAIT_S", 0.01)
    for name, seconds in (("PING_S", 0.1), ("SILENT_S", 0.4), ("_END_S", 0.1)):
        monkeypatch.setattr(link, name, seconds)


@pytest.mark.usefixtures("is_quick")
def test_that_links_that_die_before_the_run_began_end_in_one_sentence(tmp_path: Path) -> None:
    job = PlacedJob(deaf_agent(tmp_path, 0.05), order=StartRun(JOB, {"task": "digits"}))
    job.open()
    states = set()
    with pytest.raises(ContactError, match=r"lost 3 times before the run began .*places test box`"):
        for _ in range(2000):
            job.receive(0.05)
            states.add(job.state)
    assert not any("goes on" in state for state in states)
    job.close()


@pytest.mark.usefixtures("is_quick")
def test_that_an_order_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    place = deaf_agent(tmp_path, HANG_S)
    large = SentFile("mine.py", "0" * 64, os.urandom(2_000_000))  # more than a pipe takes
    job = PlacedJob(place, order=StartRun(JOB, {"noise": [str(number) for number in range(40_000)]}, "box", (large,)))
    began = time.monotonic()
    job.open()
    job.stop()
    with pytest.raises(ContactError, match="lost 3 times"):
        for _ in range(2000):
            job.receive(0.05)
    job.close()
    assert time.monotonic() - began < HANG_S  # that long the agent lives


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_that_signals_end_a_client_whose_agent_does_nothing(tmp_path: Path, signals: list[signal.Signals]) -> None:
    add_place(deaf_agent(tmp_path, 10 * HANG_S))
    words = ["run", "digits-quick", "--place", "box", "-o", str(tmp_path / "run.h5")]
    client = subprocess.Popen([sys.executable, "-c", _CLIENT, *words], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(1000):
            if (tmp_path / "hello").exists():
                break
            time.sleep(0.05)
        for number in signals:
            time.sleep(0.3)
            client.send_signal(number)
        _, printed = client.communicate(timeout=HANG_S)
    finally:
        client.kill()
        client.wait()
    assert client.returncode == 130
    assert "interrupted before box said that the run had begun; `precgui places jobs box` lists it" in printed
    assert "goes on" not in printed
