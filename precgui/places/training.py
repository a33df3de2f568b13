"""One run at a place, supervised as one in a child process."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precgui.config import RunConfig
from precgui.events import RunEnded
from precgui.places.channel import PlaceChannel
from precgui.places.contact import ContactError
from precgui.places.orders import run_order
from precgui.places.placed_job import PlacedRun
from precgui.places.settings import NamedPlace
from precgui.process.supervised import DeathWords, Supervised
from precgui.runs.training_process import TrainingProcess
from precgui.sentences import L_

KILL_AFTER_S = 10.0  # after a stop: a round trip more than here
WORDS = DeathWords(L_("the run"), L_("the run"), L_("it was ended there"))


class PlacedTraining:
    """`stop` and `detach` may be called from any thread. `ended` is the end of the run, None as long as it goes on.

    `why` says why this end has let go of it, `run_id` is its name at the place.
    """

    def __init__(self, channel: PlaceChannel, path: Path, run_id: str) -> None:
        self.path, self.run_id, self._channel = path, run_id, channel
        self._process = Supervised(channel, KILL_AFTER_S)
        self._training = TrainingProcess(self._process, WORDS)

    @classmethod
    def of_config(
        cls, place: NamedPlace, config: RunConfig, path: Path, *, may_send_code: bool, run_id: str = ""
    ) -> PlacedTraining:
        """A new run, or that of the name `run_id` where it is there already. Raises CodeError."""
        run_id = run_id or uuid.uuid4().hex
        run_order(config, run_id, place.name, may_send_code=may_send_code)  # its faults, before anything
        result = cls(PlaceChannel(place, may_send_code=may_send_code), path, run_id)
        result._training.begin(config, path, run_id)
        return result

    @classmethod
    def attached(cls, placed: PlacedRun) -> PlacedTraining:
        """A run that is at its place already."""
        return cls(PlaceChannel(placed.place, attached=placed), placed.path, placed.run_id)

    @property
    def ended(self) -> RunEnded | None:
        return self._training.ended

    @property
    def why(self) -> str:
        return self._channel.why

    @property
    def is_detached(self) -> bool:
        return self._channel.job.is_detached

    @property
    def has_begun(self) -> bool:
        """Whether the place has said that the run is there."""
        return self._channel.job.has_begun

    @property
    def link_state(self) -> str:
        """The link in one sentence; empty while it is well."""
        return self._channel.job.state

    @property
    def lost_s(self) -> float:
        """Seconds without a link; 0 while there is one."""
        return self._channel.job.lost_s

    def stop(self) -> None:
        """Ask the run to end; it is ended within `KILL_AFTER_S`."""
        self._process.stop()

    def detach(self) -> None:
        """Let go of the run, which goes on."""
        self._channel.job.detach()

    def run(self, take: Callable[[list[Any]], object], look: Callable[[], object]) -> None:
        """Hand each batch of events to `take` until the run has ended and its file is here, and call `look` often.

        Raises ContactError where the place cannot be reached at the beginning.
        """

        def relay(batch: list[Any]) -> None:
            self._training.watch(batch)
            take(batch)

        def stopped() -> bool:
            look()
            return False

        end = self._process.run(relay, stopped)
        if end.not_started:
            raise ContactError(end.not_started)
