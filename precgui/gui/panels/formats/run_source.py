"""Choosing the tensors of an open run: a menu of runs, kinds of tensors and tensors, and a slider for the step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QMenu, QSlider, QToolButton, QWidget

from precgui.gui.open_run import OpenRun
from precgui.gui.panels.formats.recorded import recorded, recorded_names, recorded_rows
from precgui.runs.tensors.record import TensorHistory
from precgui.words import L_, _, p_, translated

MOST_LISTED = 200

_KINDS = {
    "gradient": L_("gradient"),
    "weight": L_("weight"),
    "activation": L_("activation"),
}


def _title(kind: str) -> str:
    """The name of a kind of tensors in the reader's language."""
    if kind == "update":
        return p_("kind of tensor", "update")
    return translated(_KINDS.get(kind, kind.replace("_", " ")))


class RunSource(QWidget):
    """`loaded` brings a Recorded, `failed` one sentence. Hidden while no run is open."""

    loaded = Signal(object)
    failed = Signal(str)

    def __init__(self, session: Any, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._chosen: tuple[str, TensorHistory, str | None] | None = None
        self._rows: list[int] = []
        self.button = QToolButton()
        self.button.setText(_("From run"))
        self.button.setToolTip(_("The exponents of a tensor that an open run has recorded"))
        self.button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._menu = QMenu(self)
        self._menu.aboutToShow.connect(self.fill)
        self.button.setMenu(self._menu)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setAccessibleName(_("Step"))
        self.slider.setToolTip(_("The step of the run"))
        self.slider.setMinimumWidth(90)
        self.slider.hide()
        self.slider.valueChanged.connect(self._show_row)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.button)
        row.addWidget(self.slider, 1)
        for name in ("run_added", "run_removed"):
            if hasattr(session, name):
                getattr(session, name).connect(self._follow)
        if not self._runs():
            self.hide()

    def _runs(self) -> Mapping[str, Any]:
        return getattr(self._session, "runs", {})

    def _follow(self, _key: str = "") -> None:
        self.setVisible(bool(self._runs()))

    def show_steps(self, displayed: bool) -> None:
        """Whether the slider is there, if there are several steps."""
        self.slider.setVisible(displayed and len(self._rows) > 1)

    def fill(self) -> None:
        """Build the menu anew from the open runs; clearing it alone would keep its submenus."""
        for submenu in self._menu.findChildren(QMenu, options=Qt.FindChildOption.FindDirectChildrenOnly):
            submenu.deleteLater()
        self._menu.clear()
        for opened in self._runs().values():
            menu = self._menu.addMenu(opened.name)
            menu.aboutToShow.connect(partial(self._fill_run, menu, opened))

    def _fill_run(self, menu: QMenu, opened: OpenRun) -> None:
        """One submenu for each kind of tensors, once: the file of the run is read for it."""
        if not menu.isEmpty():
            return
        kinds = opened.run.tensors()
        if not kinds:
            menu.addAction(_("No tensors were recorded")).setEnabled(False)
        for kind, record in kinds.items():
            below = menu.addMenu(_title(kind))
            below.aboutToShow.connect(partial(self._fill_kind, below, f"{opened.name}, {kind}", record))

    def _fill_kind(self, menu: QMenu, title: str, record: TensorHistory) -> None:
        """The tensors of which something was recorded; `all` are taken as one."""
        menu.clear()
        names = recorded_names(record)
        menu.addAction(_("all"), partial(self.choose, title, record, None))
        for name in names[:MOST_LISTED]:
            menu.addAction(name, partial(self.choose, f"{title} {name}", record, name))
        if len(names) > MOST_LISTED:
            menu.addAction(_("{count} more are not listed").format(count=len(names) - MOST_LISTED)).setEnabled(False)

    def choose(self, title: str, record: TensorHistory, tensor: str | None) -> None:
        """Show the last step in which this was recorded; the slider goes to the others."""
        self._rows = recorded_rows(record, tensor).tolist() if len(record) else []
        if not self._rows:
            self.show_steps(False)
            self.failed.emit(_("{title}: nothing was recorded of it yet").format(title=title))
            return
        self._chosen = (title, record, tensor)
        with QSignalBlocker(self.slider):
            self.slider.setRange(0, len(self._rows) - 1)
            self.slider.setPageStep(max(len(self._rows) // 10, 1))
            self.slider.setValue(len(self._rows) - 1)
        self.show_steps(True)
        self._show_row(self.slider.value())

    def _show_row(self, place: int) -> None:
        if self._chosen is None:
            return
        title, record, tensor = self._chosen
        result = recorded(title, record, tensor, self._rows[place])
        if result is None:
            self.failed.emit(
                _("{title}: nothing was counted at step {steps}").format(
                    title=title, steps=int(record.steps()[self._rows[place]])
                )
            )
        else:
            self.loaded.emit(result)
