"""The three paths of the first run as data: each step names its place, its target and when it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QToolButton, QWidget

from precgui.examples import example
from precgui.gui.notices import Notice, Notices
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.gui.panels.compare.panel import ComparePanel
    from precgui.gui.panels.diagnose.panel import DiagnosePanel
    from precgui.gui.panels.formats.panel import FormatsPanel
    from precgui.gui.panels.formats.quantise import QuantiseTab
    from precgui.gui.panels.library.panel import LibraryPanel
    from precgui.gui.panels.live.panel import LivePanel
    from precgui.gui.panels.setup.panel import SetupPanel
    from precgui.gui.session import Session
    from precgui.gui.shell.current_run import CurrentRunBar
    from precgui.gui.shell.navigation import Navigation
    from precgui.gui.shell.panel_host import PanelHost

SMALL, INTEGERS = "digits-quick", "digits-int8"
Done = Callable[[], bool]


class GuidedWindow(Protocol):
    """The window, as far as a path needs it."""

    session: Session | None
    notices: Notices
    host: PanelHost
    navigation: Navigation
    run_bar: CurrentRunBar

    def show_panel(self, place: str) -> None: ...


@dataclass(frozen=True)
class PathStep:
    """`watch` is called as the step begins and returns whether the person has done it since."""

    place: str
    text: Callable[[GuidedWindow], str]
    target: Callable[[GuidedWindow], QWidget | None]
    watch: Callable[[GuidedWindow], Done]


@dataclass(frozen=True)
class FirstPath:
    """A card of the sheet, what its click begins, and at most five steps."""

    name: str
    title: str
    about: str
    icon: str
    begin: Callable[[GuidedWindow], object]
    steps: tuple[PathStep, ...]
    end: Callable[[GuidedWindow], object]


def _says(text: str) -> Callable[[GuidedWindow], str]:
    return lambda _window: translated(text)


def _session(window: GuidedWindow) -> Session:
    assert window.session is not None
    return window.session


def _setup(window: GuidedWindow) -> SetupPanel:
    return cast("SetupPanel", window.host.load("setup"))


def _live(window: GuidedWindow) -> LivePanel:
    return cast("LivePanel", window.host.load("live"))


def _compare(window: GuidedWindow) -> ComparePanel:
    return cast("ComparePanel", window.host.load("compare"))


def _diagnose(window: GuidedWindow) -> DiagnosePanel:
    return cast("DiagnosePanel", window.host.load("diagnose"))


def _library(window: GuidedWindow) -> LibraryPanel:
    return cast("LibraryPanel", window.host.load("library"))


def _quantise(window: GuidedWindow) -> QuantiseTab:
    return cast("QuantiseTab", cast("FormatsPanel", window.host.load("formats")).tab_named("quantise"))


def _is_at(place: str) -> Callable[[GuidedWindow], Done]:
    return lambda window: lambda: window.host.current == place


def _has_begun(window: GuidedWindow) -> Done:
    """Whether another run has begun since."""
    session, before = _session(window), len(_session(window).runs)
    return lambda: len(session.runs) > before and session.training.is_training


def _has_ended(window: GuidedWindow) -> Done:
    return lambda: not _session(window).training.is_training and not _session(window).training.waiting


def _tell(text: str) -> Callable[[GuidedWindow], object]:
    return lambda window: window.notices.post(Notice("info", translated(text)))


# Which precision for my network here? ---------------------------------------------------------------------------------


def _train_small(window: GuidedWindow) -> None:
    """Start the small example in FP32, by the form and the button of Run."""
    setup = _setup(window)
    setup.show_tab("run")
    setup.use_recipe(SMALL)
    setup.new_run()
    setup.precision.set("fp32")
    setup.start()


def _more_seeds_text(window: GuidedWindow) -> str:
    if _session(window).training.is_training:
        return _("The same weights and batches again. Compare opens with the answer when it has ended.")
    return _("One seed decides little. This button sets up the study that decides: three seeds of both.")


def _more_seeds_target(window: GuidedWindow) -> QWidget | None:
    return _live(window).plots if _session(window).training.is_training else _compare(window).answer.more_seeds


def _is_study_judged(window: GuidedWindow) -> Done:
    study = _session(window).study

    def is_judged() -> bool:
        if study.is_running or study.grid is None or study.grid.document.left:
            return False
        window.show_panel("compare/groups")
        return True

    return is_judged


WHICH = FirstPath(
    "which",
    L_("Which precision for my network here?"),
    L_("Trains a small example in FP32 now, then in BF16, and compares them; a study of both decides."),
    "setup",
    _train_small,
    (
        PathStep(
            "live",
            _says(
                L_(
                    "The small example trains. The line is its training loss, by decades, the dots are the validation; "
                    "below it the accuracy. It takes less than a minute."
                )
            ),
            lambda window: _live(window).plots,
            _has_ended,
        ),
        PathStep(
            "live",
            _says(L_("The run has ended. Train the same in BF16, to have two runs to compare.")),
            lambda window: _live(window).end_card.other,
            _has_begun,
        ),
        PathStep(
            "compare",
            _more_seeds_text,
            _more_seeds_target,
            lambda w: lambda: w.host.current == "setup" and _setup(w).is_study,
        ),
        PathStep(
            "setup/study",
            _says(L_("Both precisions, three seeds each, are set up, with the time that they take. Start it.")),
            lambda window: _setup(window).start_button,
            lambda w: lambda: _session(w).study.is_running,
        ),
        PathStep(
            "live/study",
            _says(L_("Each cell is a run. Compare opens with the verdict when all of them have ended.")),
            lambda window: _live(window).study.table,
            _is_study_judged,
        ),
    ),
    _tell(
        L_(
            "Report keeps the verdict as a page. Run trains other recipes; Diagnose > Your own loop records "
            "your network."
        )
    ),
)


# My training went wrong -----------------------------------------------------------------------------------------------


def _open_broken(window: GuidedWindow) -> None:
    broken = example("scale-collapse")
    assert broken is not None
    from precgui.gui.examples import open_example

    open_example(_session(window), broken)


def _card_button(name: str) -> Callable[[GuidedWindow], QWidget | None]:
    """A button of the first finding that has it."""

    def find(window: GuidedWindow) -> QWidget | None:
        buttons = (getattr(card, name) for card in _diagnose(window).cards)
        return next((each for each in buttons if not each.isHidden() and each.isEnabled()), None)

    return find


def _fixed_text(window: GuidedWindow) -> str:
    if _session(window).training.is_training:
        return _("It trains with the smaller rate. Compare opens with both runs when it has ended.")
    return _("Both runs side by side: the scale stays, the loss falls. Now to a loop of your own: back to Diagnose.")


def _is_copied(window: GuidedWindow) -> Done:
    code, board = _diagnose(window).loop.code, QGuiApplication.clipboard()
    before = board.text()
    return lambda: board.text() == code.code.text() != before


WRONG = FirstPath(
    "wrong",
    L_("My training went wrong"),
    L_("Opens a broken example: the numbers that prove its fault, its fix, and the lines that record your own loop."),
    "diagnose",
    _open_broken,
    (
        PathStep(
            "diagnose",
            _says(L_("This run of an example is broken. Show me draws the numbers that prove it.")),
            _card_button("show_button"),
            _is_at("live"),
        ),
        PathStep(
            "live",
            _says(L_("The loss left its range first, then the scale fell at every step. The arrow leads back.")),
            lambda window: window.run_bar.back,
            _is_at("diagnose"),
        ),
        PathStep(
            "diagnose",
            _says(L_("Try the fix trains the run again with this one change, and compares both.")),
            _card_button("fix_button"),
            _has_begun,
        ),
        PathStep(
            "compare",
            _fixed_text,
            lambda w: w.navigation.buttons["live" if _session(w).training.is_training else "diagnose"],
            lambda w: lambda: not _session(w).training.is_training and w.host.current == "diagnose",
        ),
        PathStep(
            "diagnose/loop",
            _says(L_("Copy the two lines into your loop, then open run.h5 here: Diagnose names its faults.")),
            lambda w: d.loop.code.copy if (d := _diagnose(w)).loop.isVisible() else d.view.buttons["Your own loop"],
            _is_copied,
        ),
    ),
    _tell(L_("The lines are copied. Open the file that they record with Ctrl+O; its fix can be copied in Diagnose.")),
)


# Formats for deployment -----------------------------------------------------------------------------------------------


def _has_file(window: GuidedWindow) -> Done:
    combo = _quantise(window).source.combo
    before = combo.currentText()
    return lambda: combo.currentText() != before


def _has_other_scheme(window: GuidedWindow) -> Done:
    scheme = _quantise(window).scheme
    before = scheme.currentText()
    return lambda: scheme.currentText() != before


def _is_integer_recipe(window: GuidedWindow) -> bool:
    config = _setup(window).form.value()
    return config is not None and config.qat.save_to != "" and config.precision == "int8-qat"


def _start_integers_text(window: GuidedWindow) -> str:
    if _is_integer_recipe(window):
        return _("It trains in 8 bits and keeps the integer model beside the run. Start it.")
    return _("Choose {integers} here: a small training in 8 bits that keeps its integer model.").format(
        integers=INTEGERS
    )


def _integers_text(window: GuidedWindow) -> str:
    if _session(window).training.is_training:
        return _("It trains; the integer model is measured at the end. Runs has the run when it has ended.")
    return _("Choose the run, and press Integer model: size, latency and accuracy beside those of FP32.")


def _integers_target(window: GuidedWindow) -> QWidget | None:
    library = _library(window)
    if _session(window).training.is_training or not library.isVisible():
        return window.navigation.buttons["library"]
    integers = library.actions_["integers"]
    buttons = (each for each in library.bar.findChildren(QToolButton) if each.defaultAction() is integers)
    return next(buttons, None) if integers.isEnabled() else library.view


def _is_integers_shown(window: GuidedWindow) -> Done:
    from precgui.gui.panels.library.quantised_dialog import IntegerDialog

    return lambda: any(each.isVisible() for each in _library(window).window().findChildren(IntegerDialog))


FORMATS = FirstPath(
    "formats",
    L_("Formats for deployment"),
    L_(
        "Quantises weights, yours or random ones, into 8 bits and less; then trains INT8 and measures "
        "the integer model."
    ),
    "formats",
    lambda window: window.show_panel("formats/quantise"),
    (
        PathStep(
            "formats/quantise",
            _says(L_("Open a .safetensors or .npy file of weights here; Next goes on with random ones.")),
            lambda window: _quantise(window).source.file,
            _has_file,
        ),
        PathStep(
            "formats/quantise",
            _says(L_("Choose another format, such as nf4 or mxfp4: noise and lost values are told below.")),
            lambda window: _quantise(window).scheme,
            _has_other_scheme,
        ),
        PathStep(
            "setup",
            _start_integers_text,
            lambda w: _setup(w).start_button if _is_integer_recipe(w) else _setup(w).recipes,
            _has_begun,
        ),
        PathStep("library", _integers_text, _integers_target, _is_integers_shown),
    ),
    _tell(L_("Formats > Quantise takes any file of weights; Runs > Integer model is there for every run in int8-qat.")),
)

PATHS = (WHICH, WRONG, FORMATS)
