"""Inspect: one run, chosen once, and every view of it as a tab."""

from __future__ import annotations

import importlib
from functools import partial
from typing import cast

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QPushButton, QStackedWidget, QToolButton, QVBoxLayout, QWidget

from precgui.config import OWN_LOOP
from precgui.gui.examples import offer_examples
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.empty_state import EmptyState, Pages, panel_head
from precgui.gui.kit.pages import LazyTabs
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.kit.when_visible import WhenVisible
from precgui.gui.panels.inspect.exporting import Exports
from precgui.gui.panels.inspect.tabs import TABS, RunView, TabSpec, TensorView
from precgui.gui.plots.export import swatch_icon
from precgui.gui.requests import TensorPlace
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.words import L_, _, translated

_AGAIN = L_("Put the settings of this run into Run, to change them and start again")
_OWN_LOOP = L_("This run is of a loop of your own, which precgui cannot start; run its own script again.")
_EMPTY = L_("Open a run or start one: its settings, results, environment, tensors and notes stand here.")


class InspectPanel(Pages):
    """A tab is made when it is first shown, and shows the current run."""

    place_changed = Signal()

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(EmptyState("inspect", _("No run is open"), translated(_EMPTY), _("Choose runs")), parent)
        self._session = session
        self._requested = ""  # a tab; "" for any
        self._run_of_tab: dict[int, str | None] = {}
        self.run_choice = QComboBox(self)
        self.again_button = QPushButton(_("Run again..."), self)
        self.export_button = QToolButton(self)
        self.exports = Exports(session, self)
        self.tabs = LazyTabs(
            [(translated(spec.title), "", partial(self._create, spec)) for spec in TABS], self, later=True
        )
        self._runs = WhenVisible(self, self._take_runs)
        self._lay_out()
        self._connect()
        self._runs.request()

    def _lay_out(self) -> None:
        self.run_choice.setAccessibleName(_("Run"))
        self.run_choice.setMinimumContentsLength(20)
        self.run_choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        ignore_wheel(self.run_choice)
        self.again_button.setToolTip(plain_tip(translated(_AGAIN)))
        self.export_button.setText(_("Export"))
        self.export_button.setToolTip(_("Write the run for other tools"))
        self.export_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.export_button.setProperty("kind", "menu")
        self.export_button.setMenu(self.exports.menu)
        column = QVBoxLayout(self.content)
        column.setContentsMargins(24, 8, 24, 8)
        column.setSpacing(8)
        head = panel_head(_("Inspect"), self.run_choice, self.again_button, self.export_button)
        head.setStretch(1, 0)
        head.setStretch(2, 1)
        head.setContentsMargins(24, 16, 24, 0)
        self.head.addLayout(head)
        column.addWidget(self.tabs, 1)
        self.frames = (self, self.content, self.tabs, *self.tabs.findChildren(QStackedWidget))

    def _connect(self) -> None:
        session = self._session
        for signal in (session.runs.added, session.runs.removed, session.runs.changed):
            signal.connect(self._runs.request)
        session.runs.current_changed.connect(self._follow_session)
        session.requests.tensor.connect(self._show_tensor)
        session.runs.data_arrived.connect(self._on_data)
        self.empty.button.clicked.connect(lambda: session.requests.go("library"))
        offer_examples(self.empty, session, "inspect")
        self.run_choice.activated.connect(lambda place: session.runs.choose(self.run_choice.currentData()))
        self.again_button.clicked.connect(self.run_again)
        self.tabs.currentChanged.connect(self._remember_tab)
        self.tabs.ready.connect(self._show_in)
        self.exports.menu.aboutToShow.connect(lambda: self.exports.fill(session.runs.get(self.key or "")))
        themes().follow(self, self._take_runs)

    @property
    def key(self) -> str | None:
        """The key of the run that is shown."""
        return self._session.runs.current

    def tab(self, name: str) -> QWidget:
        """The widget of a tab by its id, made now if it was not."""
        return self.tabs.content(next(index for index, spec in enumerate(TABS) if spec.id == name))

    def _create(self, spec: TabSpec) -> QWidget:
        module, _, name = spec.place.partition(":")
        created: QWidget = getattr(importlib.import_module(f"precgui.gui.panels.inspect.{module}"), name)(self._session)
        return created

    def _remember_tab(self, index: int) -> None:
        self._requested = TABS[index].id
        self.place_changed.emit()

    def _show_tab(self) -> None:
        """Show the current tab; one that is new says so until the next turn of the event loop."""
        self._remember_tab(self.tabs.currentIndex())
        self.tabs.show_content(self.tabs.currentIndex())

    def _show_in(self, index: int) -> None:
        self._allow_again()
        if self._run_of_tab.get(index, "") != self.key:
            self._run_of_tab[index] = self.key
            cast(RunView, self.tabs.content(index)).show_run(self.key)

    def _take_runs(self) -> None:
        """Offer the open runs."""
        runs = self._session.runs
        self._fill_choice()
        for part in (self.run_choice, self.again_button, self.export_button):
            part.setVisible(bool(runs))
        self.show_content(bool(runs))
        self._follow_session()

    def _fill_choice(self) -> None:
        """An entry for each open run; while the runs stay the same only names and colours change."""
        choice, runs = self.run_choice, self._session.runs
        if [choice.itemData(row) for row in range(choice.count())] != list(runs):
            choice.clear()
            for key in runs:
                choice.addItem("", key)
        for row, opened in enumerate(runs.values()):
            choice.setItemText(row, opened.name)
            choice.setItemIcon(row, swatch_icon(opened))

    def _follow_session(self) -> None:
        key, tab = self.key, self._requested
        self.run_choice.setCurrentIndex(self.run_choice.findData(key))
        self.run_choice.setToolTip(plain_tip(self.run_choice.currentText()))
        self._enable_tabs()
        requested = next((index for index, spec in enumerate(TABS) if spec.id == tab), self.tabs.currentIndex())
        if self.tabs.isTabEnabled(requested) and requested != self.tabs.currentIndex():
            self.tabs.setCurrentIndex(requested)
        elif self.isVisible():
            self._show_tab()

    def _enable_tabs(self) -> None:
        opened = self._session.runs.get(self.key or "")
        if opened is None:  # the tabs are hidden; if all were greyed, another one would become the current
            return
        for index, spec in enumerate(TABS):
            there = spec.shows(opened.run)
            self.tabs.setTabEnabled(index, there)
            self.tabs.setTabToolTip(index, _tool_tip(spec, there))

    def _on_data(self, key: str) -> None:
        if key == self.key and self.isVisible():
            self._enable_tabs()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self.is_empty:
            self._show_tab()

    def place(self) -> tuple[str, object]:
        """The tab, for Back."""
        return self._requested, None

    def return_to(self, tab: str, view: object) -> None:
        """Show the tab of a `place`."""
        self.show_tab(tab)

    def show_tab(self, tab: str) -> None:
        """Show a tab by its id, as soon as the current run has something in it."""
        self._requested = tab
        self._follow_session()

    def _show_tensor(self, place: TensorPlace) -> None:
        cast(TensorView, self.tab("tensors")).show_tensor(place)

    def run_again(self) -> None:
        """Put the settings of the run into Run."""
        if (opened := self._session.runs.get(self.key or "")) is not None:
            self._session.requests.set_up(opened.run.config, opened.name)

    def _allow_again(self) -> None:
        """Offer to run again what precgui can start."""
        opened = self._session.runs.get(self.key or "")
        own = opened is not None and opened.run.config.task == OWN_LOOP
        self.again_button.setEnabled(not own)
        self.again_button.setToolTip(plain_tip(translated(_OWN_LOOP if own else _AGAIN)))


def _tool_tip(spec: TabSpec, there: bool) -> str:
    if not there and spec.absent:
        return translated(spec.absent)
    hint = translated(spec.hint)
    return hint[:1].upper() + hint[1:]
