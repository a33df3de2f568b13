"""The end of a run in Live: its result and the next step; and plots only of what is recorded."""

from __future__ import annotations

import math
from pathlib import Path

from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import Evaluated, Event, RunEnded, RunStarted, StepDone
from precgui.gui.kit.caveat import CaveatLabel
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.session import Session
from tests.gui.conftest import write_run
from tests.runs.synthetic import live_run


def trained(session: Session, precision: str, run_id: str, *, scales: bool = False, lost: bool = False) -> str:
    """A run that was trained in the window and has ended; returns its key."""
    events: list[Event] = [RunStarted(0.0, 4, 2, "cpu")]
    for step in range(1, 5):
        loss = math.nan if lost and step > 2 else 1 / step
        scale = 2.0 ** (16 - step) if scales else 1.0
        events.append(StepDone(step, 0.1 * step, loss, scale, False, 0.05, 1.0, 0.09, 0.01, 64, math.nan))
    events += [Evaluated(4, 2, 0.5, 0.3, 0.75), RunEnded(0.5, "completed")]
    run = live_run(events, RunConfig.model_validate({"precision": precision}))
    run.run_id = run_id
    key = session.runs.add(run)
    session.runs.choose(key)
    return key


def shown(qtbot: QtBot, session: Session) -> LivePanel:
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.resize(1200, 800)
    panel.show()
    return panel


def titles(panel: LivePanel) -> list[str]:
    return [frame.chart.signal.key for frame in panel.plots.frames if frame.isVisible()]


def test_that_the_end_of_a_run_is_told_with_its_metric_and_the_next_run(qtbot: QtBot) -> None:
    session = Session()
    panel = shown(qtbot, session)
    key = trained(session, "bf16-amp", "one")
    card = panel.end_card
    assert card.isVisible() and "completed: accuracy 75.00 % in 500 ms." in card.text.text()
    asked: list[tuple[str, str]] = []
    session.training.try_fix = lambda config, key: asked.append((config.precision, key))
    assert card.other.text() == "Run fp32 too" and not card.compare.isVisible()
    card.other.click()
    assert asked == [("fp32", key)]
    base = trained(session, "fp32", "two")
    assert card.compare.isVisible() and not card.other.isVisible()
    places: list[object] = []
    session.requests.place.connect(places.append)
    session.requests.pair.connect(lambda *pair: places.append(pair))
    card.compare.click()
    assert places == ["compare", (base, key)]
    card.close_button.click()
    session.runs.choose(key)
    assert card.isVisible()
    session.runs.choose(base)
    assert not card.isVisible()  # it was closed


def test_that_a_run_that_lost_its_numbers_is_not_called_completed_alone(qtbot: QtBot) -> None:
    session = Session()
    panel = shown(qtbot, session)
    key = trained(session, "fp16-amp", "one", lost=True)
    assert "completed, NaN since step 3" in panel.end_card.text.text()
    places: list[str] = []
    session.requests.place.connect(places.append)
    panel.end_card.diagnose.click()
    assert places == [f"diagnose/{key}"]


def test_that_a_saved_run_has_no_end_card(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = shown(qtbot, session)
    session.runs.open_file(write_run(tmp_path / "saved.h5"))
    assert not panel.end_card.isVisible()


def test_that_plots_without_a_record_are_shown_on_request_only(qtbot: QtBot) -> None:
    session = Session()
    panel = shown(qtbot, session)
    trained(session, "fp32", "one")
    assert titles(panel) == ["loss", "val_accuracy"]
    trained(session, "fp16-amp", "two", scales=True)
    assert titles(panel) == ["loss", "val_accuracy", "scale"]
    panel.all_plots.click()
    assert titles(panel) == ["loss", "val_accuracy", "scale", "events", "power"]
    panel.all_plots.click()
    panel.plots.frames[1].show_signal("lr")
    assert titles(panel) == ["loss", "lr", "scale"]


def test_that_caveats_take_one_line_until_they_are_unfolded(qtbot: QtBot) -> None:
    label = CaveatLabel(folded=True)
    qtbot.addWidget(label)
    label.resize(300, 100)
    label.set_text("FP16 is emulated in 4 layers. " * 6)
    label.show()
    qtbot.waitUntil(lambda: label.first.isVisible() and label.first.width() > 100)
    assert label.text.isHidden() and label.more.text() == "More"
    assert label.first.shown.startswith("FP16 is emulated in") and label.first.shown.endswith("…")
    label.more.click()
    assert label.first.isHidden() and label.text.isVisible() and label.more.text() == "Less"
    label.set_text("Short.")
    assert label.text.isVisible() and label.first.isHidden() and not label.more.isVisible()
