"""A finding as a card: verdict, proof, the curve of its numbers, fix, and what to do next."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from precgui.formats.claims import claims_about
from precgui.gui.kit.code_block import CodeBlock
from precgui.gui.kit.icons import pixmap
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.panels.diagnose.sparkline import Sparkline, summary
from precgui.gui.theme import severity_colour, themes
from precgui.runs.diagnosis.findings import BLAME, CERTAINTIES, Finding, blame_sentence
from precgui.runs.loop_lines import fix_lines
from precgui.words import L_, _, p_, translated

OWN_LOOP = L_("This run was recorded in a training loop of its own: make the change there.")


class FindingCard(QFrame):
    """Shows one finding. `place_requested` asks for the place that it is about, `tried` for a second run with its fix,
    `edited` for the settings of that run, `measured` for a replay of its step."""

    place_requested = Signal(object)
    tried = Signal(object)
    edited = Signal(object)
    measured = Signal(object)

    def __init__(
        self, finding: Finding, *, trainable: bool, where: str = "", measured: str = "", parent: QWidget | None = None
    ) -> None:
        """`where` says in which of the compared runs it is found, `measured` what a replay of its step has given."""
        super().__init__(parent)
        self.finding = finding
        self.setProperty("kind", "card")
        self._mark = PlainLabel(self)
        self.title = _wrapped(f"{where}{translated(finding.title)}", "heading", self)
        self.show_button = QPushButton(_("Show me"), self)
        self.fix_button = QPushButton(_("Try the fix"), self)
        self.edit_button = QPushButton(_("Open in Run"), self)
        self.measure_button = QPushButton(_("Measure it"), self)
        self.code = CodeBlock(self)
        self.result = _wrapped(measured, "", self)
        self.result.setVisible(bool(measured))
        self._lay_out(trainable=trainable)
        self.show_button.clicked.connect(lambda: self.place_requested.emit(self.finding))
        self.fix_button.clicked.connect(lambda: self.tried.emit(self.finding))
        self.edit_button.clicked.connect(lambda: self.edited.emit(self.finding))
        self.measure_button.clicked.connect(lambda: self.measured.emit(self.finding))
        themes().follow(self, self._recolour)
        self._recolour()

    def _lay_out(self, *, trainable: bool) -> None:
        finding = self.finding
        head = QHBoxLayout()
        head.setSpacing(8)
        head.addWidget(self._mark, 0, Qt.AlignmentFlag.AlignTop)
        about = QVBoxLayout()
        about.setSpacing(4)
        about.addWidget(self.title)
        about.addWidget(_wrapped(meta(finding), "muted", self))
        head.addLayout(about, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 12, 12, 12)
        column.setSpacing(8)
        column.addLayout(head)
        for each in finding.evidence:
            text = _wrapped(translated(each.text), "", self)
            text.setToolTip(plain_tip(translated(each.formula)))
            column.addWidget(text)
            if len(each.series) > 1:
                column.addWidget(Sparkline(each, self))
                column.addWidget(_wrapped(summary(each), "muted", self))
        column.addWidget(_wrapped(_("Fix: {fix}").format(fix=translated(finding.fix)), "", self))
        lines = "" if trainable else fix_lines(finding.fix)
        self.code.show_lines(_("To paste into the loop:"), lines)
        self.code.setVisible(bool(lines))
        column.addWidget(self.code)
        if finding.is_problem and finding.blame.proof:
            column.addWidget(_wrapped(translated(blame_sentence(finding)), "muted", self))
        if finding.needs:
            column.addWidget(
                _wrapped(_("To be surer: {needs}.").format(needs=translated(finding.needs)), "muted", self)
            )
        for claim in claims_about(finding.rule):
            column.addWidget(_wrapped(translated(claim.sentence), "muted", self))
        column.addWidget(self.result)
        column.addLayout(self._buttons(trainable))

    def _buttons(self, trainable: bool) -> QHBoxLayout:
        self.show_button.setToolTip(_("Go to the place that this is about: a tensor, a step, a tab of Inspect"))
        changes = ", ".join(f"{path} = {value}" for path, value in self.finding.config_change.items())
        for button in (self.fix_button, self.edit_button):
            button.setVisible(bool(changes))
            button.setEnabled(trainable)
        train, edit = translated(OWN_LOOP), translated(OWN_LOOP)
        if trainable:
            train = _("Train with {changes}; Compare opens with both runs at the end").format(changes=changes)
            edit = _("The settings with {changes}, to change more").format(changes=changes)
        self.fix_button.setToolTip(plain_tip(train))
        self.edit_button.setToolTip(plain_tip(edit))
        step = self.finding.replay_step
        self.measure_button.setVisible(step is not None)
        again = _("Make step {step} again with FP64 beside it; Inspect > Error opens").format(step=step)
        self.measure_button.setToolTip(plain_tip(again))
        row = QHBoxLayout()
        for button in (self.show_button, self.fix_button, self.edit_button, self.measure_button):
            row.addWidget(button)
        row.addStretch(1)
        return row

    def _recolour(self) -> None:
        colour = severity_colour(self.finding.severity)
        self._mark.setPixmap(pixmap(self.finding.severity, colour, 18, self.devicePixelRatioF()))
        self._mark.setToolTip(plain_tip(severity_name(self.finding.severity)))


def severity_name(severity: str) -> str:
    """The rank of a finding in the reader's language."""
    return {"error": p_("severity", "Error"), "warning": p_("severity", "Warning")}.get(severity, _("Information"))


def meta(finding: Finding) -> str:
    """Severity, steps, module, blame, certainty and confidence in one line."""
    parts = [severity_name(finding.severity), translated(finding.steps)]
    if finding.module:
        parts.append(_("module {name}").format(name=finding.module))  # of a Sequential a number alone
    if finding.is_problem:
        parts.append(translated(BLAME[finding.precision_is_to_blame]))
        certainty = translated(CERTAINTIES[finding.certainty])
        parts.append(
            _("{certainty}, confidence {confidence:.0%}").format(certainty=certainty, confidence=finding.confidence)
        )
    return " · ".join(parts)


def _wrapped(text: str, kind: str, parent: QWidget) -> QLabel:
    label = PlainLabel(text, parent)
    label.setWordWrap(True)
    label.setMinimumWidth(60)
    if kind:
        label.setProperty("kind", kind)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label
