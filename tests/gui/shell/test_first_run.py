"""The first run by what is seen and clicked: the sheet, and each of its three paths to the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from precgui import config as configs
from precgui.config import RECIPES, RunConfig
from precgui.events import EXPONENT_BINS, TENSOR_STATS, Evaluated, Event, RunEnded, RunStarted, StepDone, TensorStats
from precgui.examples import example
from precgui.gui.notices import Notices
from precgui.gui.panels.library.quantised_dialog import IntegerDialog
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.panels.setup.recipe_gallery import RecipeGallery
from precgui.gui.settings import Settings
from precgui.gui.shell.first_run_sheet import FirstRunSheet
from precgui.gui.shell.precision_paths import recipe_pair
from precgui.gui.shell.startup import StartupStages
from precgui.gui.shell.window import Window
from precgui.gui.study_control import StudyControl
from precgui.gui.training_queue import TrainingQueue
from precgui.hardware import measured
from precgui.job import Job
from precgui.runs import outlook
from precgui.runs.facts import wait_text
from precgui.runs.step_times import StepTime
from tests.gui.conftest import close_window
from tests.runs.synthetic import live_run

MOST_STEPS = 5


class Hand:
    """Clicks as a person does, at what is in view alone, and counts."""

    def __init__(self, qtbot: QtBot, window: Window) -> None:
        self._qtbot, self._window = qtbot, window
        self.clicks = 0

    def click(self, widget: QWidget, place: QPoint | None = None) -> None:
        self._qtbot.waitUntil(lambda: not widget.visibleRegion().isEmpty())
        self._qtbot.mouseClick(
            widget, Qt.MouseButton.LeftButton, pos=place or widget.visibleRegion().boundingRect().center()
        )
        self.clicks += 1

    def open_card(self, name: str) -> None:
        self._window.actions_.by_id["help.first_steps"].trigger()
        sheet = self._window.guide.sheet
        assert sheet is not None
        self.click((sheet.cards | sheet.precision.choices)[name])

    def is_told(self, step: int, words: str, target: QWidget | None = None) -> None:
        """Wait until the call-out tells this step, and stands beside its target without covering it."""
        guide = self._window.guide

        def is_shown() -> bool:
            call_out = guide.call_out
            if call_out is None or not call_out.isVisible() or words not in call_out.text.text():
                return False
            return call_out.count.text().startswith(f"Step {step} of") and (
                target is None or (call_out.frame.isVisible() and not call_out.go.isVisible())
            )

        self._qtbot.waitUntil(is_shown)
        assert guide.path is not None and len(guide.path.steps) <= MOST_STEPS
        if target is not None and guide.call_out is not None:
            middle = target.mapTo(self._window, target.visibleRegion().boundingRect().center())
            assert guide.call_out.frame.geometry().contains(middle)


class Trainer:
    """In the place of the child processes: `session.training.start` begins a run, the test ends it."""

    def __init__(self, window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
        assert window.session is not None
        self.session, self.asked, self.is_on = window.session, list[RunConfig](), False
        monkeypatch.setattr(TrainingQueue, "is_training", property(lambda _: self.is_on))
        monkeypatch.setattr(self.session.training, "start", self._start)

    def _start(self, config: RunConfig, _: object = None) -> None:
        self.asked.append(config)
        self.is_on = True
        run = live_run([RunStarted(0.0, 4, 2, "cpu")], config)
        run.run_id = f"run {len(self.asked)}"
        self.session.runs.active_key = self.session.runs.add(run)
        self.session.runs.choose(self.session.runs.active_key)
        self.session.requests.go("live")

    def finish(self) -> str:
        """The run ends; where it was started beside another one, Compare opens with both."""
        key = f"run {len(self.asked)}"
        steps: list[Event] = [
            StepDone(step, 0.1 * step, 1 / step, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan"))
            for step in range(1, 5)
        ]
        exponents = np.ones((1, EXPONENT_BINS), np.uint32).tobytes()
        numbers = np.ones((1, len(TENSOR_STATS)), np.float64).tobytes()
        steps += [TensorStats(1, 0.1, "gradient", ("weight",), (1,), numbers, exponents)]
        self.session.runs[key].run.extend([*steps, Evaluated(4, 2, 0.5, 0.3, 0.75), RunEnded(0.5, "completed")])  # type: ignore[attr-defined]
        self.is_on, self.session.runs.active_key = False, None
        waiting = self.session.training.waiting
        self.session.runs.data_arrived.emit(key)
        self.session.runs.changed.emit(key)
        self.session.training.compare_trial(key)
        if waiting:
            self._start(waiting.pop(0))
        return key


@pytest.fixture
def trainer(working: Window, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    working.resize(1280, 800)
    return Trainer(working, monkeypatch)


@pytest.fixture
def hand(qtbot: QtBot, working: Window) -> Hand:
    return Hand(qtbot, working)


@pytest.fixture(autouse=True)
def no_child_process_waits_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingQueue, "warm_up", lambda _: None)


@pytest.fixture
def started(qtbot: QtBot) -> Iterator[Window]:
    """The window of the first start, in folders without anything."""
    window = Window(Settings(), Notices())
    start = StartupStages(window, [], first_run=True)
    window.show()
    qtbot.waitUntil(lambda: window.guide.sheet is not None)
    qtbot.waitUntil(lambda: not window.host.waiting())
    yield window
    close_window(qtbot, window)
    start.deleteLater()


def test_that_the_sheet_comes_once_and_keys_do_all(started: Window, qtbot: QtBot) -> None:
    sheet = started.guide.sheet
    assert isinstance(sheet, FirstRunSheet) and sheet.isVisible()
    assert started.session is not None and not started.session.runs
    told = "Run holds a small bundled example, digits-quick. Advised for this model here:"
    qtbot.waitUntil(lambda: sheet.advice.text().startswith(told))
    qtbot.waitUntil(lambda: not sheet.precision.measure.isHidden())
    stops = [*sheet.precision.choices.values(), sheet.precision.measure, *sheet.cards.values(), sheet.later]
    assert QApplication.focusWidget() in (stops[0], None)  # None: no window has the focus offscreen
    for at, stop in enumerate(stops):
        qtbot.keyClick(stop, Qt.Key.Key_Tab)
        assert started.focusWidget() is stops[(at + 1) % len(stops)]
    qtbot.keyClick(stops[0], Qt.Key.Key_Backtab)
    assert started.focusWidget() is sheet.later
    qtbot.keyClick(sheet.later, Qt.Key.Key_Escape)
    assert started.guide.sheet is None and not sheet.isVisible()
    started.settings.save()
    assert Settings()["first_run/seen"] is True
    setup = started.host.panels["setup"]
    assert isinstance(setup, SetupPanel)
    setup.use_recipe("gpt-quick")
    started.actions_.by_id["help.first_steps"].trigger()
    assert started.guide.sheet is not None
    assert started.guide.sheet.advice.text().startswith("Run holds text gpt fp32. Advised for this model here:")
    qtbot.keyClick(started.guide.sheet.cards["formats"], Qt.Key.Key_Return)
    assert started.guide.path is not None and started.guide.path.name == "formats"
    assert started.guide.call_out is not None
    qtbot.keyClick(started.guide.call_out.end, Qt.Key.Key_Escape)
    assert started.guide.path is None and started.guide.call_out is None


@pytest.mark.parametrize("first_run", [False, True], ids=["not asked for", "seen before"])
def test_that_the_sheet_does_not_come_by_itself_again(qtbot: QtBot, first_run: bool) -> None:
    settings = Settings()
    settings["first_run/seen"] = first_run
    window = Window(settings, Notices())
    start = StartupStages(window, [], first_run=first_run)
    window.show()
    qtbot.waitUntil(lambda: window.session is not None and not window.host.waiting())
    assert window.guide.sheet is None
    close_window(qtbot, window)
    start.deleteLater()


def test_the_path_to_a_precision(
    working: Window, trainer: Trainer, hand: Hand, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    panels = working.host
    hand.open_card("pictures")
    live = panels.panels["live"]
    hand.is_told(1, "fp32 trains, bf16-amp follows", live.plots)  # type: ignore[attr-defined]
    trainer.finish()
    hand.is_told(1, "bf16-amp trains with the same weights", live.plots)  # type: ignore[attr-defined]
    assert [config.precision for config in trainer.asked] == ["fp32", "bf16-amp"] and trainer.asked[0].task == "digits"
    assert trainer.asked[0].model_copy(update={"precision": "bf16-amp"}) == trainer.asked[1]
    trainer.finish()
    qtbot.waitUntil(lambda: panels.current == "compare")
    answer = panels.panels["compare"].answer  # type: ignore[attr-defined]
    qtbot.waitUntil(lambda: "bf16-amp beside fp32: same accuracy (one seed)" in answer.answer.text())
    assert hand.clicks == 1, "the first run, and the comparison with an answer"
    hand.is_told(2, "three seeds of both", answer.more_seeds)
    hand.click(answer.more_seeds)
    setup = panels.panels["setup"]
    hand.is_told(3, "Start it", setup.start_button)  # type: ignore[attr-defined]

    finished = example("digits-study")
    assert finished is not None
    specs: list[object] = []
    running: list[bool] = []

    def start_study(control: StudyControl, spec: object, *_: object) -> bool:
        specs.append(spec)
        control.open(finished.path)
        running.append(True)
        working.show_panel("live/study")
        return True

    monkeypatch.setattr(StudyControl, "start", start_study)
    monkeypatch.setattr(StudyControl, "is_running", property(lambda _: bool(running)))
    hand.click(setup.start_button)  # type: ignore[attr-defined]
    assert specs and specs[0].seeds == 3 and {"fp32", "bf16-amp"} <= set(specs[0].precisions)  # type: ignore[attr-defined]
    hand.is_told(4, "Each cell is a run", panels.panels["live"].study.table)  # type: ignore[attr-defined]
    running.clear()
    groups = panels.panels["compare"].groups  # type: ignore[attr-defined]
    qtbot.waitUntil(lambda: panels.current == "compare" and "Stay with fp32 here" in groups.answer.text())
    assert hand.clicks == 3, "the verdict of a study"
    hand.is_told(5, "And FP16?")
    assert working.guide.call_out is not None
    hand.click(working.guide.call_out.go)
    tensors = working.host.panels["inspect"].tab("tensors")  # type: ignore[attr-defined]
    assert working.session is not None and working.session.runs.current == "run 1", "the run in FP32"
    hand.is_told(5, "drag the loss scale", tensors.bar.slider)
    assert tensors.bar.format == "fp16"
    for _ in range(2):
        qtbot.keyClick(tensors.bar.slider, Qt.Key.Key_PageUp)
    qtbot.waitUntil(lambda: working.guide.path is None)


def test_the_path_from_a_broken_training_to_lines_to_paste(
    working: Window, trainer: Trainer, hand: Hand, qtbot: QtBot
) -> None:
    hand.open_card("wrong")
    diagnose = working.host.panels["diagnose"]
    qtbot.waitUntil(lambda: bool(diagnose.cards))  # type: ignore[attr-defined]
    hand.is_told(1, "Show me", diagnose.cards[0].show_button)  # type: ignore[attr-defined]
    hand.click(diagnose.cards[0].show_button)  # type: ignore[attr-defined]
    assert working.host.current == "live"
    back = working.run_bar.back
    hand.is_told(2, "The arrow leads back", back)
    hand.click(back)
    assert working.host.current == "diagnose"
    hand.is_told(3, "Try the fix", diagnose.cards[0].fix_button)  # type: ignore[attr-defined]
    hand.click(diagnose.cards[0].fix_button)  # type: ignore[attr-defined]
    assert trainer.asked[0].optimizer.lr == pytest.approx(0.03) and "Example" not in trainer.asked[0].title
    hand.is_told(4, "It trains with the smaller rate")
    trainer.finish()
    button = working.navigation.buttons["diagnose"]
    hand.is_told(4, "back to Diagnose", button)
    hand.click(button)
    tab = diagnose.view.buttons["Your own loop"]  # type: ignore[attr-defined]
    hand.is_told(5, "Choose Your own loop", tab)
    hand.click(tab)
    copy = diagnose.loop.code.copy  # type: ignore[attr-defined]
    hand.is_told(5, "Copy the two lines", copy)
    hand.click(copy)
    assert "precgui.Recorder(" in QGuiApplication.clipboard().text()
    qtbot.waitUntil(lambda: working.guide.path is None)


def test_the_three_steps_from_a_file_to_the_line_to_paste(working: Window, hand: Hand, qtbot: QtBot) -> None:
    broken = example("clip-before-unscale")
    assert broken is not None
    working.resize(1280, 800)
    working.files.open([broken.path])  # 1: chosen in the dialog of Open, or dropped
    hand.click(working.navigation.buttons["diagnose"])  # 2
    diagnose = working.host.panels["diagnose"]
    qtbot.waitUntil(lambda: bool(diagnose.cards))  # type: ignore[attr-defined]
    hand.click(diagnose.cards[0].code.copy)  # type: ignore[attr-defined]  # 3
    assert QGuiApplication.clipboard().text().endswith("\nscaler.unscale_(optimizer)")


def test_the_path_to_formats_for_deployment(
    working: Window, trainer: Trainer, hand: Hand, qtbot: QtBot, tmp_path: Path
) -> None:
    hand.open_card("formats")
    quantise = working.host.panels["formats"].tab_named("quantise")  # type: ignore[attr-defined]
    hand.is_told(1, "Open a .safetensors", quantise.source.file)
    np.save(tmp_path / "weights.npy", np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))
    quantise.source.file.open_file(tmp_path / "weights.npy")
    hand.is_told(2, "Choose another format", quantise.scheme)
    qtbot.keyClicks(quantise.scheme, "nf4")
    setup = working.host.load("setup")
    hand.is_told(3, "Choose digits-int8")
    assert working.guide.call_out is not None and working.guide.call_out.go.isVisible()
    hand.click(working.guide.call_out.go)
    assert working.host.current == "setup"
    hand.is_told(3, "Choose digits-int8", setup.recipes)  # type: ignore[attr-defined]
    qtbot.keyClicks(setup.recipes, "digits-int8")  # type: ignore[attr-defined]
    hand.is_told(3, "Start it", setup.start_button)  # type: ignore[attr-defined]
    hand.click(setup.start_button)  # type: ignore[attr-defined]
    assert trainer.asked[0].precision == "int8-qat" and trainer.asked[0].qat.save_to == "auto"
    hand.is_told(4, "It trains")
    settings = ["device=cpu", "threads=1", "precision=int4-qat", "model.name=mlp", "train.max_steps=4",
                "record.tensors=false", "qat.save_to=auto"]  # fmt: skip
    (tmp_path / "runs").mkdir(exist_ok=True)
    Job(configs.load("digits-quick", settings), tmp_path / "runs" / "few.h5").run()
    trainer.finish()
    hand.click(working.navigation.buttons["library"])
    library = working.host.panels["library"]
    library.refresh()  # type: ignore[attr-defined]
    qtbot.waitUntil(lambda: library.table.rowCount() == 1)  # type: ignore[attr-defined]
    view = library.view  # type: ignore[attr-defined]
    hand.is_told(4, "Choose the run", view)
    hand.click(view.viewport(), view.visualRect(view.model().index(0, 0)).center())
    integers = library.actions_["integers"]  # type: ignore[attr-defined]
    (button,) = [each for each in library.bar.findChildren(QToolButton) if each.defaultAction() is integers]  # type: ignore[attr-defined]
    qtbot.waitUntil(lambda: working.guide.target is button)
    hand.click(button)
    qtbot.waitUntil(lambda: bool(working.findChildren(IntegerDialog)))
    qtbot.waitUntil(lambda: working.guide.path is None)
    for dialog in working.findChildren(IntegerDialog):
        dialog.close()


def test_that_a_script_of_ones_own_leads_to_the_lines_and_to_compare(
    working: Window, hand: Hand, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.open_card("own")
    diagnose = working.host.panels["diagnose"]
    hand.is_told(1, "Copy the two lines", diagnose.loop.code.copy)  # type: ignore[attr-defined]
    hand.click(diagnose.loop.code.copy)  # type: ignore[attr-defined]
    assert "precgui.Recorder(" in QGuiApplication.clipboard().text()
    hand.is_told(2, "once under autocast to BF16")
    recorded = [example(name) for name in ("scale-collapse", "clip-before-unscale")]
    paths = [each.path for each in recorded if each is not None]
    monkeypatch.setattr(working.files, "ask", lambda: working.files.open(paths))
    assert working.guide.call_out is not None
    hand.click(working.guide.call_out.go)
    button = working.navigation.buttons["compare"]
    hand.is_told(3, "what BF16 changes", button)
    hand.click(button)
    qtbot.waitUntil(lambda: working.guide.path is None)


def test_that_every_recipe_of_the_gallery_can_be_the_choice(
    working: Window, trainer: Trainer, hand: Hand, qtbot: QtBot
) -> None:
    for name in RECIPES:
        first, second = recipe_pair(name)
        assert first.precision == "fp32" != second.precision
    hand.open_card("unsure")
    gallery = working.findChild(RecipeGallery)
    assert gallery is not None
    gallery.reject()
    assert working.guide.sheet is not None and working.guide.path is None
    hand.click(working.guide.sheet.precision.choices["unsure"])
    gallery = working.findChildren(RecipeGallery)[-1]
    (item,) = gallery.list.findItems("digits-int8", Qt.MatchFlag.MatchExactly)
    gallery.list.setCurrentItem(item)
    hand.click(gallery.use_button)
    hand.is_told(1, "fp32 trains, int8-qat follows")
    assert working.guide.sheet is None and trainer.asked[0].train.epochs == RECIPES["digits-int8"][1].train.epochs


def test_that_the_sheet_measures_and_draws_the_rates(
    working: Window, hand: Hand, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    working.resize(1280, 800)
    asked: list[object] = []
    hardware = working.host.load("hardware")
    tab = hardware.measured()  # type: ignore[attr-defined]
    monkeypatch.setattr(tab, "start", asked.append)
    working.actions_.by_id["help.first_steps"].trigger()
    sheet = working.guide.sheet
    assert sheet is not None
    card = sheet.precision
    qtbot.waitUntil(lambda: "not measured yet" in card.machine.text())
    assert "on two cores" in card.choices["pictures"].text() and card.bars.isHidden()
    hand.click(card.measure)
    qtbot.waitUntil(lambda: bool(asked))
    assert asked == [{"formats": ("fp32", "bf16"), "sizes": (512, 1024), "parts": ("gemm",)}]
    tab.moved.emit(2, 4)
    assert card.progress.value() == 2 and not card.measure.isEnabled()
    name = tab.device.currentText()
    rates = [{"format": fmt, "m": 512, "tops": tops, "note": ""} for fmt, tops in (("fp32", 0.04), ("bf16", 0.1))]
    parts = dict.fromkeys(("certificate", "alignment", "conversions", "blocks"), ())
    empty: dict[str, object] = {part: list(rows) for part, rows in parts.items()}
    about = {"id": "cpu", "name": name, "kind": "cpu"}
    started = "2026-01-01T10:00:00"
    result = {"schema": 1, "started": started, "device": about, "torch": "2", "threads": 1, "copy": None, **empty}
    measured.keep({**result, "gemm": rates})
    tab.kept.emit()
    tab.over.emit("")
    qtbot.waitUntil(lambda: not card.bars.isHidden())
    assert card.bars.accessibleDescription() == "FP32 40 Gop/s; BF16, 2.5 x FP32 100 Gop/s"
    assert card.measure.isHidden() and card.progress.isHidden()


def test_that_a_timed_work_tells_its_time_here(
    working: Window, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = {"fp32": 0.01, "bf16-amp": 0.02}

    def timed(config: RunConfig, precision: str, _: str = "") -> StepTime:
        return StepTime(times[precision], 100, "2026-01-01", precision)

    monkeypatch.setattr(outlook, "step_time", timed)
    working.actions_.by_id["help.first_steps"].trigger()
    sheet = working.guide.sheet
    assert sheet is not None
    steps = 100 * RECIPES["digits-quick"][1].train.epochs
    assert sheet.precision.choices["pictures"].text() == f"Images\n{wait_text(0.03 * steps)} here"
