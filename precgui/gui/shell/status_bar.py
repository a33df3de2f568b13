"""The status bar: what the run is doing, how far it is, how long it takes, the power, and the bell."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtWidgets import QLabel, QProgressBar, QStatusBar, QToolButton, QWidget

from precgui.gui.going_on import going_on
from precgui.gui.kit.icons import icon, pixmap
from precgui.gui.kit.plain_text import ElidedLabel, PlainLabel, plain_tip
from precgui.gui.theme import themes
from precgui.words import _, translated

if TYPE_CHECKING:
    from precgui.gui.session import Session

REFRESH_MS = 250
PROGRESS_STEPS = 1000
_REASON = re.compile(r"\s*[(（].*[)）]", re.DOTALL)


def duration(seconds: float) -> str:
    """A time span as `m:ss` or `h:mm:ss`; under ten seconds as `9 s`."""
    whole = max(0, round(seconds))
    if whole < 10:
        return f"{whole} s"
    hours, remainder = divmod(whole, 3600)
    minutes, last = divmod(remainder, 60)
    return f"{hours}:{minutes:02d}:{last:02d}" if hours else f"{minutes}:{last:02d}"


class StatusLine(QStatusBar):
    """Every part has the width of its longest usual text, so nothing moves while numbers change."""

    bell_clicked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setSizeGripEnabled(False)
        self.setContentsMargins(8, 0, 8, 0)
        self._session: Session | None = None
        self._mark_name = ""
        self._mark = PlainLabel(self)
        self.text = ElidedLabel(self)
        self.bar = QProgressBar(self)
        self.bar.setRange(0, PROGRESS_STEPS)
        self.bar.setTextVisible(False)
        self.bar.setFixedWidth(120)
        self.bar.setAccessibleName(_("Progress of the run"))
        self.steps = self._label("000000 / 000000")
        self.left = self._label("00:00:00 left")
        self.power = self._label("0000.0 W")
        self.power.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.stop = QToolButton(self)
        self.stop.setText(_("Stop"))
        self.stop.setToolTip(_("Stop the active run after the present step; what was recorded stays (Ctrl+.)"))
        self.stop.setIconSize(QSize(16, 16))
        self.stop.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.stop.clicked.connect(self._stop_run)
        self.detach = QToolButton(self)
        self.detach.clicked.connect(self._detach_or_attach)
        self.bell = QToolButton(self)
        self.bell.setIconSize(QSize(18, 18))
        self.bell.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.bell.clicked.connect(self.bell_clicked)
        self.addWidget(self._mark)
        self.addWidget(self.text, 1)
        for part in (self.bar, self.steps, self.left, self.power, self.detach, self.stop, self.bell):
            self.addPermanentWidget(part)
        self._timer = QTimer(self, interval=REFRESH_MS)
        self._timer.timeout.connect(self.refresh)
        themes().follow(self, self._recolour)
        self.show_unread(0)
        self._show(None)

    def _label(self, longest: str) -> QLabel:
        label = PlainLabel(self)
        label.setTextFormat(Qt.TextFormat.PlainText)
        label.setMinimumWidth(min(self.fontMetrics().horizontalAdvance(longest), 150))
        return label

    def attach(self, session: Session) -> None:
        """Follow the active run of `session`."""
        self._session = session
        session.training.changed.connect(self.refresh)
        session.runs.changed.connect(lambda _: self.refresh())
        session.study.grid_read.connect(self.refresh)
        going_on().changed.connect(self.refresh)
        self._timer.start()
        self.refresh()

    def _stop_run(self) -> None:
        if self._session is not None:
            self._session.training.stop()
            self.refresh()

    def _detach_or_attach(self) -> None:
        if self._session is None:
            return
        training = self._session.training
        if training.place:
            training.detach()
        elif (key := training.attachable) is not None:
            training.attach(key)
        self.refresh()

    def refresh(self) -> None:
        self._show(self._session)

    def _show_detach(self, session: Session | None) -> None:
        key = session.training.attachable if session is not None and not session.training.is_training else None
        self.detach.setVisible(key is not None or (session is not None and bool(session.training.place)))
        self.detach.setText(_("Detach") if key is None else _("Attach"))
        tip = _("Follow the run no longer; it goes on at its place")
        if key is not None and session is not None:
            tip = _("Follow {name} again, which goes on at its place").format(name=session.runs[key].name)
        self.detach.setToolTip(plain_tip(tip))

    def _show(self, session: Session | None) -> None:
        self._show_detach(session)
        progress = session.training.progress() if session is not None else None
        lost = session.training.link_state if session is not None else ""
        self.bar.setVisible(progress is not None and not lost)  # it stands still while the link is lost
        self.stop.setVisible(progress is not None)
        self.stop.setEnabled(session is not None and not session.training.is_stopping)
        if session is None or session.runs.active_key is None or progress is None:
            for part in (self.steps, self.left, self.power):
                part.hide()
            self._show_other(session)
            return
        self._mark_with("warning" if lost else "start")
        text = _run_text(session, session.runs[session.runs.active_key].name, progress.text)
        self.text.setText(text, _without_reason(text) if lost else "")
        total = max(progress.total_steps, 1)
        self.bar.setValue(round(PROGRESS_STEPS * min(progress.step / total, 1)))
        self.steps.setText(f"{progress.step} / {progress.total_steps}" if progress.total_steps else "")
        self.left.setText(_left(progress.seconds_left))
        self.power.setText(_power(session))
        for part, told in ((self.steps, self.steps), (self.left, self.steps), (self.power, self.power)):
            part.setVisible(bool(told.text()) and not lost)  # what tells nothing leaves its room to the sentence

    def _show_other(self, session: Session | None) -> None:
        """Show what goes on besides runs: the study, then plans, searches and the like."""
        other = going_on().sentence
        if session is None or not session.study.is_running:
            self._mark_with("start" if other else "idle")
            self.text.setText(other or _("No run is active"), _without_reason(other))
            return
        self._mark_with("start")
        grid = session.study.grid
        if grid is None:
            self.text.setText(_("A study is running; its grid is in Live"))
            return
        document = grid.document
        done, total = document.done + sum(grid.shares.values()), document.done + document.left
        self.text.setText("; ".join(filter(None, (_("Study {title}").format(title=grid.title), other))))
        self.bar.show()
        self.bar.setValue(round(PROGRESS_STEPS * min(done / max(total, 1), 1)))
        self.steps.show()
        self.steps.setText(_("{done} of {total} runs").format(done=document.done, total=total))
        self.left.setVisible(document.left_s is not None)
        self.left.setText(_left(document.left_s))

    def _mark_with(self, name: str) -> None:
        if name != self._mark_name:
            self._mark_name = name
            self._recolour()

    def show_unread(self, count: int) -> None:
        """The number beside the bell."""
        self.bell.setText(str(count) if count else "")
        reported = _("Notices: {count} unread").format(count=count) if count else _("Notices: none unread")
        self.bell.setToolTip(plain_tip(f"{reported} (Ctrl+Shift+N)"))
        self.bell.setAccessibleName(reported)
        self._recolour()

    def _recolour(self) -> None:
        theme = themes().theme
        colours = {"start": theme.accent, "warning": theme.warning}
        colour = colours.get(self._mark_name, theme.muted)
        if self._mark_name:
            self._mark.setPixmap(pixmap(self._mark_name, colour, 16, self.devicePixelRatioF()))
        self.stop.setIcon(icon("stop", theme.error, 16))
        self.bell.setIcon(icon("bell", theme.warning if self.bell.text() else theme.muted, 18))


def _left(seconds: float | None) -> str:
    """The time that is left; empty where it is not known."""
    return "" if seconds is None else _("{time} left").format(time=duration(seconds))


def _run_text(session: Session, name: str, state: str) -> str:
    """The active run, its place, its state, and the runs that wait."""
    training = session.training
    values = {"name": name, "place": training.place, "state": state}
    text = (_("{name} at {place}: {state}") if training.place else _("{name}: {state}")).format(**values)
    if lost := translated(training.link_state):
        text = f"{lost[:1].upper()}{lost[1:]}"
    if not training.waiting:
        return text
    return _("{text}, {count} waiting").format(text=text, count=len(training.waiting))


def _without_reason(text: str) -> str:
    """A sentence about a link without the reason, which stands in brackets and may be long."""
    return _REASON.sub("", text)


def _power(session: Session) -> str:
    """The last power reading of the active run, in watts; empty without a sensor."""
    displayed = session.runs.get(session.runs.active_key or "")
    if displayed is None:
        return ""
    _steps, watts = displayed.run.series("power_w")
    return f"{watts[-1]:.1f} W" if len(watts) and math.isfinite(watts[-1]) else ""
