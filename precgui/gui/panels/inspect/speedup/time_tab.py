"""Time: the account from the ratio of peaks to the observed speed-up, the causes with their fixes, and operations."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QScrollArea,
    QSplitter,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.bars import BarChart, BarRow, Segment
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.pages import PageTabs
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.panels.inspect.speedup.layers_view import LayersView
from precgui.gui.panels.inspect.speedup.profile_bar import ProfileBar
from precgui.gui.session import Session
from precgui.gui.trial import trial_button
from precgui.runs.speedup.profile_file import operation_text
from precgui.runs.speedup.waterfall import Factor, Waterfall, repeated_sentence, verdict, waterfall
from precgui.words import L_, Sentence, _, together, translated

WALL_TIME = L_("wall time")
_UPPER, _LOWER = 400, 320  # pixels at the start
_FIRST_NUMBER = 5  # the columns before it hold words
_COLUMNS = (
    L_("Operation"), L_("Module"), L_("Phase"), L_("Kind"), L_("Executed in"), L_("Calls"), L_("ms a step"),
    L_("Share"), "GFLOP/s",
)  # fmt: skip


class TimeTab(QWidget):
    """Shows the kept profile of the run, if it has one."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._key: str | None = None
        self.bar = ProfileBar(session, self)
        self.verdict = PlainLabel(self)
        self.verdict.setWordWrap(True)
        self.verdict.setProperty("kind", "heading")
        self.chart = BarChart(logarithmic=True, parent=self)
        self.chart.setAccessibleName(_("From the ratio of peaks to the observed speed-up"))
        self.causes = QWidget(self)
        self.notes = PlainLabel(self)
        self.notes.setWordWrap(True)
        self.notes.setProperty("kind", "muted")
        self.operations = QTreeWidget(self)
        let_copy(self.operations)
        self.layers = LayersView(self)
        self.tables = PageTabs(self)
        self._content = QSplitter(Qt.Orientation.Vertical, self)
        self._lay_out()
        self.bar.changed.connect(self._show)

    def _lay_out(self) -> None:
        upper = QWidget(self)
        column = QVBoxLayout(upper)
        column.setContentsMargins(0, 0, 8, 0)
        for part in (self.verdict, self.chart, self.causes, self.notes):
            column.addWidget(part)
        column.addStretch(1)
        self._cause_list = QVBoxLayout(self.causes)
        self._cause_list.setContentsMargins(0, 0, 0, 0)
        self.operations.setHeaderLabels(list(map(translated, _COLUMNS)))
        self.operations.setRootIsDecorated(False)
        self.operations.setUniformRowHeights(True)
        self.operations.setAccessibleName(_("Operations of a step, the longest first"))
        self.operations.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.operations.header().setStretchLastSection(False)
        for number in range(_FIRST_NUMBER, len(_COLUMNS)):
            self.operations.headerItem().setTextAlignment(
                number, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            )
        area = QScrollArea(self)
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setWidget(upper)
        self._content.addWidget(area)
        self.tables.addTab(self.operations, _("Operations"))
        self.tables.addTab(self.layers, _("This model's products"))
        self._content.addWidget(self.tables)
        self._content.setSizes([_UPPER, _LOWER])
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self.bar)
        outer.addWidget(self._content, 1)
        outer.addStretch(0)  # so that the bar stays on top where there is no profile

    def show_run(self, key: str | None) -> None:
        self._key = key
        self.bar.show_run(key)

    def _show(self) -> None:
        document = self.bar.document
        self._content.setVisible(document is not None)
        if document is None:
            return
        account = waterfall(document)
        self.verdict.setText(translated(verdict(account, document["precision"])))
        self.chart.set_rows([_bar(account, place) for place in range(len(account.factors))])
        self._show_causes(account)
        self.notes.setText(_closing(account, document))
        self._show_operations(document)
        self.layers.show_profile(document)

    def _show_causes(self, account: Waterfall) -> None:
        while (item := self._cause_list.takeAt(0)) is not None:
            if (old := item.widget()) is not None:
                old.deleteLater()
        for factor in account.causes()[:4]:
            label = PlainLabel(_cause(factor))
            label.setWordWrap(True)
            row = QHBoxLayout()
            row.addWidget(label, 1)
            line = QWidget(self.causes)
            line.setLayout(row)
            row.setContentsMargins(0, 0, 0, 0)
            self._cause_list.addWidget(line)
            if factor.offered:
                button = trial_button(factor.offered, self._session, self._key)
                row.addWidget(button, 0, Qt.AlignmentFlag.AlignTop)

    def _show_operations(self, document: dict[str, Any]) -> None:
        self.operations.clear()
        total_s = sum(float(row["seconds"]) for row in document["operations"]) or 1.0
        for row in document["operations"]:
            seconds, flops = float(row["seconds"]), float(row["flops"])
            rate = f"{flops / seconds * 1e-9:.3g}" if flops and seconds else ""
            texts = [
                translated(operation_text(row)), row["module"],
                *(translated(row[name]) for name in ("phase", "kind", "executed")), f"{row['calls']:.3g}",
                f"{seconds * 1e3:.3g}", f"{seconds / total_s:.1%}", rate,
            ]  # fmt: skip
            item = QTreeWidgetItem([str(text) for text in texts])
            item.setToolTip(0, plain_tip(_shapes(row)))
            for column in range(_FIRST_NUMBER, len(texts)):
                item.setTextAlignment(column, Qt.AlignmentFlag.AlignRight)
            self.operations.addTopLevelItem(item)


def _bar(account: Waterfall, place: int) -> BarRow:
    """From the speed-up before a factor to that after it; the last row is what was observed."""
    factor = account.factors[place]
    before = account.factors[place - 1].after if place else 1.0
    colour = "ok" if factor.value >= 1 else "error" if factor.cost > 0 or factor.key == "unexplained" else "warning"
    segment = Segment(before, factor.after, colour)
    return BarRow(
        translated(factor.title), (segment,), f"× {factor.value:.2f}  →  {factor.after:.2f}", strong=place == 0
    )


def _cause(factor: Factor) -> str:
    if factor.cost:
        title = Sentence("{title} ({share:.0%} of the step).", title=factor.title, share=factor.cost)
    else:
        title = Sentence("{sentence}.", sentence=factor.title)
    return translated(together(title, factor.detail, factor.remedy))


def _closing(account: Waterfall, document: dict[str, Any]) -> str:
    lines = [
        _(
            "Observed {observed}, the factors give {modelled:.2f}. {closing} The middle half of the rounds lies within "
            "{spread:.0%}. Times are {clock}."
        ).format(
            observed=translated(account.speed_text),
            modelled=account.modelled,
            closing=translated(account.closing),
            spread=account.spread,
            clock=translated(document.get("clock", WALL_TIME)),
        ),
        *filter(None, [translated(repeated_sentence(document))]),
        *(_sentence(note) for note in document["notes"]),
    ]
    return "\n".join(lines)


def _sentence(note: str) -> str:
    shown = translated(note)
    return _("{sentence}.").format(sentence=f"{shown[:1].upper()}{shown[1:]}")


def _shapes(row: dict[str, Any]) -> str:
    return ", ".join(" x ".join(str(size) for size in shape) for shape in row["shapes"])
