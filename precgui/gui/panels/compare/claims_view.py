"""Compare > Groups > Claims: sentences of guides and papers beside what a study measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.choice import Choice
from precgui.gui.kit.parts import column, label, named, row
from precgui.gui.kit.table import TextTable
from precgui.runs.study.claims import ClaimResult, guide_claims, untested_claims
from precgui.words import L_, _, translated

COLUMNS = (L_("Here"), L_("Claim"), L_("Measured, or why not"), L_("Group"), L_("Source"))
NO_STUDY = L_("no study is open")
ALL = L_("all precisions")


class ClaimsView(QWidget):
    """The claims of the guide with their test in a study; without one, each is marked as not tested here."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._results: Sequence[ClaimResult] = untested_claims(NO_STUDY)
        names = dict.fromkeys(name for claim in guide_claims() for name in claim.precisions)
        self.precision = Choice(_("Precision that the claims are about"), None, [translated(ALL), *names])
        self.precision.currentIndexChanged.connect(lambda _: self._show())
        self.count = label(kind="muted", wrap=False)
        self.table = TextTable([translated(title) for title in COLUMNS], _("Claims of guides and papers"))
        bar = row(named(_("&Claims about"), self.precision), self.precision, (self.count, 1))
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
        requested = self.precision.currentText() if self.precision.currentIndex() > 0 else ALL
        about = {claim.id: claim.precisions for claim in guide_claims()}
        results = [result for result in self._results if requested == ALL or requested in about[result.id]]
        rows = [(each.verdict, each.sentence, each.measured or each.why, each.group, each.source) for each in results]
        shown = [[translated(cell) for cell in row] for row in rows]
        self.table.fill(shown, 0, [each.verdict for each in results])
        tested = sum(each.verdict != "not tested here" for each in results)
        self.count.setText(_("{tested} of {count} tested here").format(tested=tested, count=len(results)))
