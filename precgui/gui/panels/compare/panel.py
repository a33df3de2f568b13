"""Compare: the open runs side by side, each figure and each curve beside that of a baseline."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QSizePolicy, QVBoxLayout, QWidget

from precgui.gui.examples import offer_examples
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.empty_state import EmptyState, Pages, panel_head
from precgui.gui.kit.parts import button, named
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.kit.when_visible import is_covered
from precgui.gui.open_run import OpenRun, Problem
from precgui.gui.panels.compare.answer_bar import AnswerBar
from precgui.gui.panels.compare.curves import CompareCurves, in_colours_of_precisions
from precgui.gui.panels.compare.differences_view import DifferencesView
from precgui.gui.panels.compare.groups import SIXTEEN_BITS, GroupsView
from precgui.gui.panels.compare.models_view import ModelsView
from precgui.gui.panels.compare.table import CompareTable
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.compare import KeptFigures, compare
from precgui.runs.compared import RunComparison
from precgui.runs.differences import KeptFacts, differing, machine_sentence
from precgui.runs.known_settings import repeated_runs
from precgui.runs.models.model_file import holds_scan
from precgui.runs.short_answer import SEEDS, short_answer
from precgui.words import L_, _, p_, translated

REFRESH_MS = 1000
LEAST_BASELINE_PX = 120
READ_AT_ONCE = 4  # runs; their figures take some 15 ms each
_GROUPS = L_("{count} runs repeat others: show groups")
_GROUPS_TIP = L_("Runs that differ in their seed alone are one group, with a mean, an interval and a verdict")
RUNS, DIFFERENCES, GROUPS, MODELS = L_("Runs"), L_("Differences"), L_("Groups"), L_("Models")
_EMPTY = L_(
    "Open two or more runs, or train the same recipe in another precision, and their accuracy, time, memory, energy "
    "and losses stand here side by side."
)


class ComparePanel(Pages):
    """A row a run; the baseline is the first FP32 run unless another is chosen. Follows a run that goes on.

    *Differences* shows in which machines and settings the runs differ, *Groups* the groups of the open study, or of the
    open runs, *Models* what moved between two open models. A click on a row makes its run the current one, whose name
    is bold.
    """

    place_changed = Signal()

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(EmptyState("compare", _("No runs are open"), translated(_EMPTY), _("Choose runs")), parent)
        self._session = session
        self.baseline = QComboBox(self)
        self.baseline.setAccessibleName(_("Baseline"))
        self.baseline.setMinimumContentsLength(24)
        self.baseline.setMinimumWidth(LEAST_BASELINE_PX)
        self.baseline.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        ignore_wheel(self.baseline)
        self.answer = AnswerBar(session, self)
        self.answer.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.show_groups = button("", lambda: self._show_repeats(), translated(_GROUPS_TIP))
        self.show_groups.hide()
        self.table = CompareTable(self)
        self.curves = CompareCurves(self)
        self.view = SegmentedChoice(
            (RUNS, DIFFERENCES, GROUPS, MODELS), _("Single runs, or the groups of a study"), self
        )
        self.view.buttons[RUNS].setText(p_("one by one", "Runs"))
        self.differences = DifferencesView(self)
        self.differences.column.setContentsMargins(24, 12, 24, 16)
        self.groups = GroupsView(session, self)
        self.models = ModelsView(session, self)
        self.models.column.setContentsMargins(24, 12, 24, 16)
        for page in (self.differences, self.groups, self.models):
            self.add_page(page)
        self._timer = QTimer(self, singleShot=True, interval=REFRESH_MS)
        self._next_turn = QTimer(self, singleShot=True, interval=0)
        self._pair: tuple[str, str] | None = None  # baseline and run, until the panel is seen
        self._kept, self._facts = KeptFigures(), KeptFacts()
        self._displayed: tuple[list[OpenRun], OpenRun] | None = None  # with the baseline
        self._lay_out()
        self._connect()
        if session.study.folder is not None:
            self.view.choose(GROUPS)
        self.refresh()

    def _lay_out(self) -> None:
        self.baseline_label = named(_("Baseline"), self.baseline)
        head = panel_head(_("Compare"), self.baseline_label, self.baseline, self.view)
        head.setContentsMargins(24, 16, 24, 0)
        self.head.addLayout(head)
        column = QVBoxLayout(self.content)
        column.setContentsMargins(24, 12, 24, 16)
        column.setSpacing(12)
        for part in (self.show_groups, self.table.all_columns):
            self.answer.line.addWidget(part)
        column.addWidget(self.answer)
        column.addWidget(self.table)
        column.addWidget(self.curves, 1)
        self.frames = (self, self.content, self.groups, self.groups.content, self.groups.pages)

    def _connect(self) -> None:
        session = self._session
        self.view.chosen.connect(self._choose_view)
        for choice in (self.view, self.groups.view):
            choice.chosen.connect(self.place_changed)
        session.study.opened.connect(lambda: self.view.choose(GROUPS))
        for timer in (self._timer, self._next_turn):
            timer.timeout.connect(self.refresh)
        self.baseline.activated.connect(lambda _: self._choose_baseline())
        self.table.itemSelectionChanged.connect(self._draw)
        self.table.cellClicked.connect(lambda row, _: session.runs.choose(list(session.runs)[row]))
        self.table.verticalHeader().sectionClicked.connect(lambda row: session.runs.choose(list(session.runs)[row]))
        self.answer.study_requested.connect(self._repeat)
        session.runs.current_changed.connect(self._refresh_next)
        self.table.cellDoubleClicked.connect(lambda row, _: session.requests.inspect(list(session.runs)[row]))
        self.table.verticalHeader().sectionDoubleClicked.connect(
            lambda row: session.requests.inspect(list(session.runs)[row])
        )
        self.empty.button.clicked.connect(lambda: session.requests.go("library"))
        offer_examples(self.empty, session, "compare")
        for signal in (session.runs.added, session.runs.changed):
            signal.connect(lambda _: self._on_run())
        session.runs.removed.connect(lambda _: self._refresh_next())
        session.runs.data_arrived.connect(self._on_data)
        session.requests.pair.connect(self._show_pair)
        self.curves.all_runs.clicked.connect(self.table.clearSelection)
        self.curves.plots.failed.connect(lambda sentence: session.notice.emit(Problem(sentence)))
        themes().follow(self, self._refresh_next)

    def _on_run(self) -> None:
        """Compare again; once a second while many runs are being opened."""
        if not self._session.runs.opener.is_busy:
            self.refresh()
        elif not self._timer.isActive():
            self._timer.start()

    def _refresh_next(self) -> None:
        """Compare again in the next turn of the event loop: a change of the theme or a show fills one by itself."""
        self._next_turn.start()

    def _show_pair(self, base: str, key: str) -> None:
        """Show two runs, once the panel is seen, the first as the baseline."""
        self._pair = base, key
        self._refresh_next()

    def _on_data(self) -> None:
        if self.isVisible():
            self.curves.plots.data_arrived()
            if not self._timer.isActive():
                self._timer.start()

    def show_tab(self, tab: str) -> None:
        """Show `groups`, `fp16-or-bf16` of them, `differences`, `models`, `claims` (those about a precision that
        follows a space), or the single runs."""
        name, _, precision = tab.partition(" ")
        views = {
            "groups": GROUPS,
            "claims": GROUPS,
            "fp16-or-bf16": GROUPS,
            "differences": DIFFERENCES,
            "models": MODELS,
        }
        self.view.choose(views.get(name, RUNS))
        if name == "claims":
            self.groups.show_claims(precision)
        elif name == "fp16-or-bf16":
            self.groups.view.choose(SIXTEEN_BITS)

    def place(self) -> tuple[str, object]:
        """The view, and that of the groups, for Back."""
        return f"{self.view.current}/{self.groups.view.current}", None

    def return_to(self, tab: str, view: object) -> None:
        """Show the views of a `place`."""
        name, _, of_groups = tab.partition("/")
        self.groups.view.choose(of_groups)
        self.view.choose(name)

    def _mark_current(self) -> None:
        keys = list(self._session.runs)
        self.table.mark(keys.index(self._session.runs.current) if self._session.runs.current in keys else -1)

    def _choose_view(self, name: str) -> None:
        pages: dict[str, QWidget] = {GROUPS: self.groups, DIFFERENCES: self.differences, MODELS: self.models}
        self.show_page(pages.get(name))
        self.refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh_next()

    def refresh(self) -> None:
        """Compare again; nothing is computed while the panel is hidden."""
        if is_covered(self):
            return
        opened = self._session.runs
        self.show_content(bool(opened))
        self.view.buttons[MODELS].setVisible(self.models.show_models() > 0 or self.view.current == MODELS)
        if self._reads_ahead():
            return
        if self._pair is not None and self.isVisible():
            pair, self._pair = self._pair, None
            self._compare_pair(*pair)
            return
        for part in (self.baseline_label, self.baseline):
            part.setVisible(bool(opened) and self.view.current == RUNS)
        if self.view.current in (GROUPS, MODELS) and self.isVisible():
            return
        facts = self._facts.of({key: (each.run, each.name) for key, each in opened.items()})
        if self.view.current == DIFFERENCES:
            self.differences.show_rows([each.name for each in opened.values()], differing(facts))
        if not self.isVisible() or not opened or self.view.current != RUNS:
            return
        requested = self._baseline_key()
        keys, runs = list(opened), [opened[key].run for key in opened]
        baseline = opened.get(requested or "")
        base_name = baseline.name if baseline is not None else None
        result = compare(runs, base_name, [each.name for each in opened.values()], self._kept)
        self._fill_baseline(keys, requested)
        repeats = repeated_runs(runs)
        self.show_groups.setVisible(repeats > 0)
        self.show_groups.setText(translated(_GROUPS).format(count=repeats))
        machines = machine_sentence(differing(facts, ["machine"]))
        notes = [machines, *result.notes]
        current = opened.get(self._session.runs.current or "")
        answer = short_answer(result, current.name if current is not None else "")
        self.answer.show_answer(answer, [note for note in notes if note])
        self._show_rows(result)

    def _show_rows(self, result: RunComparison) -> None:
        """Show the table and the curves of a comparison of the open runs."""
        opened = self._session.runs
        displayed = in_colours_of_precisions(list(opened.values()), [row.precision for row in result.runs])
        self._displayed = None  # of other rows, perhaps, while the table is filled
        self.table.show_comparison(displayed, result)
        self._mark_current()
        self._displayed = displayed, displayed[[row.run for row in result.runs].index(result.baseline)]
        self._draw()

    def _draw(self) -> None:
        """Draw the curves of the selected rows, or of all, as they were compared last."""
        if self._displayed is not None and self.table.rowCount() == len(self._displayed[0]):
            displayed, base = self._displayed
            self.curves.show_runs(displayed, base, [displayed[row] for row in self.table.chosen()])

    def _reads_ahead(self) -> bool:
        """Read a few of the runs that have not been compared yet; whether more are left for the next turns."""
        if not self.isVisible() or (self.view.current != RUNS and self._pair is None):
            return False
        runs = [each.run for each in self._session.runs.values()]
        left = self._kept.read_ahead(runs, READ_AT_ONCE)
        if left:
            self.answer.tell(
                _("Reading the figures of the open runs: {left} of {count} are left.").format(
                    left=left, count=len(runs)
                )
            )
            self._refresh_next()
        return left > 0

    def _compare_pair(self, base: str, key: str) -> None:
        """Show two runs, the first as the baseline, or what moved between two models."""
        opened = [self._session.runs.get(each) for each in (base, key)]
        if all(each is not None and holds_scan(each.run) for each in opened):
            self.view.choose(MODELS)
            self.models.choose(base, key)
            return
        keys = list(self._session.runs)
        self._fill_baseline(keys, base)
        self._keep_baseline()
        if self.view.current == RUNS:
            self.refresh()
        else:
            self.view.choose(RUNS)  # compares, too
        self.table.choose([keys.index(each) for each in (base, key) if each in keys])

    def _show_repeats(self) -> None:
        """Show the open runs as groups."""
        self.view.choose(GROUPS)
        self.groups.show_open_runs()

    def _repeat(self, baseline: str) -> None:
        """Put a study of the two runs of the answer into Run."""
        opened = next(each for each in self._session.runs.values() if each.name == baseline)
        others = [each for each in self._session.runs.values() if each.name == self.answer.run]
        precisions = [each.run.config.precision for each in (opened, *others)]
        self._session.requests.set_up_study(opened.run.config, opened.name, precisions, SEEDS)

    def _choose_baseline(self) -> None:
        self._keep_baseline()
        self.refresh()

    def _keep_baseline(self) -> None:
        """Keep the chosen baseline for the next session."""
        opened = self._session.runs.get(self.baseline.currentData() or "")
        path = opened.run.path if opened is not None else None
        self._session.baseline_file = str(path.absolute()) if path is not None else ""

    def _baseline_key(self) -> str | None:
        """The run that was chosen as the baseline, in this session or in the last one."""
        if self.baseline.currentIndex() > 0:
            key: str | None = self.baseline.currentData()
            return key
        return self._session.runs.key_of(Path(self._session.baseline_file)) if self._session.baseline_file else None

    def _fill_baseline(self, keys: list[str], requested: str | None) -> None:
        entries = [(_("first FP32 run"), None), *((self._session.runs[key].name, key) for key in keys)]
        if entries != [(self.baseline.itemText(n), self.baseline.itemData(n)) for n in range(self.baseline.count())]:
            self.baseline.clear()
            for name, key in entries:
                self.baseline.addItem(name, key)
        self.baseline.setCurrentIndex(max(0, self.baseline.findData(requested)) if requested else 0)
