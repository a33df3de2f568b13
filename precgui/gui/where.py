"""A choice among this machine and the places, shown once there is a place."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QWidget

from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.parts import named, row
from precgui.gui.kit.plain_text import plain_tip
from precgui.places.settings import HERE, NamedPlace, PlaceError, places
from precgui.words import L_, _, translated

WHERE, PURPOSE = L_("&Where"), L_("Where the run trains")


class Where(QWidget):
    """`place` is the chosen place, None for this machine; `name` is its name, empty for this machine."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None, title: str = WHERE, purpose: str = PURPOSE) -> None:
        """`title` stands before the choice, `purpose` is read to who cannot see it."""
        super().__init__(parent)
        self._places: dict[str, NamedPlace] = {}
        self.choice = QComboBox()
        self.choice.setAccessibleName(translated(purpose))
        self.choice.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        ignore_wheel(self.choice)
        row(named(translated(title), self.choice), self.choice, on=self)
        self.choice.currentIndexChanged.connect(self._choose)
        self.read()

    @property
    def name(self) -> str:
        return self.choice.currentText() if self.choice.currentIndex() > 0 else ""

    @property
    def place(self) -> NamedPlace | None:
        return self._places.get(self.name)

    def read(self) -> None:
        """Read the file of the places anew; what is chosen stays if it is still there."""
        try:
            known = places()
        except PlaceError:
            known = {}  # Hardware says why
        if known != self._places or not self.choice.count():
            chosen, self._places = self.choice.currentText(), known
            self.choice.blockSignals(True)
            self.choice.clear()
            self.choice.addItems([HERE, *known])
            self.choice.setCurrentText(chosen if chosen in known else HERE)
            self.choice.blockSignals(False)
            self._choose()
        self.setVisible(bool(known))

    def choose(self, name: str) -> None:
        """Choose the place of this name, or this machine."""
        self.choice.setCurrentText(name or HERE)

    def _choose(self) -> None:
        place = self.place
        starts = _("Starts {command}").format(command=place.text) if place else ""
        self.choice.setToolTip(plain_tip(starts or _("Places are added in Hardware, Places")))
        self.changed.emit()
