"""The Tensors panel: what was recorded, drawn and foretold; the slider; runs that go on; nothing recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QCoreApplication, Qt, QTimer
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import EXPONENT_BINS, TENSOR_KINDS, TENSOR_STATS, Event, Incident, RunEnded, RunStarted, TensorStats
from precgui.gui.panels.formats import FormatsPanel
from precgui.gui.panels.formats.bits import BitsTab
from precgui.gui.panels.inspect.tensors import incremental_reader as reading
from precgui.gui.panels.inspect.tensors import panel as panel_module
from precgui.gui.panels.inspect.tensors.model import AMAX, CHANGED, LOST_BF16, NAME, OVERFLOW, SAFE, UNDERFLOW
from precgui.gui.panels.inspect.tensors.panel import TensorsPanel
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.tensors.grouping import ALL
from precgui.runs.tensors.overview import FEWEST_COLUMNS, MOST_COLUMNS
from tests.gui.conftest import write_run
from tests.gui.theme_changes import change_theme
from tests.runs.synthetic import live_run, open_writer

NAMES = ("a.weight", "b.weight")


def event(step: int, kind: str = "gradient") -> TensorStats:
    """a.weight: 60 elements near 2^-10 and 40 near 2^-30; b.weight: 50 near 2^4 and 50 zeros."""
    exponents = np.zeros((2, EXPONENT_BINS), "<u4")
    exponents[0, [127 - 10, 127 - 30]] = 60, 40
    exponents[1, [127 + 4, 0]] = 50, 50
    stats = np.zeros((2, len(TENSOR_STATS)))
    stats[:, TENSOR_STATS.index("count")] = 100
    stats[:, TENSOR_STATS.index("amax")] = 1.5 * 2.0**-10, 1.5 * 2.0**4
    stats[:, TENSOR_STATS.index("zeros")] = 0, 50
    stats[:, TENSOR_STATS.index("changed")] = 0.25, 0.75
    stats[:, TENSOR_STATS.index("lost_bf16")] = 0.9, 0.1
    return TensorStats(step, step / 10, kind, NAMES, (1, 1), stats.tobytes(), exponents.tobytes())


def recorded(path: Path, steps: int = 30, precision: str = "fp32") -> Path:
    events: list[Event] = [RunStarted(0.0, steps, steps, "cpu"), *(event(step) for step in range(1, steps + 1))]
    with open_writer(path, RunConfig(precision=precision)) as emit:
        for each in [*events, event(steps, "update"), RunEnded(9.0, "completed")]:
            emit(each)
    return path


@pytest.fixture
def session(qtbot: QtBot) -> Session:
    return Session()


@pytest.fixture
def panel(qtbot: QtBot, session: Session) -> TensorsPanel:
    made = TensorsPanel(session)
    session.runs.added.connect(made.show_run)
    qtbot.addWidget(made)
    made.resize(1200, 700)
    made.show()
    qtbot.waitExposed(made)
    return made


def cell(panel: TensorsPanel, row: int, column: int) -> str:
    return str(panel.table.data(panel.table.index(row, column)))


def drag(panel: TensorsPanel, scale: int) -> None:
    """Move the slider and wait for the answer."""
    panel.bar.slider.setValue(scale)
    wait(panel)


def wait(panel: TensorsPanel) -> None:
    pace = panel.bar.findChild(QTimer, "pace")
    while pace.isActive():
        QCoreApplication.processEvents()


def test_that_an_empty_panel_says_what_to_do(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    assert panel.empty.isVisible()
    assert "start one" in panel.empty.text.text()
    session.runs.open_file(write_run(tmp_path / "plain.h5"))
    assert panel.empty.isVisible()
    assert "record.tensors" in panel.empty.text.text()


def test_that_every_tensor_is_listed_with_what_the_format_would_do(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    assert [cell(panel, row, NAME) for row in range(3)] == [ALL, *NAMES]
    assert [cell(panel, row, UNDERFLOW) for row in range(3)] == ["20 %", "40 %", "0 %"]
    assert cell(panel, 1, AMAX) == "1.46e-03"
    assert "20 % of all gradients become zero" in panel.verdict.text()
    drag(panel, 6)
    assert [cell(panel, row, UNDERFLOW) for row in range(3)] == ["0 %"] * 3
    drag(panel, 12)
    assert [cell(panel, row, OVERFLOW) for row in range(3)] == ["25 %", "0 %", "50 %"]
    assert [cell(panel, row, SAFE) for row in range(3)] == ["2¹¹", "2²⁵", "2¹¹"]
    assert "The largest safe scale is 2¹¹." in panel.verdict.text()
    assert "lower bound" not in panel.verdict.text()
    drag(panel, -1)
    assert "lower bound" in panel.verdict.text()
    panel.bar.format_choice.setCurrentText("bf16")
    wait(panel)
    assert cell(panel, 1, UNDERFLOW) == "0 %"


def test_that_the_picture_follows_the_list_and_the_lines_the_slider(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    panel.list.choose(1)
    image = panel.spectrogram.image
    bottom = round(image.mapRectToView(image.boundingRect()).y())
    drawn = np.flatnonzero(image.image.max(0)) + bottom
    assert drawn.tolist() == [-30, -10]
    drag(panel, 3)
    assert panel.spectrogram.lines["zero"].value() == -25 - 3
    assert panel.spectrogram.lines["overflow"].value() == pytest.approx(16 - 3, abs=0.01)
    panel.spectrogram.step_chosen.emit(11.6)
    assert panel.moment.text.text() == "a.weight, step 12"
    assert panel.moment.histogram.bars.opts["height"][[0, -1]].tolist() == [0.4, 0.6]


def test_that_the_list_is_sorted_by_a_click_and_keeps_the_choice(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    panel.list.sortByColumn(UNDERFLOW, Qt.SortOrder.DescendingOrder)
    assert [panel.list.order.index(row, NAME).data() for row in range(3)] == [ALL, "a.weight", "b.weight"]
    panel.list.choose(2)
    drag(panel, 6)
    assert panel.list.chosen() == 2


def test_that_updates_show_how_much_changed_and_would_be_lost(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    assert panel.list.isColumnHidden(CHANGED)
    assert panel.list.isColumnHidden(LOST_BF16)
    panel.bar.kind_choice.setCurrentIndex(panel.bar.kind_choice.findData("update"))
    panel.bar.kind_choice.activated.emit(1)
    assert not panel.list.isColumnHidden(CHANGED)
    assert [cell(panel, row, CHANGED) for row in range(3)] == ["50 %", "25 %", "75 %"]
    assert not panel.list.isColumnHidden(LOST_BF16)
    assert [cell(panel, row, LOST_BF16) for row in range(3)] == ["30 %", "90 %", "10 %"]
    panel.bar.format_choice.setCurrentText("bf16")
    qtbot.waitUntil(lambda: "rounded to nearest: 30 % in bf16." in panel.verdict.text())


def odd(step: int) -> TensorStats:
    """As `event`, but a.weight has 2 NaN and 1 Inf, and one element of b.weight is as large as 2^100."""
    plain = event(step)
    stats = np.frombuffer(plain.stats).reshape(2, -1).copy()
    exponents = np.frombuffer(plain.exponents, "<u4").reshape(2, -1).copy()
    stats[0, [TENSOR_STATS.index("nan"), TENSOR_STATS.index("pos_inf")]] = 2, 1
    stats[1, TENSOR_STATS.index("amax")] = 2.0**100
    exponents[0, 255], exponents[1, 127 + 100] = 3, 1
    return TensorStats(step, step / 10, "gradient", NAMES, (1, 1), stats.tobytes(), exponents.tobytes())


def long_record(path: Path, steps: int, bad: int) -> Path:
    with open_writer(path) as emit:
        emit(RunStarted(0.0, steps, steps, "cpu"))
        for step in range(1, steps + 1):
            emit(odd(step) if step == bad else event(step))
            if step % 200 == 0:
                emit.flush()
        emit(RunEnded(9.0, "completed"))
    return path


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long record read in small pieces."""
    monkeypatch.setattr(reading, "MOST_AT_ONCE", 2 * FEWEST_COLUMNS)
    monkeypatch.setattr(reading, "_PIECE", 200)
    monkeypatch.setattr(reading, "_ROWS", 100)
    monkeypatch.setattr(panel_module, "SLICE_S", 0.0)


@pytest.mark.usefixtures("few")
def test_that_no_row_of_a_long_record_is_hidden(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    steps, bad = MOST_COLUMNS + 20, 334
    session.runs.open_file(long_record(tmp_path / "run.h5", steps, bad))
    assert panel.view is not None
    assert len(panel.view.steps) == FEWEST_COLUMNS
    assert f"So far {FEWEST_COLUMNS} of {steps} recorded steps are read." in panel.verdict.text()
    assert not len(panel.spectrogram.bad.data)
    qtbot.waitUntil(lambda: panel.view is not None and panel.view.rows.every == 2)
    assert "So far" not in panel.verdict.text()
    assert panel.view.histograms(0).sum() == 200 * steps + 4
    assert "NaN or Inf in step 334 in a.weight." in panel.verdict.text()
    assert [panel.spectrogram.bad.data["x"].tolist()] == [[bad]]
    assert panel.spectrogram.over.data["x"].tolist() == [bad]  # the column begins with it
    assert panel.spectrogram.image.image.max(0)[-4] > 0  # one element of 400, at 2^100
    panel.list.choose(2)
    assert not len(panel.spectrogram.bad.data)
    assert panel.spectrogram.over.data["x"].tolist() == [bad]
    panel.list.choose(1)
    assert not len(panel.spectrogram.over.data)
    panel.spectrogram.step_chosen.emit(float(bad))
    assert panel.moment.text.text() == "a.weight, step 334, 2 NaN, 1 Inf"
    assert panel.caption.text() == f"a.weight, measured at {steps} steps, up to 2 in a column"
    panel.spectrogram.step_chosen.emit(bad - 1.0)
    assert panel.moment.text.text() == "a.weight, step 333"


@pytest.mark.usefixtures("few")
def test_that_steps_that_the_events_name_are_in_the_first_picture(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    with open_writer(tmp_path / "run.h5") as emit:
        emit(RunStarted(0.0, 300, 300, "cpu"))
        for step in range(1, 301):
            emit(odd(step) if step == 117 else event(step))
        emit(Incident(11.7, 117, "nonfinite_gradient", "error", "gradients not finite"))
        emit(RunEnded(9.0, "completed"))
    session.runs.open_file(tmp_path / "run.h5")
    assert "So far" in panel.verdict.text()
    assert panel.spectrogram.bad.data["x"].tolist() == [117]


def test_that_overflow_is_marked_for_the_format_and_scale_asked_about(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    assert not len(panel.spectrogram.over.data)
    drag(panel, 12)
    assert panel.spectrogram.over.data["x"].tolist() == list(range(1, 31))
    panel.list.choose(1)
    assert not len(panel.spectrogram.over.data)


def test_that_a_live_run_adds_up_rows_that_it_no_longer_holds(
    panel: TensorsPanel, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precgui.runs.live.MOST_BYTES", 30_000)
    session.runs.add(live_run([odd(step) if step == 7 else event(step) for step in range(1, 60)]))
    assert panel.view is not None
    assert panel.view.histograms(0).sum() == 200 * 59 + 4
    assert panel.spectrogram.bad.data["x"].tolist() == [7]


def test_that_the_theme_reaches_the_pictures(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    for mode in ("dark", "light"):
        change_theme(qtbot, mode)
        assert panel.spectrogram.backgroundBrush().color().name() == themes().theme.base
        assert panel.moment.histogram.backgroundBrush().color().name() == themes().theme.base


def test_that_the_limits_of_the_format_are_named_on_the_lines(panel: TensorsPanel) -> None:
    texts = {name: line.label.textItem.toPlainText() for name, line in panel.spectrogram.lines.items()}
    assert texts == {"zero": "becomes zero below", "normal": "loses digits below", "overflow": "overflows above"}


def test_that_exact_predictions_are_told_from_bounds(panel: TensorsPanel, session: Session, tmp_path: Path) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    for scale, word in ((0, "exact"), (7, "exact"), (-1, "lower bound")):
        drag(panel, scale)
        assert panel.bar.certainty.text() == word
    assert "above the rounding noise" in panel.verdict.text()
    session.runs.open_file(recorded(tmp_path / "narrow.h5", precision="fp16-amp"))
    drag(panel, 0)
    assert panel.bar.certainty.text() == "lower bound"
    assert "Recorded in fp16-amp" in panel.verdict.text()
    assert "Recorded in fp16-amp" in panel.bar.certainty.toolTip()


def test_that_a_slider_that_is_dragged_is_answered_at_a_pace_and_in_the_end(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    wait(panel)
    answers: list[int] = []
    panel.bar.asked.connect(lambda: answers.append(panel.bar.log2_scale))
    for scale in range(1, 31):
        panel.bar.slider.setValue(scale)
    assert answers == [1]
    qtbot.waitUntil(lambda: answers == [1, 30])
    assert "2³⁰" in panel.verdict.text()


def test_that_layers_stand_in_the_list_with_what_they_hold(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    panel.list.choose(2)
    panel.bar.grouping.setCurrentText("by parameter type")
    panel.bar.grouping.activated.emit(3)
    assert [cell(panel, row, NAME) for row in range(panel.table.rowCount())] == [ALL, "weight"]
    assert [cell(panel, row, UNDERFLOW) for row in range(2)] == ["20 %", "20 %"]
    assert panel.list.chosen() == 0
    panel.list.choose(1)
    image = panel.spectrogram.image
    bottom = round(image.mapRectToView(image.boundingRect()).y())
    assert (np.flatnonzero(image.image.max(0)) + bottom).tolist() == [-30, -10, 4]


def test_that_a_number_of_a_tensor_is_shown_bit_by_bit(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    formats = FormatsPanel(session)
    qtbot.addWidget(formats)
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    drag(panel, 3)
    panel.list.choose(2)
    actions = {action.text().partition(":")[0]: action for action in panel.moment.bits.menu().actions()}
    assert set(actions) == {"Largest"}  # the others were not recorded here
    wanted: list[object] = []
    session.requests.place.connect(wanted.append)
    session.requests.number.connect(lambda number, names: wanted.append((number, names)))
    actions["Largest"].trigger()
    assert wanted == ["formats", ("192.0", ["fp16", "fp32", "bf16"])]
    bits = formats.tab(0)
    assert isinstance(bits, BitsTab)
    assert set(bits.explorer.names) == {"fp16", "fp32", "bf16"}
    panel.moment.histogram.exponent_chosen.emit(4)
    assert wanted[-1] == ("128.0", ["fp16", "fp32", "bf16"])


def test_that_tensors_of_a_run_that_another_process_writes_are_followed(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.findChild(QTimer, "follower").setInterval(20)
    panel.findChild(QTimer, "later").setInterval(20)
    monkeypatch.setattr(panel_module, "REFRESH_MS", 20)
    with open_writer(tmp_path / "run.h5") as emit:
        emit(RunStarted(0.0, 9, 9, "cpu"))
        emit(event(1))
        emit.flush()
        key = session.runs.open_file(tmp_path / "run.h5")
        for step in range(2, 2 * MOST_COLUMNS):
            emit(event(step))
        emit.flush()
        qtbot.waitUntil(lambda: panel.view is not None and panel.view.rows.every > 1)
        assert cell(panel, 0, UNDERFLOW) == "20 %"
        emit(RunEnded(1.0, "completed"))
    assert key is not None
    qtbot.waitUntil(lambda: session.runs[key].run.status == "completed")


def test_that_every_recorded_kind_of_tensor_has_its_words() -> None:
    assert panel_module.KINDS.keys() == set(TENSOR_KINDS)
