"""Compare > Groups > FP16 or BF16: the verdict for one training, and all that it rests on."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from precgui.gui.kit.parts import button, column, holder, label, row
from precgui.gui.kit.table import TextTable
from precgui.gui.session import Session
from precgui.runs.report.content import ReportContent
from precgui.runs.report.sixteen_bits import TENSOR_COLUMNS
from precgui.runs.study.result import BASELINE
from precgui.words import L_, _, recased, translated

_NONE = L_(
    "No study with ended runs in fp32, fp16-amp and bf16-amp is open. Set one up: short runs of your training in each, "
    "with the same seeds."
)
_TABLE_PX = 260


class SixteenBitsView(QWidget):
    """The page of the open study, or how to make one."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self.answer, self.caveats = label(kind="heading", selectable=True), label(kind="muted", selectable=True)
        self.set_up = button(
            _("Set up the study"), self.ask_for_study, _("fp32, fp16-amp and bf16-amp with the same seeds")
        )
        self.own = TextTable((_("Of each"), "FP16", "BF16"), _("FP16 and BF16 of this training"))
        columns = [translated(recased(name, "upper")) for name in TENSOR_COLUMNS]
        self.tensors = TextTable(columns, _("Gradients that become zero in FP16"))
        self.source = label(kind="muted")
        self.own.setMinimumHeight(_TABLE_PX)
        self._tables, self._filler = holder(column((self.own, 3), self.source, (self.tensors, 1))), QWidget()
        page = QWidget()
        column(self.answer, row(self.set_up, 1), self.caveats, (self._tables, 1), (self._filler, 1), on=page)
        area = QScrollArea()  # in a small window the table keeps some rows
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(page)
        column(area, on=self)
        self.show_content(None)

    def show_content(self, content: ReportContent | None) -> None:
        """Show the page of a study; without FP16 and BF16 in it, the way to one."""
        page = content.sixteen_bits if content is not None else None
        self.answer.setText(translated(page.sentence if page is not None else _NONE))
        self.caveats.setText("\n".join(translated(line) for line in page.caveats) if page is not None else "")
        for part in (self.set_up, self._filler):
            part.setVisible(page is None)
        for part in (self.caveats, self._tables):
            part.setVisible(page is not None)
        if page is None:
            return
        in_pairs = [(of, BASELINE, cell) for of, cell in page.beside]
        rows = [*((of, *cells) for of, cells in page.rows), *in_pairs]
        self.own.fill([[translated(cell) for cell in row] for row in rows])
        self.tensors.fill([[translated(cell) for cell in row] for row in page.tensors])
        self.tensors.setVisible(bool(page.tensors))
        self.tensors.fit_rows(max(1, len(page.tensors)))
        gradients = page.gradients
        self.source.setText(
            _("Gradients: {why}.").format(why=translated(page.no_gradients))
            if gradients is None
            else _("Shares of the gradients that become zero, in {steps} recorded steps of {run}.").format(
                steps=gradients.steps, run=gradients.run
            )
        )

    def ask_for_study(self) -> None:
        """Put the study of the three precisions into Run, for the training that is set up there."""
        self._session.requests.go("setup/study/fp16-or-bf16")
