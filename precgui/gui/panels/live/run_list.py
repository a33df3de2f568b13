"""The list of open runs next to the live plots: a legend with actions."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QKeySequence, QPainter, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QMenu,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QToolButton,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.open_run import OpenRun
from precgui.gui.plots.curve import NonFinite
from precgui.gui.plots.export import SWATCH, swatch_icon
from precgui.gui.plots.signals import number
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.file.reader import SavedRun
from precgui.runs.run import Run
from precgui.words import _, translated

Index = QModelIndex | QPersistentModelIndex
_REFRESH_MS = 300
_KEY = Qt.ItemDataRole.UserRole
DETAIL = _KEY + 1
_ROW_PX = 8  # above and below the two lines of a row


class _TwoLines(QStyledItemDelegate):
    """A run as its name with a muted line of facts beneath."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        size = super().sizeHint(option, index)
        return QSize(size.width(), 2 * option.fontMetrics.height() + _ROW_PX)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        full = QStyleOptionViewItem(option)
        self.initStyleOption(full, index)
        style, name = full.widget.style(), full.text
        place = style.subElementRect(QStyle.SubElement.SE_ItemViewItemText, full, full.widget).adjusted(3, 0, -3, 0)
        full.text = ""
        style.drawControl(QStyle.ControlElement.CE_ItemViewItem, full, painter, full.widget)
        line_px, theme = full.fontMetrics.height(), themes().theme
        place.setTop(place.center().y() - line_px)
        painter.save()
        middle, right = Qt.TextElideMode.ElideMiddle, Qt.TextElideMode.ElideRight
        for text, colour, cut in ((name, theme.text, middle), (index.data(DETAIL), theme.muted, right)):
            painter.setPen(QColor(colour))
            displayed = full.fontMetrics.elidedText(text, cut, place.width())
            painter.drawText(place, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, displayed)
            place.translate(0, line_px)
        painter.restore()


class RunList(QWidget):
    """Name, swatch, status and last loss of each run; show or hide, rename, recolour, close, go to the first NaN.

    A double click leads to Inspect. `jump_requested(key)`: show where the loss of that run first was not finite.
    """

    jump_requested = Signal(str)

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._items: dict[str, QTreeWidgetItem] = {}
        self._nonfinite: dict[str, NonFinite] = {}
        self.tree = QTreeWidget(self)
        self.rename_button = self._button(_("Rename"), _("Give the run another name here (F2)"))
        self.colour_button = self._button(_("Colour ▾"), _("Choose another colour for the run"))
        self.jump_button = self._button(_("First NaN"), _("Show where the loss first was NaN or Inf (G)"))
        self.close_button = self._button(_("Close"), _("Take the run out of the window; its file stays (Delete)"))
        self._timer = QTimer(self, interval=_REFRESH_MS, singleShot=True)
        self._arrange()
        self._connect()
        self._on_selected()

    def _button(self, text: str, tip: str) -> QToolButton:
        button = QToolButton(self)
        button.setText(text)
        button.setToolTip(plain_tip(tip))
        button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        return button

    def _arrange(self) -> None:
        self.tree.setHeaderHidden(True)
        self.tree.setItemDelegate(_TwoLines(self.tree))
        self.tree.setRootIsDecorated(False)
        self.tree.setUniformRowHeights(True)
        self.tree.setIconSize(SWATCH)
        self.tree.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.tree.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.tree.setAccessibleName(_("Open runs"))
        self.colour_button.setStyleSheet("QToolButton::menu-indicator { image: none; }")
        self.colour_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.colour_button.setMenu(QMenu(self.colour_button))
        buttons = QHBoxLayout()
        buttons.setSpacing(2)
        for button in (self.rename_button, self.colour_button, self.jump_button, self.close_button):
            buttons.addWidget(button)
        buttons.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.tree, 1)
        layout.addLayout(buttons)

    def _connect(self) -> None:
        self.tree.itemChanged.connect(self._on_item_changed)
        self.tree.itemSelectionChanged.connect(self._on_selected)
        self.tree.currentItemChanged.connect(self._choose)
        self._session.runs.current_changed.connect(self.follow_session)
        self.tree.itemDoubleClicked.connect(lambda item: self._session.requests.inspect(str(item.data(0, _KEY))))
        self.rename_button.clicked.connect(self.rename)
        self.jump_button.clicked.connect(self._jump)
        self.close_button.clicked.connect(self._close)
        self.colour_button.menu().aboutToShow.connect(self._fill_colours)
        self._timer.timeout.connect(self._refresh_values)
        for key, slot in (("F2", self.rename), ("Del", self._close)):
            QShortcut(QKeySequence(key), self.tree, slot, context=Qt.ShortcutContext.WidgetShortcut)
        themes().follow(self, self._repaint)

    # Runs

    def take_runs(self) -> None:
        """Show the runs that are open, in the state in which they are."""
        for key in [key for key in self._items if key not in self._session.runs]:
            self.remove(key)
        for key in self._session.runs:
            if key in self._items:
                self.update_run(key)
            else:
                self.add(key)
        self.follow_session()

    def _choose(self, item: QTreeWidgetItem | None) -> None:
        if item is not None:
            self._session.runs.choose(str(item.data(0, _KEY)))

    def follow_session(self) -> None:
        """Select the current run."""
        if (item := self._items.get(self._session.runs.current or "")) is not None:
            self.tree.blockSignals(True)
            self.tree.setCurrentItem(item)
            self.tree.blockSignals(False)
            self._on_selected()

    def add(self, key: str) -> None:
        item = QTreeWidgetItem()
        item.setData(0, _KEY, key)
        item.setFlags(item.flags() | Qt.ItemFlag.ItemIsUserCheckable | Qt.ItemFlag.ItemIsEditable)
        self._items[key] = item
        self._nonfinite[key] = NonFinite()
        self.tree.addTopLevelItem(item)
        self.update_run(key)

    def remove(self, key: str) -> None:
        item = self._items.pop(key)
        del self._nonfinite[key]
        self.tree.blockSignals(True)  # the neighbour becomes the current item, and not the current run
        self.tree.takeTopLevelItem(self.tree.indexOfTopLevelItem(item))
        self.tree.blockSignals(False)

    def update_run(self, key: str) -> None:
        """Take over name, colour, visibility and status."""
        opened, item = self._session.runs[key], self._items[key]
        self.tree.blockSignals(True)
        item.setText(0, opened.name)
        item.setToolTip(0, plain_tip(_tool_tip(opened)))
        item.setIcon(0, swatch_icon(opened))
        item.setCheckState(0, Qt.CheckState.Checked if opened.visible else Qt.CheckState.Unchecked)
        self.tree.blockSignals(False)
        self._refresh_value(key)

    def data_arrived(self) -> None:
        """Values follow within a fraction of a second, together."""
        if not self._timer.isActive():
            self._timer.start()

    def _refresh_values(self) -> None:
        for key in self._items.keys() & self._session.runs.keys():
            self._refresh_value(key)

    def _refresh_value(self, key: str) -> None:
        run, item, bad = self._session.runs[key].run, self._items[key], self._nonfinite[key]
        loss = run.series("loss")[1]
        bad.update(loss)
        parts = [
            _status(run),
            _("loss {loss}").format(loss=number(float(loss[-1]), 4)) if len(loss) else "",
            bad.sentence(),
        ]
        self.tree.blockSignals(True)
        item.setData(0, DETAIL, " · ".join(part for part in parts if part))
        item.setData(0, Qt.ItemDataRole.AccessibleTextRole, f"{item.text(0)}, {item.data(0, DETAIL)}")
        self.tree.blockSignals(False)
        if item is self.tree.currentItem():
            self.jump_button.setEnabled(len(bad) > 0)

    def _repaint(self) -> None:
        for key in self._items.keys() & self._session.runs.keys():
            self.update_run(key)

    # Acts

    @property
    def current(self) -> str | None:
        item = self.tree.currentItem()
        return None if item is None else str(item.data(0, _KEY))

    def _on_selected(self) -> None:
        key = self.current
        for button in (self.rename_button, self.colour_button, self.close_button):
            button.setEnabled(key is not None)
        self.jump_button.setEnabled(key is not None and len(self._nonfinite[key]) > 0)

    def _on_item_changed(self, item: QTreeWidgetItem, column: int) -> None:
        key = str(item.data(0, _KEY))
        opened = self._session.runs[key]
        visible = item.checkState(0) == Qt.CheckState.Checked
        name = " ".join(item.text(0).split())
        if visible != opened.visible:
            self._session.runs.set_visible(key, visible)
        elif name and name != opened.name:
            self._session.runs.rename(key, name)
        else:
            self.update_run(key)

    def rename(self) -> None:
        """Edit the name of the chosen run in place."""
        if (item := self.tree.currentItem()) is not None:
            self.tree.editItem(item, 0)

    def _close(self) -> None:
        if (key := self.current) is not None:
            self._session.runs.close(key, by_hand=True)

    def _jump(self) -> None:
        if (key := self.current) is not None:
            self.jump_requested.emit(key)

    def _fill_colours(self) -> None:
        key = self.current
        menu = self.colour_button.menu()
        menu.clear()
        if key is None:
            return
        opened = self._session.runs[key]
        for index in range(len(themes().theme.runs)):
            sample = OpenRun(key, opened.run, opened.name, index, opened.dash_index)
            action = menu.addAction(swatch_icon(sample), _("Colour {number}").format(number=index + 1))
            action.setCheckable(True)
            action.setChecked(index == opened.colour_index)
            action.triggered.connect(partial(self._session.runs.set_colour, key, index))

    def first_nonfinite(self, key: str) -> int | None:
        """The index of the first step of a run whose loss was not finite."""
        bad = self._nonfinite[key]
        bad.update(self._session.runs[key].run.series("loss")[1])
        return int(bad.index[0]) if len(bad) else None


def _tool_tip(opened: OpenRun) -> str:
    run = opened.run
    where = str(run.path) if run.path is not None else _("not saved")
    facts = _("{precision}, seed {seed}, {status}").format(
        precision=run.config.precision, seed=run.config.seed, status=_status(run)
    )
    return f"{opened.name}\n{facts}\n{where}"


def _status(run: Run) -> str:
    """Who writes the file of the run, or how far it is."""
    if isinstance(run, SavedRun) and (writer := run.written_by):
        return _("being written by {process}").format(process=translated(writer))
    return translated(run.status)
