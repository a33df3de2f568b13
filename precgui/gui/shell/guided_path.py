"""A path through the window as data: each step names its place, its target and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from PySide6.QtWidgets import QToolButton, QWidget

from precgui.gui.notices import Notice, Notices
from precgui.words import translated

if TYPE_CHECKING:
    from PySide6.QtGui import QAction

    from precgui.config import RunConfig
    from precgui.gui.kit.form import Form
    from precgui.gui.kit.segmented import SegmentedChoice
    from precgui.gui.panels.diagnose.card import FindingCard
    from precgui.gui.panels.diagnose.loop_view import LoopView
    from precgui.gui.panels.library.view import ConfirmBar, RunsView
    from precgui.gui.panels.live.proof_card import ProofCard
    from precgui.gui.panels.setup.outlook_text import OutlookText
    from precgui.gui.panels.setup.study_form import StudySettings
    from precgui.gui.session import Session
    from precgui.gui.shell.navigation import Navigation

Done = Callable[[], bool]


# The window and its panels, as far as a path needs them: panels are loaded by name, and no path imports their rooms. --


class GuidedHost(Protocol):
    @property
    def current(self) -> str: ...
    def load(self, name: str) -> QWidget | None: ...


class GuidedFiles(Protocol):
    def ask(self) -> None: ...


class GuidedBar(Protocol):
    back: QToolButton


class GuidedWindow(Protocol):
    session: Session | None
    notices: Notices
    navigation: Navigation

    @property
    def files(self) -> GuidedFiles: ...
    @property
    def host(self) -> GuidedHost: ...
    @property
    def run_bar(self) -> GuidedBar: ...
    def show_panel(self, place: str) -> None: ...


class GuidedSetup(Protocol):
    form: Form[RunConfig]
    is_study: bool
    outlook: OutlookText
    recipes: QWidget
    source: str
    start_button: QWidget
    study: StudySettings

    def show_tab(self, tab: str) -> None: ...
    def use_recipe(self, name: str) -> None: ...


class GuidedGrid(Protocol):
    table: QWidget


class GuidedLive(Protocol):
    plots: QWidget
    proof_card: ProofCard | None
    study: GuidedGrid


class GuidedAnswer(Protocol):
    answer: QWidget
    more_seeds: QWidget


class GuidedCompare(Protocol):
    answer: GuidedAnswer
    table: QWidget


class GuidedDiagnose(Protocol):
    answer: QWidget
    cards: list[FindingCard]
    loop: LoopView
    view: SegmentedChoice


class GuidedLibrary(Protocol):
    actions_: dict[str, QAction]
    bar: ConfirmBar
    view: RunsView

    def isVisible(self) -> bool: ...
    def window(self) -> QWidget: ...


# Paths ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PathStep:
    """`watch` is called as the step begins and returns whether the person has done it since.

    `go` leads to where the step is done; None shows its `place`. `about` are parts that the text speaks of, or that
    belong to the target, the most important first; they are scrolled into view, and the call-out leaves them there.
    """

    place: str
    text: Callable[[GuidedWindow], str]
    target: Callable[[GuidedWindow], QWidget | None]
    watch: Callable[[GuidedWindow], Done]
    go: Callable[[GuidedWindow], object] | None = None
    about: Callable[[GuidedWindow], Sequence[QWidget]] = lambda _: ()

    def show(self, window: GuidedWindow) -> None:
        """Show where the step is done."""
        if self.go is None:
            window.show_panel(self.place)
        else:
            self.go(window)


@dataclass(frozen=True)
class FirstPath:
    """A card of the sheet, what its click begins, and at most five steps; with `choices` it has a button for each."""

    name: str
    title: str
    about: str
    icon: str
    begin: Callable[[GuidedWindow], object]
    steps: tuple[PathStep, ...]
    end: Callable[[GuidedWindow], object]
    choices: tuple[PathChoice, ...] = ()


@dataclass(frozen=True)
class PathChoice:
    """A button of a card: what it is about as a picture (a task of `recipe_picture`), and what its click begins.

    `pair` are the configs that are trained, for their time; without them `about` stands in the place of the time.
    `path` is None where the recipe is still to be chosen.
    """

    name: str
    title: str
    about: str
    picture: str
    path: FirstPath | None
    pair: tuple[RunConfig, ...] = ()
    two_core_s: float = 0.0  # CPU time of the whole pair, a thread each, before it was timed here


def says(text: str) -> Callable[[GuidedWindow], str]:
    return lambda _window: translated(text)


def session_of(window: GuidedWindow) -> Session:
    assert window.session is not None
    return window.session


def setup_of(window: GuidedWindow) -> GuidedSetup:
    return cast("GuidedSetup", window.host.load("setup"))


def live_of(window: GuidedWindow) -> GuidedLive:
    return cast("GuidedLive", window.host.load("live"))


def compare_of(window: GuidedWindow) -> GuidedCompare:
    return cast("GuidedCompare", window.host.load("compare"))


def answer_of_compare(window: GuidedWindow) -> Sequence[QWidget]:
    """The answer of Compare, and its table of runs."""
    compare = compare_of(window)
    return compare.answer.answer, compare.table


def diagnose_of(window: GuidedWindow) -> GuidedDiagnose:
    return cast("GuidedDiagnose", window.host.load("diagnose"))


def own_loop(window: GuidedWindow) -> Sequence[QWidget]:
    """The lines that record a loop, and what is done next."""
    loop = diagnose_of(window).loop
    return loop.code, loop.after


def library_of(window: GuidedWindow) -> GuidedLibrary:
    return cast("GuidedLibrary", window.host.load("library"))


def is_at(place: str) -> Callable[[GuidedWindow], Done]:
    return lambda window: lambda: window.host.current == place


def has_begun(window: GuidedWindow) -> Done:
    """Whether another run has begun since."""
    session, before = session_of(window), len(session_of(window).runs)
    return lambda: len(session.runs) > before and session.training.is_training


def has_ended(window: GuidedWindow) -> Done:
    return lambda: not session_of(window).training.is_training and not session_of(window).training.waiting


def tell(text: str) -> Callable[[GuidedWindow], object]:
    return lambda window: window.notices.post(Notice("info", translated(text)))
