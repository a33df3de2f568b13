"""The studies of the folder of runs as rows, each with its members below it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTreeWidget, QTreeWidgetItem, QWidget

from precgui.examples import title_for_reader
from precgui.gui.answer import Answer, thread
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.metric import in_text, value_text
from precgui.sweeps.listing import StudyEntry, StudyList
from precgui.sweeps.report import MemberRow
from precgui.words import L_, _, translated

COLUMNS = (L_("Study"), L_("Precision"), L_("Status"), L_("Metric"), L_("Seed"), L_("Date"))
MAX_VISIBLE_ROWS = 7  # without scrolling
FOLLOW_MS = 3000
_PATH = Qt.ItemDataRole.UserRole


class StudiesView(QTreeWidget):
    """`filled` comes when the list is shown; there may be no study. A double click opens a study or inspects a run."""

    filled = Signal()

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._list = StudyList(session.folder)
        self._entries: list[StudyEntry] = []
        self._work = Answer(self, answered=self._show)
        self._follow = QTimer(self, singleShot=True, interval=FOLLOW_MS)
        self.setHeaderLabels([translated(column) for column in COLUMNS])
        self.setAccessibleName(_("Studies"))
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setProperty("kind", "facts")
        self.setUniformRowHeights(True)
        self.setAllColumnsShowFocus(True)
        self.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.header().setStretchLastSection(True)
        self.setExpandsOnDoubleClick(False)
        self._follow.timeout.connect(self.refresh)
        self.itemActivated.connect(self._open)
        self.itemExpanded.connect(lambda _: self._fit())
        self.itemCollapsed.connect(lambda _: self._fit())
        session.study.grid_read.connect(self.refresh)
        themes().follow(self, self._fill)
        self.hide()

    def refresh(self) -> None:
        """Read the folder again, in a thread; `filled` follows."""
        if self._list.folder != self._session.folder:
            self._list = StudyList(self._session.folder)
        if not self._work.busy:
            self._work.ask(thread(self._list.entries))
        else:
            self._follow.start()

    def _show(self, entries: list[StudyEntry]) -> None:
        if entries != self._entries:
            self._entries = entries
            self._fill()
        self.setVisible(bool(entries))
        if any(member.status == "running" for entry in entries for member in entry.members):
            self._follow.start()
        self.filled.emit()

    def _fill(self) -> None:
        unfolded = {item.data(0, _PATH) for item in self._studies() if item.isExpanded()}
        current = self.currentItem()
        chosen = current.data(0, _PATH) if current is not None else None
        self.clear()
        for entry in self._entries:
            item = _item(_study_cells(entry), str(entry.path), translated(entry.error) or str(entry.path))
            for member in entry.members:
                item.addChild(_member_item(member, entry))
            self.addTopLevelItem(item)
            item.setExpanded(str(entry.path) in unfolded)
            for each in (item, *(item.child(n) for n in range(item.childCount()))):
                if each is not None and chosen and each.data(0, _PATH) == chosen:
                    self.setCurrentItem(each)
        self._fit()

    def _studies(self) -> list[QTreeWidgetItem]:
        results = [self.topLevelItem(n) for n in range(self.topLevelItemCount())]
        return [item for item in results if item is not None]

    def _fit(self) -> None:
        """Set the height that the rows need, up to a limit."""
        rows = sum(1 + item.childCount() * item.isExpanded() for item in self._studies())
        row = max(self.sizeHintForRow(0), self.fontMetrics().height())
        self.setFixedHeight(self.header().sizeHint().height() + row * min(rows, MAX_VISIBLE_ROWS) + 8)

    def _open(self, item: QTreeWidgetItem, _: int) -> None:
        path = item.data(0, _PATH)
        if item.parent() is None:
            self._session.open_study(path)
        elif path:
            key = self._session.runs.open_file(Path(path))
            if key is not None:
                self._session.requests.inspect(key)


def _study_cells(entry: StudyEntry) -> tuple[str, ...]:
    created = datetime.fromtimestamp(entry.created_s).astimezone().strftime("%Y-%m-%d %H:%M")
    title = title_for_reader(entry.title, entry.path, translated)
    if entry.error:
        return title, "", _("unreadable"), "", "", created
    counts = [_("{done} of {total} runs done").format(done=entry.done, total=entry.done + entry.left)]
    counts += [_("{count} failed").format(count=entry.failed)] if entry.failed else []
    counts += [_("paused")] if entry.paused and entry.left else []
    seeds = _("{count} seeds").format(count=entry.seeds)
    return title, ", ".join(entry.precisions), _(", ").join(counts), "", seeds, created


def _member_item(member: MemberRow, entry: StudyEntry) -> QTreeWidgetItem:
    value = value_text(entry.metric, member.metric, "")
    metric = f"{in_text(translated(entry.metric.title))} {value}" if value else ""
    kinds = {
        "twin": _("{name} (rounding twin)"),
        "warm-up": _("{name} (not judged)"),
        "timing": _("{name} (timing)"),
    }
    name = kinds.get(member.kind, "{name}").format(name=member.name)
    status = _("left out") if member.status == "skipped" else translated(member.status)
    cells = (name, member.arm, status, metric, str(member.seed), "")
    return _item(cells, member.run or "", translated(member.message) or member.name)


def _item(cells: tuple[str, ...], path: str, tip: str) -> QTreeWidgetItem:
    item = QTreeWidgetItem(list(cells))
    item.setData(0, _PATH, path)
    muted = QColor(themes().theme.muted)
    for column in range(len(cells)):
        item.setToolTip(column, plain_tip(tip))
        if column > 1:
            item.setForeground(column, muted)
    return item
