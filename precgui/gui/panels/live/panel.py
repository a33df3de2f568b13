"""Live: four linked plots of the open runs, as they go on or as they were saved, and the list of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QPushButton, QSplitter, QSplitterHandle, QVBoxLayout, QWidget

from precgui.gui.examples import offer_examples
from precgui.gui.kit.caveat import CaveatLabel
from precgui.gui.kit.empty_state import EmptyState, Pages, panel_head
from precgui.gui.kit.parts import holder, row
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.kit.when_visible import WhenVisible
from precgui.gui.kit.wrapping_row import WrappingRow
from precgui.gui.next_turn import in_next_turn
from precgui.gui.open_run import Problem
from precgui.gui.panels.live.end_card import EndCard
from precgui.gui.panels.live.proof_card import ProofCard
from precgui.gui.panels.live.queue_list import QueueList
from precgui.gui.panels.live.run_list import RunList
from precgui.gui.plots.axes import AxisChoice
from precgui.gui.plots.linked import LinkedPlots, Zoom
from precgui.gui.plots.signals import EVENTS, METRIC, RecordedSignals, duration, grouped
from precgui.gui.plots.smoothing import SmoothingChoice
from precgui.gui.proof import Proof
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.caveats import arithmetic_of
from precgui.sanitize import some_names
from precgui.words import L_, _, p_, translated

if TYPE_CHECKING:
    from precgui.gui.panels.live.study_grid import StudyGridView

_NAMED = 2  # runs in a caveat; more are a number
_LOW_PX = 640
_PLOT_PX = 180  # at least, with its head: with less the labels of its rows and ticks meet
_FIRST_STEPS = 50
CAVEAT_MS = 1000  # between two looks for notes that come later, as when quantised training begins in a later epoch
RUNS, STUDY = L_("Runs"), L_("Study")
LIVE_SIGNALS = ("loss", METRIC, "scale", EVENTS, "power")
_NARROW_PX = 760  # below this the list of runs lies under the plots


class _Handle(QSplitterHandle):
    """Drawn here: a style sheet for it would be one of all that stands in the splitter."""

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = themes().theme
        QPainter(self).fillRect(self.rect(), QColor(theme.accent if self.underMouse() else theme.line))


class _Splitter(QSplitter):
    """Has no shape of the theme, so that its parts can take the theme one by one."""

    def createHandle(self) -> QSplitterHandle:
        return _Handle(self.orientation(), self)


class LivePanel(Pages):
    """Shows whatever runs are open in the state."""

    place_changed = Signal()

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        requested = _("Choose a precision in Run and press Start (Ctrl+R), or open a file.")
        super().__init__(EmptyState("live", _("No runs yet"), requested, _("Choose a precision")), parent)
        self._session = session
        self._recorded = RecordedSignals()
        self.plots = LinkedPlots(LIVE_SIGNALS, self)
        for frame in self.plots.frames:
            frame.setMinimumHeight(_PLOT_PX)
        self.plots.frames[0].log_button.setChecked(True)  # a loss that falls by decades is a line at 0 otherwise
        self.end_card = EndCard(session, self)
        self.all_plots = self._button(
            _("All plots"), _("Show plots of signals, too, of which nothing is recorded"), True
        )
        self.run_list = RunList(session, self)
        self.caveat = CaveatLabel(self, folded=True)
        self._caveat_timer = QTimer(self, singleShot=True, interval=CAVEAT_MS)
        self._caveat_timer.timeout.connect(self._tell_caveats)
        self.stop_button = self._button(
            _("Stop run"), _("End the active run after the present step; what was recorded stays (Ctrl+.)")
        )
        self.pause_button = self._button(_("Freeze"), _("Freeze the picture; the run goes on (Space)"), checkable=True)
        self.follow_button = self._button(_("Follow"), _("Back to the whole run, growing with it (F)"))
        self.fit_button = self._button(_("Autoscale"), _("Fit the value axes to what is in view (A)"))
        self.keys_button = self._button(_("Keys"), _("List the keys of the plots and of all other places (F1)"))
        self.axis_choice = AxisChoice(self)
        self.smoothing = SmoothingChoice(self)
        self.view_text = PlainLabel(self)
        self.view = SegmentedChoice((RUNS, STUDY), _("Single runs, or the grid of a study"), self)
        self.view.buttons[RUNS].setText(p_("one by one", "Runs"))
        self._study: StudyGridView | None = None
        self.proof: Proof | None = None
        self.proof_card: ProofCard | None = None
        self._zoom_before: Zoom | None = None  # that of the plots before the proof
        self._splitter = _Splitter(self)
        self._runs = WhenVisible(self, self._take_runs)
        self._arrange()
        self._connect()
        self._take_runs()

    def _button(self, text: str, tip: str, checkable: bool = False) -> QPushButton:
        button = QPushButton(self)
        button.setText(text)
        button.setToolTip(plain_tip(tip))
        button.setCheckable(checkable)
        button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        return button

    def _arrange(self) -> None:
        self.view_text.setProperty("kind", "muted")
        axis = holder(row(self.axis_choice.label, self.axis_choice))
        buttons = (self.stop_button, self.pause_button, self.follow_button, self.fit_button)
        parts = (*buttons, axis, self.smoothing, self.all_plots, self.view_text)
        bar = WrappingRow(parts, self, at_right=self.keys_button)
        self.plots.setFrameShape(QFrame.Shape.NoFrame)
        self._splitter.addWidget(self.plots)
        self._splitter.addWidget(self._side())
        self._splitter.setStretchFactor(0, 1)
        self._splitter.setChildrenCollapsible(True)
        self._splitter.setSizes([900, 300])
        self.view.hide()
        head = panel_head(_("Live"), self.view)
        head.setContentsMargins(24, 16, 24, 0)
        self.head.addLayout(head)
        layout = QVBoxLayout(self.content)
        layout.setContentsMargins(24, 8, 24, 8)
        self._column = layout
        layout.addWidget(bar)
        layout.addWidget(self.end_card)
        layout.addWidget(self.caveat)
        layout.addWidget(self._splitter, 1)
        self.frames = (
            self, self.content, self._splitter, self.plots, self.plots.viewport(), self.plots.widget(),
        )  # fmt: skip

    def _side(self) -> QWidget:
        """The open runs, and below them those that wait."""
        side = QWidget(self)
        column = QVBoxLayout(side)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.run_list, 1)
        column.addWidget(QueueList(self._session, side))
        return side

    def _connect(self) -> None:
        session = self._session
        session.runs.added.connect(self._on_added)
        session.runs.removed.connect(self._runs.request)
        session.runs.changed.connect(self._runs.request)
        session.runs.data_arrived.connect(self._on_data)
        self.empty.button.clicked.connect(lambda: session.requests.go("setup"))
        offer_examples(self.empty, session, "live")
        session.training.changed.connect(self._show_stop)
        self.stop_button.clicked.connect(lambda: session.training.stop())
        self.pause_button.toggled.connect(self.plots.set_paused)
        self.follow_button.clicked.connect(self.plots.follow)
        self.fit_button.clicked.connect(self.plots.autoscale)
        self.axis_choice.chosen.connect(self.plots.set_over)
        self.smoothing.chosen.connect(self.plots.set_smoothing)
        self.all_plots.toggled.connect(lambda _: self._choose_plots())
        session.runs.current_changed.connect(self.end_card.refresh)
        for frame in self.plots.frames:
            frame.chart_replaced.connect(self._choose_plots)
        self.plots.view_changed.connect(self._tell_view)
        self.plots.failed.connect(lambda sentence: session.notice.emit(Problem(sentence)))
        self.keys_button.clicked.connect(lambda: session.requests.shortcuts.emit())
        self.run_list.jump_requested.connect(self.jump_to_first)
        session.requests.step.connect(self.jump_to)
        session.requests.proof.connect(self.show_proof)
        self.view.chosen.connect(lambda name: self.show_page(self.study if name == STUDY else None))
        self.view.chosen.connect(self.place_changed)
        session.study.opened.connect(self._on_study)
        if session.study.folder is not None:
            self._on_study()

    @property
    def study(self) -> StudyGridView:
        """The grid of the study, made when it is first needed: most windows never open a study."""
        if self._study is None:
            from precgui.gui.panels.live.study_grid import StudyGridView

            self._study = StudyGridView(self._session, self)
            themes().dress(self._study)
            self.add_page(self._study)
        return self._study

    def _on_study(self) -> None:
        self.view.show()
        self.view.choose(STUDY)

    def show_tab(self, tab: str) -> None:
        """Show the grid of the study, or the plots of the runs."""
        self.view.choose(STUDY if tab == "study" and self._session.study.folder is not None else RUNS)

    def place(self) -> tuple[str, object]:
        """Runs, study or the proof of a finding, and how the plots are zoomed, for Back."""
        proof = self.proof
        return "/".join((self.view.current, *([proof.finding.rule] if proof else []))), (self.plots.zoom(), proof)

    def return_to(self, tab: str, view: object) -> None:
        """Show the place that `place` has told."""
        self.view.choose(tab.partition("/")[0])
        zoom, proof = view if isinstance(view, tuple) else (None, None)
        if proof is None or proof.key not in self._session.runs:
            self.close_proof()
        elif proof is not self.proof:
            self.show_proof(proof)
        if isinstance(zoom, Zoom):
            self.plots.restore(zoom)

    def show_proof(self, proof: Proof) -> None:
        """Show the numbers that prove a finding, and the plots of that run alone around its steps."""
        zoom = self._zoom_before or self.plots.zoom()
        self._drop_proof()
        self._zoom_before, self.proof = zoom, proof
        self.view.choose(RUNS)
        opened = self._session.runs[proof.key]
        self.proof_card = ProofCard(proof, opened, self)
        self.proof_card.closed.connect(self.close_proof)
        themes().dress(self.proof_card)
        self._column.insertWidget(1, self.proof_card)
        self.proof_card.show()
        self._tell_caveats()
        self.plots.set_runs([opened])
        self.jump_to(proof.key, float(proof.finding.first_step))
        self.place_changed.emit()

    def close_proof(self) -> None:
        """Show all runs again, zoomed as they were before the proof."""
        zoom = self._zoom_before
        self._drop_proof()
        self._take_runs()
        if zoom is not None:
            self.plots.restore(zoom)
        self.place_changed.emit()

    def _drop_proof(self) -> None:
        if self.proof_card is not None:
            self._column.removeWidget(self.proof_card)
            self.proof_card.hide()
            self.proof_card.deleteLater()
        self.proof = self.proof_card = self._zoom_before = None

    def _on_added(self, key: str) -> None:
        self._runs.request()
        if not self._session.runs.opener.is_busy:
            self.plots.follow()
        self.view.choose(RUNS)

    def _on_data(self, key: str) -> None:
        if self.isVisible():
            self.plots.data_arrived()
            self.run_list.data_arrived()
            self._choose_plots()
            if len(self._session.runs[key].run.series("loss")[1]) < _FIRST_STEPS:  # most notes come first
                self._tell_caveats()
            elif not self._caveat_timer.isActive():
                self._caveat_timer.start()

    def _choose_plots(self) -> None:
        """Show the plots of signals of which something is recorded, and those that were chosen by hand."""
        proof = self.proof.key if self.proof is not None else None  # whose run is plotted alone
        displayed = [each for key, each in self._session.runs.items() if (key == proof if proof else each.visible)]
        runs, left = self._recorded.read([opened.run for opened in displayed])
        if left:
            in_next_turn(self, self._choose_plots)
        frames = list(zip(self.plots.frames, LIVE_SIGNALS, strict=True))
        filled = [
            frame
            for frame, usual in frames
            if self.all_plots.isChecked() or frame.chart.signal.key != usual or self._recorded.has(usual, runs)
        ]
        self.plots.show_frames(filled)

    def _show_stop(self) -> None:
        self.stop_button.setVisible(self._session.training.is_training)
        self.stop_button.setEnabled(not self._session.training.is_stopping)

    def _tell_caveats(self) -> None:
        """Which of the shown runs do not compute as the format does on hardware that has it."""
        proof = self.proof is not None  # whose place is needed
        displayed = [opened for opened in self._session.runs.values() if opened.visible and not proof]
        runs_of: dict[str, list[str]] = {}
        for opened in displayed:
            if caveat := arithmetic_of(opened.run).caveat:
                runs_of.setdefault(caveat, []).append(opened.name)
        reported = [f"{some_names(names, _NAMED)}: {translated(caveat)}" for caveat, names in runs_of.items()]
        self.caveat.set_text("\n".join(reported))

    def _take_runs(self) -> None:
        self.run_list.take_runs()
        self._show_stop()
        self._tell_caveats()
        if self.proof is not None and self.proof.key not in self._session.runs:
            self._drop_proof()
        runs = self._session.runs
        self.plots.set_runs([runs[self.proof.key]] if self.proof is not None else list(runs.values()))
        self._choose_plots()
        self.end_card.refresh()
        self.show_content(bool(self._session.runs))
        self._tell_view()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._tell_caveats()
        self.plots.data_arrived()
        self.run_list.data_arrived()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if (event.size().height() >= _LOW_PX) != (event.oldSize().height() >= _LOW_PX):
            self._tell_caveats()
        narrow = event.size().width() < _NARROW_PX
        requested = Qt.Orientation.Vertical if narrow else Qt.Orientation.Horizontal
        if self._splitter.orientation() != requested:
            self._splitter.setOrientation(requested)
            self._splitter.setSizes([700, 130] if narrow else [900, 300])

    def jump_to(self, key: str, step: float) -> None:
        """Show a step of a run."""
        steps, displayed = (self._session.runs[key].run.series("loss", over)[0] for over in ("step", self.plots.over))
        if len(steps):
            self.plots.jump_to(float(displayed[min(int(steps.searchsorted(step)), len(steps) - 1)]))

    def jump_to_first(self, key: str) -> None:
        """Show where the loss of a run first was NaN or Inf."""
        index = self.run_list.first_nonfinite(key)
        if index is not None:
            self.plots.jump_to(float(self._session.runs[key].run.series("loss", self.plots.over)[0][index]))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = self.run_list.current
        if event.key() == Qt.Key.Key_Escape and self.proof is not None:
            self.close_proof()
        elif event.key() == Qt.Key.Key_G and key is not None:
            self.jump_to_first(key)
        else:
            super().keyPressEvent(event)

    def _tell_view(self) -> None:
        """Say whether the picture follows, is zoomed, or stands still."""
        plots = self.plots
        self.pause_button.setChecked(plots.paused)
        self.follow_button.setEnabled(not plots.following)
        if plots.paused and plots.paused_at is not None:
            frozen = _("Frozen at {time}") if plots.over == "time_s" else _("Frozen at step {step}")
            at = duration(plots.paused_at) if plots.over == "time_s" else grouped(plots.paused_at)
            self.view_text.setText(frozen.format(time=at, step=at))
        elif not plots.following:
            self.view_text.setText(_("Zoomed"))
        else:
            running = any(opened.run.status == "running" for opened in self._session.runs.values())
            self.view_text.setText(_("Following") if running else "")
