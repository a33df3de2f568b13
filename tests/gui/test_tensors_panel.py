"""The Tensors panel: what was recorded, drawn and foretold; the slider; runs that go on; nothing recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from precgui.events import EXPONENT_BINS, TENSOR_STATS, Event, RunEnded, RunStarted, TensorStats
from precgui.gui.panels.tensors import TensorsPanel
from precgui.gui.panels.tensors_table import AMAX, CHANGED, NAME, OVERFLOW, SAFE, UNDERFLOW, share_text
from precgui.gui.panels.tensors_view import ALL, MOST_ROWS
from precgui.gui.state import State
from precgui.gui.theme import themes
from tests.gui.conftest import write_run
from tests.runs.synthetic import open_writer

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
    return TensorStats(step, step / 10, kind, NAMES, (1, 1), stats.tobytes(), exponents.tobytes())


def recorded(path: Path, steps: int = 30) -> Path:
    events: list[Event] = [RunStarted(0.0, steps, steps, "cpu"), *(event(step) for step in range(1, steps + 1))]
    with open_writer(path) as emit:
        for each in [*events, event(steps, "update"), RunEnded(9.0, "completed")]:
            emit(each)
    return path


@pytest.fixture
def state(qtbot: QtBot) -> State:
    return State()


@pytest.fixture
def panel(qtbot: QtBot, state: State) -> TensorsPanel:
    made = TensorsPanel(state)
    qtbot.addWidget(made)
    made.resize(1200, 700)
    made.show()
    qtbot.waitExposed(made)
    return made


def cell(panel: TensorsPanel, row: int, column: int) -> str:
    return str(panel.table.data(panel.table.index(row, column)))


def test_that_an_empty_panel_says_what_to_do(panel: TensorsPanel, state: State, tmp_path: Path, qtbot: QtBot) -> None:
    assert panel.empty.isVisible()
    assert "start one" in panel.empty.text.text()
    state.open_file(write_run(tmp_path / "plain.h5"))
    assert panel.empty.isVisible()
    assert "record.tensors" in panel.empty.text.text()
    with qtbot.waitSignal(state.panel_wanted):
        panel.empty.button.click()


def test_that_every_tensor_is_listed_with_what_the_format_would_do(
    panel: TensorsPanel, state: State, tmp_path: Path
) -> None:
    state.open_file(recorded(tmp_path / "run.h5"))
    assert [cell(panel, row, NAME) for row in range(3)] == [ALL, *NAMES]
    assert [cell(panel, row, UNDERFLOW) for row in range(3)] == ["20 %", "40 %", "0 %"]
    assert cell(panel, 1, AMAX) == "1.46e-03"
    assert "20 % of all gradients become zero" in panel.verdict.text()
    panel.slider.setValue(6)
    assert [cell(panel, row, UNDERFLOW) for row in range(3)] == ["0 %"] * 3
    panel.slider.setValue(12)
    assert [cell(panel, row, OVERFLOW) for row in range(3)] == ["25 %", "0 %", "50 %"]
    assert [cell(panel, row, SAFE) for row in range(3)] == ["2¹¹", "2²⁵", "2¹¹"]
    assert "The largest safe scale is 2¹¹." in panel.verdict.text()
    assert "lower bound" not in panel.verdict.text()
    panel.slider.setValue(-1)
    assert "lower bound" in panel.verdict.text()
    panel.format_choice.setCurrentText("bf16")
    assert cell(panel, 1, UNDERFLOW) == "0 %"


def test_that_the_picture_follows_the_list_and_the_lines_the_slider(
    panel: TensorsPanel, state: State, tmp_path: Path
) -> None:
    state.open_file(recorded(tmp_path / "run.h5"))
    panel.list.choose(1)
    image = panel.spectrogram.image
    bottom = round(image.mapRectToView(image.boundingRect()).y())
    drawn = np.flatnonzero(image.image.max(0)) + bottom
    assert drawn.tolist() == [-30, -10]
    panel.slider.setValue(3)
    assert panel.spectrogram.lines["zero"].value() == -25 - 3
    assert panel.spectrogram.lines["overflow"].value() == pytest.approx(16 - 3, abs=0.01)
    panel.spectrogram.step_chosen.emit(11.6)
    assert panel.moment.text() == "a.weight, step 12"
    assert panel.histogram.bars.opts["height"][[0, -1]].tolist() == [0.4, 0.6]


def test_that_the_list_is_sorted_by_a_click_and_keeps_the_choice(
    panel: TensorsPanel, state: State, tmp_path: Path
) -> None:
    state.open_file(recorded(tmp_path / "run.h5"))
    panel.list.sortByColumn(UNDERFLOW, Qt.SortOrder.DescendingOrder)
    assert [panel.list.order.index(row, NAME).data() for row in range(3)] == ["a.weight", ALL, "b.weight"]
    panel.list.choose(2)
    panel.slider.setValue(6)
    assert panel.list.chosen() == 2


def test_that_updates_show_how_much_changed(panel: TensorsPanel, state: State, tmp_path: Path) -> None:
    state.open_file(recorded(tmp_path / "run.h5"))
    assert panel.list.isColumnHidden(CHANGED)
    panel.kind_choice.setCurrentIndex(panel.kind_choice.findData("update"))
    panel.kind_choice.activated.emit(1)
    assert not panel.list.isColumnHidden(CHANGED)
    assert [cell(panel, row, CHANGED) for row in range(3)] == ["50 %", "25 %", "75 %"]


def test_that_a_long_run_says_how_it_is_thinned(panel: TensorsPanel, state: State, tmp_path: Path) -> None:
    state.open_file(recorded(tmp_path / "run.h5", steps=MOST_ROWS + 10))
    assert panel.view is not None
    assert len(panel.view.steps) == MOST_ROWS / 2 + 5
    assert "one of 2 recorded steps" in panel.moment.text()


def test_that_the_theme_reaches_the_pictures(panel: TensorsPanel, state: State, tmp_path: Path) -> None:
    state.open_file(recorded(tmp_path / "run.h5"))
    for mode in ("dark", "light"):
        themes().set_mode(mode)  # type: ignore[arg-type]
        assert panel.spectrogram.backgroundBrush().color().name() == themes().theme.base
        assert panel.histogram.backgroundBrush().color().name() == themes().theme.base


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (1e-9, "< 0.01 %"), (0.0123, "1.23 %"), (0.5, "50 %"), (1.0, "100 %")]
)
def test_that_a_share_is_read_at_a_glance(share: float, text: str) -> None:
    assert share_text(share) == text


def test_that_the_limits_of_the_format_are_named_on_the_lines(panel: TensorsPanel) -> None:
    texts = {name: line.label.textItem.toPlainText() for name, line in panel.spectrogram.lines.items()}
    assert texts == {"zero": "becomes zero below", "normal": "loses digits below", "overflow": "overflows above"}
