"""One number in many formats: typed once, stored many times, each bit at hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QMenu, QSizePolicy, QSplitter, QVBoxLayout, QWidget

from precgui.formats import text
from precgui.formats.explorer import Explorer, special_values
from precgui.formats.parse import InputError
from precgui.formats.registry import get
from precgui.formats.snippets import copies
from precgui.gui.kit.measures import fixed_font
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.panels.formats.bit_details import Details
from precgui.gui.panels.formats.bit_grid import BitGrid
from precgui.gui.panels.formats.choose import FormatMenu, copy_text, menu_button, tip_button
from precgui.gui.panels.formats.convention_row import ConventionRow
from precgui.gui.panels.formats.reading import scrolled_down
from precgui.words import _, error_text, translated

NARROW = 980


class BitsTab(QWidget):
    """The bit explorer. `explorer` holds the number; everything shown is made from it."""

    changed = Signal()

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.explorer = Explorer()
        self._typing = False
        self._make_number_row()
        self._make_options_row()
        self.grid = BitGrid()
        self.details = Details(self.explorer)
        self._splitter = QSplitter(Qt.Orientation.Horizontal)
        self._splitter.setChildrenCollapsible(False)
        self._splitter.addWidget(scrolled_down(self.grid, 360))
        self._splitter.addWidget(scrolled_down(self.details, 260))
        self._splitter.setStretchFactor(0, 5)
        self._splitter.setStretchFactor(1, 2)
        self._splitter.setSizes([760, 340])
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.setSpacing(8)
        column.addLayout(self._number_row)
        column.addWidget(self.message)
        column.addLayout(self._options_row)
        column.addWidget(self._splitter, 1)
        self.grid.bit_set.connect(self._set_bit)
        self.grid.stepped.connect(self._step)
        self.grid.selected.connect(self._show_details)
        self.details.code_requested.connect(self._store)
        self._shortcuts()
        self._show()

    # Making the controls

    def _make_number_row(self) -> None:
        self.edit = QLineEdit(self.explorer.text)
        self.edit.setFont(fixed_font("title"))
        self.edit.setPlaceholderText("0.1, 1/3, 2**-14 + 2**-24, 0x1.8p3, fp16:0x3c00, nan(0x1), nextup(1, fp16)")
        self.edit.setAccessibleName(_("Number"))
        self.edit.textEdited.connect(self._typed)
        self.edit.editingFinished.connect(self._end_typing)
        self.message = PlainLabel()
        self.message.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.message.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._special = menu_button(_("Special values"), self._fill_special)
        self._copy = menu_button(_("Copy"), self._fill_copy)
        self.down = tip_button(
            "−", _("one ulp down: the next value below in the chosen format (Page down)"), lambda: self._step_chosen(-1)
        )
        self.up = tip_button(
            "+", _("one ulp up: the next value above in the chosen format (Page up)"), lambda: self._step_chosen(1)
        )
        self._number_row = QHBoxLayout()
        label = PlainLabel(_("&Number"))
        label.setBuddy(self.edit)
        for widget in (label, self.edit, self.down, self.up, self._special, self._copy):
            self._number_row.addWidget(widget, 1 if widget is self.edit else 0)

    def _make_options_row(self) -> None:
        self.switches = ConventionRow()
        self.switches.changed.connect(self._options_changed)
        self.menu = FormatMenu(self.explorer.names, self)
        self.menu.changed.connect(self._formats_changed)
        self._options_row = QHBoxLayout()
        self._options_row.addWidget(self.switches, 4)
        self._options_row.addStretch(0)
        self._options_row.addWidget(self.menu)

    def _shortcuts(self) -> None:
        for keys, slot in (
            (QKeySequence.StandardKey.Undo, self.undo),
            (QKeySequence.StandardKey.Redo, self.redo),
            (QKeySequence.StandardKey.Copy, self._copy_hex),
        ):
            action = QAction(self.grid)
            action.setShortcut(QKeySequence(keys))
            action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            action.triggered.connect(slot)
            self.grid.addAction(action)
            if slot != self._copy_hex:
                self.addAction(action)

    # Changes

    def _typed(self, words: str) -> None:
        try:
            self.explorer.type(words, joined=self._typing)
        except InputError as error:
            self._say(error_text(error), fault=True)
            self.grid.show_stale(True)
            return
        self._typing = True
        self._show(keep_text=True)

    def _end_typing(self) -> None:
        self._typing = False

    def set_text(self, words: str) -> None:
        """Show another number, as if it had been typed. Raises InputError."""
        self.explorer.type(words)
        self._show()

    def _set_bit(self, name: str, bit: int, on: bool, joined: bool) -> None:
        self._attempt(lambda: self.explorer.set_bit(name, bit, on, joined=joined))

    def _store(self, name: str, code: int) -> None:
        self._attempt(lambda: self.explorer.store(name, code))

    def _step(self, name: str, steps: int) -> None:
        self._attempt(lambda: self.explorer.step(name, steps))

    def _step_chosen(self, steps: int) -> None:
        if self.grid.chosen is not None:
            self._step(self.grid.chosen, steps)

    def _attempt(self, change: Callable[[], None]) -> None:
        try:
            change()
        except InputError as error:
            self._say(error_text(error), fault=True)
            self._show_details()
            return
        self._show()

    def undo(self) -> None:
        self.explorer.undo()
        self._show()

    def redo(self) -> None:
        self.explorer.redo()
        self._show()

    def _options_changed(self) -> None:
        self.explorer.rounding = self.switches.mode
        self.explorer.stack = self.switches.stack.currentData()
        self.explorer.seed = self.switches.seed.value()
        self._show()

    def _formats_changed(self, names: list[str]) -> None:
        self.explorer.names = tuple(names)
        self._show()

    # Showing

    def _show(self, *, keep_text: bool = False) -> None:
        if not keep_text and self.edit.text() != self.explorer.text:
            self.edit.setText(self.explorer.text)
        self._say(_meaning(self.explorer), fault=False)
        self.grid.show_reports(self.explorer.reports())
        self._show_details()
        self.changed.emit()

    def _show_details(self, _: str = "") -> None:
        if self.grid.chosen is not None:
            self.details.show_report(self.explorer.report(self.grid.chosen))

    def _say(self, words: str, *, fault: bool) -> None:
        self.message.setText(words)
        self.message.setToolTip(plain_tip(words))
        for widget, name, value in (
            (self.message, "kind", "error" if fault else "muted"),
            (self.edit, "faulty", fault),
        ):
            if widget.property(name) != value:
                widget.setProperty(name, value)
                widget.style().unpolish(widget)
                widget.style().polish(widget)

    def _fill_special(self, menu: QMenu) -> None:
        name = self.grid.chosen
        if name is None:
            return
        for words, code in special_values(get(name)):
            menu.addAction(
                _("{value} of {name}").format(value=translated(words), name=name), partial(self._store, name, code)
            )
        menu.addSeparator()
        for words in ("pi", "1/3", "0.1", "1e40", "2**-14 + 2**-24", "nextup(1, fp32)", "65504", "464"):
            menu.addAction(words, partial(self.set_text, words))

    def _fill_copy(self, menu: QMenu) -> None:
        if self.grid.chosen is None:
            return
        for form, words in copies(self.explorer.report(self.grid.chosen)).items():
            menu.addAction(
                f"{translated(form)}:  {words if len(words) <= 48 else words[:45] + '…'}", partial(copy_text, words)
            )

    def _copy_hex(self) -> None:
        if self.grid.chosen is not None:
            copy_text(self.explorer.report(self.grid.chosen).bits)

    def resizeEvent(self, event: QEvent) -> None:
        narrow = self.width() < NARROW
        self._splitter.setOrientation(Qt.Orientation.Vertical if narrow else Qt.Orientation.Horizontal)


def _meaning(explorer: Explorer) -> str:
    """The typed number as it is held, exactly."""
    real = explorer.real
    if real.kind == "nan":
        return f"= {text.nan_text(real)}"
    words = text.exact(real) if real.exact else text.approximate(real.value, 40) + "…"
    plain = explorer.text.strip().lower()
    if words == plain:
        return _("taken exactly as typed, never through a double")
    short = words if len(words) <= 400 else f"{words[:400]}…"
    return _("= {value} exactly").format(value=short) if real.exact else f"= {short}"
