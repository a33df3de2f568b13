"""Groups of names and values as a tree that can be searched and copied, and that stays put while values change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QColor, QFont, QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTreeWidget, QTreeWidgetItem, QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.runs.facts import FactGroup, RunFact
from precgui.words import _, translated

NAME_PX = 320


class FactTree(QTreeWidget):
    """Two columns. All text is plain; a long value is whole in its tool tip."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._groups: tuple[FactGroup, ...] = ()
        self._words: list[str] = []
        self.setHeaderLabels([_("Name"), _("Value")])
        self.setAccessibleName(_("Facts of the run"))
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setUniformRowHeights(True)
        self.setProperty("kind", "facts")
        self.setIndentation(18)
        self.header().setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        self.header().resizeSection(0, NAME_PX)
        QShortcut(QKeySequence.StandardKey.Copy, self, self.copy, context=Qt.ShortcutContext.WidgetShortcut)
        themes().follow(self, self._recolour)

    def show_groups(self, groups: Sequence[FactGroup]) -> None:
        """Show these groups; where only values have changed, nothing moves."""
        groups = tuple(groups)
        if groups == self._groups:
            return
        same = [_names(group) for group in groups] == [_names(group) for group in self._groups]
        self._groups = groups
        if not same:
            self._rebuild()
        for group, item in zip(groups, self._tops(), strict=True):
            _fill_all(item, group.facts)
        self._recolour()
        self._filter()

    def set_words(self, text: str) -> None:
        """Show only what holds every word, in a name, a value or the heading above."""
        self._words = text.casefold().split()
        self._filter()

    def copy(self) -> None:
        """Put the selected rows on the clipboard, name and value with a tab between."""
        rows = (item for item in self._all(self._tops()) if item.isSelected())
        QGuiApplication.clipboard().setText("\n".join(f"{item.text(0)}\t{item.text(1)}" for item in rows))

    def _tops(self) -> list[QTreeWidgetItem]:
        tops = (self.topLevelItem(row) for row in range(self.topLevelItemCount()))
        return [top for top in tops if top is not None]

    def _all(self, items: Iterable[QTreeWidgetItem]) -> Iterator[QTreeWidgetItem]:
        for item in items:
            yield item
            yield from self._all(_children(item))

    def _rebuild(self) -> None:
        known = {item.text(0): item.isExpanded() for item in self._tops()}
        place = self.verticalScrollBar().value()
        self.clear()
        for group in self._groups:
            item = QTreeWidgetItem(self, [translated(group.title)])
            item.setFirstColumnSpanned(True)
            _add(item, group.facts)
            item.setExpanded(
                known.get(translated(group.title), group.open or any(fact.changed for fact in group.facts))
            )
        self.verticalScrollBar().setValue(place)

    def _filter(self) -> None:
        for top in self._tops():
            _show_matching(top, self._words, "")

    def _recolour(self) -> None:
        muted, text = QBrush(QColor(themes().theme.muted)), QBrush(QColor(themes().theme.text))
        bold = QFont(self.font())
        bold.setWeight(QFont.Weight.DemiBold)
        for item in self._all(self._tops()):
            changed = bool(item.data(0, Qt.ItemDataRole.UserRole))
            item.setForeground(0, text if changed or item.parent() is None else muted)
            for column in (0, 1) if changed or item.parent() is None else ():
                item.setFont(column, bold)


def _children(item: QTreeWidgetItem) -> list[QTreeWidgetItem]:
    result = (item.child(row) for row in range(item.childCount()))
    return [child for child in result if child is not None]


def _names(part: FactGroup | RunFact) -> tuple[object, ...]:
    own = part.title if isinstance(part, FactGroup) else (part.name, part.changed)
    return (own, *(_names(fact) for fact in part.facts))


def _add(parent: QTreeWidgetItem, facts: Sequence[RunFact]) -> None:
    for fact in facts:
        item = QTreeWidgetItem(parent, [translated(fact.name)])
        item.setData(0, Qt.ItemDataRole.UserRole, fact.changed)
        item.setExpanded(fact.changed)
        _add(item, fact.facts)


def _fill_all(parent: QTreeWidgetItem, facts: Sequence[RunFact]) -> None:
    for item, fact in zip(_children(parent), facts, strict=True):
        name, value = translated(fact.name), translated(fact.value)
        item.setText(1, value)
        reported = _("{name}: {value}").format(name=name, value=value) if value else name
        item.setToolTip(1, plain_tip(reported))
        item.setToolTip(0, plain_tip(translated(fact.hint) or reported))
        _fill_all(item, fact.facts)


def _show_matching(item: QTreeWidgetItem, words: Sequence[str], above: str) -> bool:
    """Hide what does not match; returns whether anything of it is left. A match shows all that it holds."""
    text = f"{above} {item.text(0)} {item.text(1)}".casefold()
    own = all(word in text for word in words)
    inside = [_show_matching(child, words, text) for child in _children(item)]
    there = own or any(inside)
    item.setHidden(not there)
    if words and any(inside):
        item.setExpanded(True)
    return there
