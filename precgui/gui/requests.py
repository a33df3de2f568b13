"""Requests of one part of the window to another: a place to go to, and what it shall show there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QObject, Signal

from precgui.gui.open_runs import OpenRuns
from precgui.gui.proof import Proof

if TYPE_CHECKING:
    from precgui.config import RunConfig


class TensorPlace(NamedTuple):
    """A step of a recorded tensor; `kind` as in the run file."""

    kind: str
    name: str
    step: float


class Requests(QObject):
    """Each method goes to its place first, so that the panel there exists and hears the signal with the arguments."""

    place = Signal(str)  # a panel, or panel/tab; of Diagnose panel/key of a run
    number = Signal(str, list)  # a number and the formats in which its bits are to be shown
    tensor = Signal(object)  # a TensorPlace of the current run
    proof = Signal(object)  # a Proof that Live is to show
    step = Signal(str, float)  # a run and a step that its curves are to show
    pair = Signal(str, str)  # baseline and run that Compare is to show
    settings = Signal(object, str)  # a RunConfig for the form of Run, and where it comes from
    study = Signal(object, int, object)  # precisions, seeds and varied values by path for the form of a study
    shortcuts = Signal()

    def __init__(self, runs: OpenRuns, parent: QObject) -> None:
        super().__init__(parent)
        self._runs = runs

    def go(self, place: str) -> None:
        """Show a panel, or a tab of it."""
        self.place.emit(place)

    def inspect(self, key: str, tab: str = "") -> None:
        """Make a run the current one and show it in Inspect, in this tab unless the last one is to stay."""
        self._runs.choose(key)
        self.go(f"inspect/{tab}" if tab else "inspect")

    def show_tensor(self, key: str, tensor: TensorPlace) -> None:
        """Show a step of a recorded tensor of a run."""
        self.inspect(key, "tensors")
        self.tensor.emit(tensor)

    def show_number(self, number: str, formats: Sequence[str]) -> None:
        """Show the bits of a number in some formats."""
        self.go("formats")
        self.number.emit(number, list(formats))

    def show_proof(self, proof: Proof) -> None:
        """Show the numbers that prove a finding above the plots of its run."""
        self._runs.choose(proof.key)
        self.go("live")
        self.proof.emit(proof)

    def show_step(self, key: str, step: float) -> None:
        """Show the curves of a run around a step."""
        self.go("live")
        self.step.emit(key, step)

    def compare(self, baseline: str, key: str) -> None:
        """Show two runs beside each other."""
        self.go("compare")
        self.pair.emit(baseline, key)

    def set_up(self, config: RunConfig, source: str) -> None:
        """Put a config into the form of Run; `source` says where it comes from, for the user."""
        self.go("setup")
        self.settings.emit(config, source)

    def set_up_study(
        self,
        config: RunConfig,
        source: str,
        precisions: Sequence[str],
        seeds: int,
        vary: Mapping[str, Sequence[object]] | None = None,
    ) -> None:
        """Put a config into the form of Run, and its study of these precisions and values beside it."""
        self.set_up(config, source)
        self.go("setup/study")
        self.study.emit(list(precisions), seeds, dict(vary or {}))
