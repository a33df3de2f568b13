"""Run: choose a recipe and a precision, change what you like, start it or queue it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QAction, QGuiApplication, QShowEvent
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QHBoxLayout,
    QMenu,
    QPushButton,
    QScrollArea,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from precgui.config import (
    DEFAULT_RECIPE,
    EMULATED,
    PRECISION_GROUPS,
    PRECISIONS,
    RECIPES,
    ConfigError,
    RunConfig,
    build,
)
from precgui.config.dotted import put_at
from precgui.config.precision_traits import EMULATED_SENTENCE
from precgui.config.refusals import build_compatible
from precgui.config.trainer_arguments import config_text, read_config
from precgui.config.validation import placed_fault
from precgui.events import Severity
from precgui.gui.assigned_formats import AssignedFormats
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.consent import Consent
from precgui.gui.kit.empty_state import panel_head
from precgui.gui.kit.file_dialogs import ask_for_file, ask_for_new_file
from precgui.gui.kit.form import Form
from precgui.gui.kit.icons import icon
from precgui.gui.kit.parts import label, named, row
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.kit.when_visible import WhenVisible
from precgui.gui.open_run import Problem
from precgui.gui.panels.setup.command import changes, command, study_command, value_text
from precgui.gui.panels.setup.existing_model import ExistingModel
from precgui.gui.panels.setup.outlook_text import OutlookText, word_of
from precgui.gui.panels.setup.plan_sheet import PlanSheet
from precgui.gui.panels.setup.precision_cards import ChoiceCards
from precgui.gui.panels.setup.recipe_gallery import RecipeGallery
from precgui.gui.panels.setup.study_form import IDLE_S, SEEDS, StudySettings
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.gui.where import Where
from precgui.runs.report.sixteen_bits import BF16, FP16, FP32
from precgui.words import L_, _, error_text, n_, together, translated

ONE_RUN, STUDY, EXISTING = L_("One run"), L_("Study"), L_("Existing model")
USUAL = ("fp32", "bf16-amp", "fp16-amp", "int8-qat")  # precisions that most people choose from
TOML_FILES = L_("Configurations (*.toml);;TrainingArguments of a Trainer (*.json);;All files (*)")


class SetupPanel(QWidget):
    """The form of a run. `source` names the recipe or file that it started from, `base` is its config."""

    place_changed = Signal()

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self.source, self.base = DEFAULT_RECIPE, RECIPES[DEFAULT_RECIPE][1]
        self.recipes = QComboBox(self)
        self.recipes.addItems(list(RECIPES))
        self.recipes.setAccessibleName(_("Recipe to start from"))
        ignore_wheel(self.recipes)
        self.gallery_button = QPushButton(_("Recipes..."), self)
        tip = _("All recipes with a picture, what they learn, and the time that they take here")
        self.gallery_button.setToolTip(plain_tip(tip))
        self.recipe_note = PlainLabel(self)
        self.precision = ChoiceCards(PRECISION_GROUPS, (EMULATED, EMULATED_SENTENCE, "e4m3fn"), self, usual=USUAL)
        self.outlook = OutlookText(self)
        self._marked_for = ""
        self.form: Form[RunConfig] = Form(RunConfig, build_compatible, {"precision": self.precision}, self)
        self.kind = SegmentedChoice((ONE_RUN, STUDY, EXISTING), _("One run, a study, or a model that is trained"), self)
        self.study = StudySettings(session.folder, self)
        self.assigned_formats = AssignedFormats(
            session.study, lambda: session.is_busy, session.notice.emit, lambda: session.folder, self)  # fmt: skip
        self.consent = Consent(self, session.agreed_code)
        self._state = WhenVisible(self, self._refresh)
        self.message = PlainLabel(self)
        self.message.setWordWrap(True)
        self.message.setTextFormat(Qt.TextFormat.PlainText)
        self.start_button = QPushButton(_("Start"), self)
        self.start_button.setProperty("kind", "primary")
        self.queue_button = QToolButton(self)
        self.queue_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.queue_button.setMenu(QMenu(self.queue_button))
        self._tools = {
            "open": self._tool("open", _("Load a configuration from a TOML file"), self.ask_to_load),
            "save": self._tool("save", _("Save this configuration as a TOML file"), self.ask_to_save),
            "copy": self._tool("copy", _("Copy as a command for the terminal"), self.copy_command),
            "reset": self._tool("reset", _("Reset to recipe"), self.new_run),
        }
        self._lay_out()
        self._connect()
        self._recolour()
        self.use_recipe(DEFAULT_RECIPE)

    def _connect(self) -> None:
        session = self._session
        self.recipes.activated.connect(lambda _: self._undoable(partial(self.use_recipe, self.recipes.currentText())))
        self.gallery_button.clicked.connect(lambda _: self.show_gallery())
        self.form.changed.connect(self._refresh)
        self.kind.chosen.connect(lambda _: self._choose_kind())
        self.kind.chosen.connect(self.place_changed)
        self.study.changed.connect(self._refresh)
        self.study.claims_button.clicked.connect(lambda: session.requests.go("compare/claims"))
        self.study.sixteen_bits_button.clicked.connect(lambda: self.show_tab("study/fp16-or-bf16"))
        self.study.energy_button.clicked.connect(lambda: self.show_tab("study/energy"))
        self.outlook.known.connect(self._mark_precisions)
        self.outlook.advice_requested.connect(session.requests.place)
        self.outlook.precision_requested.connect(lambda name: self.precision.set(name))
        self.start_button.clicked.connect(self.start)
        self.where.changed.connect(self._choose_where)
        for signal in (session.training.changed, session.runs.changed):
            signal.connect(self._state.request)
        self.existing.kept.connect(session.models.kept)
        session.requests.settings.connect(self.use_settings)
        session.requests.study.connect(self.study.choose)
        themes().follow(self, self._recolour)

    # Layout ------------------------------------------------------------------------------------------------

    def _tool(self, drawing: str, text: str, act: object) -> QToolButton:
        button = QToolButton(self)
        button.setIconSize(QSize(18, 18))
        button.setToolTip(plain_tip(text))
        button.setAccessibleName(text)
        button.clicked.connect(act)
        return button

    def _lay_out(self) -> None:
        self.recipe_note.setProperty("kind", "muted")
        self.recipe_note.setWordWrap(True)
        page = QWidget(self)
        column = QVBoxLayout(page)
        column.setContentsMargins(24, 16, 24, 24)
        column.setSpacing(12)
        start_from = named(_("Start from"), self.recipes)
        parts = (self.recipes, self.gallery_button, *self._tools.values())
        column.addLayout(panel_head(_("Run"), self.kind))
        source = (start_from, self.recipes, self.gallery_button, (self.recipe_note, 1))
        column.addLayout(row(*source, *self._tools.values()))  # of its own, so that both fit into a small window
        column.addSpacing(4)
        heading = label(_("Precision"), kind="heading", wrap=False)
        self._of_training = [start_from, *parts, self.recipe_note, heading, self.form]
        self.existing = ExistingModel(self._session, self.consent, self)
        column.addWidget(self.existing)
        column.addWidget(heading)
        column.addWidget(self.precision)
        column.addWidget(self.outlook)
        column.addWidget(self.study)
        column.addSpacing(4)
        column.addWidget(self.form)
        column.addStretch(1)
        scroll = QScrollArea(self)
        scroll.setWidget(page)
        scroll.setWidgetResizable(True)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        self.scroller = scroll
        self.frames = (self, scroll, scroll.viewport(), page, self.form)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(scroll, 1)
        self._of_training.append(self._footer())
        layout.addWidget(self._of_training[-1])
        self.existing.hide()

    def _footer(self) -> QFrame:
        footer = QFrame(self)
        footer.setProperty("kind", "footer")
        self.where = Where(footer)
        line = QHBoxLayout(footer)
        line.setContentsMargins(24, 8, 24, 8)
        line.setSpacing(12)
        line.addWidget(self.message, 1)
        self.plan_button = QPushButton(_("Plan..."), self)
        self.plan_button.setToolTip(_("Memory of a step before it is run, whether it fits, and what to change first"))
        self.plan_button.clicked.connect(self.plan)
        line.addWidget(self.where)
        line.addWidget(self.plan_button)
        line.addWidget(self.queue_button)
        line.addWidget(self.start_button)
        metrics = self.start_button.fontMetrics()
        self.start_button.setMinimumWidth(metrics.horizontalAdvance(_("Queue run")) + 48)
        return footer

    def _recolour(self) -> None:
        for drawing, button in self._tools.items():
            button.setIcon(icon(drawing, themes().theme.muted, 18))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.where.read()
        self.outlook.ask()

    def _mark_precisions(self) -> None:
        """Put beside each precision what the machine makes of it."""
        levels = self.outlook.levels(self.form.value())
        words = {name: (word_of(each), translated(each.sentence)) for name, each in levels.items()}
        words = dict.fromkeys(PRECISIONS, ("", "")) | words  # none of another machine
        self.precision.set_words(words)
        self.study.set_words(words)
        self.outlook.show_config(self.form.value())

    # What to run -------------------------------------------------------------------------------------------

    def use_recipe(self, name: str) -> None:
        """Start from a recipe by name; what was changed by hand stays, and is named."""
        own = self.form.value()
        changed = dict(changes(self.base.model_dump(), own.model_dump())) if own is not None else {}
        self._use(name, RECIPES[name][1])
        kept = self._keep(changed)
        if kept:
            self.recipe_note.setText(
                _("{note} Kept from before: {names}; the arrow at the right resets them.").format(
                    note=translated(RECIPES[name][0]), names=", ".join(kept)
                )
            )

    def show_gallery(self) -> RecipeGallery:
        """Choose among the recipes by their pictures."""
        gallery = RecipeGallery(self.source, self)
        gallery.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        gallery.chosen.connect(lambda name: self._undoable(partial(self.use_recipe, name)))
        gallery.open()
        return gallery

    def _undoable(self, change: Callable[[], object]) -> None:
        """Change where the form starts from; Undo brings back what it held."""
        source, base, own = self.source, self.base, self.form.value()
        change()
        if own is not None and (source, own) != (self.source, self.form.value()):
            where = Path(self.source).name
            done = (
                _("Run starts from {where} now.").format(where=where)
                if source != self.source
                else _("Run was reset to {where}.").format(where=where)
            )
            self._session.undo.offer(done, lambda: self._put_back(source, base, own))

    def _put_back(self, source: str, base: RunConfig, own: RunConfig) -> None:
        self._use(source, base)
        self.form.set_value(own)

    def _keep(self, changed: Mapping[str, Any]) -> list[str]:
        """Put values back into the form as far as they are valid there; returns them as text."""
        tree, kept = self.base.model_dump(), []
        for path, value in changed.items():
            candidate = deepcopy(tree)
            put_at(candidate, path, value)
            try:
                config = build(candidate)
            except ConfigError:
                continue
            if dict(changes(self.base.model_dump(), config.model_dump())).get(path) == value:
                tree = candidate
                kept.append(f"{path} = {value_text(value)}")
        if kept:
            self.form.set_value(build(tree))
        return kept

    def _use(self, source: str, config: RunConfig) -> None:
        self.source, self.base = source, config
        self.recipes.setCurrentIndex(self.recipes.findText(source))
        self.recipes.setPlaceholderText(Path(source).name)
        reported = (
            translated(RECIPES[source][0]) if source in RECIPES else _("Settings of {source}").format(source=source)
        )
        self.recipe_note.setText(reported)
        self.form.set_base(config)
        self.form.set_value(config)

    def use_settings(self, config: RunConfig, source: str) -> None:
        """Start from the settings of a run; `source` names it."""
        self._undoable(lambda: self._use(source, config))

    def new_run(self) -> None:
        """Put everything back as the recipe or file says."""
        self._undoable(lambda: self._use(self.source, self.base))

    def load(self, path: Path) -> None:
        """Start from a TOML file, or from a Trainer's arguments in JSON, which change what is in the form.

        A file that cannot be used leaves the form as it is and says why.
        """
        try:
            read = read_config(path, self.form.value() or self.base)
        except ConfigError as error:
            self._tell("error", _("{name} cannot be used: {error}").format(name=path.name, error=error_text(error)))
            return
        self._undoable(lambda: self._use(str(path), read.config))
        if read.left_out:
            self._tell(
                "warning",
                _("Not taken from {name}: {names}.").format(
                    name=path.name, names="; ".join(map(translated, read.left_out))
                ),
            )

    def save(self, path: Path) -> None:
        """Write the config as TOML, or, into a file that ends in .json, as the arguments of a Trainer."""
        config = self.form.value()
        if config is None:
            return
        try:
            path.write_text(config_text(config, path), encoding="utf-8")
        except (OSError, ConfigError) as error:
            self._tell("error", _("The configuration was not saved: {error}").format(error=error_text(error)))
            return
        self._tell("info", _("The configuration was saved as {path}").format(path=path))

    def ask_to_load(self) -> None:
        ask_for_file(self, _("Load a configuration"), Path.home(), translated(TOML_FILES), self.load)

    def ask_to_save(self) -> None:
        kinds = translated(TOML_FILES)
        ask_for_new_file(self, _("Save the configuration"), Path.home(), kinds, self.save, suffix="toml")

    def copy_command(self) -> None:
        """Put the command that starts this run on the clipboard."""
        if (config := self.form.value()) is not None:
            text = command(self.source, self.base, config)
            if self.is_study and (spec := self.study.spec(config)) is not None:
                text = study_command(self.source, self.base, config, spec)
            QGuiApplication.clipboard().setText(text)
            self._tell("info", _("Copied: {text}").format(text=text))

    def _tell(self, severity: Severity, text: str) -> None:
        self._session.notice.emit(Problem(text, severity=severity))

    # Starting ----------------------------------------------------------------------------------------------

    def can_start(self) -> bool:
        return self.is_existing or self.form.value() is not None

    def start(self) -> None:
        """Start the run, or queue it behind the one that is active. With a fault: go to it."""
        if self.is_existing:
            self.existing.toggle()
            return
        config = self.form.value()
        if config is None:
            if faulty := self.form.first_fault():
                self.scroller.ensureWidgetVisible(faulty)
                faulty.setFocus()
            return
        if self.is_study:
            spec = self.study.spec(config)
            tasks = spec.tasks if spec else []
            self.consent.before(tasks, lambda: self._start_study(config), self.where.name)
        else:
            self.consent.before([config.task], lambda: self._start(config), self.where.name)

    def plan(self) -> PlanSheet | None:
        """Open the plan of the run as it is set up, made where it would train; None while a value is at fault."""
        if (config := self.form.value()) is None:
            return None
        sheet = PlanSheet(config, self.assigned_formats, self, self.where.place)
        sheet.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        sheet.config_requested.connect(self.form.set_value)
        sheet.run_plan.ask()
        sheet.open()
        return sheet

    def show_tab(self, tab: str) -> None:
        """Set up one run, or a study; `study/fp16-or-bf16` chooses the precisions that decide between the two, and
        `study/energy` these with an idle baseline before each run."""
        kind, _, purpose = tab.partition("/")
        self.kind.choose({"study": STUDY, "existing": EXISTING}.get(kind, ONE_RUN))
        if purpose:
            self.study.choose((FP32, FP16, BF16), SEEDS)
        if purpose == "energy" and (config := self.form.value()) is not None:
            self.form.set_value(config.model_copy(update={"power": config.power.model_copy(update={"idle_s": IDLE_S})}))

    def place(self) -> tuple[str, object]:
        """One run or a study, for Back."""
        return self.kind.current, None

    def return_to(self, tab: str, view: object) -> None:
        """Set up the kind of a `place`."""
        self.kind.choose(tab)

    @property
    def is_study(self) -> bool:
        return self.kind.current == STUDY

    @property
    def is_existing(self) -> bool:
        return self.kind.current == EXISTING

    def _choose_kind(self) -> None:
        for part in self._of_training:
            part.setVisible(not self.is_existing)
        self.existing.setVisible(self.is_existing)
        self.precision.setVisible(self.kind.current == ONE_RUN)
        self.study.set_place(self.where.name)
        self._show_outlook()
        self.study.setVisible(self.is_study)
        self.study.begin(self.source, self._session.folder)
        self._refresh()

    def _choose_where(self) -> None:
        self.outlook.set_place(self.where.place)
        self.study.set_place(self.where.name)
        self._mark_precisions()
        self._refresh()

    def _show_outlook(self) -> None:
        self.outlook.setVisible(self.kind.current == ONE_RUN)

    def _start_study(self, config: RunConfig) -> None:
        spec, study = self.study.spec(config), self._session.study
        if spec is None or self._session.is_busy:
            return
        spec = spec.model_copy(update={"order_seed": secrets.randbelow(2**31)})
        if study.start(spec, self.study.folder, self.study.targets, [self.where.name] if self.where.name else []):
            self._session.requests.go("live/study")
            self.study.begin(self.source, self._session.folder)

    def _start(self, config: RunConfig) -> None:
        was_busy = self._session.training.is_training
        self._session.training.start(config, self.where.place)
        if not was_busy:
            self._session.requests.go("live")

    def _refresh(self) -> None:
        faults = self.form.faults
        busy, waiting = self._session.training.is_training, self._session.training.waiting
        self.start_button.setEnabled(not faults)
        self.start_button.setText(_("Queue run") if busy else _("Start"))
        reason = translated(together(*map(placed_fault, faults, faults.values()), between="; "))
        reported = _("Add this run to the queue (Ctrl+R)") if busy else _("Start this run (Ctrl+R)")
        self.start_button.setToolTip(
            plain_tip(_("Not possible yet: {reason}").format(reason=reason) if faults else reported)
        )
        self._tools["save"].setEnabled(not faults)
        self._tools["copy"].setEnabled(not faults)
        config = self.form.value()
        if config is not None and config.device != self._marked_for:
            self._marked_for = config.device
            self._mark_precisions()
        self.outlook.show_config(config)
        if config is None:
            text = n_(
                "One value has to be corrected: {paths}", "{count} values have to be corrected: {paths}", len(faults)
            )
            self.message.setText(text.format(count=len(faults), paths=", ".join(path for path in faults if path)))
        else:
            words = _("{title}, from {source}, at {place}") if self.where.name else _("{title}, from {source}")
            source = Path(self.source).name
            self.message.setText(words.format(title=config.display_title, source=source, place=self.where.name))
        if self.is_study:
            self._refresh_study(config)
        self.queue_button.setVisible(bool(waiting))
        self.queue_button.setText(_("{count} waiting").format(count=len(waiting)))
        menu = self.queue_button.menu()
        menu.clear()
        for n, queued in enumerate(waiting):
            action = QAction(_("Remove from queue: {title}").format(title=queued.display_title), menu)
            action.triggered.connect(partial(self._session.training.remove, n))
            menu.addAction(action)

    def _refresh_study(self, config: RunConfig | None) -> None:
        """The button and the line beside it, for a study."""
        busy = self._session.is_busy
        self.study.estimate_for(config, self._session.folder)
        self.start_button.setText(_("Start"))
        self.start_button.setEnabled(config is not None and not busy and not self.study.fault)
        reported = _("A run or a study is going on; start when it has ended") if busy else _("Run this study (Ctrl+R)")
        self.start_button.setToolTip(plain_tip(self.study.fault or reported))
        if config is not None:
            self.message.setText(
                self.study.fault or (reported if busy else _("Study, from {name}").format(name=Path(self.source).name))
            )
