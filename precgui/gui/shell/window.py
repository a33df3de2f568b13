"""The window: navigation, panels, menus, status bar, notices. It composes and passes on; it decides nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from PySide6.QtCore import QByteArray, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import QCloseEvent, QDesktopServices, QDragEnterEvent, QDropEvent, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QMainWindow, QMessageBox, QWidget

from precgui import __version__, words
from precgui.gui.going_on import going_on
from precgui.gui.kit.icons import app_icon
from precgui.gui.kit.parts import column
from precgui.gui.kit.plain_text import PlainMessageBox
from precgui.gui.kit.reading_order import scroll_to, tab_as_read
from precgui.gui.kit.returning import Returning, show_place
from precgui.gui.notices import Notice, NoticeEntry, Notices
from precgui.gui.settings import Settings
from precgui.gui.shell.actions import ACTIONS, Actions, ActionSpec
from precgui.gui.shell.banners import Banners
from precgui.gui.shell.closing import Closing
from precgui.gui.shell.current_run import CurrentRunBar
from precgui.gui.shell.end_notices import EndNotices
from precgui.gui.shell.file_menu import Files, dropped
from precgui.gui.shell.guide import Guide
from precgui.gui.shell.history import History, VisitedPlace
from precgui.gui.shell.language import ask_to_restart, asked_language
from precgui.gui.shell.live_diagnosis import LiveDiagnosis
from precgui.gui.shell.navigation import Navigation, PanelSpec
from precgui.gui.shell.panel_host import PanelHost
from precgui.gui.shell.status_bar import StatusLine
from precgui.gui.theme import Mode, themes
from precgui.words import L_, _

if TYPE_CHECKING:
    from precgui.gui.open_run import Problem
    from precgui.gui.panels.setup.panel import SetupPanel
    from precgui.gui.session import Session
    from precgui.gui.undo import Undoable

_PANELS = "precgui.gui.panels"
PANELS: tuple[PanelSpec, ...] = (
    PanelSpec(
        "hardware",
        L_("Hardware"),
        "hardware",
        f"{_PANELS}.hardware.panel:HardwarePanel",
        L_("what this machine can do"),
    ),
    PanelSpec(
        "formats",
        L_("Formats"),
        "formats",
        f"{_PANELS}.formats.panel:FormatsPanel",
        L_("what the bits of a number mean"),
    ),
    PanelSpec(
        "setup", L_("Run"), "setup", f"{_PANELS}.setup.panel:SetupPanel", L_("choose a precision and start a run")
    ),
    PanelSpec(
        "live", L_("Live"), "live", f"{_PANELS}.live.panel:LivePanel", L_("the open runs, plotted as they go on")
    ),
    PanelSpec("library", L_("Runs"), "library", f"{_PANELS}.library.panel:LibraryPanel", L_("the runs that were kept")),
    PanelSpec(
        "compare", L_("Compare"), "compare", f"{_PANELS}.compare.panel:ComparePanel", L_("the open runs side by side")
    ),
    PanelSpec(
        "inspect",
        L_("Inspect"),
        "inspect",
        f"{_PANELS}.inspect.panel:InspectPanel",
        L_("one run: settings, results, tensors"),
    ),
    PanelSpec(
        "diagnose",
        L_("Diagnose"),
        "diagnose",
        f"{_PANELS}.diagnose.panel:DiagnosePanel",
        L_("what went wrong, and why"),
    ),
)
NARROW_BELOW = 960
DEFAULT_SIZE = (1280, 800)


def panel_actions() -> list[ActionSpec]:
    """One action a panel: Ctrl+1, Ctrl+2 ..."""
    return [
        ActionSpec(f"view.{spec.id}", spec.title, "&View", "show_panel", f"Ctrl+{key}", arguments=(spec.id,))
        for key, spec in enumerate(PANELS, 1)
    ]


class Window(QMainWindow):
    """`painted` comes once, after the first paint. The state is handed in later by `attach`."""

    painted = Signal()

    def __init__(self, settings: Settings, notices: Notices) -> None:
        super().__init__()
        self.setObjectName("window")
        self.setWindowTitle("precgui")
        self.setWindowIcon(app_icon())
        self.setMinimumSize(640, 480)
        self.setAcceptDrops(True)
        self.settings, self.notices = settings, notices
        self.session: Session | None = None
        self._painted = self.is_restarting = False
        self.files = Files(self, settings, notices)
        self.closing = Closing(self)
        self.closing.ready.connect(self.close)
        self.closing.kept.connect(lambda: setattr(self, "is_restarting", False))
        self.navigation = Navigation(PANELS, self)
        self.host = PanelHost(PANELS, self)
        self.line = StatusLine(self)
        self.setStatusBar(self.line)
        centre = QWidget(self)
        layout = QHBoxLayout(centre)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.navigation)
        self.banners = Banners(notices, self)
        layout.addLayout(column((self.host, 1), self.banners, spacing=0), 1)
        self.setCentralWidget(centre)
        self.guide = Guide(self, self, centre, settings)
        self.history = History(self._here, self._go_to, self)
        self.actions_ = Actions(self, [*ACTIONS, *panel_actions()])
        by_id = self.actions_.by_id
        self.run_bar = CurrentRunBar(by_id["view.back"], by_id["view.forward"], self)
        self.menuBar().setCornerWidget(self.run_bar)
        for part in (self.menuBar(), self.navigation, self.line):
            themes().dress(part)
        self._connect()
        self._restore()

    def _connect(self) -> None:
        self.run_bar.resized.connect(lambda: self.menuBar().setCornerWidget(self.run_bar))
        self.history.changed.connect(self.actions_.refresh)
        self.navigation.chosen.connect(self._on_panel_chosen)
        self.navigation.narrow_requested.connect(self._set_narrow)
        self.line.bell_clicked.connect(self.show_notices)
        self.banners.came.connect(self._on_notice)
        self.host.loaded.connect(self._on_loaded)
        self.host.currentChanged.connect(lambda _: self.banners.follow())

    # What is remembered ------------------------------------------------------------------------------------

    def _restore(self) -> None:
        geometry = self.settings["window/geometry"]
        if not geometry or not self.restoreGeometry(QByteArray(geometry)):
            self.resize(*DEFAULT_SIZE)
        known = {spec.id for spec in PANELS}
        last = self.settings["window/panel"]
        self.navigation.choose(last if last in known else "setup")

    def _remember(self) -> None:
        self.settings["window/geometry"] = bytes(self.saveGeometry().data())
        self.settings["window/panel"] = self.host.current
        if self.session is not None:
            paths = [opened.run.path for opened in self.session.runs.values()]
            self.settings["session/files"] = [
                str(path.absolute()) for path in paths if path is not None and path.exists()
            ]
            opened = self.session.runs.get(self.session.runs.current or "")
            self.settings["session/current"] = str(opened.run.path.absolute()) if opened and opened.run.path else ""
            panel = self.host.panels.get(self.host.current)
            self.settings["window/tab"] = panel.place()[0] if isinstance(panel, Returning) else ""
            self.settings["session/baseline"] = self.session.baseline_file
            study = self.session.study.folder
            self.settings["session/study"] = str(study.absolute()) if study is not None else ""
            self.settings["session/styles"] = [
                f"{colour} {dash} {run_id}" for run_id, (colour, dash) in self.session.runs.styles.items()
            ]
        self.settings.save()

    def reset_layout(self) -> None:
        self.settings["window/narrow_navigation"] = False
        self.showNormal()
        self.resize(*DEFAULT_SIZE)
        self._fit_navigation()

    # The two stages of the start ---------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if not self._painted:
            self._painted = True
            QTimer.singleShot(0, self.painted.emit)

    def attach(self, session: Session) -> None:
        """Second stage: panels can be made, the status bar follows the runs."""
        self.session = session
        for entry in self.settings["session/styles"]:
            colour, dash, run_id = entry.split(" ", 2)
            session.runs.styles[run_id] = (int(colour), int(dash))
        session.notice.connect(self._on_problem)
        going_on().let_go.connect(self._on_let_go)
        session.requests.place.connect(self.show_panel)
        session.requests.shortcuts.connect(self.show_keys)
        session.training.changed.connect(self.actions_.refresh)
        session.runs.added.connect(lambda _: self.actions_.refresh())
        session.runs.changed.connect(lambda _: self.actions_.refresh())
        self.files.attach(session)
        self.live_diagnosis = LiveDiagnosis(session, self.notices, self)
        self.end_notices = EndNotices(session, self.notices, self, lambda: self.host.current)
        for signal in (session.training.changed, session.study.changed, session.study.opened):
            signal.connect(self.banners.follow)
        for signal in (session.runs.changed, session.runs.removed, session.runs.current_changed):
            signal.connect(self._follow_banners)
        session.undo.offered.connect(self._offer_undo)
        session.undo.changed.connect(self._on_undo_changed)
        self.line.attach(session)
        self.run_bar.attach(session)
        session.runs.removed.connect(lambda key: self.history.close_run(key, session.runs.current))
        session.runs.current_changed.connect(self.history.note_soon)
        self.host.attach(session)
        self.actions_.refresh()

    def load_next_panel(self) -> bool:
        """Make one panel that was not needed yet; False when there is none left."""
        for name in self.host.waiting()[:1]:
            self.host.load(name)
        return bool(self.host.waiting())

    # Panels ------------------------------------------------------------------------------------------------

    def show_panel(self, place: str) -> None:
        """Show a panel, or of a place `panel/tab` a tab of it, where the panel has `show_tab`."""
        name, _, tab = place.partition("/")
        is_new = name not in self.host.panels or name == self.host.current
        if is_new:
            self.navigation.choose(name)
        if tab and (show := getattr(self.host.load(name), "show_tab", None)):
            show(tab)
        if not is_new:  # with its tab chosen, so that no other one is filled
            self.navigation.choose(name)

    def _on_panel_chosen(self, name: str) -> None:
        self.history.keep_view()
        self.host.show_panel(name)
        self.history.note_soon()
        self.actions_.refresh()

    def _on_loaded(self, name: str) -> None:
        if isinstance(panel := self.host.panels[name], Returning):
            panel.place_changed.connect(self.history.note_soon)

    # The way back ------------------------------------------------------------------------------------------

    def _here(self) -> VisitedPlace:
        """The place that is shown now."""
        panel, run = self.host.panels.get(self.host.current), self.session.runs.current if self.session else None
        return VisitedPlace(self.host.current, run, *(panel.place() if isinstance(panel, Returning) else ()))

    def _go_to(self, place: VisitedPlace) -> None:
        """Show a place again."""
        if self.session is not None and place.run is not None and place.run in self.session.runs:
            self.session.runs.choose(place.run)
        self.show_panel(place.panel)
        show_place(self.host.panels.get(place.panel), place.tab, place.view)

    # Undo --------------------------------------------------------------------------------------------------

    def can_undo(self) -> bool:
        return self.session is not None and self.session.undo.last is not None

    def undo(self) -> None:
        if self.session is not None:
            self.session.undo.undo()

    def _offer_undo(self, each: Undoable) -> None:
        """Say what was done, with the way back."""
        if (session := self.session) is None:
            return
        undo = session.undo
        self.notices.post(
            Notice(
                "info", each.done, remedies=((_("Undo"), lambda: undo.undo(each)),),
                is_over=lambda: not undo.is_open(each), passes=True,
            )
        )  # fmt: skip

    def _on_undo_changed(self) -> None:
        self.actions_.refresh()
        self.banners.follow()

    def can_go_back(self) -> bool:
        return self.history.can_go_back

    def can_go_forward(self) -> bool:
        return self.history.can_go_forward

    def focusNextPrevChild(self, forward: bool) -> bool:
        """Tab follows the layout as it is now: folds open, rows wrap, charts are exchanged."""
        tab_as_read(self)
        moved = super().focusNextPrevChild(forward)
        if (part := self.focusWidget()) is not None:
            scroll_to(part)
        return moved

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_navigation()

    def _fit_navigation(self) -> None:
        narrow = self.settings["window/narrow_navigation"] or self.width() < NARROW_BELOW
        if narrow != self.navigation.narrow:
            self.navigation.set_narrow(narrow)

    def _set_narrow(self, narrow: bool) -> None:
        self.settings["window/narrow_navigation"] = narrow
        self.navigation.set_narrow(narrow)

    def toggle_navigation(self) -> None:
        self._set_narrow(not self.navigation.narrow)

    def is_narrow(self) -> bool:
        return self.navigation.narrow

    # Runs --------------------------------------------------------------------------------------------------

    def new_run(self) -> None:
        self.show_panel("setup")
        if setup := self._setup():
            setup.new_run()

    def _setup(self) -> SetupPanel | None:
        return cast("SetupPanel | None", self.host.load("setup"))

    def can_start(self) -> bool:
        setup = cast("SetupPanel | None", self.host.panels.get("setup"))
        return self.session is not None and (setup is None or setup.can_start())

    def start_run(self) -> None:
        if setup := self._setup():
            setup.start()

    def can_stop(self) -> bool:
        return self.session is not None and self.session.training.is_training

    def stop_run(self) -> None:
        if self.session is not None:
            self.session.training.stop()

    def stop_all_runs(self) -> None:
        if self.session is not None:
            self.session.training.stop_all()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if dropped(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        event.acceptProposedAction()
        self.files.open(dropped(event.mimeData()))

    # Notices, help, theme ----------------------------------------------------------------------------------

    def _on_problem(self, problem: Problem) -> None:
        remedies = ((_("Open"), partial(_open_file, problem.file)),) if problem.file is not None else ()
        self.notices.post(
            Notice(
                problem.severity, problem.message, problem.details, remedies=remedies, passes=bool(remedies),
                is_over=(lambda: not self._is_open(problem.run)) if problem.run else None,
            )
        )  # fmt: skip

    def _is_open(self, run: str) -> bool:
        return self.session is not None and run in self.session.runs

    def _on_let_go(self, text: str) -> None:
        self.notices.post(Notice("warning", text))

    def _on_notice(self, entry: NoticeEntry) -> None:
        self.line.show_unread(self.notices.unread())

    def _follow_banners(self) -> None:
        self.banners.follow()

    def show_notices(self) -> None:
        self.banners.show_list()
        self.line.show_unread(self.notices.unread())

    def show_palette(self) -> None:
        from precgui.gui.shell.command_palette import CommandPalette  # as all dialogs, not before the first paint

        palette = CommandPalette(self.actions_, self)
        palette.show()
        palette.raise_()
        palette.search.setFocus()

    def show_docs(self) -> None:
        from precgui.gui.shell.help_dialog import HelpDialog

        HelpDialog(self).open()

    def show_keys(self) -> None:
        from precgui.gui.shell.command_palette import KeyList

        KeyList(self.actions_, self).open()

    def show_about(self) -> None:
        more = _("See what numeric precision does to your training on your machine.")
        box = PlainMessageBox(self, _("About precgui"), f"precgui {__version__}", more)
        box.setStandardButtons(QMessageBox.StandardButton.Close)
        box.setIconPixmap(app_icon().pixmap(64, 64))
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.open()

    def set_theme(self, mode: Mode) -> None:
        self.settings["window/theme"] = mode
        themes().set_mode(mode)

    def set_language(self, choice: str) -> None:
        """Keep the language for the next start, and offer to start again where it is another than now."""
        self.settings["window/language"] = choice
        self.settings.save()
        if asked_language(choice) != words.language() and (question := ask_to_restart(self, choice)) is not None:
            question.accepted.connect(self.restart)

    def language_is(self, choice: str) -> bool:
        return bool(self.settings["window/language"] == choice)

    def restart(self) -> None:
        """Close as the user does; `startup` then starts precgui again."""
        self.is_restarting = True
        self.close()

    def theme_is(self, mode: str) -> bool:
        return themes().mode == mode

    # The end -----------------------------------------------------------------------------------------------

    def closeEvent(self, event: QCloseEvent) -> None:
        """Close when nothing runs; otherwise `closing` asks, stops, and closes again."""
        if not self.closing.allows(self.session):
            event.ignore()
            return
        self._remember()
        self.guide.end()
        self.banners.detach()
        event.accept()


def _open_file(path: Path) -> None:
    """Show a file that was written in its own program; of a folder or a run, the folder that it lies in."""
    readable = path.suffix in (".html", ".md", ".py", ".csv")
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(path if readable else path.parent)))
