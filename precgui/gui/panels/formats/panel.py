"""The tabs of the formats panel, each created when it is first shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from precgui.gui.kit.pages import LazyTabs
from precgui.gui.panels.formats.arithmetic import ArithmeticTab
from precgui.gui.panels.formats.bits import BitsTab
from precgui.gui.panels.formats.lab import LabTab
from precgui.gui.panels.formats.line import LineTab
from precgui.gui.panels.formats.quantise import QuantiseTab
from precgui.gui.panels.formats.ranges import RangesTab
from precgui.gui.panels.formats.reference import ReferenceTab
from precgui.gui.session import Session
from precgui.words import L_, _, translated

TABS: tuple[tuple[str, str, Callable[[object], QWidget]], ...] = (
    (L_("Bits"), L_("one number in many formats, bit by bit"), BitsTab),
    (L_("Line"), L_("the values of formats on a number line, and where a tensor lies on it"), LineTab),
    (L_("Range"), L_("how far every format reaches and how finely it divides"), RangesTab),
    (L_("Arithmetic"), L_("an operation as many formats compute it, beside the exact result"), ArithmeticTab),
    (L_("Rounding lab"), L_("underflow, overflow, stalled sums, softmax, live"), LabTab),
    (L_("Quantise"), L_("a tensor in integers, NF4, MX and NVFP4"), QuantiseTab),
    (L_("Reference"), L_("every format: structure, limits, use"), ReferenceTab),
)


class FormatsPanel(QWidget):
    """Formats of numbers, without a run and without torch."""

    place_changed = Signal()

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.session = session
        self.tabs = LazyTabs(
            [(translated(title), translated(tip), partial(self._create, kind)) for title, tip, kind in TABS],
            self,
            title=_("Formats"),
        )
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 16, 24, 8)
        column.addWidget(self.tabs)
        self.tab(0)
        self.tabs.currentChanged.connect(self.place_changed)
        if isinstance(session, Session):
            session.requests.number.connect(self.show_number)

    def _create(self, kind: Callable[[object], QWidget]) -> QWidget:
        tab = kind(self.session)
        if isinstance(tab, ReferenceTab | ArithmeticTab):
            tab.number_requested.connect(self.show_number)
        return tab

    def place(self) -> tuple[str, object]:
        """The tab, for Back."""
        return str(self.tabs.currentIndex()), None

    def return_to(self, tab: str, view: object) -> None:
        """Show the tab of a `place`."""
        self.tabs.setCurrentIndex(int(tab))

    def show_tab(self, name: str) -> None:
        """Show the tab of this title, in lower case."""
        self.tabs.setCurrentIndex(self._index_of(name))

    def tab_named(self, name: str) -> QWidget:
        """The content of the tab of this title, in lower case, created now if it was not."""
        return self.tab(self._index_of(name))

    def _index_of(self, name: str) -> int:
        return next(index for index, (title, _tip, _kind) in enumerate(TABS) if title.lower() == name)

    def tab(self, index: int) -> QWidget:
        """The content of a tab, created now if it was not."""
        return self.tabs.content(index)

    def show_number(self, number: str, names: list[str]) -> None:
        """Show a number in these formats, in the first tab."""
        bits = self.tab(0)
        assert isinstance(bits, BitsTab)
        bits.menu.choose(names)
        bits.set_text(number)
        self.tabs.setCurrentIndex(0)
