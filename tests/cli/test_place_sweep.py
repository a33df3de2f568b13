"""A sweep at several places: each block as a whole at one, a lost place hands its block back, nothing runs twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precgui.cli import place_sweep
from precgui.cli.place_sweep import BlockPlaces, PlacedTrainer, PlaceLost, PlacesSweep, serve
from precgui.config import RunConfig
from precgui.events import RunEnded
from precgui.places.settings import NamedPlace
from precgui.places.training import PlacedTraining
from precgui.sweeps.errors import SweepError
from precgui.sweeps.events import MemberGoesOn, SweepEvent, SweepWaits
from precgui.sweeps.folder import DISCARDED, PLACES, SweepFolder
from precgui.sweeps.runner import SweepBusy
from tests.sweeps.sample_sweep import small_sweep, write_member

A, B = NamedPlace("a", ("a",)), NamedPlace("b", ("b",))


class Trained:
    """What was trained where, by places that write the file of a member at once; `loses` raises at a lost place."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: SweepFolder) -> None:
        self.runs: list[tuple[str, str, int]] = []  # place, run, block
        self.loses: Callable[[str, str], bool] = lambda place, run: False
        self.said: list[str] = []
        self._lock = threading.Lock()
        trained = self

        class Trainer(PlacedTrainer):
            def __call__(self, config: RunConfig, path: Path, *_: Any, goes_on: bool = False) -> RunEnded:
                with trained._lock:
                    member = folder.plan.member(path.stem)
                    if trained.loses(self.place.name, path.stem):
                        raise PlaceLost(f"{path.stem}: no answer")
                    trained.runs.append((self.place.name, path.stem, member.block))
                    write_member(folder, member)
                return RunEnded(1.0, "completed")

        patch.setattr(place_sweep, "PlacedTrainer", Trainer)

    def sweep(self, folder: SweepFolder, *places: NamedPlace) -> None:
        def emit(event: SweepEvent) -> None:
            if isinstance(event, SweepWaits):
                self.said.append(event.why)

        PlacesSweep(folder.path, places, emit, lambda: False, lambda: False).run()

    def places_of(self, block: int) -> set[str]:
        return {place for place, _, own in self.runs if own == block}


def test_that_a_block_never_spans_places_and_each_run_is_trained_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = small_sweep(tmp_path, seeds=4)
    trained = Trained(monkeypatch, folder)
    both = threading.Barrier(2)
    begun: set[str] = set()

    def meet(place: str, run: str) -> bool:
        if place not in begun:
            begun.add(place)
            trained._lock.release()
            both.wait(30)  # so that both places have a block
            trained._lock.acquire()
        return False

    trained.loses = meet
    trained.sweep(folder, A, B)
    assert sorted(run for _, run, _ in trained.runs) == sorted(member.name for member in folder.plan.members)
    kept = json.loads((folder.path / PLACES).read_text())["blocks"]
    for member in folder.plan.members:
        assert trained.places_of(member.block) == {kept[str(member.block)]}
    assert {place for place, _, _ in trained.runs} == {"a", "b"}


def test_that_a_lost_place_hands_its_block_back_as_a_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=2)
    BlockPlaces(folder.path).give(1, "b")
    trained = Trained(monkeypatch, folder)
    last = [member.name for member in folder.plan.members if member.block == 1][-1]
    trained.loses = lambda place, run: (place, run) == ("b", last)
    trained.sweep(folder, A, B)
    in_block = [(place, run) for place, run, block in trained.runs if block == 1]
    anew = [run for place, run in in_block if place == "a"]
    assert sorted(anew) == sorted(member.name for member in folder.plan.members if member.block == 1)
    assert [run for place, run in in_block if place == "b"]  # which were put aside
    assert len(list((folder.path / DISCARDED).glob("*.h5"))) == len(in_block) - len(anew)
    assert all(state.status == "completed" for state in SweepFolder(folder.path).states())
    assert f"b is lost, its block is handed back: {last}: no answer" in trained.said


def test_that_a_block_that_has_begun_stays_at_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=2)
    first = next(member for member in folder.plan.members if member.block == 2)
    write_member(folder, first)
    BlockPlaces(folder.path).give(2, "b")
    trained = Trained(monkeypatch, folder)
    trained.sweep(folder, A, B)
    assert trained.places_of(2) == {"b"}
    assert first.name not in [run for _, run, _ in trained.runs]


def test_that_the_loss_of_every_place_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    trained = Trained(monkeypatch, folder)
    trained.loses = lambda place, run: True
    with pytest.raises(SweepError, match=r"no place is left that trains: \w: .*no answer; \w: .*no answer"):
        trained.sweep(folder, A, B)


def test_that_two_windows_do_not_train_one_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    trained, other = Trained(monkeypatch, folder), SweepFolder(folder.path)
    assert other.runner.acquire()
    with pytest.raises(SweepBusy, match="is being run by process"):
        trained.sweep(folder, A)
    other.runner.release()
    assert trained.runs == []


def test_that_a_run_has_one_name_until_a_file_of_it_is_put_aside(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    member = folder.plan.members[1]
    path = folder.path_of(member)

    def name() -> str:
        return PlacedTrainer(A, folder.path, BlockPlaces(folder.path).token, may_send_code=False).run_id(path)

    before = name()
    assert name() == before
    write_member(folder, member)
    folder.discard(member)
    assert name() != before


class PlayedTraining:
    """A run at a place that its process leaves: it is stuck until that ends, and never ends itself."""

    ended, why, lost_s = None, "the run goes on at a", 0.0

    def __init__(self, path: Path, stuck: Callable[[], None], *, has_begun: bool, link_state: str) -> None:
        self.path, self.has_begun, self.link_state, self._stuck = path, has_begun, link_state, stuck

    def run(self, *_: object) -> None:
        self._stuck()


class PlayedControl:
    stuck: Callable[[], None]

    def stopped(self) -> bool:
        return False

    def on_stuck(self, call: Callable[[], None]) -> None:
        self.stuck = call


@pytest.mark.parametrize(
    ("has_begun", "link_state", "goes_on"),
    [(True, "no answer from a for 9 s", True), (True, "", False), (False, "no answer from a for 9 s", False)],
    ids=["lost", "stopped there", "never begun"],
)
def test_that_a_study_that_ends_without_a_link_says_which_run_goes_on_at_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_begun: bool, link_state: str, goes_on: bool
) -> None:
    folder, control, said = small_sweep(tmp_path), PlayedControl(), list[SweepEvent]()

    def training(_place: NamedPlace, _config: RunConfig, path: Path, **_: object) -> PlayedTraining:
        return PlayedTraining(path, control.stuck, has_begun=has_begun, link_state=link_state)

    monkeypatch.setattr(PlacedTraining, "of_config", training)
    monkeypatch.setattr(place_sweep, "place_called", lambda name: NamedPlace(name, (name,)))
    serve(said.append, control, folder=str(folder.path), places=["a"], may_send_code=False)
    first = folder.plan.members[0].name
    assert [event for event in said if isinstance(event, MemberGoesOn)] == [MemberGoesOn(first, "a")] * goes_on


@pytest.mark.parametrize("text", ["[", "3", '{"token": 3, "blocks": [1]}', '{"blocks": {"x": 1, "-1": "a"}}'])
def test_that_a_damaged_file_of_places_is_as_none(tmp_path: Path, text: str) -> None:
    folder = small_sweep(tmp_path)
    (folder.path / PLACES).write_text(text)
    assert [BlockPlaces(folder.path).of(block) for block in range(3)] == ["", "", ""]
