"""Inspect: one run, chosen once, and every view of it as a tab."""

from __future__ import annotations

import importlib
from typing import cast

from PySide6.QtCore import QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QPushButton, QStackedWidget, QToolButton, QVBoxLayout, QWidget

from precgui.config import OWN_LOOP, no_start
from precgui.gui.panels.inspect.exporting import Exports
from precgui.gui.panels.inspect.tabs import TABS, RunView, TabSpec
from precgui.gui.plots.export import swatch_icon
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.gui.widgets.editors import ignore_wheel
from precgui.gui.widgets.empty_state import EmptyState, Pages, panel_head
from precgui.gui.widgets.loading import loading_label
from precgui.gui.widgets.page_stacks import PageTabs
from precgui.gui.widgets.plain_text import plain_tip
from precgui.gui.widgets.when_visible import WhenVisible

_AGAIN = "Put the settings of this run into Run, to change them and start again"
_EMPTY = "Open a run or start one: its settings, results, environment, tensors and notes stand here."


class InspectPanel(Pages):
    """A tab is made when it is first shown, and shows the run that is chosen above all tabs."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(EmptyState("inspect", "No run is open", _EMPTY, "Choose runs"), parent)
        self._session = session
        self._run_of_tab: dict[int, str | None] = {}
        self._tabs: dict[int, QWidget] = {}
        self._loading: set[int] = set()
        self.run_choice = QComboBox(self)
        self.again_button = QPushButton("Run again...", self)
        self.export_button = QToolButton(self)
        self.exports = Exports(session, self)
        self.tabs = PageTabs(self)
        self._runs = WhenVisible(self, self._take_runs)
        self._tab_pages: list[QVBoxLayout] = []
        self._lay_out()
        self._connect()
        self._on_runs()

    def _lay_out(self) -> None:
        self.run_choice.setAccessibleName("Run")
        self.run_choice.setMinimumContentsLength(20)
        self.run_choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        ignore_wheel(self.run_choice)
        self.again_button.setToolTip(_AGAIN)
        self.export_button.setText("Export")
        self.export_button.setToolTip("Write the run for other tools")
        self.export_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.export_button.setProperty("kind", "menu")
        self.export_button.setMenu(self.exports.menu)
        self.tabs.setDocumentMode(True)
        for spec in TABS:
            page = QWidget()
            self._tab_pages.append(QVBoxLayout(page))
            self._tab_pages[-1].setContentsMargins(0, 0, 0, 0)
            self.tabs.addTab(page, spec.title)
        column = QVBoxLayout(self.content)
        column.setContentsMargins(24, 16, 24, 8)
        column.setSpacing(8)
        head = panel_head("Inspect", self.run_choice, self.again_button, self.export_button)
        head.setStretch(1, 0)
        head.setStretch(2, 1)
        column.addLayout(head)
        column.addWidget(self.tabs, 1)
        self.frames = (self, self.content, self.tabs, *self.tabs.findChildren(QStackedWidget))

    def _connect(self) -> None:
        session = self._session
        for signal in (session.run_added, session.run_removed, session.run_changed):
            signal.connect(self._on_runs)
        session.inspect_changed.connect(self._follow_session)
        session.data_arrived.connect(self._on_data)
        self.empty.button.clicked.connect(lambda: session.panel_requested.emit("library"))
        self.run_choice.activated.connect(lambda _: session.inspect(self.run_choice.currentData(), show=False))
        self.again_button.clicked.connect(self.run_again)
        self.tabs.currentChanged.connect(self._on_tab)
        self.exports.menu.aboutToShow.connect(lambda: self.exports.fill(session.runs.get(self.key or "")))
        themes().follow(self, self._take_runs)

    @property
    def key(self) -> str | None:
        """The key of the run that is shown."""
        return self._session.inspected[0]

    def tab(self, name: str) -> QWidget:
        """The widget of a tab by its id, made now if it was not."""
        return self._make(next(index for index, spec in enumerate(TABS) if spec.id == name))

    def _make(self, index: int) -> QWidget:
        if index not in self._tabs:
            module, _, name = TABS[index].place.partition(":")
            created = getattr(importlib.import_module(f"precgui.gui.panels.inspect.{module}"), name)(self._session)
            self._tabs[index] = created
            self._tab_pages[index].addWidget(created)
        return self._tabs[index]

    def _on_tab(self, index: int) -> None:
        """Show the tab; one that is new says so until the next turn of the event loop."""
        self._session.inspected = (self.key, TABS[index].id)
        if index in self._tabs:
            self._show_in(index)
            return
        if index in self._loading:
            return
        self._loading.add(index)
        label = loading_label(TABS[index].title, self)
        self._tab_pages[index].addWidget(label)
        QTimer.singleShot(0, self, lambda: self._finish_loading(index, label))

    def _finish_loading(self, index: int, label: QWidget) -> None:
        self._loading.discard(index)
        self._tab_pages[index].removeWidget(label)
        label.deleteLater()
        self._show_in(index)

    def _show_in(self, index: int) -> None:
        widget = self._make(index)
        self._allow_again()
        if self._run_of_tab.get(index, "") != self.key:
            self._run_of_tab[index] = self.key
            cast(RunView, widget).show_run(self.key)

    def _on_runs(self) -> None:
        """A run that is no longer open gives way to the newest."""
        if self.key not in self._session.runs:
            self._session.inspected = (next(reversed(self._session.runs), None), self._session.inspected[1])
        self._runs.request()

    def _take_runs(self) -> None:
        """Offer the open runs."""
        runs = self._session.runs
        self._fill_choice()
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
        key, tab = self._session.inspected
        self.run_choice.setCurrentIndex(self.run_choice.findData(key))
        self.run_choice.setToolTip(plain_tip(self.run_choice.currentText()))
        self._enable_tabs()
        requested = next((index for index, spec in enumerate(TABS) if spec.id == tab), self.tabs.currentIndex())
        if self.tabs.isTabEnabled(requested) and requested != self.tabs.currentIndex():
            self.tabs.setCurrentIndex(requested)
        elif self.isVisible():
            self._on_tab(self.tabs.currentIndex())

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
            self._on_tab(self.tabs.currentIndex())

    def run_again(self) -> None:
        """Put the settings of the run into Run."""
        if (opened := self._session.runs.get(self.key or "")) is not None:
            self._session.set_up(opened.run.config, opened.name)

    def _allow_again(self) -> None:
        """Offer to run again what precgui can start."""
        opened = self._session.runs.get(self.key or "")
        own = opened is not None and opened.run.config.task == OWN_LOOP
        self.again_button.setEnabled(not own)
        self.again_button.setToolTip(plain_tip(f"{no_start('This run')}.") if own else _AGAIN)


def _tool_tip(spec: TabSpec, there: bool) -> str:
    return spec.hint[:1].upper() + spec.hint[1:] if there or not spec.absent else spec.absent
