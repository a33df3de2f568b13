"""The Compare panel: figures and curves of the open runs beside those of a baseline."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PySide6.QtCore import QItemSelectionModel
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import Evaluated, Metric, RunEnded, RunStarted
from precgui.examples import EXAMPLES
from precgui.gui.format_colours import precision_colour
from precgui.gui.open_run import OpenRun
from precgui.gui.panels.compare.curves import BASELINE_PX, LINE_PX
from precgui.gui.panels.compare.panel import READ_AT_ONCE, ComparePanel
from precgui.gui.panels.compare.table import COLUMNS, DIFFERENCE, METRIC, WIDEST_PX
from precgui.gui.plots.chart import colour_of, dash_of
from precgui.gui.plots.export import swatch_icon
from precgui.gui.session import Session
from precgui.gui.theme import themes
from tests.gui.conftest import write_run
from tests.gui.plotted import items, training_run
from tests.runs.synthetic import live_run


def test_that_open_runs_stand_side_by_side_with_their_baseline(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    assert panel.is_empty
    for precision in ("bf16-amp", "fp32"):
        session.runs.open_file(write_run(tmp_path / f"{precision}.h5", f"in {precision}", precision))
    assert not panel.is_empty
    heads = [panel.table.verticalHeaderItem(row) for row in range(2)]
    assert [head.text() for head in heads if head] == ["in bf16-amp", "in fp32 (baseline)"]
    speed_up = [each.title for each in COLUMNS].index("Speed-up")
    cells = [panel.table.item(row, speed_up) for row in range(2)]
    assert [cell.text() for cell in cells if cell] == ["1.00x", "1.00x"]
    panel.baseline.setCurrentIndex(1)
    panel.baseline.activated.emit(1)
    heads = [panel.table.verticalHeaderItem(row) for row in range(2)]
    assert [head.text() for head in heads if head] == ["in bf16-amp (baseline)", "in fp32"]
    for key in list(session.runs):
        session.runs.close(key)
    qtbot.waitUntil(lambda: panel.is_empty)


def test_that_a_name_uses_the_room_that_the_row_of_the_baseline_takes(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.resize(700, 600)
    panel.show()
    for precision, title in (("fp32", "digits cnn in fp32"), ("bf16-amp", "digits cnn in bf16-amp")):
        session.runs.open_file(write_run(tmp_path / f"{precision}.h5", title, precision))
    heads = [panel.table.verticalHeaderItem(row) for row in range(2)]
    shown = [head.text() for head in heads if head]
    assert shown[1] == "digits cnn in bf16-amp" and shown[0].endswith(" (baseline)")


def test_that_a_pair_is_chosen_also_where_somebody_looks_at_the_panel_already(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    for precision in ("bf16-amp", "fp32"):
        session.runs.open_file(write_run(tmp_path / f"{precision}.h5", f"in {precision}", precision))
    qtbot.wait(50)  # all turns that the runs have asked for
    base, other = session.runs
    session.requests.compare(base, other)
    qtbot.waitUntil(lambda: panel.table.chosen() == [0, 1])
    assert panel.baseline.currentData() == base


def test_that_many_runs_are_read_a_few_in_a_turn(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    for number in range(READ_AT_ONCE + 2):
        session.runs.open_file(write_run(tmp_path / f"{number}.h5", f"run {number}"))
    panel.show()
    panel.refresh()
    assert not panel.is_empty
    assert panel.answer.answer.text() == f"Reading the figures of the open runs: 2 of {READ_AT_ONCE + 2} are left."
    assert panel.table.rowCount() == 0
    qtbot.waitUntil(lambda: panel.table.rowCount() == READ_AT_ONCE + 2)
    assert "Reading the figures" not in panel.answer.answer.text()


def test_that_the_metric_is_called_as_the_tasks_call_it(qtbot: QtBot) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    error = Metric("error", "Error", "distance", unit="mm", higher_is_better=False)

    def add(key: str, value: float, metric: Metric) -> None:
        started = RunStarted(0.0, 1, 1, "cpu", {"metric": asdict(metric)})
        run = live_run([started, Evaluated(1, 1, 1.0, 0.5, value), RunEnded(1.0, "completed")])
        run.run_id = key
        session.runs.put(OpenRun(key, run, key, 0, 0))

    def column(number: int) -> list[str]:
        heading = panel.table.horizontalHeaderItem(number)
        cells = [panel.table.item(row, number) for row in range(panel.table.rowCount())]
        return [item.text() for item in (heading, *cells) if item]

    add("a", 2.5, error)
    add("b", 2.0, error)
    assert column(METRIC) == ["Error", "2.5 mm", "2 mm"]
    assert column(DIFFERENCE) == ["Difference (lower is better)", "+0 mm", "-0.5 mm (one seed)"]
    assert not panel.answer.note.isVisible()
    panel.answer.fold.click()
    assert panel.answer.note.isVisible()
    assert "one seed is no measurement" in panel.answer.note.text()
    assert "different metrics" not in panel.answer.note.text()
    add("c", 0.5, Metric("iou", "Mean IoU", "overlap"))
    assert column(METRIC) == ["Metric", "error 2.5 mm", "error 2 mm", "mean IoU 50.00 %"]
    assert column(DIFFERENCE) == [
        "Difference",
        "+0 mm",
        "-0.5 mm (one seed)",
        "withheld: another metric: Mean IoU, not Error",
    ]
    assert panel.answer.note.isVisible()
    assert panel.answer.note.text().startswith("• The runs have different metrics (Error, Mean IoU)")


# The curves ------------------------------------------------------------------------------------------------


@pytest.fixture
def beside(qtbot: QtBot) -> ComparePanel:
    """A baseline of 1000 steps, a run of 400, and one whose loss is NaN from step 601 on."""
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.resize(1100, 800)
    panel.show()
    runs = {name: training_run(name, count, seed) for seed, (name, count) in enumerate(LENGTHS.items())}
    runs["broken"].values["loss"][600:] = np.nan
    for index, (name, run) in enumerate(runs.items()):
        session.runs.put(OpenRun(name, run, name, index, index))
    panel.curves.plots.draw_pending()
    return panel


LENGTHS = {"baseline": 1000, "short": 400, "broken": 1000}


def drawn(panel: ComparePanel, plot: int) -> dict[str, SimpleNamespace]:
    chart = panel.curves.plots.frames[plot].chart
    keys = {opened.name: opened.key for opened in chart.runs}
    return {
        name: SimpleNamespace(**{kind: next(iter(items(chart, kind, key)), None) for kind in ("line", "edge", "end")})
        for name, key in keys.items()
    }


def recorded(panel: ComparePanel, plot: int, name: str) -> np.ndarray:
    """The values of a run as they are exported from a plot."""
    return np.array([row.value for row in panel.curves.plots.frames[plot].chart.rows() if row.run == name], np.float64)


def test_that_the_losses_lie_over_one_another_and_the_baseline_is_the_broad_line(beside: ComparePanel) -> None:
    parts = drawn(beside, 0)
    widths = {name: part.line.opts["pen"].widthF() for name, part in parts.items()}
    assert widths == {"baseline": BASELINE_PX, "short": LINE_PX, "broken": LINE_PX}
    ends = {name: part.end.getData()[0].tolist() for name, part in parts.items()}
    assert ends == {"baseline": [1000.0], "short": [400.0], "broken": [600.0]}
    marks = {name: len(part.edge.getData()[0]) if part.edge else 0 for name, part in parts.items()}
    assert marks["broken"] > 0
    assert marks["baseline"] == marks["short"] == 0
    loss = training_run("short", 400, 1).values["loss"]
    np.testing.assert_allclose(recorded(beside, 0, "short")[-1], loss[-50:].mean())  # one epoch of the baseline
    assert beside.curves.caption.text() == "Training loss: mean over 50 steps"


def test_that_the_second_plot_tells_how_far_a_run_is_from_the_baseline(beside: ComparePanel) -> None:
    assert not recorded(beside, 1, "baseline").any()
    assert len(recorded(beside, 1, "short")) == 400
    means = {name: recorded(beside, 0, name) for name in ("short", "baseline")}
    np.testing.assert_allclose(recorded(beside, 1, "short"), means["short"] - means["baseline"][:400])
    beside.baseline.setCurrentIndex(2)
    beside.baseline.activated.emit(2)
    beside.curves.plots.draw_pending()
    assert not recorded(beside, 1, "short").any()
    assert len(recorded(beside, 1, "baseline")) == 400


def test_that_selected_rows_are_drawn_alone_beside_the_baseline(beside: ComparePanel) -> None:
    assert not beside.curves.all_runs.isVisible()
    flags = QItemSelectionModel.SelectionFlag  # selectRow() would heed a key that an earlier test left pressed
    beside.table.selectionModel().select(beside.table.model().index(1, 0), flags.ClearAndSelect | flags.Rows)
    assert list(drawn(beside, 0)) == ["baseline", "short"]
    assert beside.curves.caption.text().endswith("2 of 3 runs")
    beside.curves.all_runs.click()
    assert list(drawn(beside, 0)) == ["baseline", "short", "broken"]
    assert not beside.curves.all_runs.isVisible()


def test_that_curves_go_over_time_when_asked(beside: ComparePanel) -> None:
    beside.curves.axis_choice.setCurrentIndex(1)
    beside.curves.plots.draw_pending()
    np.testing.assert_allclose(drawn(beside, 1)["short"].line.getData()[0], np.arange(1, 401) * 0.01)


# The answer ------------------------------------------------------------------------------------------------


def test_that_the_answer_stands_on_top_and_its_button_sets_up_the_study(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel, asked = ComparePanel(session), []
    qtbot.addWidget(panel)
    panel.show()
    session.runs.open_file(write_run(tmp_path / "fp32.h5", "in fp32", "fp32"))
    qtbot.waitUntil(lambda: panel.answer.answer.text().startswith("Open a second run"))
    assert not panel.answer.more_seeds.isVisible()
    session.runs.open_file(write_run(tmp_path / "bf16.h5", "in bf16", "bf16-amp"))
    qtbot.waitUntil(lambda: panel.answer.answer.text().startswith("bf16-amp beside fp32: same accuracy (one seed)"))
    assert panel.answer.more_seeds.text() == "Run 3 seeds, 3 s"
    assert panel.answer.answer.pos().y() < panel.table.pos().y()
    session.requests.study.connect(lambda precisions, seeds: asked.append((precisions, seeds)))
    panel.answer.more_seeds.click()
    assert asked == [(["fp32", "bf16-amp"], 3)]


def test_that_the_table_fits_after_the_window_has_grown(qtbot: QtBot) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    themes().dress(panel)
    panel.resize(744, 560)
    panel.show()
    study = next(each.path for each in EXAMPLES if each.is_study)
    for member in ("s01-fp32", "s01-bf16-amp"):
        session.runs.open_file(study / "members" / f"{member}.h5")
    qtbot.waitUntil(lambda: panel.table.rowCount() == 2)
    table = panel.table
    for width in (1138, 1139, 1140):  # the heading of a hidden column counts as that of a shown one
        panel.resize(width, 760)
        qtbot.waitUntil(lambda width=width: table.width() > width - 60)
        assert table.horizontalHeader().length() <= table.viewport().width()


def test_that_no_cell_is_cut_where_the_table_has_room_to_spare(qtbot: QtBot) -> None:
    """Cells ended at 200 pixels, with as much empty space beside the last column."""
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.resize(1800, 760)
    panel.show()
    study = next(each.path for each in EXAMPLES if each.is_study)
    session.runs.open_file(study / "members" / "s01-fp32.h5")
    session.runs.open_file(next(each.path for each in EXAMPLES if each.name == "clip-before-unscale"))
    table = panel.table
    qtbot.waitUntil(lambda: table.rowCount() == 2 and table.width() > 1700)
    shown = [column for column in range(len(COLUMNS)) if not table.isColumnHidden(column)]
    assert max(table.sizeHintForColumn(column) for column in shown) > WIDEST_PX
    qtbot.waitUntil(lambda: all(table.columnWidth(each) >= table.sizeHintForColumn(each) for each in shown))
    assert table.horizontalHeader().length() <= table.viewport().width()


def test_that_the_table_fits_without_scrolling_and_shows_the_rest_on_request(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    for name, precision in (("one", "fp32"), ("two", "fp32"), ("three", "bf16-amp")):
        session.runs.open_file(write_run(tmp_path / f"{name}.h5", f"a run with a long title, {name}", precision))
    qtbot.waitUntil(lambda: panel.table.rowCount() == 3)
    table, first = panel.table, [each.title for each in COLUMNS].index("Precision")
    for width, least in ((1216, 5), (744, 4)):
        panel.resize(width, 700)
        panel.refresh()
        shown = [column for column in range(len(COLUMNS)) if not table.isColumnHidden(column)]
        assert len(shown) >= least and first in shown
        qtbot.waitUntil(lambda: table.horizontalScrollBar().maximum() == 0)
        assert table.all_columns.text() == f"{len(COLUMNS) - len(shown)} more columns"
    table.all_columns.click()
    assert not any(table.isColumnHidden(column) for column in range(len(COLUMNS)))
    cells = [item for row in range(3) if (item := table.item(row, first)) is not None]
    chips = [cell.icon().pixmap(10, 10).toImage() for cell in cells]
    assert chips[0] == chips[1] != chips[2]


def test_that_runs_that_repeat_are_offered_as_groups(qtbot: QtBot) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()

    def add(key: str, config: RunConfig) -> None:
        run = live_run([RunStarted(0.0, 1, 1, "cpu", {}), RunEnded(1.0, "completed")], config)
        run.run_id = key
        session.runs.put(OpenRun(key, run, key, 0, 0))

    add("a", RunConfig(precision="fp32"))
    add("b", RunConfig(precision="bf16-amp"))
    qtbot.waitUntil(lambda: panel.table.rowCount() == 2)
    assert not panel.show_groups.isVisible()
    add("c", RunConfig(precision="fp32", seed=1))
    qtbot.waitUntil(lambda: panel.table.rowCount() == 3)
    assert panel.show_groups.text() == "2 runs repeat others: show groups"
    panel.show_groups.click()
    assert panel.view.current == "Groups"


def test_that_runs_of_one_precision_share_its_colour_in_table_and_curves_and_differ_in_dash(qtbot: QtBot) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    for key, precision in (("a", "fp32"), ("b", "bf16-amp"), ("c", "fp32"), ("<d>", "fp16-amp")):
        run = live_run([RunStarted(0.0, 1, 1, "cpu", {}), RunEnded(1.0, "completed")], RunConfig(precision=precision))
        run.run_id = key
        session.runs.put(OpenRun(key, run, key, 0, 0))
    qtbot.waitUntil(lambda: panel.table.rowCount() == 4 and "fp16" in panel.curves.legend.text())
    drawn = panel.curves.plots.frames[0].chart.visible_runs()
    assert [each.name for each in drawn] == ["a", "b", "c", "<d>"]
    assert colour_of(drawn[0]) == colour_of(drawn[2]) == precision_colour("fp32")
    assert dash_of(drawn[0]) != dash_of(drawn[2])
    assert len({colour_of(each) for each in drawn}) == 3
    swatches = [panel.table.verticalHeaderItem(row).icon().cacheKey() for row in range(4)]
    assert swatches[1] == swatch_icon(drawn[1], 2.0).cacheKey() and len(set(swatches)) == 4
    assert panel.curves.legend.text().count("■") == 3 and precision_colour("bf16-amp") in panel.curves.legend.text()
    assert "dash" in panel.curves.legend.text()
