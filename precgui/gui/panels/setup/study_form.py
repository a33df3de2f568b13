"""Of a study in Run: precisions, baseline, seeds, varied fields, targets, folder, and the estimate before Start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from precgui.config import PRECISION_GROUPS, PRECISIONS, RunConfig
from precgui.errors import SentenceError
from precgui.gui.answer import Answer, thread
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.file_dialogs import ask_for_folder
from precgui.gui.kit.parts import named
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.kit.targets_dialog import TargetsDialog
from precgui.gui.panels.setup.precision_cards import ChoiceRow
from precgui.gui.panels.setup.vary_fields import VaryFields
from precgui.gui.plots.signals import duration
from precgui.runs.verdict.targets import DEFAULT_TARGETS, Targets
from precgui.sentences import whole
from precgui.sweeps.earlier import EarlierRuns
from precgui.sweeps.estimate import SweepEstimate, estimate_sweep
from precgui.sweeps.spec import SweepSpec, make_spec
from precgui.words import L_, _, paragraph, translated

USUAL = ("fp32", "bf16-amp")  # and the precision of the form
SEEDS = 5  # the first number of seeds with verdicts
MOST_SEEDS = 1000
IDLE_S = 10.0  # of an energy study, before each run
MOST_TIMING_ROUNDS = 100
USUAL_BASELINE = L_("fp32, else the first")
DEBOUNCE_MS = 300
_STATISTICS = L_(
    "Every seed runs once in every precision, in random order. Verdicts are made at the planned number of seeds "
    "and at one larger number; with one seed there is none."
)
_TIMING = L_(
    "Further runs of a few steps for their time alone; the precisions take turns, so that a busy moment hits all. "
    "0 takes the times of the seeds"
)


class StudySettings(QWidget):
    """`fault` says why the study cannot be run as it is set up; empty while it can."""

    changed = Signal()

    def __init__(self, folder: Path, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.fault = ""
        self._asked: tuple[object, ...] = ()
        self.place = ""  # the name of the place that is to train it
        self.boxes = {name: QCheckBox(name, self) for names in PRECISION_GROUPS.values() for name in names}
        self._rows: list[ChoiceRow] = []
        self.more = QLineEdit(self)
        self.seeds = QSpinBox(self)
        self.baseline = QComboBox(self)
        self.timing_rounds = QSpinBox(self)
        self.vary = VaryFields(self)
        self.targets: Targets = DEFAULT_TARGETS
        self.targets_button = QPushButton(_("Targets..."), self)
        self.claims_button = QPushButton(_("Claims of guides"), self)
        self.sixteen_bits_button = QPushButton(_("FP16 or BF16"), self)
        self.energy_button = QPushButton(_("Energy"), self)
        self.path = QLineEdit(self)
        self.choose_button = QPushButton(_("Choose..."), self)
        self.estimate = PlainLabel(self)
        self.statistics_note = PlainLabel(translated(_STATISTICS), self)
        self._estimates = Answer(self, answered=self._show, failed=lambda why: self.estimate.setText(why))
        self._earlier = EarlierRuns(folder)
        self._wait = QTimer(self, singleShot=True, interval=DEBOUNCE_MS)
        self._next: tuple[SweepSpec, Path] | None = None
        self._lay_out()
        self._connect()
        for name in USUAL:
            self.boxes[name].setChecked(True)
        self.begin("study", folder)
        self.hide()

    def _describe(self) -> None:
        """Ranges, names and hints of the parts."""
        for spin, most, value, reported in (
            (self.seeds, MOST_SEEDS, SEEDS, _("Number of seeds")),
            (self.timing_rounds, MOST_TIMING_ROUNDS, 0, _("Rounds of timing")),
        ):
            spin.setRange(value and 1, most)
            spin.setValue(value)
            spin.setAccessibleName(reported)
            ignore_wheel(spin)
        ignore_wheel(self.baseline)
        self.baseline.setAccessibleName(_("Baseline"))
        self.baseline.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.timing_rounds.setToolTip(plain_tip(translated(_TIMING)))
        self.targets_button.setToolTip(_("What you ask of a precision: the bounds that verdicts are made by"))
        self.claims_button.setToolTip(_("Statements of guides about these precisions, which a study tests here"))
        self.sixteen_bits_button.setToolTip(
            _(
                "Choose fp32, fp16-amp and bf16-amp: Compare > Groups > FP16 or BF16 then says which of the two to use "
                "here"
            )
        )
        self.energy_button.setToolTip(
            plain_tip(
                _(
                    "Choose fp32, fp16-amp and bf16-amp and read the idle power for {idle_s:g} s before each run; "
                    "Compare > Groups > Energy then shows joules, expected savings and costs. Vary power.limit_w for "
                    "power limits"
                ).format(idle_s=IDLE_S)
            )
        )
        self.more.setPlaceholderText(_("more, such as emulated:e5m2, emulated:e3m4"))
        self.more.setAccessibleName(_("More precisions, separated by commas"))
        self.path.setAccessibleName(_("Folder of the study"))

    def _lay_out(self) -> None:
        self._describe()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addLayout(self._precisions())
        column.addLayout(
            _line(
                (named(_("&Seeds"), self.seeds), self.seeds, named(_("&Baseline"), self.baseline), self.baseline),
                (named(_("&Timing rounds"), self.timing_rounds), self.timing_rounds),
            )
        )
        buttons = (self.targets_button, self.claims_button, self.sixteen_bits_button, self.energy_button)
        column.addLayout(_line(buttons, ()))
        column.addWidget(self.vary)
        folder = _line((named(_("F&older"), self.path), self.path, self.choose_button))
        folder.setStretchFactor(self.path, 1)
        column.addLayout(folder)
        banner = QFrame(self)
        banner.setProperty("kind", "banner")
        inside = QVBoxLayout(banner)
        inside.setContentsMargins(12, 8, 12, 8)
        for text in (self.estimate, self.statistics_note):
            text.setWordWrap(True)
            inside.addWidget(text)
        self.statistics_note.setProperty("kind", "muted")
        column.addWidget(banner)

    def _precisions(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setHorizontalSpacing(16)
        grid.setColumnStretch(1, 1)
        for row, (title, names) in enumerate(PRECISION_GROUPS.items()):
            grid.addWidget(PlainLabel(translated(title), self), row, 0, Qt.AlignmentFlag.AlignTop)
            for name, text in names.items():
                self.boxes[name].setToolTip(plain_tip(translated(text)))
            self._rows.append(ChoiceRow([self.boxes[name] for name in names], self))
            grid.addWidget(self._rows[-1], row, 1)
        grid.addWidget(PlainLabel(_("Any format"), self), len(PRECISION_GROUPS), 0)
        grid.addWidget(self.more, len(PRECISION_GROUPS), 1)
        return grid

    def _connect(self) -> None:
        for box in self.boxes.values():
            box.toggled.connect(lambda _: self._on_precisions())
        self.more.textChanged.connect(lambda _: self._on_precisions())
        for spin in (self.seeds, self.timing_rounds):
            spin.valueChanged.connect(lambda _: self.changed.emit())
        self.baseline.activated.connect(lambda _: self.changed.emit())
        self.vary.changed.connect(self.changed)
        self.targets_button.clicked.connect(lambda _: self.ask_for_targets())
        self.path.textChanged.connect(lambda _: self.changed.emit())
        self.choose_button.clicked.connect(self.ask_for_folder)
        self._wait.timeout.connect(self._estimate)

    def _on_precisions(self) -> None:
        """Offer the chosen precisions as baseline; the choice stays while its precision does."""
        chosen = self.baseline.currentText()
        self.baseline.clear()
        self.baseline.addItems([translated(USUAL_BASELINE), *dict.fromkeys(self.chosen())])
        self.baseline.setCurrentIndex(max(0, self.baseline.findText(chosen)))
        self.changed.emit()

    def begin(self, source: str, folder: Path) -> None:
        """Propose a folder that does not exist yet, beside the other runs."""
        if self._earlier.folder != folder:
            self._earlier = EarlierRuns(folder)
        self.path.setText(str(folder / f"study-{Path(source).stem}-{datetime.now():%Y%m%d-%H%M%S}"))

    def set_words(self, words: Mapping[str, tuple[str, str]]) -> None:
        """Say beside each precision what this machine makes of it."""
        for name, (word, sentence) in words.items():
            box = self.boxes.get(name)
            if box is not None:
                box.setText(f"{name} ({word})" if word else name)
                box.setToolTip(plain_tip(f"{translated(PRECISIONS[name])}\n{sentence}"))
        for row in self._rows:
            row.arrange_again()

    @property
    def folder(self) -> Path:
        return Path(self.path.text().strip()).expanduser()

    def choose(self, precisions: Sequence[str], seeds: int, vary: Mapping[str, Sequence[object]] | None = None) -> None:
        """Tick these precisions and no others, set the number of seeds, and vary these fields; None: as they are."""
        for name, box in self.boxes.items():
            box.setChecked(name in precisions)
        self.more.setText(", ".join(name for name in precisions if name not in self.boxes))
        self.seeds.setValue(seeds)
        if vary is not None:
            self.vary.choose(vary)

    def chosen(self) -> list[str]:
        """The precisions, in the order of the boxes, those of any format after them."""
        more = [name.strip() for name in self.more.text().split(",") if name.strip()]
        return [name for name, box in self.boxes.items() if box.isChecked()] + more

    def spec(self, config: RunConfig) -> SweepSpec | None:
        """The study as it is set up; None, with `fault`, where it cannot be run."""
        self.fault = ""
        if not self.chosen() or (len(self.chosen()) < 2 and not self.vary.rows):
            self.fault = _("Choose two precisions at least, or one and vary a field: the first is the baseline.")
        elif not self.path.text().strip():
            self.fault = _("Name a folder for the study.")
        else:
            try:
                return make_spec(
                    config,
                    self.chosen(),
                    self.seeds.value(),
                    vary=self.vary.chosen(),
                    baseline=self.baseline.currentText() if self.baseline.currentIndex() > 0 else "",
                    timing_rounds=self.timing_rounds.value(),
                    title=config.title,
                )
            except SentenceError as error:
                self.fault = translated(whole(error.args[0]))
        return None

    def set_place(self, name: str) -> None:
        """The estimate is that of the place of this name; of this machine where it is empty."""
        self.place = name

    def estimate_for(self, config: RunConfig | None, folder: Path) -> None:
        """Show how long the study will take and which difference it can detect; computed in a thread."""
        self.vary.show_present(config)
        spec = self.spec(config) if config is not None else None
        if spec is None:
            self._asked, self._next = (), None
            self._estimates.cancel()
            self.estimate.setText(self.fault)
            return
        asked = (spec.model_dump_json(), folder, self.place)
        if asked != self._asked:
            self._asked, self._next = asked, (spec, folder)
            self.estimate.setText(_("Estimating..."))
            self._wait.start()

    def _estimate(self) -> None:
        if self._next is not None:
            spec, folder = self._next
            earlier = self._earlier if self._earlier.folder == folder else EarlierRuns(folder)
            self._estimates.ask(thread(estimate_sweep, spec, folder, earlier, self.place), latest_only=True)

    def _show(self, result: SweepEstimate) -> None:
        self.estimate.setText(estimate_text(result))

    def ask_for_targets(self) -> TargetsDialog:
        """Open the form of the targets."""
        dialog = TargetsDialog(self.targets, self)
        dialog.chosen.connect(self._use_targets)
        dialog.open()
        return dialog

    def _use_targets(self, targets: Targets) -> None:
        self.targets = targets
        self.targets_button.setText(_("Targets...") if targets == DEFAULT_TARGETS else _("Targets (own)..."))

    def ask_for_folder(self) -> None:
        title = _("Choose a new, empty folder for the study")
        ask_for_folder(self, title, self.folder.parent, lambda path: self.path.setText(str(path)))


def estimate_text(estimate: SweepEstimate) -> str:
    """The runs, the time and the smallest difference, each with where it comes from."""
    time = (
        _("The time is not known")
        if estimate.total_s is None
        else _("About {total_s} here").format(total_s=duration(round(estimate.total_s)))
    )
    parts = [_("{count} runs. {time}.").format(count=estimate.runs, time=time)]
    if estimate.by_arm:
        each = ", ".join(
            f"{arm} {translated(estimate.difference_text(value))}" for arm, value in estimate.by_arm.items()
        )
        parts.append(_("Smallest difference that can be told apart: about {each}.").format(each=each))
    return "\n".join([paragraph(*parts), *(translated(whole(source)) for source in estimate.sources)])


def _line(*groups: Sequence[QWidget]) -> QHBoxLayout:
    """Groups of widgets side by side, with more room between groups than inside."""
    line = QHBoxLayout()
    line.setSpacing(8)
    for group in groups:
        for part in group:
            line.addWidget(part)
        if len(groups) > 1:
            line.addSpacing(12)
    if len(groups) > 1:
        line.addStretch(1)
    return line
