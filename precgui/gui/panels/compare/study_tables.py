"""The tables of Compare > Groups: figures, settings by precision, energy, and claims of guides and papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from precgui.gui.kit.choice import Choice
from precgui.gui.kit.folded_text import FoldedText
from precgui.gui.kit.parts import column, label, named, row
from precgui.gui.kit.table import TextTable
from precgui.gui.panels.compare.group_rows import COLUMNS, group_row
from precgui.runs.figures import Figure, study_figures
from precgui.runs.report.content import ReportContent
from precgui.runs.report.energy_table import energy_table
from precgui.runs.report.group_table import MATRIX_COLUMNS, SettingsMatrix
from precgui.runs.study.claims import ClaimResult, untested_claims
from precgui.runs.study.energy import EnergyPrice, PriceError, parse_price
from precgui.runs.study.guide_claims import guide_claims
from precgui.words import L_, _, p_, recased, together, translated, whole

_VERDICT_COLUMNS = (L_("Group"), L_("Target"), L_("Verdict"), L_("Figures and reason"))
_VERDICT = COLUMNS.index("Verdict")
_DISPENSABLE = [COLUMNS.index(title) for title in ("Reason", "95 % interval", "Runs", "Mean")]
_NO_MATRIX = L_(
    "This study varies no setting beside the precision. Vary one in Run > Study, such as model.name or model.size: "
    "every value is then compared with its own baseline."
)
_ENERGY_HINT = L_(
    "power.idle_s measures the idle devices before each run, and power.limit_w, varied in Run > Study, compares power "
    "limits where the driver lets one set them."
)
_CLAIM_COLUMNS = (L_("Here"), L_("Claim"), L_("Measured, or why not"), L_("Group"), L_("Source"))
NO_STUDY = L_("no study is open")
_ALL_PRECISIONS = L_("all precisions")


class FiguresView(QWidget):
    """The table of groups follows the figure that is chosen."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._content: ReportContent | None = None
        self.figure = Choice(_("Figure that is compared"), self._fill_table)
        self.figure.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)
        self.table = TextTable([_title(title) for title in COLUMNS], _("Groups of the study"))
        self.verdicts = TextTable([translated(title) for title in _VERDICT_COLUMNS], _("Verdicts of the study"))
        self.table.give_up(_DISPENSABLE)
        self.fold = FoldedText(self)
        head = row(named(_("&Figure"), self.figure), self.figure, 1, self.fold)
        column(head, self.fold.note, (self.table, 2), (self.verdicts, 1), on=self)

    def show_content(self, content: ReportContent | None) -> None:
        """Show the groups of a study; without one the tables are empty."""
        self._content = content
        self.table.fill([])
        lines = content.verdicts if content is not None else ()
        cells = [(line.group, line.target, line.short, line.detail) for line in lines]
        rows = [[translated(cell) for cell in row] for row in cells]
        self.verdicts.fill(rows, 2, [line.word for line in lines])
        self.fold.set_remarks([translated(note) for note in content.notes] if content is not None else ())
        if content is not None:
            self.figure.offer([(translated(each.title), each) for each in study_figures(content.study.metric)])
            self._fill_table()

    def _fill_table(self) -> None:
        figure = self.figure.currentData()
        if self._content is None or not isinstance(figure, Figure):
            return
        study = self._content.study
        words = [v.verdict if (v := group.verdicts.get(figure.target)) else "" for group in study.groups]
        rows = [[translated(cell) for cell in group_row(group, figure, study)] for group in study.groups]
        self.table.fill(rows, _VERDICT, words)
        self.table.fit_rows(len(study.groups))


def _title(column: str) -> str:
    return p_("how many", "Runs") if column == "Runs" else translated(column)


class MatrixView(QWidget):
    """A row for each figure of each combination of settings."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.note = label(translated(_NO_MATRIX), "muted")
        self.table = TextTable([translated(name) for name in MATRIX_COLUMNS], _("Settings by precision"))
        column(self.note, (self.table, 1), on=self, spacing=-1)

    def show_matrix(self, matrix: SettingsMatrix | None) -> None:
        """Show the matrix of a study; without one the table is empty."""
        self.note.setVisible(matrix is None)
        columns = [translated(recased(name, "upper")) for name in MATRIX_COLUMNS]
        self.table.set_columns((*columns, *(matrix.precisions if matrix is not None else ())))
        rows = matrix.rows if matrix is not None else ()
        self.table.fill([[of, *map(translated, (figure, *cells))] for of, figure, cells in rows])


class EnergyView(QWidget):
    """A row for each figure, a column for each group; the price holds for the report, too."""

    repriced = Signal(object)  # the content with the new price

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._content: ReportContent | None = None
        self.price = QLineEdit(self)
        self.price.setPlaceholderText(_("none, or such as 0.30 EUR"))
        self.price.setFixedWidth(240)
        self.fault, self.note = label(kind="muted"), label(kind="muted")
        self.table = TextTable(("",), _("Energy of the groups"))
        bar = row(named(_("&Price of a kilowatt-hour"), self.price), self.price, (self.fault, 1))
        column(bar, self.note, (self.table, 1), on=self, spacing=-1)
        self.price.textChanged.connect(lambda text: self._on_price())

    def chosen_price(self) -> EnergyPrice | None:
        """The price that is written, None for none and for what is no price. Shows why it is none."""
        text = self.price.text().strip()
        self.fault.clear()
        if not text:
            return None
        try:
            return parse_price(text)
        except PriceError as error:
            self.fault.setText(translated(whole(error.args[0])))
            return None

    def with_price(self, content: ReportContent) -> ReportContent:
        """The content of a report with the chosen price."""
        price = self.chosen_price()
        if content.energy.price == price:
            return content
        return replace(content, energy=energy_table(content.study, content.runs, price))

    def show_content(self, content: ReportContent | None) -> None:
        """Show the energy of the groups; without a study the table is empty."""
        self._content = content
        energy = content.energy if content is not None else None
        fault = energy.why_not_measured if energy is not None and not energy.is_measured else ""
        self.note.setText(translated(together(fault, _ENERGY_HINT)))
        self.table.set_columns((_("Energy"), *(energy.columns if energy is not None else ())))
        rows = energy.short_rows if energy is not None else []
        self.table.fill([[translated(cell) for cell in row] for row in rows])

    def _on_price(self) -> None:
        if self._content is not None:
            self._content = self.with_price(self._content)
            self.show_content(self._content)
            self.repriced.emit(self._content)


class ClaimsView(QWidget):
    """The claims of the guide with their test in a study; without one, each is marked as not tested here."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._results: Sequence[ClaimResult] = untested_claims(NO_STUDY)
        names = dict.fromkeys(name for claim in guide_claims() for name in claim.precisions)
        self.precision = Choice(_("Precision that the claims are about"), None, [translated(_ALL_PRECISIONS), *names])
        self.precision.currentIndexChanged.connect(lambda _: self._show())
        self.count = label(kind="muted", wrap=False)
        self.table = TextTable([translated(title) for title in _CLAIM_COLUMNS], _("Claims of guides and papers"))
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
        requested = self.precision.currentText() if self.precision.currentIndex() > 0 else _ALL_PRECISIONS
        about = {claim.id: claim.precisions for claim in guide_claims()}
        results = [result for result in self._results if requested == _ALL_PRECISIONS or requested in about[result.id]]
        rows = [(each.verdict, each.sentence, each.measured or each.why, each.group, each.source) for each in results]
        shown = [[translated(cell) for cell in row] for row in rows]
        self.table.fill(shown, 0, [each.verdict for each in results])
        tested = sum(each.verdict != "not tested here" for each in results)
        self.count.setText(_("{tested} of {count} tested here").format(tested=tested, count=len(results)))
