"""The recipes as a gallery: what each learns, as a picture and a sentence, and how long it takes on this machine."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QPainter
from PySide6.QtWidgets import (
    QDialog,
    QListWidget,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from precgui.config import RECIPES, RunConfig
from precgui.gui.kit.parts import button, column, label, row
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.panels.setup.recipe_pictures import HEIGHT, recipe_picture
from precgui.gui.theme import themes
from precgui.runs.facts import wait_text
from precgui.runs.outlook import time_estimate
from precgui.words import L_, _, translated

CARD = QSize(236, 178)
_PAD, _LINES = 10, 3
NOTE, TIME = Qt.ItemDataRole.UserRole, Qt.ItemDataRole.UserRole + 1
_ABOUT = L_("Each recipe is a complete training to start from. All of its settings can be changed afterwards.")


class RecipeGallery(QDialog):
    """`chosen(name)` comes with a recipe, by a double click, Enter or the button."""

    chosen = Signal(str)

    def __init__(self, current: str, parent: QWidget) -> None:
        super().__init__(parent)
        themes().dress(self)
        self.setWindowTitle(_("Recipes"))
        self.list = QListWidget(self)
        self.list.setAccessibleName(_("Recipes"))
        self.list.setViewMode(QListWidget.ViewMode.IconMode)
        self.list.setResizeMode(QListWidget.ResizeMode.Adjust)
        self.list.setMovement(QListWidget.Movement.Static)
        self.list.setGridSize(CARD + QSize(8, 8))
        self.list.setItemDelegate(_RecipeCard(self.list))
        self.list.setMouseTracking(True)
        for name, (note, config) in RECIPES.items():
            self.list.addItem(self._item(name, translated(note), config))
        self.list.setCurrentRow(max(0, [*RECIPES].index(current) if current in RECIPES else 0))
        self.use_button = button(_("Use this recipe"), self._use, kind="primary")
        self.list.itemActivated.connect(lambda _: self._use())
        self.list.itemDoubleClicked.connect(lambda _: self._use())
        buttons = row(1, button(_("Cancel"), self.reject), self.use_button)
        column(
            label(translated(_ABOUT), "muted"), (self.list, 1), buttons, margins=(16, 16, 16, 16), spacing=12, on=self
        )
        window = parent.window()
        self.resize(min(1040, window.width() - 48), min(680, window.height() - 48))

    def _item(self, name: str, note: str, config: RunConfig) -> QListWidgetItem:
        item = QListWidgetItem(name)
        seconds = time_estimate(config, None).seconds
        time = (
            _("About {seconds} here").format(seconds=wait_text(seconds))
            if seconds is not None
            else _("Not timed here yet")
        )
        words = _("{time}, {precision}").format(time=time, precision=config.precision)
        for role, value in ((NOTE, note), (TIME, words), (Qt.ItemDataRole.ToolTipRole, plain_tip(note))):
            item.setData(role, value)
        item.setData(Qt.ItemDataRole.AccessibleTextRole, f"{name}. {note} {words}.")
        item.setData(Qt.ItemDataRole.DecorationRole, recipe_picture(config.task, self.devicePixelRatioF()))
        return item

    def _use(self) -> None:
        if (item := self.list.currentItem()) is not None:
            self.accept()
            self.chosen.emit(item.text())


class _RecipeCard(QStyledItemDelegate):
    """Picture, name, what is learned, and the time."""

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return CARD

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        theme, place = themes().theme, QRect(option.rect).adjusted(2, 2, -2, -2)
        state = option.state
        selected = bool(state & QStyle.StateFlag.State_Selected)
        hovered = bool(state & QStyle.StateFlag.State_MouseOver)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QColor(theme.accent if selected or hovered else theme.line))
        painter.setBrush(QColor(theme.blend(theme.accent, 0.1) if selected else theme.base))
        painter.drawRoundedRect(place, 8, 8)
        inside = place.adjusted(_PAD, _PAD, -_PAD, -_PAD)
        painter.drawPixmap(inside.left(), inside.top(), index.data(Qt.ItemDataRole.DecorationRole))
        self._write(painter, option, index, inside.adjusted(0, HEIGHT + 6, 0, 0))
        painter.restore()

    def _write(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex, room: QRect
    ) -> None:
        theme, metrics = themes().theme, option.fontMetrics
        bold = QFont(option.font)
        bold.setBold(True)
        line = metrics.height()
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop
        painter.setPen(QColor(theme.text))
        painter.setFont(bold)
        painter.drawText(room, int(left), index.data(Qt.ItemDataRole.DisplayRole))
        painter.setFont(option.font)
        painter.setPen(QColor(theme.muted))
        note = QRect(room.left(), room.top() + line, room.width(), _LINES * line)
        painter.drawText(note, int(left | Qt.TextFlag.TextWordWrap), index.data(NOTE))
        painter.setPen(QColor(theme.text))
        painter.drawText(room, int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom), index.data(TIME))
