"""The three paths of the first run: which precision, what went wrong, and formats for deployment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QToolButton, QWidget

from precgui.examples import example
from precgui.gui.shell.guided_path import (
    Done,
    FirstPath,
    GuidedWindow,
    PathStep,
    answer_of_compare,
    diagnose_of,
    has_begun,
    is_at,
    library_of,
    live_of,
    own_loop,
    says,
    session_of,
    setup_of,
    tell,
)  # fmt: skip
from precgui.gui.shell.precision_paths import WHICH
from precgui.words import L_, _

if TYPE_CHECKING:
    from precgui.gui.panels.formats.panel import FormatsPanel
    from precgui.gui.panels.formats.quantise import QuantiseTab

INTEGERS = "digits-int8"

# My training went wrong -----------------------------------------------------------------------------------------------


def _open_broken(window: GuidedWindow) -> None:
    broken = example("scale-collapse")
    assert broken is not None
    from precgui.gui.examples import open_example

    open_example(session_of(window), broken)


def _card_button(name: str) -> Callable[[GuidedWindow], QWidget | None]:
    """A button of the first finding that has it."""

    def find(window: GuidedWindow) -> QWidget | None:
        buttons = (getattr(card, name) for card in diagnose_of(window).cards)
        return next((each for each in buttons if not each.isHidden() and each.isEnabled()), None)

    return find


def _first_card(window: GuidedWindow) -> Sequence[QWidget]:
    """The verdict, and the first finding with its buttons."""
    diagnose = diagnose_of(window)
    return (diagnose.answer, *diagnose.cards[:1])


def _fixed_text(window: GuidedWindow) -> str:
    if session_of(window).training.is_training:
        return _("It trains with the smaller rate. Compare opens with both runs when it has ended.")
    return _("Both runs side by side: the scale stays, the loss falls. Now to a loop of your own: back to Diagnose.")


def _own_loop_text(window: GuidedWindow) -> str:
    if diagnose_of(window).loop.isVisible():
        return _("Copy the two lines into your loop, then open run.h5 here: Diagnose names its faults.")
    return _("Choose Your own loop here: it has two lines that record any training.")


def _is_copied(window: GuidedWindow) -> Done:
    code, board = diagnose_of(window).loop.code, QGuiApplication.clipboard()
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
            says(L_("This run of an example is broken. Show me draws the numbers that prove it.")),
            _card_button("show_button"),
            is_at("live"),
            about=_first_card,
        ),
        PathStep(
            "live",
            says(L_("The loss left its range first, then the scale fell at every step. The arrow leads back.")),
            lambda window: window.run_bar.back,
            is_at("diagnose"),
            about=lambda window: (card,) if (card := live_of(window).proof_card) is not None else (),
        ),
        PathStep(
            "diagnose",
            says(L_("Try the fix trains the run again with this one change, and compares both.")),
            _card_button("fix_button"),
            has_begun,
            about=_first_card,
        ),
        PathStep(
            "compare",
            _fixed_text,
            lambda w: w.navigation.buttons["live" if session_of(w).training.is_training else "diagnose"],
            lambda w: lambda: not session_of(w).training.is_training and w.host.current == "diagnose",
            about=answer_of_compare,
        ),
        PathStep(
            "diagnose/loop",
            _own_loop_text,
            lambda w: d.loop.code.copy if (d := diagnose_of(w)).loop.isVisible() else d.view.buttons["Your own loop"],
            _is_copied,
            about=own_loop,
        ),
    ),
    tell(L_("The lines are copied. Open the file that they record with Ctrl+O; its fix can be copied in Diagnose.")),
)


# Formats for deployment -----------------------------------------------------------------------------------------------


def _quantise(window: GuidedWindow) -> QuantiseTab:
    return cast("QuantiseTab", cast("FormatsPanel", window.host.load("formats")).tab_named("quantise"))


def _has_file(window: GuidedWindow) -> Done:
    combo = _quantise(window).source.combo
    before = combo.currentText()
    return lambda: combo.currentText() != before


def _has_other_scheme(window: GuidedWindow) -> Done:
    scheme = _quantise(window).scheme
    before = scheme.currentText()
    return lambda: scheme.currentText() != before


def _is_integer_recipe(window: GuidedWindow) -> bool:
    config = setup_of(window).form.value()
    return config is not None and config.qat.save_to != "" and config.precision == "int8-qat"


def _start_integers_text(window: GuidedWindow) -> str:
    if _is_integer_recipe(window):
        return _("It trains in 8 bits and keeps the integer model beside the run. Start it.")
    return _("Choose {integers} here: a small training in 8 bits that keeps its integer model.").format(
        integers=INTEGERS
    )


def _integers_text(window: GuidedWindow) -> str:
    if session_of(window).training.is_training:
        return _("It trains; the integer model is measured at the end. Runs has the run when it has ended.")
    return _("Choose the run, and press Integer model: size, latency and accuracy beside those of FP32.")


def _integers_target(window: GuidedWindow) -> QWidget | None:
    library = library_of(window)
    if session_of(window).training.is_training or not library.isVisible():
        return window.navigation.buttons["library"]
    integers = library.actions_["integers"]
    buttons = (each for each in library.bar.findChildren(QToolButton) if each.defaultAction() is integers)
    return next(buttons, None) if integers.isEnabled() else library.view


def _is_integers_shown(window: GuidedWindow) -> Done:
    from precgui.gui.panels.library.quantised_dialog import IntegerDialog

    return lambda: any(each.isVisible() for each in library_of(window).window().findChildren(IntegerDialog))


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
            says(L_("Open a .safetensors or .npy file of weights here; Next goes on with random ones.")),
            lambda window: _quantise(window).source.file,
            _has_file,
        ),
        PathStep(
            "formats/quantise",
            says(L_("Choose another format, such as nf4 or mxfp4: noise and lost values are told below.")),
            lambda window: _quantise(window).scheme,
            _has_other_scheme,
            about=lambda window: (_quantise(window).result,),
        ),
        PathStep(
            "setup",
            _start_integers_text,
            lambda w: setup_of(w).start_button if _is_integer_recipe(w) else setup_of(w).recipes,
            has_begun,
        ),
        PathStep("library", _integers_text, _integers_target, _is_integers_shown),
    ),
    tell(L_("Formats > Quantise takes any file of weights; Runs > Integer model is there for every run in int8-qat.")),
)

PATHS = (WHICH, WRONG, FORMATS)
