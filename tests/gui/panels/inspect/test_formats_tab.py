"""Inspect > Formats: a scanned model as a heat map, one tensor opened, any format with any scale."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pyqtgraph as pg
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from precgui.cli.main import main
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.gui.panels.inspect.model.format_grid import FIRST_FORMAT, NAME
from precgui.gui.panels.inspect.model.formats_tab import BytesPlot, FormatsTab, label_places
from precgui.gui.panels.inspect.overview import OverviewTab
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.tabs import TABS
from precgui.gui.session import Session
from precgui.runs.models.model_file import keep_effects, read_effects
from precgui.sentences import Sentence
from tests.formats.checkpoint_files import sharded
from tests.gui.conftest import write_run

FORMATS = ("int8", "e4m3fn/row", "mxfp4", "vllm:w4a16")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "tiny").mkdir()
    wide = rng.standard_normal((16, 128)) * 0.02
    wide[:, 5] *= 40
    tensors = {
        "layers.0.q_proj.weight": wide,
        "layers.0.norm.weight": rng.standard_normal(48),
        "zeros": np.zeros((2, 8)),
    }
    sharded(tmp_path / "tiny", [{name: ("BF16", each.astype(ml_dtypes.bfloat16)) for name, each in tensors.items()}])
    assert main(["model", str(tmp_path / "tiny"), "--formats", ",".join(FORMATS), "-o", str(tmp_path / "tiny.h5")]) == 0
    return tmp_path / "tiny.h5"


@pytest.fixture
def tab(qtbot: QtBot, session: Session, panel: InspectPanel, file: Path) -> FormatsTab:
    key = session.runs.open_file(file)
    assert key is not None
    session.requests.inspect(key, "formats")
    made = panel.tab("formats")
    assert isinstance(made, FormatsTab)
    made.show_run(key)
    qtbot.waitUntil(lambda: made.scan is not None)
    return made


def cell(tab: FormatsTab, row: int, column: int, role: Qt.ItemDataRole = Qt.ItemDataRole.DisplayRole) -> object:
    return tab.sorted.data(tab.sorted.index(row, column), role)


def test_that_every_tensor_stands_beside_every_format(tab: FormatsTab) -> None:
    assert tab.sorted.rowCount() == 3 and tab.sorted.columnCount() == FIRST_FORMAT + len(FORMATS)
    assert [cell(tab, row, NAME) for row in range(3)] == ["layers.0.q_proj.weight", "layers.0.norm.weight", "zeros"]
    assert cell(tab, 0, 2) == "5"
    assert cell(tab, 1, FIRST_FORMAT + 3) == "–"
    tip = str(cell(tab, 1, FIRST_FORMAT + 3, Qt.ItemDataRole.ToolTipRole))
    assert "no multiple of 128" in tip
    assert tab.summary.text() == "Model: 3 tensors in 4 formats."
    assert set(tab.sizes.points) == set(FORMATS)
    bad, good = (cell(tab, 0, FIRST_FORMAT + n, Qt.ItemDataRole.BackgroundRole) for n in (2, 1))
    assert bad != good
    tab.table.resize(900, 300)
    image, rect = tab.table.viewport().grab().toImage(), tab.table.visualRect(tab.sorted.index(1, FIRST_FORMAT + 2))
    shown = cell(tab, 1, FIRST_FORMAT + 2, Qt.ItemDataRole.BackgroundRole)
    assert isinstance(shown, QColor)
    assert image.pixelColor(rect.topLeft() + QPoint(3, 3)).name() == shown.name()  # not only in the model


def test_that_labels_of_formats_keep_apart() -> None:
    places = label_places([10.0, 10.0, 26.0, 10.5])
    assert places == [10.0, 11.0, 26.0, 12.0]


def test_that_rows_are_sorted_by_number_and_searched(tab: FormatsTab) -> None:
    tab.table.sortByColumn(1, Qt.SortOrder.AscendingOrder)
    assert [cell(tab, row, 1) for row in range(3)] == ["16", "48", "2\u202f048"]
    tab.search.setText("NORM")
    assert [cell(tab, row, NAME) for row in range(tab.sorted.rowCount())] == ["layers.0.norm.weight"]


def test_that_another_figure_is_shown(tab: FormatsTab) -> None:
    for place in range(tab.view.count()):
        tab.view.setCurrentIndex(place)
        assert cell(tab, 0, FIRST_FORMAT)
    tab.view.setCurrentIndex(tab.view.findData("bytes"))
    assert cell(tab, 0, FIRST_FORMAT + 2) == "1.06 KiB"


def test_that_a_scale_and_any_format_answer_from_the_counts(tab: FormatsTab) -> None:
    tab.table.selectRow(0)
    detail = tab.detail
    assert detail.heading.text() == "layers.0.q_proj.weight" and "5 (" in detail.facts.text()
    detail.format_edit.setText("int8")
    usual = detail.result.text()
    place = tab.scan.formats.index(next(fmt for fmt in tab.scan.formats if fmt.name == "int8")) if tab.scan else 0
    assert f"{tab.grid.survey(0).figures[place, 1]:.2f} dB" in usual and "cut off 0;" in usual
    detail.scale.setValue(-32)
    assert "(0.25 of the usual one)" in detail.result.text() and "cut off 0;" not in detail.result.text()
    detail.scale.setValue(0)
    detail.format_edit.setText("e5m7")
    assert "dB" in detail.result.text() and detail.plot.range is not None
    detail.format_edit.setText("int8/row")
    assert "rows or groups" in detail.result.text()
    detail.format_edit.setText("nonsense")
    assert "no format of weights" in detail.result.text() and not detail.result.text().endswith("..")
    tab.table.selectRow(2)
    assert detail.plot.empty.text() == "All numbers of this tensor are zero."


def test_that_only_models_have_the_tab(tab: FormatsTab, session: Session, tmp_path: Path) -> None:
    key = session.runs.open_file(write_run(tmp_path / "one.h5", "one"))
    assert key is not None
    (spec,) = [each for each in TABS if each.id == "formats"]
    assert not spec.shows(session.runs[key].run)
    tab.show_run(key)
    assert math.isfinite(tab.sorted.rowCount())


def test_that_a_measured_effect_is_shown_first_beside_the_weights(
    qtbot: QtBot, session: Session, panel: InspectPanel, file: Path
) -> None:
    noisy = {"rise": 0.001, "error": 0.002, "interval": [-0.003, 0.005], "within_noise": True, "distance": 0.01}
    layers = [
        {"name": f"layers.{n}.q_proj", "format": fmt, "bytes": 9, "scores": {"sqnr": 0.1}, **noisy}
        for n in range(2)
        for fmt in ("int8", "mxfp4")
    ]
    whole = {
        "format": "int8",
        "method": "gptq",
        "round": "inputs",
        "bytes": 2048,
        "left_out": [],
        "why_not": "",
        **noisy,
    }
    missing = {**whole, "rise": None, "within_noise": None, "round": "k", "why_not": "no attention was found"}
    document = {
        "whole": [whole, missing],
        "layers": layers, "baseline": {"loss": 2.25}, "samples": 64, "truth": "kl", "task": "text", "ceiling": 0.9,
        "rank_agreement": {"sqnr": -0.2}, "by_format": {"int8": {"scores": {"sqnr": 0.3}, "ceiling": 0.5}},
        "plan": {"layers.0.q_proj": "int8"},
        "plan_measured": {"rise": 0.002, "error": 0.001, "bytes": 4096, "bits": 4.5, "method": "gptq"},
        "speed": {"bytes": 4096, "fp32_bytes": 9000, "products": [{"inputs": 64, "times_as_long": 1.5}]},
        "notes": [Sentence("the recipe adds {methods}, which was not measured here", methods="quarot"), 7],
    }  # fmt: skip
    keep_effects(file, open_checkpoint(file.parent / "tiny"), document)
    key = session.runs.open_file(file)
    assert key is not None
    session.requests.inspect(key, "formats")
    tab = panel.tab("formats")
    assert isinstance(tab, FormatsTab)
    tab.show_run(key)
    qtbot.waitUntil(lambda: tab.effect.effects is not None)
    assert tab.page.current == "Effect" and tab.page.isVisibleTo(tab) and tab.effect.isVisibleTo(tab)
    first, second = (tab.effect.whole.topLevelItem(n) for n in range(2))
    assert [first.text(n) for n in (0, 1, 2, 4, 6)] == [
        "int8", "gptq", "weights and inputs", "+0.00100 ± 0.00200", "equal within noise",
    ]  # fmt: skip
    assert second.text(6) == "not measured: no attention was found" and second.text(4) == ""
    assert tab.effect.layers.topLevelItem(0).text(3) == "int8" and tab.effect.layers.topLevelItemCount() == 2
    rows = [tab.effect.agreement.topLevelItem(n) for n in range(tab.effect.agreement.topLevelItemCount())]
    assert [rows[0].text(n) for n in (1, 2, 3)] == ["0.30", "", "-0.20"] and rows[-1].text(3) == "0.90"
    assert "Held-out loss 2.25 on 64 samples of text. Plan: 4 KiB, 4.5 bits" in tab.effect.summary.text()
    assert (
        "1.5 times as long there as in FP32; inputs at once: 64. Notes: the recipe adds quarot"
        in tab.effect.summary.text()
    )
    kept = read_effects(file)
    assert kept is not None and isinstance(kept.document["notes"][0], Sentence)  # for readers of other languages
    tab.page.choose("Weights")
    assert tab.table.isVisibleTo(tab) and not tab.effect.isVisibleTo(tab)


def test_that_the_overview_of_a_model_has_its_numbers_and_nothing_of_runs(
    qtbot: QtBot, session: Session, panel: InspectPanel, file: Path
) -> None:
    key = session.runs.open_file(file)
    assert key is not None
    panel.show()
    session.requests.inspect(key, "overview")
    overview = panel.tab("overview")
    assert isinstance(overview, OverviewTab)
    qtbot.waitUntil(lambda: overview.tree.topLevelItemCount() > 0)
    tops = [overview.tree.topLevelItem(row) for row in range(overview.tree.topLevelItemCount())]
    facts = {
        top.text(0): {top.child(row).text(0): top.child(row).text(1) for row in range(top.childCount())}
        for top in tops
        if top is not None
    }
    assert facts["Model"]["Parameters"] == "2\u202f112" and facts["Model"]["Tensors"] == "3"
    assert facts["Model"]["Size of the tensors"] == "4.125 KiB, 16 bits a parameter"
    assert facts["Numbers as they are stored"] == {"bf16": "3 tensors, 2\u202f112 numbers, 4.125 KiB"}
    assert next(iter(facts["All scanned formats, by bytes"])) == "mxfp4"
    assert "2 of 3 tensors stay as they are stored" in facts["All scanned formats, by bytes"]["vllm:w4a16"]
    assert facts["Smallest format within an error of the weights"]["Error of at most 0.1 %"].startswith("none")
    assert facts["Smallest format within an error of the weights"]["Error of at most 3 %"].startswith(
        "int8 (2.074 KiB, "
    )
    assert not {"Settings", "Result", "Machine"} & set(facts)
    assert "not known" not in str(facts) and "not measured" not in str(facts)
    index = [spec.id for spec in TABS].index("time")
    assert not panel.tabs.isTabEnabled(index) and "no steps" in panel.tabs.tabToolTip(index)


def test_that_no_name_of_a_format_is_cut_in_a_small_plot(qtbot: QtBot) -> None:
    plot = BytesPlot()
    qtbot.addWidget(plot)
    plot.show_points(
        {f"mxfp{n}_e4m3/128": (2**20 * (1 + n % 3), 30.0 + 0.01 * n) for n in range(8)} | {"int1": (9e5, 2)}
    )
    for width in (280, 600):
        plot.resize(width, 260)
        plot.show()
        qtbot.wait(20)
        view = plot.plotItem.vb.sceneBoundingRect()
        names = [item.sceneBoundingRect() for item in plot.plotItem.items if isinstance(item, pg.TextItem)]
        assert len(names) == 9
        assert all(name.right() <= view.right() + 2 and name.top() >= view.top() - 4 for name in names)
        tops = sorted(name.center().y() for name in names)
        assert min(after - before for before, after in pairwise(tops)) > 0.6 * plot.fontMetrics().height()
