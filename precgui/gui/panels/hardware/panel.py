"""The Hardware panel: devices, formats, measured rates, live readings, advice."""

from __future__ import annotations

import importlib
import json
from functools import partial
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import QMenu, QStackedWidget, QToolButton, QVBoxLayout, QWidget

from precgui.config import RunConfig
from precgui.gui.kit.icons import icon
from precgui.gui.kit.pages import LazyTabs
from precgui.gui.kit.parts import button, holder, label, row
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.gui.where import Where
from precgui.hardware.advice import Situation, advise
from precgui.hardware.report import document, text
from precgui.sanitize import one_line
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.gui.panels.hardware.bench_tab import MeasuredTab

# Title, tool tip, and the class, whose module is imported when the tab is first shown.
TABS = (
    (L_("Devices"), L_("what is in this machine"), "devices_tab:DevicesTab"),
    (L_("Formats"), L_("what each device does with each format"), "formats_tab:MatrixTab"),
    (L_("Measured"), L_("what this machine reaches, from one day to the next"), "bench_tab:MeasuredTab"),
    (L_("Live"), L_("what the sensors read now"), "live_tab:LiveTab"),
    (L_("Advice"), L_("which precision to use for a task"), "advice_tab:AdviceTab"),
    (L_("Places"), L_("other machines that train for this one"), "places_tab:PlacesTab"),
    (L_("Calculator"), L_("least time and memory on cards that are not at hand"), "calculator_tab:CalculatorTab"),
)


class HardwarePanel(QWidget):
    """Tabs on the machine, each created when it is first shown."""

    place_changed = Signal()

    def __init__(self, session: Session | None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.session = session
        self.model = HardwareModel(
            lambda: session is not None and session.is_busy, self,
            trains_at=lambda: session.training.place if session is not None else "",
        )  # fmt: skip
        if session is not None:
            self.model.measuring.connect(session.training.set_measuring)
            session.training.idle.connect(self.model.idle)
            self.model.run_requested.connect(session.requests.set_up)
            self.model.job_requested.connect(session.training.attach_job)
            self.model.file_requested.connect(lambda path: session.runs.opener.open([path], session.requests.inspect))
            self.model.sixteen_bits_requested.connect(self._set_up_sixteen_bits)
            self.model.claims_requested.connect(lambda name: session.requests.go(f"compare/claims {name}"))
        self.tabs = LazyTabs(
            [(translated(title), translated(tip), partial(self._create, place)) for title, tip, place in TABS],
            self,
            title=_("Hardware"),
        )
        self.model.tab_requested.connect(self.show_tab)
        self.copy = QToolButton(self)
        self._add_copy_menu()
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 16, 24, 8)
        column.addWidget(self._machine_row())
        column.addWidget(self.tabs)
        self.frames = (self, self.tabs, *self.tabs.findChildren(QStackedWidget))
        self.tab(0)
        self.tabs.currentChanged.connect(self.place_changed)

    def _machine_row(self) -> QWidget:
        """The title with the choice of the machine that the tabs show; hidden where there is no place."""
        title = label(_("Hardware"), "title", wrap=False)
        self.where = Where(self, _("&Machine"), _("The machine that is shown"))
        self.ask_button = button(
            _("Test"), self.model.ask_place, _("Ask the place again for its devices and measurements")
        )
        self.machine_text = label("", "muted")
        line = holder(row(title, self.where, self.ask_button, (self.machine_text, 1), spacing=16))
        self.where.changed.connect(lambda: self.model.set_place(self.where.place))
        self.model.place_changed.connect(self._show_place)
        self.model.machine_changed.connect(self._show_place)
        self.model.places_changed.connect(self._read_places)
        self.model.place_requested.connect(self._show_machine_of)
        self.model.holding.connect(self.where.setDisabled)
        self.machine_row = line
        self._read_places()
        return line

    def _read_places(self) -> None:
        self.where.read()
        has_places = self.where.choice.count() > 1
        self.machine_row.setVisible(has_places)
        self.tabs.set_titled(not has_places)
        self._show_place()

    def _show_place(self) -> None:
        model = self.model
        self.ask_button.setVisible(model.place is not None)
        self.ask_button.setEnabled(not model.is_asking)
        known = model.machine
        answered = f"{model.place_name} is {known.host['host']}, {known.host['os']}" if known and model.place else ""
        self.machine_text.setText(one_line(model.waiting_text if model.is_asking or known is None else answered, 400))

    def _show_machine_of(self, name: str) -> None:
        self.where.choose(name)
        self.show_tab("devices")

    def _set_up_sixteen_bits(self, config: RunConfig, source: str) -> None:
        assert self.session is not None
        self.session.requests.set_up(config, source)
        self.session.requests.go("setup/study/fp16-or-bf16")

    def _create(self, place: str) -> QWidget:
        module, _, name = place.partition(":")
        created: QWidget = getattr(importlib.import_module(f"precgui.gui.panels.hardware.{module}"), name)(self.model)
        return created

    def place(self) -> tuple[str, object]:
        """The tab, for Back."""
        return str(self.tabs.currentIndex()), None

    def return_to(self, tab: str, view: object) -> None:
        """Show the tab of a `place`."""
        self.tabs.setCurrentIndex(int(tab))

    def tab(self, index: int) -> QWidget:
        """The content of a tab, created now if it was not."""
        return self.tabs.content(index)

    def measured(self) -> MeasuredTab:
        """The tab that measures, shown."""
        self.show_tab("measured")
        return cast("MeasuredTab", self.tab(self.tabs.currentIndex()))

    def show_tab(self, title: str) -> None:
        """Show a tab by its title, in lower case; `advice/TASK/SIZE` asks for advice on these."""
        title, *situation = title.split("/")
        index = next((n for n, each in enumerate(TABS) if each[0].lower() == title), 0)
        self.tabs.setCurrentIndex(index)
        if situation and (ask_for := getattr(self.tab(index), "ask_for", None)):
            ask_for(*situation)

    def _add_copy_menu(self) -> None:
        menu = QMenu(self)
        menu.addAction(_("Report as text"), lambda: self._copy_text(as_json=False))
        menu.addAction(_("Report as JSON"), lambda: self._copy_text(as_json=True))
        self.copy.setText(_("Copy report"))
        self.copy.setToolTip(_("Devices, formats, measured rates and advice to the clipboard"))
        self.copy.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.copy.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.copy.setMenu(menu)
        self.tabs.setCornerWidget(self.copy)
        themes().follow(self, self._recolour)
        self._recolour()

    def _recolour(self) -> None:
        self.copy.setIcon(icon("copy"))

    def _copy_text(self, as_json: bool) -> None:
        QGuiApplication.clipboard().setText(self.report(as_json))

    def report(self, as_json: bool) -> str:
        """The text that Copy report copies; empty before the machine has answered."""
        model, machine = self.model, self.model.machine
        if machine is None:
            return ""
        asked = {d.id: Situation(d, "classification", "large", model.gain_of(d)) for d in machine.devices}
        advices = {name: advise(situation) for name, situation in asked.items()}
        if as_json:
            result = document(machine, advices, model.torch_problem)
            return json.dumps({**result, "measured": model.results[:1]}, indent=1)
        return text(machine, advices, model.results)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._read_places()
        self.model.ask_torch()
