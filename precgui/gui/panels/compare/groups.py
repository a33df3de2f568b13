"""Compare > Groups: the answer of a study in a sentence, and its groups as figures, trade-off, curves and claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from precgui.gui.answer import Answer, thread
from precgui.gui.examples import offer_examples
from precgui.gui.kit.answer_label import AnswerLabel
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.empty_state import EmptyState, Pages
from precgui.gui.kit.file_dialogs import ask_for_folder
from precgui.gui.kit.folded_text import FoldedText
from precgui.gui.kit.pages import PageStack
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.kit.table import TextTable
from precgui.gui.kit.targets_dialog import TargetsDialog
from precgui.gui.kit.when_visible import is_covered
from precgui.gui.kit.wrapping_row import WrappingRow
from precgui.gui.panels.compare.differences_view import DifferencesView
from precgui.gui.panels.compare.more_seeds import MoreSeedsButton
from precgui.gui.panels.compare.report_export import ReportExport
from precgui.gui.panels.compare.sixteen_bits_view import SixteenBitsView
from precgui.gui.panels.compare.study_tables import NO_STUDY, ClaimsView, EnergyView, FiguresView, MatrixView
from precgui.gui.panels.compare.trade_off import TradeOffView
from precgui.gui.plots.bands_view import BandsView
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.report.content import MEMBER_COLUMNS, ReportContent
from precgui.runs.report.ungrouped import ungrouped_report
from precgui.runs.study.claims import untested_claims
from precgui.runs.verdict.targets import DEFAULT_TARGETS, Targets
from precgui.words import L_, _, n_, recased, translated, whole

_EMPTY = L_(
    "A study runs several precisions with several seeds, and says how sure each difference is. Set one up in Run > "
    "Study, open the folder of one, or open runs: they are grouped by their settings."
)
FIGURES, TRADE_OFF, CURVES, CLAIMS = L_("Figures"), L_("Trade-off"), L_("Curves"), L_("Claims")
SIXTEEN_BITS, DIFFERENCES, MEMBERS = L_("FP16 or BF16"), L_("Differences"), L_("Members")
MATRIX, ENERGY = L_("Matrix"), L_("Energy")
VIEWS = (FIGURES, MATRIX, ENERGY, TRADE_OFF, CURVES, SIXTEEN_BITS, CLAIMS, DIFFERENCES, MEMBERS)
STUDY, RUNS = "study", "runs"
_READING_RUNS, _READING_STUDY = L_("reading the open runs..."), L_("reading the runs of the study...")
_NOT_TESTED = L_("no study is open: these claims of guides have not been tested here")
_NONE_ENDED = L_("no run of this study has ended")


class GroupsView(Pages):
    """Groups of the open study, or of the open runs; judged again when a further run has ended."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(EmptyState("compare", _("Nothing to group"), translated(_EMPTY), _("Set up a study")), parent)
        self._session = session
        self._judged = -1  # runs that had ended when the groups were asked for
        self._claims_requested = False
        self._stale: set[str] = set()
        self.report_content: ReportContent | None = None
        self._taken: ReportContent | None = None  # as it was read, without the price of the energy
        self.ungrouped = UngroupedRuns(session, self)
        self.answer, self.fold = AnswerLabel(self), FoldedText(self)
        self.answer_lines = self.fold.note
        self.source = QComboBox(self)
        self.more_seeds = MoreSeedsButton(session, self)
        self.targets_button = QPushButton(_("Targets..."), self)
        self.report = ReportExport(session, self)
        self.folder_button = QPushButton(_("Open study..."), self)
        self.view = SegmentedChoice(VIEWS, _("View of the groups"), self, as_tabs=True)
        self.figures, self.trade_off, self.curves = FiguresView(self), TradeOffView(self), BandsView(self)
        self.sixteen_bits = SixteenBitsView(session, self)
        self.matrix, self.energy = MatrixView(self), EnergyView(self)
        self.claims, self.differences = ClaimsView(self), DifferencesView(self)
        columns = [translated(recased(column, "upper")) for column in MEMBER_COLUMNS]
        self.members = TextTable(columns, _("Runs of the study, and whether they are used"), self)
        self.pages = PageStack(self)
        self._lay_out()
        self._connect()
        self.refresh()

    def _lay_out(self) -> None:
        self.source.setAccessibleName(_("Groups of the study, or of the open runs"))
        self.source.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.source.setMinimumContentsLength(36)
        ignore_wheel(self.source)
        self.targets_button.setToolTip(_("What you ask of a precision: the bounds that verdicts are made by"))
        for page in (
            self.figures, self.matrix, self.energy, self.trade_off, self.curves, self.sixteen_bits, self.claims,
            self.differences, self.members,
        ):  # fmt: skip
            self.pages.addWidget(page)
        buttons = (self.more_seeds, self.targets_button, self.report, self.folder_button)
        row = WrappingRow([self.source, *buttons], self, fills=self.source)
        views = QHBoxLayout()
        views.addWidget(self.view, 1)
        column = QVBoxLayout(self.content)
        column.setContentsMargins(24, 12, 24, 16)
        column.setSpacing(12)
        column.addWidget(self.answer)
        column.addWidget(self.fold)
        column.addWidget(self.answer_lines)
        column.addWidget(row)
        column.addLayout(views)
        column.addWidget(self.pages, 1)

    def _connect(self) -> None:
        session = self._session
        session.study.opened.connect(self._on_opened)
        session.study.grid_read.connect(self.refresh)
        session.study.groups_read.connect(self._take)
        for signal in (session.runs.added, session.runs.removed, session.runs.changed):
            signal.connect(lambda _: self.refresh())
        self.ungrouped.read.connect(self._take)
        self.energy.repriced.connect(self._reprice)
        self.source.activated.connect(lambda _: self._choose_source())
        self.view.chosen.connect(lambda _: self._show_page())
        self.targets_button.clicked.connect(lambda _: self.ask_for_targets())
        self.folder_button.clicked.connect(self.ask_for_folder)
        self.empty.button.clicked.connect(lambda: session.requests.go("setup/study"))
        offer_examples(self.empty, session)
        themes().follow(self, self._fill)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def _on_opened(self) -> None:
        self._judged, self.report_content = -1, None
        self._name_sources()
        self.source.setCurrentIndex(max(0, self.source.findData(STUDY)))
        self.refresh()

    # What is grouped ---------------------------------------------------------------------------------------

    @property
    def source_kind(self) -> str:
        """`study`, `runs`, or nothing where there is neither."""
        return str(self.source.currentData() or "")

    def _name_sources(self) -> None:
        study, runs = self._session.study, len(self.ungrouped.paths())
        entries: list[tuple[str, str]] = []
        if study.folder is not None:
            entries.append((_study_title(study.grid, study.folder.name), STUDY))
        if runs:
            entries.append((_("Open runs ({count}), grouped by their settings").format(count=runs), RUNS))
        if entries != [(self.source.itemText(n), self.source.itemData(n)) for n in range(self.source.count())]:
            chosen = self.source.currentData()
            self.source.clear()
            for title, kind in entries:
                self.source.addItem(title, kind)
            self.source.setCurrentIndex(max(0, self.source.findData(chosen)))
        self.source.setToolTip(plain_tip(str(study.folder or "")))

    def show_open_runs(self) -> None:
        """Show the groups of the open runs, also where a study is open."""
        self._name_sources()
        self.source.setCurrentIndex(max(0, self.source.findData(RUNS)))
        self._choose_source()

    def _choose_source(self) -> None:
        self.report_content, self._judged = None, -1
        self.refresh()

    def refresh(self) -> None:
        """Have the groups judged where runs have ended since; nothing is done while the view is hidden."""
        if is_covered(self):
            return
        self._name_sources()
        self.show_content(bool(self.source_kind) or self._claims_requested)
        if not self.isVisible():
            return
        if self.report_content is None:
            self._fill()
        study = self._session.study
        if self.source_kind == RUNS:
            self.ungrouped.ask()
            if self._taken is not self.ungrouped.content:
                self._take()
        elif self.source_kind == STUDY and study.grid is not None and study.grid.document.done != self._judged:
            self._judged = study.grid.document.done
            study.read_groups()

    def _take(self) -> None:
        content = self.ungrouped.content if self.source_kind == RUNS else self._session.study.groups
        self._taken = content
        self.report_content = None if content is None else self.energy.with_price(content)
        self._fill()

    def _reprice(self, content: ReportContent) -> None:
        self.report_content = content
        self.report.show_content(content)

    # What is shown -----------------------------------------------------------------------------------------

    def _fill(self) -> None:
        content = self.report_content
        self._stale = set(VIEWS)
        self.answer.setText(translated(content.answer) if content is not None else self._why_not())
        lines = content.answer_lines if content is not None else ()
        self.fold.set_text(_("Figures behind it"), "\n".join(translated(line) for line in lines))
        self.more_seeds.show_content(content, is_study=self.source_kind == STUDY)
        self.targets_button.setEnabled(bool(self.source_kind) and not self._is_example())
        self.report.show_content(content)
        self._show_page()

    def _is_example(self) -> bool:
        """Whether the groups are those of a bundled study, whose folder nothing changes."""
        return self.source_kind == STUDY and self._session.study.is_example

    def _why_not(self) -> str:
        """Why there is no answer."""
        if self.source_kind == RUNS:
            why = self.ungrouped.why or _READING_RUNS
        elif self.source_kind == STUDY:
            why = self._session.study.why_no_groups or _READING_STUDY
        else:
            why = _NOT_TESTED
        return translated(recased(why, "upper") if why.endswith(".") else whole(why))

    def _show_page(self) -> None:
        """Fill the visible page if its content is not that of the present groups."""
        name, content = self.view.current, self.report_content
        if name in self._stale:
            self._stale.discard(name)
            if name == FIGURES:
                self.figures.show_content(content)
            elif name == TRADE_OFF:
                self.trade_off.show_study(content.study if content is not None else None)
            elif name == CURVES:
                self.curves.show_content(content)
            elif name == MATRIX:
                self.matrix.show_matrix(content.matrix if content is not None else None)
            elif name == ENERGY:
                self.energy.show_content(content)
            elif name == SIXTEEN_BITS:
                self.sixteen_bits.show_content(content)
            elif name == CLAIMS:
                why = _NONE_ENDED if self.source_kind else NO_STUDY
                self.claims.show_results(content.claims if content is not None else untested_claims(why))
            elif name == MEMBERS:
                members = content.members if content is not None else ()
                self.members.fill([[translated(cell) for cell in row] for row in members])
            else:
                columns = content.columns if content is not None else ()
                self.differences.show_rows(columns, content.differences if content is not None else ())
        self.pages.setCurrentIndex(VIEWS.index(name))

    def show_claims(self, precision: str = "") -> None:
        """Go to the claims, those about one precision where it is named; also while nothing is open."""
        self._claims_requested = True
        self.view.choose(CLAIMS)
        self.claims.choose(precision)
        self.refresh()

    # What a user does --------------------------------------------------------------------------------------

    def ask_for_targets(self) -> TargetsDialog | None:
        """Open the form of the targets; the groups are judged by them again."""
        study = self._session.study
        targets = self.ungrouped.targets if self.source_kind == RUNS else study.targets()
        if targets is None:
            return None
        dialog = TargetsDialog(targets, self, late=self.report_content is not None)
        dialog.chosen.connect(self._use_targets)
        dialog.open()
        return dialog

    def _use_targets(self, targets: Targets) -> None:
        if self.source_kind == RUNS:
            self.ungrouped.targets = targets
            self.ungrouped.ask()
        elif self._session.study.set_targets(targets):
            self._session.study.read_groups()

    def ask_for_folder(self) -> None:
        ask_for_folder(self, _("Open the folder of a study"), self._session.folder, self._session.open_study)


def _study_title(grid: object, folder: str) -> str:
    from precgui.gui.study_reading import StudyGrid

    if not isinstance(grid, StudyGrid):
        return _("Study {name}").format(name=folder)
    left = grid.document.left
    if not left:
        return _("Study {name}").format(name=grid.title)
    return n_(
        "Study {name}: {count} run is left; this may change",
        "Study {name}: {count} runs are left; this may change",
        left,
    ).format(name=grid.title, count=left)


class UngroupedRuns(QObject):
    """`read` comes when `content` is that of the runs that were asked for; None, with `why`, where there is none."""

    read = Signal()

    def __init__(self, session: Session, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._asked: tuple[object, ...] = ()
        self.targets: Targets = DEFAULT_TARGETS
        self.content: ReportContent | None = None
        self.why = ""
        self._work = Answer(self, answered=self._take, failed=self._refuse)

    def paths(self) -> list[Path]:
        """The files of open runs that have ended; runs of other programs have no settings to group by."""
        runs = [opened.run for opened in self._session.runs.values()]
        return [
            run.path for run in runs if run.path is not None and run.path.suffix == ".h5" and run.status != "running"
        ]

    def ask(self) -> None:
        """Read the open runs again where others are open now, or have ended since."""
        paths, targets = self.paths(), self.targets
        asked = (*paths, targets)
        if asked == self._asked:
            return
        self._asked = asked
        self._work.ask(thread(_report, paths, targets), latest_only=True)

    def _take(self, content: ReportContent) -> None:
        self.content, self.why = content, ""
        self.read.emit()

    def _refuse(self, why: str) -> None:
        self.content, self.why = None, why
        self.read.emit()


def _report(paths: Sequence[Path], targets: Targets) -> ReportContent:
    """Raises RunFileError for a file that cannot be read, ValueError where no study is possible."""
    return ungrouped_report(paths, targets)
