"""A path through the window as data: each step names its place, its target and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from PySide6.QtWidgets import QWidget

from precgui.gui.notices import Notice, Notices
from precgui.words import translated

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.gui.panels.compare.panel import ComparePanel
    from precgui.gui.panels.diagnose.panel import DiagnosePanel
    from precgui.gui.panels.formats.panel import FormatsPanel
    from precgui.gui.panels.formats.quantise import QuantiseTab
    from precgui.gui.panels.hardware.panel import HardwarePanel
    from precgui.gui.panels.library.panel import LibraryPanel
    from precgui.gui.panels.live.panel import LivePanel
    from precgui.gui.panels.setup.panel import SetupPanel
    from precgui.gui.session import Session
    from precgui.gui.shell.current_run import CurrentRunBar
    from precgui.gui.shell.file_menu import Files
    from precgui.gui.shell.navigation import Navigation
    from precgui.gui.shell.panel_host import PanelHost

Done = Callable[[], bool]


class GuidedWindow(Protocol):
    """The window, as far as a path needs it."""

    session: Session | None
    notices: Notices
    files: Files
    host: PanelHost
    navigation: Navigation
    run_bar: CurrentRunBar

    def show_panel(self, place: str) -> None: ...


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


def setup_of(window: GuidedWindow) -> SetupPanel:
    return cast("SetupPanel", window.host.load("setup"))


def hardware_of(window: GuidedWindow) -> HardwarePanel:
    return cast("HardwarePanel", window.host.load("hardware"))


def live_of(window: GuidedWindow) -> LivePanel:
    return cast("LivePanel", window.host.load("live"))


def compare_of(window: GuidedWindow) -> ComparePanel:
    return cast("ComparePanel", window.host.load("compare"))


def answer_of_compare(window: GuidedWindow) -> Sequence[QWidget]:
    """The answer of Compare, and its table of runs."""
    compare = compare_of(window)
    return compare.answer.answer, compare.table


def diagnose_of(window: GuidedWindow) -> DiagnosePanel:
    return cast("DiagnosePanel", window.host.load("diagnose"))


def own_loop(window: GuidedWindow) -> Sequence[QWidget]:
    """The lines that record a loop, and what is done next."""
    loop = diagnose_of(window).loop
    return loop.code, loop.after


def library_of(window: GuidedWindow) -> LibraryPanel:
    return cast("LibraryPanel", window.host.load("library"))


def quantise_of(window: GuidedWindow) -> QuantiseTab:
    return cast("QuantiseTab", cast("FormatsPanel", window.host.load("formats")).tab_named("quantise"))


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
