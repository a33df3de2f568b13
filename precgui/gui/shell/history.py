"""The places where the user has been, for Back and Forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from PySide6.QtCore import QObject, QTimer, Signal

MOST = 100


@dataclass(frozen=True)
class VisitedPlace:
    """A panel with its tab, the current run, and what was in view there."""

    panel: str
    run: str | None
    tab: str = ""
    view: object = None

    @property
    def address(self) -> tuple[str, str | None, str]:
        """All but the view: two places of one address are one place."""
        return self.panel, self.run, self.tab


class History(QObject):
    """`here` tells the present place, `go` shows an earlier one. `changed`: there is another way back or forward."""

    changed = Signal()

    def __init__(self, here: Callable[[], VisitedPlace], go: Callable[[VisitedPlace], object], parent: QObject) -> None:
        super().__init__(parent)
        self._here, self._go = here, go
        self._places: list[VisitedPlace] = []
        self._at = -1
        # One place for all that changes in one turn of the event loop, such as a run and the panel that shows it.
        self._later = QTimer(self, singleShot=True, interval=0)
        self._later.timeout.connect(self.note)

    def note_soon(self) -> None:
        """Note the place that is reached when all that goes on now is done."""
        self._later.start()

    def note(self) -> None:
        """Note the present place, unless it is the one that was noted last."""
        self._later.stop()
        here = self._here()
        if self._at >= 0 and self._places[self._at].address == here.address:
            return
        self._places = [*self._places[: self._at + 1], here][-MOST:]
        self._at = len(self._places) - 1
        self.changed.emit()

    def keep_view(self) -> None:
        """Remember what is in view, before another place is shown."""
        if self._at >= 0 and (here := self._here()).panel == self._places[self._at].panel:
            self._places[self._at] = replace(self._places[self._at], view=here.view)

    def close_run(self, key: str, current: str | None) -> None:
        """Of places of a run that was closed keep the place, with the run that is current now."""
        self._places = [replace(each, run=current) if each.run == key else each for each in self._places]

    @property
    def can_go_back(self) -> bool:
        return self._at > 0

    @property
    def can_go_forward(self) -> bool:
        return self._at < len(self._places) - 1

    def back(self) -> None:
        """Show the place before this one, with what was in view there."""
        self._move(-1)

    def forward(self) -> None:
        """Show the place from which `back` has come."""
        self._move(1)

    def _move(self, by: int) -> None:
        if not 0 <= self._at + by < len(self._places):
            return
        self.keep_view()
        self._at += by
        place = self._places[self._at]
        self._go(place)
        self._later.stop()
        self._places[self._at] = replace(self._here(), view=place.view)
        self.changed.emit()
