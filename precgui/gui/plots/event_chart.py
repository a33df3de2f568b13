"""The time line of what happened: one row for each kind of event, a mark for each event, the message on hover."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PySide6.QtCore import QEvent, QPointF
from PySide6.QtWidgets import QToolTip

from precgui.events import Incident
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.plots.chart import LOADING, Chart, CsvRow, ReadoutLine, Value, colour_of
from precgui.gui.plots.marks import MarkGroup, Marks, Track
from precgui.gui.plots.signals import Signal, grouped
from precgui.words import L_, _, n_, translated

if TYPE_CHECKING:
    from precgui.gui.open_run import DrawnRun

NEAR_PX = 7
TIP_COLUMNS = 90  # characters of a line in a tool tip
TIP_MESSAGES = 4  # messages in a tool tip


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of the time line."""

    title: str
    symbol: str
    kinds: tuple[str, ...]


LANES = (
    EventRow(L_("Loss NaN/Inf"), "x", ("nonfinite_loss",)),
    EventRow(L_("Grad. NaN/Inf"), "t", ("nonfinite_gradient",)),
    EventRow(L_("Skipped step"), "d", ("skipped_step",)),
    EventRow(L_("Scale change"), "o", ("scale_change",)),
    EventRow(L_("Precision"), "h", ("precision_change",)),
    EventRow(L_("Output NaN/Inf"), "star", ("nonfinite_activation",)),
    EventRow(L_("Notes"), "s", ("failure", "recording_stopped", "resumed", "sensor", "emulated", "note")),
)
KINDS = {
    "nonfinite_loss": L_("nonfinite loss"),
    "nonfinite_gradient": L_("nonfinite gradient"),
    "skipped_step": L_("skipped step"),
    "scale_change": L_("scale change"),
    "precision_change": L_("precision change"),
    "nonfinite_activation": L_("nonfinite activation"),
    "failure": L_("failure"),
    "recording_stopped": L_("recording stopped"),
    "resumed": L_("resumed"),
    "sensor": L_("sensor"),
    "emulated": L_("emulated"),
    "note": L_("note"),
}


@dataclass(slots=True)
class _RunEvents:
    """The events of one run."""

    opened: DrawnRun
    track: Track


class EventChart(Chart):
    """Marks come from the events alone, never from a curve. Runs share a row, each at its own height."""

    def __init__(self, signal: Signal) -> None:
        super().__init__(signal)
        self._events: dict[str, _RunEvents] = {}
        self.marks = Marks()
        self.plotItem.addItem(self.marks, ignoreBounds=True)
        self.auto_y = False
        self._pointed = False
        self.value_axis.setTicks([[(-row, translated(lane.title)) for row, lane in enumerate(LANES)]])
        self.value_axis.setStyle(tickLength=0)
        self._whole_height()

    def _whole_height(self) -> None:
        self.view.setYRange(-len(LANES) + 0.4, 0.8, padding=0)
        self.view.setMouseEnabled(x=True, y=False)

    def set_runs(self, runs: Sequence[DrawnRun]) -> None:
        self.runs = list(runs)
        known, self._events = self._events, {}
        for opened in runs:
            own = known.get(opened.key)
            self._events[opened.key] = _RunEvents(opened, own.track if own is not None else Track(opened.run))

    def pull(self) -> bool:
        fresh = [events.track.pull() for events in self._events.values()]
        return any(fresh)

    def draw(self) -> None:
        x0, x1 = self.x_range()
        displayed = self._visible()
        count, groups = 0, []
        for place, events in enumerate(displayed):
            colour = colour_of(events.opened)
            for row, lane in enumerate(LANES):
                in_view, x = events.track.in_view(lane.kinds, self.over, x0, x1, self.width_px())
                count += in_view
                y = np.full(len(x), _height(row, place, len(displayed)))
                groups.append(MarkGroup(lane.title, events.opened.key, x, y, lane.symbol, colour))
        self.marks.show_groups(groups)
        counted = n_("{number} event in view", "{number} events in view", count).format(number=grouped(count))
        self.note = counted if count else _("no events in view")

    def _visible(self) -> list[_RunEvents]:
        return [self._events[opened.key] for opened in self.visible_runs()]

    def is_empty(self) -> bool:
        return not self._visible()

    def empty_sentence(self) -> str:
        return _("All runs are hidden: tick one in the list of runs.") if self.runs else translated(LOADING)

    def last_x(self) -> float | None:
        ends = [
            float(x[-1])
            for events in self._visible()
            for kind in events.track.kinds()
            if len(x := events.track.places(kind, self.over))
        ]
        return max(ends, default=None)

    def readings(self, x: float) -> list[ReadoutLine]:
        """The events at exactly this place."""
        results = []
        for events in self._visible():
            for kind in events.track.kinds():
                for index in np.flatnonzero(events.track.places(kind, self.over) == x).tolist():
                    value = Value(_what(events.track.of_kind(kind)[index]), x)
                    results.append(ReadoutLine(colour_of(events.opened), events.opened.name, (value,)))
        return results

    def point_at(self, place: QPointF) -> None:
        """Show the messages of the events under the mouse as a tool tip."""
        reported = self.messages_at(place)
        self._pointed = bool(reported)
        if not reported:
            QToolTip.hideText()
            return
        displayed = reported[:TIP_MESSAGES] + (
            [_("and {count} more here").format(count=len(reported) - TIP_MESSAGES)]
            if len(reported) > TIP_MESSAGES
            else []
        )
        QToolTip.showText(
            self.mapToGlobal(self.mapFromScene(place)),
            plain_tip("\n".join(textwrap.fill(line, TIP_COLUMNS) for line in displayed)),
            self,
        )

    def viewportEvent(self, event: QEvent) -> bool:
        """Keep the tool tip while the mouse rests: the scene would show that of an item, which has none, instead."""
        if event.type() == QEvent.Type.ToolTip and self._pointed:
            return True
        return bool(super().viewportEvent(event))

    def show_cursor(self, x: float, headed: bool) -> None:
        """Draw the cursor line at x; no readout while a tool tip has the messages in full."""
        super().show_cursor(x, headed)
        if self._pointed:
            self.readout.hide()

    def hide_cursor(self) -> None:
        self._pointed = False
        super().hide_cursor()

    def messages_at(self, place: QPointF) -> list[str]:
        """The texts of the events within a few pixels of a place of the scene."""
        displayed, reported = self._visible(), []
        for position, events in enumerate(displayed):
            for row, lane in enumerate(LANES):
                level = QPointF(0.0, _height(row, position, len(displayed)))
                if abs(self.view.mapViewToScene(level).y() - place.y()) > NEAR_PX:
                    continue
                reported += [
                    f"{events.opened.name}: {_incident_text(incident)}" for incident in self._near(events, lane, place)
                ]
        return reported

    def _near(self, events: _RunEvents, lane: EventRow, place: QPointF) -> list[Incident]:
        low, high = self.x_range()
        reach = NEAR_PX * (high - low) / self.width_px()
        centre = self.view.mapSceneToView(place).x()
        return [
            events.track.of_kind(kind)[i]
            for kind in lane.kinds
            for i in np.flatnonzero(np.abs(events.track.places(kind, self.over) - centre) <= reach).tolist()
        ]

    def rows(self) -> Iterator[CsvRow]:
        for events in self._visible():
            for incident in events.opened.run.events():
                text = f"{incident.severity}: {incident.message}"
                where = f"{text} [{incident.module}]" if incident.module else text
                yield CsvRow(events.opened.name, incident.kind, float(incident.step), incident.time_s, where)


def _height(row: int, position: int, runs: int) -> float:
    """Runs stand side by side within their row, the first on top."""
    return -row + (0.0 if runs == 1 else 0.32 - 0.64 * position / (runs - 1))


def _what(incident: Incident) -> str:
    kind = translated(KINDS.get(incident.kind, incident.kind.replace("_", " ")))
    message = _("{kind}: {message}").format(kind=kind, message=translated(incident.message))
    return f"{message} ({incident.module})" if incident.module else message


def _incident_text(incident: Incident) -> str:
    return _("step {step}, {event}").format(step=grouped(incident.step), event=_what(incident))
