"""The machine of a place, read from what its commands print: as it is there, or refused in one sentence."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from precgui.hardware import measured
from precgui.hardware.advice import Situation, advise
from precgui.hardware.detect import detect
from precgui.hardware.report import document
from precgui.places import agent
from precgui.places.command import document_there, printed_there
from precgui.places.jobs import JobFolder, all_jobs
from precgui.places.machine import ask_machine, machine_asked, machine_of
from precgui.places.placed_job import JobError
from precgui.places.runner import JobConnection
from tests.cli.test_detect_cli import RESULT
from tests.hardware import cards
from tests.hardware.fake_nvml import install
from tests.places.played_agent import PLACE, PlayedAgents

Says = Callable[[JobConnection, tuple[str, ...]], int]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Callable[[Says], None]:
    """Lets a function print in place of the commands of a place; it returns the exit code."""

    def play(says: Says) -> None:
        def run(job: str) -> None:
            folder = JobFolder(job)
            assert folder.claim()
            order = folder.order()
            connection = JobConnection(folder)
            connection.end(says(connection, order.words))

        def start(job: str) -> None:
            thread = threading.Thread(target=run, args=(job,))
            thread.start()
            thread.join()

        monkeypatch.setattr(agent, "_runner", start)
        PlayedAgents(monkeypatch, [])

    return play


def described(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    install(monkeypatch, cards.h100(), cards.t4())
    machine = detect()
    advices = {device.id: advise(Situation(device, "classification", "large", None)) for device in machine.devices}
    tree: dict[str, Any] = json.loads(json.dumps(document(machine, advices, "torch cannot be imported: no torch")))
    return tree


def test_that_the_machine_of_a_place_is_the_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, cards.h100(), cards.t4())
    there = detect()
    machine, problem = machine_of(described(monkeypatch), "gpu1")
    assert problem == "torch cannot be imported: no torch"
    assert [(each.id, each.name, each.memory_bytes) for each in machine.devices] == [
        (each.id, each.name, each.memory_bytes) for each in there.devices
    ]
    for read, real in zip(machine.devices, there.devices, strict=True):
        assert {name: cell.support for name, cell in read.formats.items()} == {
            name: cell.support for name, cell in real.formats.items()
        }
        assert read.sources == real.sources
        assert [label for label, _ in read.details] == [label for label, _ in real.details]
        assert advise(Situation(read, "transformer", "large", None)) == advise(
            Situation(real, "transformer", "large", None)
        )
    assert machine.host["host"] == there.host["host"]


def test_that_a_description_of_another_shape_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = described(monkeypatch)
    broken: list[Any] = [None, [], {}, {**tree, "devices": []}, {**tree, "host": "gpu1"}, {**tree, "torch": []}]
    changes = ({"kind": "abacus"}, {"id": "../cpu"}, {"memory_bytes": "much"}, {"formats": {"bf16": 1}})
    broken += [{**tree, "devices": [{**tree["devices"][0], **change}]} for change in changes]
    for each in broken:
        with pytest.raises(JobError, match="gpu1 did not describe its machine"):
            machine_of(each, "gpu1")


@pytest.mark.parametrize(
    "change",
    [
        {"gemm": [{"format": "fp32"}]}, {"gemm": [{"format": "fp32", "m": "512", "tops": 1.0, "note": ""}]},
        {"copy": {"gb_s": "fast"}}, {"device": "cpu"}, {"blocks": [{**RESULT["blocks"][0], "block": "other"}]},
        {"threads": None}, {"started": 5}, {"alignment": {}},
    ],
)  # fmt: skip
def test_that_a_measurement_that_cannot_be_shown_is_left_out(change: dict[str, Any]) -> None:
    assert measured.is_result(RESULT)
    assert not measured.is_result({**RESULT, **change})


def test_that_a_place_is_asked_for_its_machine_and_measurements_and_leaves_no_job(
    commands: Callable[[Says], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = described(monkeypatch)
    tree["host"]["os"] = "Linux \x1b[2J"

    def says(connection: JobConnection, words: tuple[str, ...]) -> int:
        printed = tree if words[0] == "detect" else [RESULT, {**RESULT, "gemm": None}]
        connection.text("stdout", json.dumps(printed))
        return 0

    commands(says)
    found = ask_machine(PLACE)
    assert machine_asked(PLACE) == found
    assert (len(found.results), found.results[0]["device"]["name"]) == (1, "some CPU")
    assert found.machine.host["os"] == "Linux \\x1b[2J"
    assert all_jobs() == []


def test_that_a_command_that_fails_there_is_its_last_sentence(commands: Callable[[Says], None]) -> None:
    def says(connection: JobConnection, words: tuple[str, ...]) -> int:
        connection.text("stderr", "warning\nprecgui: there is no device cuda:9\n")
        return 2

    commands(says)
    with pytest.raises(JobError, match=r"^gpu1: there is no device cuda:9$"):
        printed_there(PLACE, ("bench", "--device", "cuda:9"))


def test_that_what_is_no_document_is_refused(commands: Callable[[Says], None]) -> None:
    for text in ("no JSON", "[" * 100_000, '{"a": NaN}'):

        def says(connection: JobConnection, words: tuple[str, ...], text: str = text) -> int:
            connection.text("stdout", text)
            return 0

        commands(says)
        with pytest.raises(JobError, match="printed no JSON document"):
            document_there(PLACE, ("detect", "--json"))
