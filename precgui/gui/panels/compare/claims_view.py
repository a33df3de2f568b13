"""Compare > Groups > Claims: sentences of guides and papers beside what a study measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.choice import Choice
from precgui.gui.kit.parts import column, label, named, row
from precgui.gui.kit.table import TextTable
from precgui.runs.study.claims import ClaimResult, guide_claims, untested_claims

COLUMNS = ("Here", "Claim", "Measured, or why not", "Group", "Source")
ALL = "all precisions"


class ClaimsView(QWidget):
    """The claims of the guide with their test in a study; without one, each is marked as not tested here."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._results: Sequence[ClaimResult] = untested_claims("no study is open")
        names = dict.fromkeys(name for claim in guide_claims() for name in claim.precisions)
        self.precision = Choice("Precision that the claims are about", self._show, [ALL, *names])
        self.count = label(kind="muted", wrap=False)
        self.table = TextTable(COLUMNS, "Claims of guides and papers")
        bar = row(named("&Claims about", self.precision), self.precision, (self.count, 1))
        column(bar, (self.table, 1), on=self, spacing=-1)
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
