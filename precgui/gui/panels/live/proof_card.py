"""The proof of a finding above the plots of Live: its sentence, its numbers with their limit, and the ways on."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QWidget

from precgui.gui.kit.parts import button, column, label, row
from precgui.gui.open_run import OpenRun
from precgui.gui.plots.chart import colour_of
from precgui.gui.plots.proof_plot import ProofPlot
from precgui.gui.proof import Proof
from precgui.words import _, translated

MOST = 3  # plots, which stand side by side
_PLOT_PX = 190


class ProofCard(QFrame):
    """Shows the proof that it is made for; `closed` when it is no longer wanted."""

    closed = Signal()

    def __init__(self, proof: Proof, opened: OpenRun, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        finding = proof.finding
        self.title = label(f"{opened.name}: {translated(finding.title)}", "heading")
        self.more = button(_("More in Inspect"), proof.more or (lambda: None), _("The tab of Inspect that is about it"))
        self.close_button = button(_("Close the proof"), self.closed.emit, _("Back to the plots as they were (Esc)"))
        self.plots = [ProofPlot(each, finding, colour_of(opened)) for each in proof.evidence[:MOST]]
        self.texts = [label(translated(each.text), "muted", selectable=True) for each in proof.evidence[:MOST]]
        for plot, text in zip(self.plots, self.texts, strict=True):
            plot.setFixedHeight(_PLOT_PX)
            text.setAlignment(Qt.AlignmentFlag.AlignTop)
        beside = [(column(text, 1, plot, spacing=2), 1) for plot, text in zip(self.plots, self.texts, strict=True)]
        head = row((self.title, 1), self.more, self.close_button)
        column(head, row(*beside, spacing=12), spacing=8, margins=(12, 12, 12, 12), on=self)
        self.more.setVisible(proof.more is not None)
