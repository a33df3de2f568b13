"""The path to a precision: FP32 and BF16 by one click, their comparison, the study, and FP16 without training."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from precgui.config import RECIPES, RunConfig, change
from precgui.gui.shell.guided_path import (
    Done,
    FirstPath,
    GuidedWindow,
    PathChoice,
    PathStep,
    answer_of_compare,
    compare_of,
    diagnose_of,
    has_ended,
    is_at,
    live_of,
    own_loop,
    says,
    session_of,
    setup_of,
    tell,
)  # fmt: skip
from precgui.runs.facts import wait_text
from precgui.words import L_, _, together, translated

if TYPE_CHECKING:
    from precgui.gui.panels.inspect.tensors.panel import TensorsPanel

PICTURES, TEXT = "digits-quick", "gpt-quick"
_TEXT_STEPS = ("train.max_steps=60",)  # of the text recipe: some minutes less
BASELINE, USUAL = "fp32", "bf16-amp"
_OCTAVES = 8  # by which the loss scale is moved until the step counts as tried


def pair_of(config: RunConfig) -> tuple[RunConfig, RunConfig]:
    """A config in FP32, and in its own precision, or in BF16 where that is FP32. Raises ConfigError."""
    other = USUAL if config.precision == BASELINE else config.precision
    return change(config, [f"precision={BASELINE}"]), change(config, [f"precision={other}"])


def recipe_pair(name: str) -> tuple[RunConfig, RunConfig]:
    """The two configs that are trained of a recipe; the text recipe is cut short."""
    config = RECIPES[name][1]
    return pair_of(change(config, _TEXT_STEPS) if name == TEXT else config)


def _train_both(name: str, window: GuidedWindow) -> None:
    """Train a recipe in FP32, then in the other precision, with the settings of the form of Run."""
    setup, (first, second) = setup_of(window), recipe_pair(name)
    setup.show_tab("run")
    setup.use_recipe(name)
    setup.form.set_value(first)
    session_of(window).training.start_pair(first, second)
    window.show_panel("live")


def _training_text(window: GuidedWindow) -> str:
    session = session_of(window)
    progress, active = session.training.progress(), session.runs.get(session.runs.active_key or "")
    if active is None:
        return _("The first of the two runs waits until the measurement has ended.")
    text = (
        _("{precision} trains, {other} follows with the same weights and batches.")
        if (waiting := session.training.waiting)
        else _("{precision} trains with the same weights and batches. Compare opens with the answer.")
    )
    other = waiting[0].precision if waiting else ""
    parts = [text.format(precision=active.run.config.precision, other=other)]
    if progress is not None and progress.seconds_left is not None:
        left = wait_text(5 * max(1, round(progress.seconds_left / 5)))
        parts.append(_("About {time} left of this run.").format(time=translated(left)))
    parts.append(
        _("The line is the training loss, by decades, the dots are the validation; its metric has its own plot.")
    )
    return translated(together(*parts))


def _is_study_judged(window: GuidedWindow) -> Done:
    study = session_of(window).study

    def is_judged() -> bool:
        if study.is_running or study.grid is None or study.grid.document.left:
            return False
        window.show_panel("compare/groups")
        return True

    return is_judged


# And FP16? ------------------------------------------------------------------------------------------------------------


def _show_exponents(window: GuidedWindow) -> None:
    """The tensors of the newest FP32 run."""
    session = session_of(window)
    keys = [key for key, each in session.runs.items() if each.run.config.precision == BASELINE and each.run.tensors()]
    if keys:
        session.requests.inspect(keys[-1], "tensors")
    else:
        window.show_panel("inspect/tensors")


class GuidedInspect(Protocol):
    def tab(self, name: str) -> QWidget: ...


def _tensors(window: GuidedWindow) -> TensorsPanel:
    return cast("TensorsPanel", cast("GuidedInspect", window.host.load("inspect")).tab("tensors"))


def _exponents(window: GuidedWindow) -> tuple[QWidget, ...]:
    """The row of the slider, the sentence below it, and the picture with the red lines."""
    tensors = _tensors(window)
    return tensors.bar, tensors.verdict, tensors.spectrogram


def _is_scale_tried(window: GuidedWindow) -> Done:
    slider = _tensors(window).bar.slider
    before = slider.value()
    return lambda: abs(slider.value() - before) >= _OCTAVES and not slider.isSliderDown()


# A script of one's own ------------------------------------------------------------------------------------------------


def _is_copied(window: GuidedWindow) -> Done:
    code, board = diagnose_of(window).loop.code, QGuiApplication.clipboard()
    before = board.text()
    return lambda: board.text() == code.code.text() != before


def _have_two_come(window: GuidedWindow) -> Done:
    runs = session_of(window).runs
    before = set(runs)
    return lambda: len(set(runs) - before) > 1


def _open_files(window: GuidedWindow) -> None:
    window.files.ask()


_WHICH = L_("Which precision for my network here?")
_OWN = FirstPath(
    "own",
    _WHICH,
    L_("Records the training of your own script in both precisions, and compares them."),
    "setup",
    lambda window: window.show_panel("diagnose/loop"),
    (
        PathStep(
            "diagnose/loop",
            says(L_("Copy the two lines into your script. It computes the same to the last bit, and is recorded.")),
            lambda window: diagnose_of(window).loop.code.copy,
            _is_copied,
            about=own_loop,
        ),
        PathStep(
            "live",
            says(
                L_(
                    "Run the script once in FP32 and once under autocast to BF16, with a file each. Go there opens "
                    "both files, also while they are written."
                )
            ),
            lambda window: None,
            _have_two_come,
            _open_files,
        ),
        PathStep(
            "compare",
            says(L_("Both are open. Compare says what BF16 changes: the metric, memory and speed.")),
            lambda window: window.navigation.buttons["compare"],
            is_at("compare"),
            about=lambda window: (window.navigation,),
        ),
    ),
    tell(L_("Inspect > Tensors shows what FP16 would do to the same run; Diagnose names its faults.")),
)


# The small examples ---------------------------------------------------------------------------------------------------


def _more_seeds(window: GuidedWindow) -> QWidget | None:
    return compare_of(window).answer.more_seeds


_STEPS = (
    PathStep("live", _training_text, lambda window: live_of(window).plots, has_ended),
    PathStep(
        "compare",
        says(L_("One seed decides little. This button sets up the study that decides: three seeds of both.")),
        _more_seeds,
        lambda w: lambda: w.host.current == "setup" and setup_of(w).is_study,
        about=answer_of_compare,
    ),
    PathStep(
        "setup/study",
        says(L_("Both precisions, three seeds each, are set up, with the time that they take. Start it.")),
        lambda window: setup_of(window).start_button,
        lambda w: lambda: session_of(w).study.is_running,
        about=lambda window: (setup_of(window).study.estimate, setup_of(window).study.seeds),
    ),
    PathStep(
        "live/study",
        says(
            L_(
                "Each cell is a run. Compare opens with the verdict when all of them have ended; Next does not "
                "wait for it."
            )
        ),
        lambda window: live_of(window).study.table,
        _is_study_judged,
    ),
    PathStep(
        "inspect/tensors",
        says(
            L_(
                "And FP16? Of the FP32 run the exponents were recorded: drag the loss scale until the colours "
                "lie between the red lines. No training is needed."
            )
        ),
        lambda window: _tensors(window).bar.slider,
        _is_scale_tried,
        _show_exponents,
        _exponents,
    ),
)


def precision_path(recipe: str, choices: tuple[PathChoice, ...] = ()) -> FirstPath:
    """The path to a precision for the work of a recipe."""
    return FirstPath(
        "which",
        _WHICH,
        L_("Trains it in FP32 and in BF16, the same otherwise, and compares both."),
        "setup",
        partial(_train_both, recipe),
        _STEPS,
        tell(
            L_(
                "Report keeps the verdict as a page. Run trains other recipes; Diagnose > Your own loop records "
                "your network."
            )
        ),
        choices,
    )


WHICH = precision_path(
    PICTURES,
    (
        PathChoice(
            "pictures", L_("Images"), L_("A small CNN on the bundled digits."), "digits",
            precision_path(PICTURES), recipe_pair(PICTURES), 30,
        ),
        PathChoice(
            "text", L_("Text"), L_("A small GPT on the source of Python's own library, 60 steps."), "text",
            precision_path(TEXT), recipe_pair(TEXT), 50,
        ),
        PathChoice("own", L_("My own script"), L_("two lines to paste"), "", _OWN),
        PathChoice("unsure", L_("Not sure"), L_("all recipes"), "detection", None),
    ),
)  # fmt: skip
