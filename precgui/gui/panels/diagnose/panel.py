"""Diagnose: for each open run one sentence, and its findings as cards that carry their proof; or those of a script."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QToolButton, QVBoxLayout, QWidget

from precgui.config import OWN_LOOP, ConfigError, RunConfig, build, is_own_task
from precgui.config.dotted import put_at
from precgui.gui.answer import Answer, thread
from precgui.gui.diagnosing import JudgedRun, judgement
from precgui.gui.examples import offer_examples
from precgui.gui.kit.answer_label import AnswerLabel
from precgui.gui.kit.empty_state import EmptyState, Pages, panel_head
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.next_turn import in_next_turn
from precgui.gui.open_run import Problem
from precgui.gui.panels.diagnose.card import FindingCard
from precgui.gui.panels.diagnose.loop_view import LoopView
from precgui.gui.panels.diagnose.measurement import StepMeasurement
from precgui.gui.panels.diagnose.places import PLACES
from precgui.gui.panels.diagnose.script_view import ScriptView
from precgui.gui.panels.diagnose.verdicts import VerdictTable
from precgui.gui.proof import Proof
from precgui.gui.requests import TensorPlace
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.gui.verdicts import has_error
from precgui.runs.diagnosis.findings import Diagnosis, Finding, blame_alone
from precgui.runs.recorded_facts import breaks_sentence
from precgui.words import L_, _, error_text, p_, together, translated

REFRESH_MS = 2000
RUNS, SCRIPT, LOOP = L_("Runs"), L_("A script"), L_("Your own loop")
SCRIPT_TAB, LOOP_TAB = "script", "loop"  # of `show_tab`; `script:FILE` opens a file
_SHARE = 20  # a diagnosis of a run that goes on may take one part in so many of the time
_EMPTY = L_(
    "Open a run or start one: whether it is healthy, and if not why, stands here, with the numbers that prove it."
)


class DiagnosePanel(Pages):
    """Diagnoses the open runs one by one while it is visible, a running one every few seconds."""

    place_changed = Signal()

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(EmptyState("diagnose", _("No runs are open"), translated(_EMPTY), _("Choose runs")), parent)
        self._session = session
        self.diagnoses: dict[str, Diagnosis] = {}
        self._stale: set[str] = set()
        self.verdicts = VerdictTable(self)
        self.cards: list[FindingCard] = []
        self.fold = QToolButton(self)
        self.ruled_out = PlainLabel(self)
        self._heading = PlainLabel(self)
        self.answer = AnswerLabel(self)
        self._column = QVBoxLayout()
        self._measurement = StepMeasurement(session, self)
        self.view = SegmentedChoice(
            (RUNS, SCRIPT, LOOP), _("Findings of runs, of a training script, or how to record"), self
        )
        self.view.buttons[RUNS].setText(p_("one by one", "Runs"))
        self.script, self.loop = ScriptView(self), LoopView(self)
        self._judging = Answer(self, answered=self._take)
        self._next = QTimer(self, singleShot=True, interval=0)
        self._later = QTimer(self, singleShot=True, interval=REFRESH_MS)
        self._later.setObjectName("later")
        self._lay_out()
        self._connect()
        self._take_runs()

    def _lay_out(self) -> None:
        self._heading.setProperty("kind", "muted")
        self._heading.setWordWrap(True)
        self.fold.setProperty("kind", "fold")
        self.fold.setCheckable(True)
        self.fold.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.ruled_out.setProperty("kind", "muted")
        self.ruled_out.setWordWrap(True)
        self.ruled_out.setVisible(False)
        inner = QWidget()
        column = QVBoxLayout(inner)
        column.setContentsMargins(0, 0, 8, 0)
        column.setSpacing(12)
        column.addWidget(self.answer)
        column.addWidget(self._heading)
        self._column.setSpacing(12)
        column.addLayout(self._column)
        column.addWidget(self.fold)
        column.addWidget(self.ruled_out)
        column.addStretch(1)
        area = self._scroller = QScrollArea(self)
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(inner)
        whole = QVBoxLayout(self.content)
        whole.setContentsMargins(24, 12, 24, 8)
        whole.setSpacing(12)
        whole.addWidget(self.verdicts)
        whole.addWidget(area, 1)
        head = panel_head(_("Diagnose"), self.view)
        head.setContentsMargins(24, 16, 24, 0)
        self.head.addLayout(head)
        self.add_page(self.script)
        self.add_page(self.loop)

    def _connect(self) -> None:
        session = self._session
        for signal in (session.runs.added, session.runs.removed, session.runs.changed):
            signal.connect(self._on_changed)
        session.runs.data_arrived.connect(self._on_data)
        self.view.chosen.connect(lambda name: self.show_page({SCRIPT: self.script, LOOP: self.loop}.get(name)))
        self.view.chosen.connect(self.place_changed)
        self._next.timeout.connect(self._judge_one)
        self._later.timeout.connect(self._next.start)
        self.verdicts.itemSelectionChanged.connect(self._on_chosen)
        session.runs.current_changed.connect(self._follow_session)
        themes().follow(self, self._list_runs)
        self._measurement.changed.connect(self._show_cards)
        self.fold.toggled.connect(self.ruled_out.setVisible)
        self.empty.button.clicked.connect(lambda: session.requests.go("library"))
        offer_examples(self.empty, session)

    def _on_changed(self, key: str) -> None:
        self._stale.add(key)
        self._take_runs()

    def _on_data(self, key: str) -> None:
        self._stale.add(key)
        if self.isVisible() and not self._later.isActive():
            self._later.start()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._take_runs()

    def show_tab(self, key: str) -> None:
        """Show the diagnosis of an open run, or a script; of a run that was closed nothing changes."""
        kind, _, path = key.partition(":")
        self.view.choose({SCRIPT_TAB: SCRIPT, LOOP_TAB: LOOP}.get(kind, RUNS))
        if kind in (SCRIPT_TAB, LOOP_TAB):
            if path:
                self.script.open(Path(path))
            return
        self._take_runs()
        if key in self._session.runs:
            self._session.runs.choose(key)
            self.verdicts.choose(key)
            self.verdicts.setFocus(Qt.FocusReason.OtherFocusReason)

    def place(self) -> tuple[str, object]:
        """Runs or a script, and how far the findings are scrolled, for Back."""
        return self.view.current, self._scroller.verticalScrollBar().value()

    def return_to(self, tab: str, view: object) -> None:
        """Show the place that `place` has told."""
        self.view.choose(tab)
        if isinstance(view, int):
            in_next_turn(self, lambda: self._scroller.verticalScrollBar().setValue(view))

    def _on_chosen(self) -> None:
        """One chosen row is the current run; a second one is compared with it."""
        if len(chosen := self.verdicts.chosen()) == 1:
            self._session.runs.choose(chosen[0])
        self._show_cards()

    def _follow_session(self) -> None:
        if (key := self._session.runs.current) is not None and key not in self.verdicts.chosen():
            self.verdicts.choose(key)

    def _list_runs(self) -> None:
        """Show the list, which a run by itself does not need: its answer stands below, its name in the menu bar."""
        runs = self._session.runs
        self.verdicts.show_runs(list(runs.values()), self.diagnoses, runs.current)
        self.verdicts.setVisible(len(runs) > 1)

    def _take_runs(self) -> None:
        runs = self._session.runs
        self.diagnoses = {key: result for key, result in self.diagnoses.items() if key in runs}
        self.show_content(bool(runs))
        if self.isVisible() and runs:
            self._list_runs()
            self._show_cards()
            self._next.start()

    def _requested(self) -> list[str]:
        """The runs that are new or have gone on, the chosen ones first."""
        runs = self._session.runs
        return [
            key
            for key in dict.fromkeys((*self.verdicts.chosen(), *runs))
            if key in runs and (key not in self.diagnoses or key in self._stale)
        ]

    def _judge_one(self) -> None:
        """Judge one run in a thread."""
        requested = self._requested()
        if not requested or not self.isVisible() or self._judging.busy:
            return
        self._stale.discard(requested[0])
        self._judging.ask(thread(judgement(requested[0], self._session.runs[requested[0]].run)))

    def _take(self, judged: JudgedRun) -> None:
        runs, key = self._session.runs, judged.key
        if key in runs:
            before = self.diagnoses.get(key)
            diagnosis = self.diagnoses[key] = judged.diagnosis
            self._later.setInterval(max(REFRESH_MS, round(_SHARE * 1000 * judged.taken_s)))
            self._list_runs()
            self._propose_broken()
            if key in self.verdicts.chosen() and (before is None or _rules(before) != _rules(diagnosis)):
                self._show_cards()
        if any(key not in self.diagnoses for key in runs) or (self._requested() and not self._later.isActive()):
            self._next.start()

    def _propose_broken(self) -> None:
        """Make the run with the gravest problem the current one, when all are judged and nobody has chosen another."""
        first = self.verdicts.keys[:1]
        are_judged = bool(first) and all(key in self.diagnoses for key in self._session.runs)
        if are_judged and not self._session.runs.is_chosen and has_error(self.diagnoses[first[0]]):
            self._session.runs.choose(first[0], by_hand=False)

    def _show_cards(self) -> None:
        """The findings of the chosen run; of two runs what one has and the other has not comes first."""
        for card in self.cards:
            self._column.removeWidget(card)
            card.hide()
            card.deleteLater()
        keys = [key for key in self.verdicts.chosen() if key in self.diagnoses][:2]
        self.cards = [self._card(key, finding, where) for key, finding, where in self._finding_rows(keys)]
        for card in self.cards:
            self._column.addWidget(card)
        self._tell_answer(keys)
        self._heading.setText(self._heading_of(keys))
        self._heading.setVisible(bool(self._heading.text()))
        lines = _ruled_out(self.diagnoses[keys[0]]) if keys else []
        self.ruled_out.setText("\n".join(lines))
        self.fold.setText(_("Ruled out ({count})").format(count=len(lines)))
        self.fold.setVisible(bool(lines))
        self.ruled_out.setVisible(bool(lines) and self.fold.isChecked())

    def _tell_answer(self, keys: list[str]) -> None:
        """The diagnosis of one chosen run. The card of the problem that it names does not repeat its title."""
        text = "" if len(self._session.runs) > 1 else _("Reading...")
        if len(keys) == 1:
            diagnosis = self.diagnoses[keys[0]]
            text = _answer(diagnosis)
            for card in self.cards:
                card.title.setHidden(any(card.finding is each for each in diagnosis.problems[:1]))
        self.answer.setText(text)
        self.answer.setVisible(bool(text))

    def _heading_of(self, keys: list[str]) -> str:
        lines = [_("Two runs are chosen: first what only one of them has.")] if len(keys) == 2 else []
        for key in keys:
            opened = self._session.runs[key]
            if why := breaks_sentence(opened.run):
                lines.append(f"{opened.name} {translated(why)}.")
        return "\n".join(lines)

    def _finding_rows(self, keys: list[str]) -> list[tuple[str, Finding, str]]:
        if len(keys) < 2:
            return [(key, each, "") for key in keys for each in self.diagnoses[key].findings]
        reported = {key: {each.rule for each in self.diagnoses[key].findings} for key in keys}
        both = reported[keys[0]] & reported[keys[1]]
        only = [
            (key, each, _("Only in {run}: ").format(run=self._session.runs[key].name))
            for key in keys for each in self.diagnoses[key].findings if each.rule not in both
        ]  # fmt: skip
        shared = [each for each in self.diagnoses[keys[0]].findings if each.rule in both]
        return only + [(keys[0], each, _("In both: ")) for each in shared]

    def _card(self, key: str, finding: Finding, where: str) -> FindingCard:
        run = self._session.runs[key].run
        trainable = run.config.task != OWN_LOOP
        measured = self._measurement.result(key, finding.replay_step)
        card = FindingCard(finding, trainable=trainable, where=where, measured=measured, parent=self)
        card.place_requested.connect(lambda finding: self.show_place(key, finding))
        card.tried.connect(lambda finding: self._try_fix(key, finding, at_once=not is_own_task(run.config.task)))
        card.edited.connect(lambda finding: self._try_fix(key, finding, at_once=False))
        card.measured.connect(lambda finding: self._measurement.toggle(key, finding.replay_step))
        self._measurement.mark(card.measure_button, key, finding.replay_step)
        return card

    def show_place(self, key: str, finding: Finding) -> None:
        """The recorded numbers with their limit; without any what the rule names, or the curves of the run."""
        proof = Proof(key, finding, partial(self._inspect, key, finding) if self._tab_of(key, finding)[0] else None)
        if proof.evidence:
            self._session.requests.show_proof(proof)
        elif not self._inspect(key, finding):
            self._session.requests.show_step(key, float(finding.first_step))

    def _inspect(self, key: str, finding: Finding) -> bool:
        """Show the tab of Inspect that a finding is about; False where there is none."""
        tab, place = self._tab_of(key, finding)
        if place is not None:
            self._session.requests.show_tensor(key, place)
        elif tab:
            self._session.requests.inspect(key, tab)
        return bool(tab)

    def _tab_of(self, key: str, finding: Finding) -> tuple[str, TensorPlace | None]:
        """The tab that the rule names, or the tensor at the step: its kind, name and step; "" where neither is."""
        tab, usual = PLACES.get(finding.rule, ("", ""))
        if tab:
            return tab, None
        tensors = self._session.runs[key].run.tensors()
        kinds = sorted(tensors, key=lambda kind: kind != usual)
        for name in (*finding.tensors, finding.module):
            kind = next((kind for kind in kinds if name and name in tensors[kind].names), "")
            if kind:
                return "tensors", TensorPlace(kind, name, float(max(finding.first_step, 1)))
        return "", None

    def _try_fix(self, key: str, finding: Finding, *, at_once: bool) -> None:
        """Train with the change and compare, or put the settings with it into the form of Run."""
        opened = self._session.runs[key]
        try:
            config = changed(opened.run.config, dict(finding.config_change))
        except ConfigError as error:
            text = _("The fix cannot be made in these settings: {error}").format(error=error_text(error))
            self._session.notice.emit(Problem(text, severity="warning"))
            return
        if not at_once:
            self._session.requests.set_up(config, _("{run}, fixed").format(run=opened.name))
            return
        changes = ", ".join(f"{path} = {value}" for path, value in finding.config_change.items())
        text = _("{run} is trained again with {changes}; Compare opens with both runs at the end.").format(
            run=opened.name, changes=changes
        )
        self._session.notice.emit(Problem(text, severity="info"))
        self._session.training.try_fix(config, key)


def _answer(diagnosis: Diagnosis) -> str:
    """The diagnosis in a few sentences, with the blame of the weightiest problem."""
    blame = blame_alone(diagnosis.problems[0]) if diagnosis.problems else ""
    return translated(together(diagnosis.sentence, blame))


def _ruled_out(diagnosis: Diagnosis) -> list[str]:
    lines = [f"{each.rule}: {translated(each.why)}" for each in diagnosis.ruled_out]
    missing = _("{rule}: cannot be told; record {needs}")
    return lines + [missing.format(rule=each.rule, needs=translated(each.needs)) for each in diagnosis.undecided]


def _rules(diagnosis: Diagnosis | None) -> list[tuple[str, str]]:
    return [(each.rule, each.title) for each in diagnosis.findings] if diagnosis is not None else []


def changed(config: RunConfig, changes: dict[str, object]) -> RunConfig:
    """The config with values at paths such as `optimizer.lr`. Raises ConfigError."""
    tree = config.model_dump()
    for path, value in changes.items():
        put_at(tree, path, value)
    named = ", ".join(f"{path.rpartition('.')[2].replace('_', ' ')} {value}" for path, value in changes.items())
    if config.title or [*changes] != ["precision"]:  # the usual title has the precision
        tree["title"] = f"{config.display_title}, {named}"[:200]
    return build(tree)
