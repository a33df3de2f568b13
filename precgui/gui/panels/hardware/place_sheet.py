"""A sheet of three fields for a new place, tried before it is kept."""

from __future__ import annotations

import shlex

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QFormLayout, QLineEdit, QWidget

from precgui.gui.answer import Answer, thread
from precgui.gui.kit.parts import button, column, holder, label, row
from precgui.places.settings import NamedPlace, PlaceError, add_place, command_place, ssh_place
from precgui.places.trial import PlaceAnswer, answer_of
from precgui.sanitize import one_line
from precgui.words import L_, _, error_text, translated

_WIDTH = 520
_HELP = L_("A name that `ssh HOST` knows. Or a whole command, such as: docker exec -i box precgui serve --stdio")


class PlaceSheet(QDialog):
    """`added` carries the name of the new place."""

    added = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Add a place")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setMinimumWidth(_WIDTH)
        self.name, self.host, self.precgui = QLineEdit(), QLineEdit(), QLineEdit("precgui")
        self.host.setPlaceholderText(_("gpu1, or me@gpu1.example.org"))
        self.name.setPlaceholderText(_("as the host"))
        self.precgui.setToolTip(_("Its path, or the words that start it, such as python3 -m precgui"))
        form = QFormLayout()
        for text, field in ((_("&Host"), self.host), (_("&precgui there"), self.precgui), (_("&Name here"), self.name)):
            form.addRow(text, field)
            field.textChanged.connect(lambda _: self._changed())
        self.reported = label("")
        self.test_button = button(_("Test"), self.test)
        self.add_button = button(_("Add"), self.add, kind="primary")
        self.cancel_button = button(_("Cancel"), self.reject)
        column(
            holder(form), label(translated(_HELP), "muted"), self.reported, 1,
            row(self.test_button, 1, self.cancel_button, self.add_button),
            spacing=12, margins=(24, 16, 24, 16), on=self,
        )  # fmt: skip
        self._asking = Answer(self, answered=self._take)
        self._asking.changed.connect(self._enable)
        self._changed()

    def place(self) -> NamedPlace:
        """The place of the fields. Raises PlaceError."""
        words = self.host.text().strip()
        if " " in words:
            try:
                return command_place(self.name.text().strip() or "place", shlex.split(words))
            except ValueError as error:
                raise PlaceError(_("the command cannot be read: {error}").format(error=error)) from None
        host = words.removeprefix("ssh:")
        name = self.name.text().strip() or host.rpartition("@")[2].partition(".")[0]
        return ssh_place(name, host, self.precgui.text().strip() or "precgui")

    def test(self) -> None:
        """Ask the place for its hello."""
        try:
            place = self.place()
        except PlaceError as error:
            self._say(error_text(error), "error")
            return
        self._say(_("Asking {name}…").format(name=place.name), "muted")
        self._asking.ask(thread(answer_of, place), latest_only=True)

    def add(self) -> None:
        """Keep the place."""
        try:
            place = self.place()
            add_place(place)
        except PlaceError as error:
            self._say(error_text(error), "error")
            return
        self.added.emit(place.name)
        self.accept()

    def _take(self, answer: PlaceAnswer) -> None:
        if answer.hello is None:
            self._say(translated(answer.why), "error")
            return
        devices = ", ".join(device.name for device in answer.hello.devices)
        torch = f"torch {answer.hello.torch}" if answer.hello.torch else _("no torch, which a run needs")
        text = _("It answers: {devices}; precgui {version}, {torch}.")
        self._say(text.format(devices=devices, version=answer.hello.precgui, torch=torch), "muted")

    def _say(self, text: str, kind: str) -> None:
        self.reported.setText(one_line(text, 400))
        self.reported.setProperty("kind", kind)
        self.reported.style().polish(self.reported)

    def _changed(self) -> None:
        self._say("", "muted")
        self._enable()

    def _enable(self) -> None:
        is_named = bool(self.host.text().strip())
        self.test_button.setEnabled(is_named and not self._asking.busy)
        self.add_button.setEnabled(is_named)
