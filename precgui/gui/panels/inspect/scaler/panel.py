"""Loss scale: up to three policies of the scaler over the gradients of a run, redrawn while a slider is dragged."""

from __future__ import annotations

from PySide6.QtCore import QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from precgui.config import OWN_LOOP, ConfigError, RunConfig, build
from precgui.config.precision_traits import traits
from precgui.config.sections import ScalingConfig
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.parts import named
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.open_run import Problem
from precgui.gui.panels.inspect.scaler.plots import SimulationPlots
from precgui.gui.panels.inspect.scaler.policy_row import PolicyRow
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.known_settings import known_scaling
from precgui.runs.recorded_gradients import recorded_gradients
from precgui.runs.scaler_simulation import GradientSequence, Simulation, overflow_limits, simulate, synthetic_gradients
from precgui.runs.signals import Series
from precgui.runs.tensors.what_if import format_names
from precgui.words import L_, _, error_text, paragraph, translated

PACE_MS = 16  # between two redraws while a slider is dragged
_NO_GRADIENTS = L_("This run has no recorded gradients (record.tensors in Run), so they are made up.")
_HINT = L_(
    "The dotted line is the scale from which a step overflows, the thin grey one the scale that was recorded. A click "
    "in a plot puts Inf into that step, another one takes it out."
)
_OWN_LOOP = L_("This run was recorded in a training loop of its own: set the scaler there.")


class ScalerTab(QWidget):
    """Shows one run; without recorded gradients a made-up sequence."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._key: str | None = None
        self._recorded: GradientSequence | None = None
        self._synthetic = synthetic_gradients()
        self.injected: set[int] = set()
        self.simulations: list[Simulation | None] = []
        self.source, self.format_choice = QComboBox(self), QComboBox(self)
        self.clear = QPushButton(_("Remove all Inf"), self)
        self.basis = PlainLabel(self)
        usual = ScalingConfig(mode="dynamic")
        others = usual.model_copy(update={"growth_interval": 200}), usual.model_copy(update={"initial_scale": 2.0**24})
        self.rows = [
            PolicyRow(name, policy, ticked=name == "A", parent=self)
            for name, policy in zip("ABC", (usual, *others), strict=True)
        ]
        self.plots = SimulationPlots(self)
        self._pace = QTimer(self, singleShot=True, interval=PACE_MS)
        self._arrange()
        self._connect()

    def _arrange(self) -> None:
        for choice, name in ((self.source, _("Gradients")), (self.format_choice, _("Format"))):
            choice.setAccessibleName(name)
            ignore_wheel(choice)
        self.source.addItem(_("of this run"))
        self.source.addItem(_("made up: falling 100-fold, one spike"))
        self.format_choice.addItems(format_names())
        self.format_choice.setCurrentText("fp16")
        self.basis.setWordWrap(True)
        self.basis.setProperty("kind", "muted")
        head = QHBoxLayout()
        for text, choice in ((_("&Gradients"), self.source), (_("F&ormat"), self.format_choice)):
            head.addWidget(named(text, choice))
            head.addWidget(choice)
        head.addWidget(self.clear)
        head.addStretch(1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 8, 0, 0)
        column.setSpacing(8)
        column.addLayout(head)
        for row in self.rows:
            column.addWidget(row)
        column.addWidget(self.basis)
        column.addWidget(self.plots, 1)

    def _connect(self) -> None:
        self._session.runs.changed.connect(self._on_changed)
        self._pace.timeout.connect(self.redraw)
        self.source.activated.connect(self._on_source)
        self.format_choice.activated.connect(self._soon)
        self.clear.clicked.connect(self._take_out_all)
        self.plots.step_clicked.connect(self.toggle_inf)
        for row in self.rows:
            row.changed.connect(self._soon)
            row.use_requested.connect(lambda row=row: self._use(row))
        themes().follow(self, self._recolour)
        self._recolour()

    @property
    def gradients(self) -> GradientSequence:
        """The gradients that are shown."""
        is_synthetic = self._recorded is None or self.source.currentIndex() == 1
        return self._synthetic if is_synthetic or self._recorded is None else self._recorded

    def show_run(self, key: str | None) -> None:
        """Read the gradients of another run; its own policy becomes the first."""
        self._key = key
        self.injected.clear()
        opened = self._session.runs.get(key or "")
        if opened is not None:
            self.rows[0].set_policy(known_scaling(opened.run))
        self._read()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._read()

    def _on_changed(self, key: str) -> None:
        if key == self._key and self.isVisible():
            self._read()

    def _read(self) -> None:
        opened = self._session.runs.get(self._key or "")
        self._recorded = recorded_gradients(opened.run) if opened is not None else None
        self.source.setEnabled(self._recorded is not None)
        self.source.setCurrentIndex(self.source.currentIndex() if self._recorded is not None else 1)
        if self._recorded is not None and self._recorded.own_format in format_names():
            self.format_choice.setCurrentText(self._recorded.own_format)
        trainable = opened is not None and opened.run.config.task != OWN_LOOP
        for row in self.rows:
            row.use.setEnabled(trainable)
            row.use.setToolTip("" if trainable else plain_tip(translated(_OWN_LOOP)))
        self.redraw()

    def _on_source(self) -> None:
        self.injected.clear()
        self.redraw()

    def _soon(self) -> None:
        if not self._pace.isActive():
            self._pace.start()

    def redraw(self) -> None:
        """Simulate every policy that is ticked, and draw."""
        gradients, name = self.gradients, self.format_choice.currentText()
        self.simulations = [
            simulate(gradients, row.policy, name, self.injected) if row.box.isChecked() else None for row in self.rows
        ]
        for row, reported in zip(self.rows, self.simulations, strict=True):
            row.show_result(reported)
        self.plots.show_simulations(
            gradients.steps,
            self.simulations,
            overflow_limits(gradients, name),
            tuple(sorted(self.injected)),
            self._recorded_scale(),
        )
        self.clear.setEnabled(bool(self.injected))
        self._tell()

    def _recorded_scale(self) -> Series | None:
        """The scale of the run in each step; None without a run, or where its gradients are not those shown, and for a
        run that never had another scale than 1."""
        opened = self._session.runs.get(self._key or "")
        if opened is None or self.gradients is self._synthetic:
            return None
        series = opened.run.series("scale")
        return series if (series[1] != 1).any() else None

    def _tell(self) -> None:
        gradients = self.gradients
        absent = self._recorded is None and self._key in self._session.runs
        word = translated(gradients.certainty)
        certainty = _("{sentence}.").format(sentence=f"{word[:1].upper()}{word[1:]}")
        first = (certainty, *map(translated, gradients.notes[:2]))
        sentences = [*([translated(_NO_GRADIENTS)] if absent else []), *first, translated(_HINT)]
        self.basis.setText(paragraph(*sentences))
        self.basis.setToolTip(plain_tip("\n".join(map(translated, gradients.notes))))

    def toggle_inf(self, step: int) -> None:
        """Put Inf into the gradients of a step, or take it out again."""
        self.injected ^= {step}
        self.redraw()

    def _take_out_all(self) -> None:
        self.injected.clear()
        self.redraw()

    def _recolour(self) -> None:
        for row, colour in zip(self.rows, themes().theme.runs, strict=False):
            row.set_colour(colour)

    def _use(self, row: PolicyRow) -> None:
        """The settings of the run with this policy, in the form of Run."""
        opened = self._session.runs.get(self._key or "")
        if opened is None:
            return
        try:
            config = with_policy(opened.run.config, row.policy)
        except ConfigError as error:
            text = _("These settings cannot be made: {why}").format(why=error_text(error))
            self._session.notice.emit(Problem(text, severity="warning"))
            return
        self._session.requests.set_up(config, _("{run}, policy {policy}").format(run=opened.name, policy=row.name))


def with_policy(config: RunConfig, policy: ScalingConfig) -> RunConfig:
    """The config with another policy of the scaler; a precision that has no scaler becomes fp16-amp.

    Raises ConfigError where other settings do not go with it.
    """
    tree = config.model_dump()
    tree["scaling"] = policy.model_dump()
    if traits(config.precision).loss_scaling != "dynamic":
        tree["precision"] = "fp16-amp"
    return build(tree)
