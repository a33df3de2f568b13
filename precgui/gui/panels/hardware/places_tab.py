"""The Places tab: other machines that train for this one, each asked for its devices and runs."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QWidget

from precgui.gui.answer import Answer, thread
from precgui.gui.kit.parts import button, column, label, row
from precgui.gui.kit.table import Cell, TextTable
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.gui.panels.hardware.place_sheet import PlaceSheet
from precgui.gui.theme import themes
from precgui.hardware.readings import gibibytes
from precgui.places.messages import JobLine
from precgui.places.opened import opened_there
from precgui.places.settings import NamedPlace, PlaceError, places, remove_place
from precgui.places.trial import PlaceAnswer, visit
from precgui.runs.facts import date_text
from precgui.sanitize import one_line
from precgui.words import L_, Sentence, _, error_text, translated

PLACE_TITLES = (L_("Place"), L_("Answer"), L_("Devices"), L_("Free memory"), "precgui", "torch", L_("Command"))
RUN_TITLES = (L_("Run"), L_("Started"), L_("State"), L_("Name there"))
_ABOUT = L_(
    "A place is a machine with ssh, a container or another Python. Runs start there from Run, Where, and are watched "
    "in Live; their files come home. They go on when this window is closed."
)
_NONE = L_("No place yet. Add a host that ssh knows, such as a server with a GPU.")
_NOT_ASKED, _ASKING, _ANSWERED = L_("not asked yet; Test asks it"), L_("asking…"), L_("answers")
Visit = tuple[PlaceAnswer, tuple[JobLine, ...]]


class PlacesTab(QWidget):
    """`table` has a row for each place, `runs` one for each run of the chosen place."""

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self._model = model
        self._visits: dict[str, Visit] = {}
        self._asked: set[str] = set()
        self._places: dict[str, NamedPlace] = {}
        self._asking = Answer(self, answered=self._take, title=_("Asking a place"))
        self.table = TextTable([*map(translated, PLACE_TITLES)], _("Places"))
        self.runs = TextTable([*map(translated, RUN_TITLES)], _("Runs at the place"))
        self.none, self.fault = label(translated(_NONE), "muted"), label("", "error")
        self.add_button = button(_("Add…"), self.add, _("Add a machine"), kind="primary")
        self.test_button = button(_("Test"), self.test, _("Ask the place for its devices, versions and runs"))
        self.remove_button = button(_("Remove"), self.remove, _("Forget the place; what is there stays"))
        self.show_button = button(
            _("Show machine"), self.show_machine, _("Its devices, formats, rates and advice, in the other tabs")
        )
        self.attach_button = button(
            _("Attach"), self.attach, _("Follow the run in Live; its file comes home at its end")
        )
        self.open_button = button(
            _("Open"),
            self.open_run,
            _("Show the file of the run, which stays at its place"),
        )
        self._opening = Answer(
            self, answered=self._model.file_requested.emit, failed=self._show_fault, title=_("Fetching a run")
        )
        self.runs_heading = label(_("Runs there"), "heading")
        column(
            label(translated(_ABOUT), "muted"),
            row(self.add_button, self.test_button, self.show_button, self.remove_button, 1),
            self.none, self.fault, (self.table, 2), self.runs_heading, (self.runs, 3),
            row(self.attach_button, self.open_button, 1),
            spacing=12, margins=(4, 12, 12, 12), on=self,
        )  # fmt: skip
        self.table.selectionModel().selectionChanged.connect(lambda *_: self._show_runs())
        self.runs.selectionModel().selectionChanged.connect(lambda *_: self._enable())
        self.sheet: PlaceSheet | None = None
        themes().follow(self, self._show)
        self.read()

    def read(self) -> None:
        """Read the file of the places anew."""
        try:
            self._places = places()
            self.fault.setText("")
        except PlaceError as error:
            self._places = {}
            self.fault.setText(error_text(error))
        self.none.setVisible(not self._places and not self.fault.text())
        self.fault.setVisible(bool(self.fault.text()))
        self._show()
        if self._places and self._chosen() is None:
            self.table.selectRow(0)

    def add(self) -> PlaceSheet:
        """Ask for a new place."""
        self.sheet = PlaceSheet(self)
        self.sheet.added.connect(self._added)
        self.sheet.open()
        return self.sheet

    def test(self) -> None:
        """Ask the chosen place."""
        if (place := self._chosen()) is not None and place.name not in self._asked:
            self._asked.add(place.name)
            self._asking.ask(thread(visit, place))
            self._show()

    def remove(self) -> None:
        """Forget the chosen place."""
        if (place := self._chosen()) is not None:
            try:
                remove_place(place.name)
            except PlaceError as error:
                self._show_fault(error_text(error))
                return
            self._visits.pop(place.name, None)
            self.read()
            self._model.places_changed.emit()

    def show_machine(self) -> None:
        """Show the machine of the chosen place in the other tabs."""
        if (place := self._chosen()) is not None:
            self._model.place_requested.emit(place.name)

    def attach(self) -> None:
        """Follow the chosen run."""
        place, line = self._chosen(), self._chosen_run()
        if place is not None and line is not None:
            self._model.job_requested.emit(place, line)

    def open_run(self) -> None:
        """Show the file of the chosen run, which has ended."""
        place, line = self._chosen(), self._chosen_run()
        if place is not None and line is not None:
            self._opening.ask(thread(_opened, place, line))

    def _show_fault(self, text: str) -> None:
        self.fault.setText(one_line(text, 400))
        self.fault.setVisible(bool(text))

    def _added(self, name: str) -> None:
        self.read()
        self._model.places_changed.emit()
        self.table.selectRow(list(self._places).index(name))
        self.test()

    def _take(self, visited: Visit) -> None:
        name = visited[0].place.name
        self._asked.discard(name)
        self._visits[name] = visited
        self._show()

    def _chosen(self) -> NamedPlace | None:
        rows = self.table.selectionModel().selectedRows()
        names = list(self._places)
        return self._places[names[rows[0].row()]] if rows and rows[0].row() < len(names) else None

    def _runs_of_chosen(self) -> list[JobLine]:
        place = self._chosen()
        visited = self._visits.get(place.name) if place is not None else None
        return [line for line in visited[1] if line.kind == "run"] if visited is not None else []

    def _chosen_run(self) -> JobLine | None:
        rows, lines = self.runs.selectionModel().selectedRows(), self._runs_of_chosen()
        return lines[rows[0].row()] if rows and rows[0].row() < len(lines) else None

    def _show(self) -> None:
        self.table.fill([self._row(place) for place in self._places.values()])
        self._show_runs()

    def _row(self, place: NamedPlace) -> tuple[Cell, ...]:
        visited = self._visits.get(place.name)
        answer = visited[0] if visited is not None else None
        hello = answer.hello if answer is not None else None
        if place.name in self._asked or answer is None:
            state = Cell(translated(_ASKING if place.name in self._asked else _NOT_ASKED), colour=themes().theme.muted)
        elif hello is None:
            state = Cell(one_line(translated(answer.why), 400), colour=themes().theme.error)
        else:
            state = Cell(translated(_ANSWERED), colour=themes().theme.ok)
        devices = hello.devices if hello is not None else ()
        free = ", ".join(gibibytes(device.free_bytes) for device in devices if device.free_bytes)
        facts = (
            one_line(", ".join(f"{device.id} {device.name}" for device in devices)), free,
            one_line(hello.precgui if hello is not None else ""),
            one_line(hello.torch or _("not installed")) if hello is not None else "",
        )  # fmt: skip
        return (Cell(place.name), state, *map(Cell, facts), Cell(place.short, place.text))

    def _show_runs(self) -> None:
        lines = self._runs_of_chosen()
        self.runs.fill([
            (one_line(line.title), one_line(date_text(line.started)), _("running") if line.is_running else _("ended"),
             line.job[:8])
            for line in lines
        ])  # fmt: skip
        place = self._chosen()
        self.runs_heading.setText(_("Runs at {name}").format(name=place.name) if place is not None else _("Runs there"))
        self._enable()

    def _enable(self) -> None:
        place = self._chosen()
        for part in (self.test_button, self.show_button, self.remove_button):
            part.setEnabled(place is not None)
        line = self._chosen_run()
        self.attach_button.setEnabled(line is not None)
        self.open_button.setEnabled(line is not None and not line.is_running)


def _opened(place: NamedPlace, line: JobLine) -> Path:
    """Raises SentenceError."""
    try:
        return opened_there(place, line)
    except OSError as error:
        raise PlaceError(Sentence("the run cannot be kept here: {why}; free some space", why=error.strerror)) from None
