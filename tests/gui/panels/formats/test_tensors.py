"""Tensors in the formats panel, from files and from runs: laid over the number line, and quantised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pyqtgraph as pg
import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QLabel, QMenu, QScrollArea
from pytestqt.qtbot import QtBot

from precgui.events import TENSOR_STATS
from precgui.formats.comparison import FormatComparison
from precgui.gui.answer import ProgressCallback, computation
from precgui.gui.panels.formats import FormatsPanel
from precgui.gui.panels.formats.line import LineTab
from precgui.gui.panels.formats.line_view import BINADES, LINEAR
from precgui.gui.panels.formats.panel import TABS
from precgui.gui.panels.formats.quantise import QuantiseTab
from precgui.gui.panels.formats.ranges import RangesTab
from precgui.gui.panels.formats.run_source import RunSource
from precgui.runs.tensors.record import TensorHistory
from tests.gui.conftest import PATIENCE_MS

VALUES = np.array([1e-9, 1e-6, 1.0, 1e6], np.float32)
LOST = "25 % underflow, 25 % subnormal, 25 % saturate"


class _Rows:
    """The exponents of one gradient at steps 3 and 7; at step 5 another tensor was looked at."""

    names = ("w", "other", "of another kind")

    def __init__(self) -> None:
        count, bins = len(VALUES), np.bincount(VALUES.view(np.uint32) >> 23 & 255, minlength=256)
        stats = np.full((3, 3, len(TENSOR_STATS)), np.nan, np.float32)
        for name, value in (("amax", 1e6), ("amin_nonzero", 1e-9), ("zeros", 0), ("mean", 0), ("count", count)):
            stats[:, 0, TENSOR_STATS.index(name)] = value
        exponents = np.zeros((3, 3, 256), np.uint32)
        exponents[[0, 2], 0] = bins
        exponents[0, 0, 100] += 4
        exponents[1, 1, 127] = 1
        stride = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]], np.uint32)
        self._columns = {"step": np.array([3, 5, 7]), "stats": stats, "exponents": exponents, "stride": stride}

    def __len__(self) -> int:
        return 3

    def read(self, column: str, start: int, stop: int) -> np.ndarray:
        return self._columns[column][start:stop]


@pytest.fixture
def panel(qtbot: QtBot) -> Iterator[FormatsPanel]:
    record = TensorHistory("gradient", _Rows(), 3)
    run = SimpleNamespace(name="mine", run=SimpleNamespace(tensors=lambda: {"gradient": record}))
    made = FormatsPanel(SimpleNamespace(runs={"k": run}))
    qtbot.addWidget(made)
    made.resize(1200, 800)
    made.show()
    yield made


def _tab(panel: FormatsPanel, kind: type) -> object:
    index = [made for _, _, made in TABS].index(kind)
    panel.tabs.setCurrentIndex(index)
    return panel.tab(index)


@pytest.fixture
def line(panel: FormatsPanel) -> LineTab:
    tab = _tab(panel, LineTab)
    assert isinstance(tab, LineTab)
    return tab


@pytest.fixture
def quantise(panel: FormatsPanel, qtbot: QtBot) -> QuantiseTab:
    tab = _tab(panel, QuantiseTab)
    assert isinstance(tab, QuantiseTab)
    _computed(qtbot, tab)
    return tab


def _idle(qtbot: QtBot, line: LineTab) -> None:
    works = (line.source.work, line.sorting, line.counting)
    qtbot.waitUntil(lambda: not any(work.busy for work in works) and not line.findChild(QTimer, "later").isActive())


def _computed(qtbot: QtBot, tab: QuantiseTab) -> None:
    works = (tab.source.file.work, tab.work)
    qtbot.waitUntil(lambda: not any(work.busy for work in works) and not tab.findChild(QTimer, "later").isActive())


def _bars(line: LineTab) -> tuple[np.ndarray, np.ndarray]:
    """Lower edges and heights of the bars that are drawn."""
    (bars,) = [item for item in line.histogram.getPlotItem().items if isinstance(item, pg.BarGraphItem)]
    return np.asarray(bars.opts["x0"]), np.asarray(bars.opts["height"])


def _choose_run(source: RunSource) -> None:
    source.fill()
    of_run = source.button.menu().actions()[0].menu()
    of_run.aboutToShow.emit()  # type: ignore[attr-defined]
    gradient = of_run.actions()[0].menu()  # type: ignore[attr-defined]
    gradient.aboutToShow.emit()
    assert [action.text() for action in gradient.actions()] == ["all", "w", "other"]
    gradient.actions()[1].trigger()


def test_that_the_menu_of_runs_lets_its_old_submenus_go(line: LineTab, qtbot: QtBot) -> None:
    menu = line.findChild(RunSource).button.menu()
    for _ in range(3):
        menu.aboutToShow.emit()
        menu.actions()[0].menu().aboutToShow.emit()  # type: ignore[attr-defined]
    qtbot.waitUntil(lambda: len(menu.findChildren(QMenu)) == 2)  # of the run, and of its gradients


def test_that_the_line_zooms_to_single_values(line: LineTab, qtbot: QtBot) -> None:
    line.edit.setText("1")
    line.edit.textEdited.emit("1")
    line.mode.setCurrentText(LINEAR)
    line.view.setXRange(1 - 1e-6, 1 + 1e-6, padding=0)
    qtbot.wait(30)
    for _ in range(12):
        qtbot.keyClick(line.view, Qt.Key.Key_Minus)
    qtbot.keyClick(line.view, Qt.Key.Key_Home)
    assert line.view.viewRange()[0] == [-8.0, 8.0]
    line.view.show_number()
    low, high = line.view.viewRange()[0]
    assert low < 1 < high
    line.edit.setText("1/0")
    line.edit.textEdited.emit("1/0")
    assert "division by zero" in line.message.text()


@pytest.mark.parametrize("typed", ["1.4e-45", "1", "-3e38", "1e-310", "7e307", "0"])
@pytest.mark.parametrize("mode", [LINEAR, BINADES])
def test_that_the_view_goes_from_single_values_to_all_of_them(
    line: LineTab, qtbot: QtBot, mode: str, typed: str
) -> None:
    line.mode.setCurrentText(mode)
    line.edit.setText(typed)
    line.edit.textEdited.emit(typed)
    line.view.show_number()
    for _ in range(60):
        line.view.zoom(0.5)
    _idle(qtbot, line)
    low, high = line.view.viewRange()[0]
    assert 0 < high - low <= 1e-11 * max(abs(low), abs(high), 1.0 if mode == BINADES else 1e-280)
    for _ in range(550):
        line.view.zoom(16.0)
    _idle(qtbot, line)
    low, high = line.view.viewRange()[0]
    assert high - low > (2000 if mode == BINADES else 1e308)
    line.edit.textEdited.emit("1.7e308")
    line.view.show_number()  # just past the end of the linear axis
    _idle(qtbot, line)


def test_that_a_tensor_is_laid_over_the_line(line: LineTab, qtbot: QtBot, tmp_path: Path) -> None:
    np.save(tmp_path / "g.npy", VALUES)
    line.open_file(tmp_path / "g.npy")
    _idle(qtbot, line)
    assert line.histogram.isVisible()
    assert line.message.text() == "g: 4 values"
    assert line.loss_texts["fp16"] == LOST
    line.menu.choose(["fp16", "int8", "e4m3fn"])
    _idle(qtbot, line)
    assert line.loss_texts["int8"] == "50 % underflow, 25 % saturate"
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    line.open_file(tmp_path / "bad.npy")
    _idle(qtbot, line)
    assert "bad.npy" in line.message.text()


def test_that_the_histogram_of_a_tensor_grows_finer_with_the_zoom(line: LineTab, qtbot: QtBot) -> None:
    line.show_tensor(np.linspace(0.5, 1, 1000), "ramp")
    _idle(qtbot, line)
    line.view.setXRange(-1.0, 0.0, padding=0)
    _idle(qtbot, line)
    edges, share = _bars(line)
    assert len(share) > 100
    assert share.sum() == pytest.approx(1, abs=0.01)
    line.mode.setCurrentText(LINEAR)
    line.show_values()
    _idle(qtbot, line)
    edges, share = _bars(line)
    assert share.sum() == pytest.approx(1, abs=0.01)
    assert share[edges < 0.4].sum() == 0


def test_that_the_tensors_of_an_open_run_are_laid_over_the_line(line: LineTab, qtbot: QtBot) -> None:
    assert not line.runs.isHidden()
    _choose_run(line.runs)
    _idle(qtbot, line)
    assert line.message.text() == "mine, gradient w, step 7"
    assert line.loss_texts["fp16"] == LOST
    assert line.histogram.isVisible()
    assert line.runs.slider.isVisible()
    line.runs.slider.setValue(0)
    _idle(qtbot, line)
    assert line.message.text() == "mine, gradient w, step 3"
    assert line.loss_texts["fp16"] != LOST
    line.mode.setCurrentText(LINEAR)
    _idle(qtbot, line)
    assert not line.histogram.isVisible()
    assert line.mode.currentText() != BINADES


def test_that_a_tensor_is_laid_over_the_ranges(panel: FormatsPanel, qtbot: QtBot, tmp_path: Path) -> None:
    tab = _tab(panel, RangesTab)
    assert isinstance(tab, RangesTab)
    np.save(tmp_path / "g.npy", VALUES)
    tab.source.open_file(tmp_path / "g.npy")
    qtbot.waitUntil(lambda: not (tab.source.work.busy or tab.sorting.busy))
    hint = tab.findChild(QLabel, "hint")
    assert hint.text().startswith("Values of g: from 2^-30 to 2^20")
    _choose_run(tab.runs)
    assert "mine, gradient w, step 7" in hint.text()
    tab.menu.choose([])


def test_that_newer_work_replaces_older(line: LineTab, qtbot: QtBot) -> None:
    for size in (400_000, 300_000, 10):
        line.show_tensor(np.ones(size), f"ones{size}")
    _idle(qtbot, line)
    assert line.message.text() == "ones10: 10 values"
    _, share = _bars(line)
    assert share[share > 0].tolist() == [1.0]


def test_that_what_is_known_so_far_is_shown_until_the_work_is_done(quantise: QuantiseTab, qtbot: QtBot) -> None:
    go_on, found = Event(), quantise.comparison
    assert found is not None

    def work(told: ProgressCallback) -> FormatComparison:
        told.partly(replace(found, counted=found.source.size // 4))
        go_on.wait(PATIENCE_MS / 1000)
        return found

    quantise.work.ask(computation(work))
    qtbot.waitUntil(lambda: quantise.result.text().startswith("So far, from 25 % of the values"))
    go_on.set()
    _computed(qtbot, quantise)
    assert quantise.result.text().startswith("Signal to noise")


def test_that_a_tensor_is_quantised_with_an_edited_scale(quantise: QuantiseTab, qtbot: QtBot) -> None:
    tab = quantise
    tab.source.combo.setCurrentText("typed")
    tab.source.typed.setText("0.1, 1/3, -2, min(100, 200)")
    tab.scheme.setCurrentText("int4")
    tab.scale.setText("0.5")
    tab.refresh()
    _computed(qtbot, tab)
    assert tab.comparison is not None
    assert tab.comparison.part(0, 4).after.tolist() == [0.0, 0.5, -2.0, 3.5]
    assert "1 of 4 values clipped" in tab.result.text()
    for words in ("-1", "inf", "1/0", "😀"):
        tab.scale.setText(words)
        tab.refresh()
        assert tab.result.property("kind") == "error"
        assert "\n" not in tab.result.text()
    tab.scale.clear()
    tab.scheme.setCurrentText("mxfp4")
    _computed(qtbot, tab)
    assert "rceil" in tab.result.text()
    tab.source.typed.setText("1, 😀")
    tab.source.typed.textEdited.emit("")
    _computed(qtbot, tab)
    assert "not part of a number" in tab.result.text()


def test_that_the_codes_of_few_values_stand_below_the_figures(quantise: QuantiseTab, qtbot: QtBot) -> None:
    tab = quantise
    tab.source.combo.setCurrentText("typed")
    tab.source.typed.setText("0.1, 0.5, 0.9, 1.2")
    tab.scheme.setCurrentText("uint8")
    tab.scale.setText("2/255")
    tab.zero_point.setText("0")
    tab.refresh()
    _computed(qtbot, tab)
    assert "Codes: 13, 64, 115, 153." in tab.result.text()


def test_that_a_file_of_several_tensors_does_not_widen_the_column(
    quantise: QuantiseTab, qtbot: QtBot, tmp_path: Path
) -> None:
    path = tmp_path / "two.safetensors"
    header = {name: {"dtype": "F32", "shape": [2, 2], "data_offsets": [16 * n, 16 * n + 16]}
              for n, name in enumerate(("blocks.0.attention.output.weight", "b"))}  # fmt: skip
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(32))
    area = quantise.findChild(QScrollArea)
    assert isinstance(area, QScrollArea)
    for size in ((1280, 800), (800, 600)):
        quantise.resize(*size)
        quantise.show()
        with qtbot.waitSignal(quantise.source.file.loaded):
            quantise.source.file.open_file(path)
        assert quantise.source.file.names.isVisible()
        area.widget().layout().activate()
        assert area.widget().minimumSizeHint().width() <= area.viewport().width()


def test_that_the_convention_of_the_scales_is_named(quantise: QuantiseTab, qtbot: QtBot) -> None:
    for scheme, words in (("int8", "(absmax / 127), over all values"), ("mxfp4", "by rule floor"),
                          ("nvfp4", "(448 × 6)"), ("e4m3fn", "without a scale"), ("nf4", "Blocks of 64")):  # fmt: skip
        quantise.scheme.setCurrentText(scheme)
        qtbot.waitUntil(lambda words=words: words in quantise.result.text())
    quantise.scheme.setCurrentText("int8")
    quantise.symmetric.setChecked(False)
    qtbot.waitUntil(lambda: "(largest − least) / 255" in quantise.result.text())


@pytest.mark.parametrize("scheme", ["int8", "int4", "int2", "int1", "nf4", "mxfp8_e4m3", "nvfp4", "ternary"])
def test_that_every_scheme_quantises_every_source(quantise: QuantiseTab, qtbot: QtBot, scheme: str) -> None:
    quantise.scheme.setCurrentText(scheme)
    for place in range(quantise.source.combo.count()):
        quantise.source.combo.setCurrentIndex(place)
        _computed(qtbot, quantise)
        assert "Signal to noise" in quantise.result.text()


def test_that_a_file_is_quantised_and_its_elements_are_looked_through(
    quantise: QuantiseTab, qtbot: QtBot, tmp_path: Path
) -> None:
    np.save(tmp_path / "w.npy", np.random.default_rng(0).normal(size=(40, 96)))
    quantise.source.file.open_file(tmp_path / "w.npy")
    _computed(qtbot, quantise)
    assert "40 × 96" in quantise.source.origin.text()
    assert quantise.comparison is not None
    assert quantise.comparison.source.shape == (40, 96)
    quantise.grouping.setCurrentText("group of 128")
    _computed(qtbot, quantise)
    assert "does not divide" in quantise.result.text()
    quantise.plots.first.setValue(1000)
    assert quantise.plots.first.maximum() == 40 * 96 - 128
    (tmp_path / "w.npy").unlink()
    quantise.plots.first.setValue(0)
    assert "cannot be read any more" in quantise.result.text()


def test_that_all_of_a_large_file_is_quantised(quantise: QuantiseTab, qtbot: QtBot, tmp_path: Path) -> None:
    values = np.zeros((1500, 2000), np.float16)
    values[-1, -1] = 12.7
    np.save(tmp_path / "large.npy", values)
    quantise.source.file.open_file(tmp_path / "large.npy")
    _computed(qtbot, quantise)
    assert "0 of 3000000 values clipped" in quantise.result.text().replace("\u202f", "")
    assert quantise.comparison is not None
    assert quantise.comparison.losses.largest_error == 0
    assert quantise.comparison.level_counts.tolist() == [2999999, 1]


def test_that_a_recorded_tensor_is_quantised_as_a_sample_that_says_so(quantise: QuantiseTab, qtbot: QtBot) -> None:
    _choose_run(quantise.source.runs)
    _computed(qtbot, quantise)
    assert quantise.source.combo.currentText() == "run: mine, gradient w"
    assert "Not the tensor itself" in quantise.source.origin.text()
    assert "step 7" in quantise.source.origin.text()
    assert quantise.comparison is not None
    assert quantise.comparison.source.size == 1 << 16
    assert quantise.comparison.prepared.scale == pytest.approx(1e6 / 127)
    quantise.source.runs.slider.setValue(0)
    _computed(qtbot, quantise)
    assert "step 3" in quantise.source.origin.text()
    quantise.source.combo.setCurrentIndex(0)
    assert not quantise.source.runs.slider.isVisible()
