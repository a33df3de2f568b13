"""Compare > Groups > Claims: sentences of guides and papers beside what a study measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QComboBox, QHBoxLayout, QVBoxLayout, QWidget

from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.parts import named
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.kit.table import TextTable
from precgui.runs.study.claims import ClaimResult, guide_claims, untested_claims

COLUMNS = ("Here", "Claim", "Measured, or why not", "Group", "Source")
ALL = "all precisions"


class ClaimsView(QWidget):
    """The claims of the guide with their test in a study; without one, each is marked as not tested here."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._results: Sequence[ClaimResult] = untested_claims("no study is open")
        self.precision = QComboBox(self)
        self.precision.addItem(ALL)
        self.precision.addItems(list(dict.fromkeys(name for claim in guide_claims() for name in claim.precisions)))
        self.precision.setAccessibleName("Precision that the claims are about")
        ignore_wheel(self.precision)
        self.count = PlainLabel(self)
        self.count.setProperty("kind", "muted")
        self.table = TextTable(COLUMNS, "Claims of guides and papers", self)
        bar = QHBoxLayout()
        bar.setSpacing(8)
        for part in (named("&Claims about", self.precision), self.precision, self.count):
            bar.addWidget(part, int(part is self.count))
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addLayout(bar)
        column.addWidget(self.table, 1)
        self.precision.currentIndexChanged.connect(lambda _: self._show())
        self._show()

    def show_results(self, results: Sequence[ClaimResult]) -> None:
        """Show the claims as a study has judged them."""
        self._results = results
        self._show()

    def choose(self, precision: str) -> None:
        """Show the claims about this precision, or all where none is about it."""
        self.precision.setCurrentIndex(max(0, self.precision.findText(precision)))

    def _show(self) -> None:
        requested = self.precision.currentText()
        about = {claim.id: claim.precisions for claim in guide_claims()}
        results = [result for result in self._results if requested == ALL or requested in about[result.id]]
        rows = [(each.verdict, each.sentence, each.measured or each.why, each.group, each.source) for each in results]
        self.table.fill(rows, 0, [each.verdict for each in results])
        tested = sum(each.verdict != "not tested here" for each in results)
        self.count.setText(f"{tested} of {len(results)} tested here")
