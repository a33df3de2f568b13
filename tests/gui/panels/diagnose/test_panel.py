"""The Diagnose panel: verdicts, cards, ways to the place and to the fix, two runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from precgui.config import OWN_LOOP, RunConfig
from precgui.events import Event, RunEnded, RunStarted, StepDone
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.open_run import OpenRun
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.panels.diagnose import measurement
from precgui.gui.panels.diagnose.card import meta
from precgui.gui.panels.diagnose.panel import DiagnosePanel, changed
from precgui.gui.panels.diagnose.places import PLACES
from precgui.gui.panels.diagnose.sparkline import Sparkline, broken, place, summary
from precgui.gui.session import Session
from precgui.places.tasks import TASKS
from precgui.runs.diagnosis import RULES, Evidence, Finding
from tests.fakes import FakeChild
from tests.runs.synthetic import live_run

FALLING = [2.0 * 0.95**i for i in range(60)]
BROKEN = [*FALLING[:20], *[math.nan] * 20]


def add(session: Session, key: str, losses: list[float], **config: object) -> None:
    events: list[Event] = [RunStarted(0.0, 0, 0, "cpu")]
    for step, loss in enumerate(losses, 1):
        scale, skipped = (2.0 ** (20 - min(step, 8)), step < 8) if key.startswith("fp16") else (1.0, False)
        norm = math.nan if skipped else 1.0
        events.append(StepDone(step, 0.1 * step, loss, scale, skipped, 0.1, norm, 0.1, 0.0, 8, math.nan))
    run = live_run([*events, RunEnded(9.0, "completed")], RunConfig.model_validate(config))
    session.runs.put(OpenRun(key, run, key, 0, 0))


def opened(qtbot: QtBot, session: Session) -> DiagnosePanel:
    panel = DiagnosePanel(session)
    qtbot.addWidget(panel)
    panel.resize(900, 700)
    panel.show()
    return panel


def test_that_each_open_run_has_a_sentence_and_the_chosen_one_its_cards(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    assert panel.is_empty
    add(session, "good", FALLING)
    add(session, "bad", BROKEN)
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 2)
    texts = [panel.verdicts.item(row, 1).text() for row in range(2)]
    assert panel.verdicts.keys == ["bad", "good"]  # problems come first
    assert "step 21" in texts[0]
    assert texts[1] == "Healthy", "all of the sentence stands below"
    assert panel.verdicts.item(1, 1).toolTip().startswith("No fault found. ")
    panel.verdicts.choose("bad")
    assert len(panel.cards) == 1
    assert "step 21" in panel.cards[0].title.text()
    assert panel.cards[0].findChildren(Sparkline)
    assert panel.answer.text().startswith(panel.cards[0].title.text()) and "to blame" in panel.answer.more.text()
    panel.verdicts.choose("good")
    assert panel.cards == []
    assert panel.answer.first.text() == "No fault found."
    assert panel.fold.text().startswith("Ruled out (")
    panel.fold.click()
    assert panel.ruled_out.isVisible()
    assert "divergence: because" in panel.ruled_out.text()


def test_that_one_run_tells_its_title_once(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    add(session, "bad", BROKEN)
    assert panel.answer.text() == "Reading..."
    qtbot.waitUntil(lambda: len(panel.cards) == 1)
    title = panel.cards[0].finding.title
    shown = [each for each in panel.findChildren(QLabel) if each.isVisible() and str(title) in each.text()]
    assert shown == [panel.answer.first] and panel.verdicts.isHidden()
    add(session, "good", FALLING)
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 2)
    assert panel.verdicts.isVisible() and panel.verdicts.chosen() == ["bad"]
    assert panel.cards[0].title.isHidden()
    panel.verdicts.selectAll()
    assert not any(card.title.isHidden() for card in panel.cards)


def test_that_the_run_of_a_banner_is_chosen_and_scrolled_to_among_many(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    for number in range(13):
        add(session, f"good {number}", FALLING[:30])
    add(session, "bad", BROKEN)
    panel.verdicts.choose("good 3")
    panel.show_tab("bad")
    assert panel.verdicts.chosen() == ["bad"]
    qtbot.waitUntil(lambda: "bad" in panel.diagnoses)  # before those that nobody waits for
    assert "step 21" in panel.cards[0].title.text()
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 14)
    assert panel.verdicts.keys[0] == "bad" and panel.verdicts.chosen() == ["bad"]
    row = panel.verdicts.visualItemRect(panel.verdicts.item(0, 0))
    assert panel.verdicts.viewport().rect().contains(row)
    panel.show_tab("closed meanwhile")
    assert panel.verdicts.chosen() == ["bad"]


def test_that_of_two_runs_the_difference_comes_first(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    add(session, "fp16 a", FALLING, precision="fp16-amp")
    add(session, "bad", BROKEN)
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 2)
    panel.verdicts.selectAll()
    told = [card.title.text() for card in panel.cards]
    assert any(text.startswith("Only in bad: ") for text in told)
    assert any(text.startswith("Only in fp16 a: The loss scale found its size") for text in told)


def test_that_a_fix_becomes_the_settings_of_a_new_run_but_not_of_a_loop_of_ones_own(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    add(session, "fp16", FALLING, precision="fp16-amp")
    add(session, "fp16 own", FALLING, precision="fp16-amp", task=OWN_LOOP)
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 2)
    wanted: list[RunConfig] = []
    session.requests.settings.connect(lambda config, _: wanted.append(config))
    panel.verdicts.choose("fp16")
    panel.cards[0].edit_button.click()
    assert wanted[0].scaling.initial_scale == 2.0**12
    panel.verdicts.choose("fp16 own")
    assert not panel.cards[0].fix_button.isEnabled()


def test_that_a_tried_fix_trains_and_compare_opens_with_both(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    panel, compared = opened(qtbot, session), ComparePanel(session)
    qtbot.addWidget(compared)
    add(session, "other", FALLING)
    add(session, "fp16", FALLING, precision="fp16-amp")
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 2)
    begun: list[RunConfig] = []
    monkeypatch.setattr(session.training, "start", begun.append)
    places: list[str] = []
    session.requests.place.connect(places.append)
    panel.verdicts.choose("fp16")
    panel.cards[0].fix_button.click()
    [config] = begun
    assert config.scaling.initial_scale == 2.0**12
    assert places == []
    add(session, "fixed", FALLING)
    session.runs["fixed"].run.config = config
    session.training.compare_trial("other")
    assert places == []
    session.training.compare_trial("fixed")
    assert places == ["compare"]
    compared.resize(1000, 700)
    compared.show()
    qtbot.waitUntil(lambda: [list(session.runs)[row] for row in compared.table.chosen()] == ["fp16", "fixed"])
    assert compared.baseline.currentData() == "fp16"


def test_that_a_step_is_measured_where_a_replay_decides(qtbot: QtBot, children: list[FakeChild]) -> None:
    session = Session()
    panel = opened(qtbot, session)
    add(session, "fp16 own", BROKEN, precision="fp16-pure", task=OWN_LOOP)
    add(session, "bad", BROKEN, precision="fp16-pure")
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 2)
    panel.verdicts.choose("fp16 own")
    assert panel.cards[0].finding.replay_step is None
    assert "precgui.shadow" in panel.cards[0].finding.needs
    panel.verdicts.choose("bad")
    card = panel.cards[0]
    assert card.finding.replay_step == 21
    assert not card.measure_button.isEnabled()  # no file
    session.runs["bad"].run.path = Path("run.h5")
    panel.verdicts.itemSelectionChanged.emit()
    panel.cards[0].measure_button.click()
    assert (children[0].task, children[0].arguments) == (
        TASKS["replay"],
        {"path": "run.h5", "step": 21},
    )
    assert panel.cards[0].measure_button.text() == measurement.STOP
    places: list[str] = []
    session.requests.place.connect(places.append)
    children[0].said.emit({"kind": "kept", "verdict": "problems"})
    children[0].ended.emit("")
    assert session.runs.current == "bad" and places == ["inspect/error"]
    assert panel.cards[0].measure_button.text() == measurement.MEASURE


def test_that_show_me_leads_to_the_tab_of_the_rule(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    add(session, "run", FALLING)
    parts = (
        "forward-overflow exponential-overflow overflowing-cast slow-format products-below-peak odd-sizes "
        "slower-operations cast-tax launch-bound data-wait epsilon-vanishes nonfinite-update weights-not-finite"
    )
    known = {rule.name for rule in RULES} | {*parts.split(), "no-memory-saved", "ledger-residual"}
    assert set(PLACES) <= known
    places: list[str] = []
    session.requests.place.connect(places.append)
    for rule, (tab, _) in PLACES.items():
        finding = Finding(rule, "warning", "t", 1, 2, (), "fix", 0.5, "source")
        panel.show_place("run", finding)
        assert not tab or (session.runs.current, places[-1]) == ("run", f"inspect/{tab}")


def test_that_show_me_leads_to_the_step(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    add(session, "bad", BROKEN)
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 1)
    places: list[tuple[str, float]] = []
    session.requests.step.connect(lambda key, step: places.append((key, step)))
    panel.show_place("bad", replace(panel.cards[0].finding, evidence=(), rule="no place of its own"))
    assert places == [("bad", 21.0)]


def test_that_a_run_that_goes_on_is_judged_again(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    add(session, "run", FALLING)
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 1)
    panel.findChild(QTimer, "later").setInterval(0)
    run = session.runs["run"].run
    run.extend([StepDone(61, 7.0, math.nan, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan)])  # type: ignore[attr-defined]
    session.runs.data_arrived.emit("run")
    qtbot.waitUntil(lambda: panel.diagnoses["run"].verdict == "problems")
    assert len(panel.cards) == 1


def test_that_a_curve_breaks_where_values_are_not_finite() -> None:
    evidence = Evidence("f", {}, "text", "loss", ((1, 1.0), (2, 3.0), (3, math.nan), (4, 2.0)), 2.5)
    parts = place(evidence, 100, 50)
    assert [len(part) for part in parts] == [2, 1]
    assert parts[0][1][1] < parts[0][0][1]
    assert len(broken(evidence, 100)) == 1
    assert "; 1 of 4 points are not finite" in summary(evidence)


def test_that_changes_keep_everything_else() -> None:
    config = RunConfig(title="mine")
    new = changed(config, {"optimizer.lr": 0.5, "precision_options.keep_fp32": ["head"]})
    assert (new.optimizer.lr, new.precision_options.keep_fp32) == (0.5, ["head"])
    assert new.title == "mine, lr 0.5, keep fp32 ['head']"
    assert changed(RunConfig(), {"optimizer.lr": 3}).title == "digits cnn fp32, lr 3"
    assert changed(RunConfig(), {"precision": "bf16-amp"}).title == ""
    assert new.model == config.model


def test_that_a_run_that_was_broken_off_says_where_it_went_on(qtbot: QtBot) -> None:
    session = Session()
    panel = opened(qtbot, session)
    started = RunStarted(0.0, 0, 0, "cpu", {"breaks": [{"step": 40, "lost_steps": 2}]})
    steps = [StepDone(step, 0.1 * step, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan) for step in range(1, 50)]
    run = live_run([started, *steps, RunEnded(9.0, "completed")])
    session.runs.put(OpenRun("cut", run, "cut", 0, 0))
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 1)
    panel.verdicts.choose("cut")
    shown = [label.text() for label in panel.findChildren(PlainLabel) if label.isVisibleTo(panel)]
    assert any("cut went on from a checkpoint after step 40" in text for text in shown)


def test_that_the_curve_of_a_constant_does_not_magnify_its_last_digits() -> None:
    nearly = Evidence("x", {}, "x", series=((1, 1.0), (2, 1.0 + 1e-7), (3, 1.0)))
    heights = [y for part in place(nearly, 100, 44) for _, y in part]
    assert max(heights) - min(heights) < 0.1
    real = Evidence("x", {}, "x", series=((1, 1.0), (2, 1.1), (3, 1.0)))
    heights = [y for part in place(real, 100, 44) for _, y in part]
    assert max(heights) - min(heights) > 20


def test_that_the_module_of_a_finding_is_called_one() -> None:
    """Of a Sequential its name is a number, which stood alone between dots."""
    finding = Finding("divergence", "error", "It diverged", 4, 190, (), "Lower the rate.", 0.9, "docs", "0")
    assert " · module 0 · " in meta(finding)
