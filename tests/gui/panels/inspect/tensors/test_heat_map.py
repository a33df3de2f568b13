"""The heat map of the Tensors panel: shares by hand, names, a click that leads to the tensor and the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from precgui.gui.panels.inspect.tensors.panel import TensorsPanel
from precgui.gui.plots.heat_map import colour_of
from precgui.gui.session import Session
from precgui.runs.tensors.grouping import ALL, Rows, grouped
from precgui.runs.tensors.lost import lost_shares
from tests.gui.panels.inspect.tensors.test_panel import NAMES, drag, panel, recorded, session, wait
from tests.gui.theme_changes import change_theme

__all__ = ["panel", "session"]  # fixtures


@pytest.fixture
def opened(panel: TensorsPanel, session: Session, tmp_path: Path) -> TensorsPanel:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    panel.bar.picture.setCurrentIndex(1)
    return panel


def test_that_the_heat_map_holds_the_counted_share_of_each_tensor_and_follows_the_slider(opened: TensorsPanel) -> None:
    shares = opened.heat_map.shares
    assert shares is not None
    assert shares.names == (ALL, *NAMES)
    assert shares.share.shape == (3, 30)
    assert shares.share[:, 0].tolist() == [0.2, 0.4, 0.0]  # 40 of 100 near 2^-30, below half of 2^-24
    assert "become zero in fp16" in opened.caption.text()
    drag(opened, 6)
    assert opened.heat_map.shares is not None
    assert opened.heat_map.shares.share[:, 0].tolist() == [0.0, 0.0, 0.0]


def test_that_updates_show_what_weights_of_the_format_would_not_take(opened: TensorsPanel) -> None:
    opened.bar.kind_choice.setCurrentIndex(opened.bar.kind_choice.findData("update"))
    opened.bar.kind_choice.activated.emit(1)
    opened.bar.format_choice.setCurrentText("bf16")
    wait(opened)
    shares = opened.heat_map.shares
    assert shares is not None
    assert shares.meaning == "half ulp"  # type: ignore[attr-defined]
    np.testing.assert_allclose(shares.share[:, 0], [0.3, 0.9, 0.1], rtol=1e-6)
    assert "below half an ulp of their weight in bf16" in opened.caption.text()


def test_that_of_weights_stored_in_the_format_the_unchanged_ones_are_lost(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5", precision="bf16-pure"))
    panel.bar.picture.setCurrentIndex(1)
    panel.bar.kind_choice.setCurrentIndex(panel.bar.kind_choice.findData("update"))
    panel.bar.kind_choice.activated.emit(1)
    panel.bar.format_choice.setCurrentText("bf16")
    wait(panel)
    shares = panel.heat_map.shares
    assert shares is not None
    np.testing.assert_allclose(shares.share[:, 0], [0.5, 0.75, 0.25], rtol=1e-6)
    assert "that a step does not change" in panel.caption.text()


def test_that_a_click_leads_to_the_tensor_and_the_step(opened: TensorsPanel, qtbot: QtBot) -> None:
    heat_map = opened.heat_map
    area = heat_map.area()
    place = QPoint(area.left() + round(area.width() * 11.5 / 30), area.top() + 2 * heat_map.row_px + 3)
    assert heat_map.text_of(heat_map.cell_at(place)) == "b.weight\nstep 12: 0 % lost"
    qtbot.mouseClick(heat_map.viewport(), Qt.MouseButton.LeftButton, pos=place)
    assert opened.list.chosen() == 2
    assert opened.moment.text.text().startswith("b.weight, step 12")
    for key in (Qt.Key.Key_Up, Qt.Key.Key_Left):
        qtbot.keyClick(heat_map, key)
    assert opened.moment.text.text() == "a.weight, step 11"
    on_a_name = QPoint(3, area.top() + heat_map.row_px + 3)
    assert heat_map.cell_at(on_a_name) == (1, 30.0)
    assert heat_map.cell_at(QPoint(area.left() + 5, 2)) is None


def test_that_cells_are_coloured_by_their_share_in_both_themes(opened: TensorsPanel, qtbot: QtBot) -> None:
    heat_map, area = opened.heat_map, opened.heat_map.area()
    for dark in (False, True):
        change_theme(qtbot, "dark" if dark else "light")
        picture = heat_map.viewport().grab().toImage()
        ratio = heat_map.devicePixelRatioF()
        x = area.left() + area.width() // 2
        rows = [QColor(picture.pixel(round(x * ratio), round((area.top() + (row + 0.5) * heat_map.row_px) * ratio)))
                for row in (1, 2)]  # fmt: skip
        wanted = [QColor(colour_of(level)) for level in (0.4**0.5, 0.0)]
        for shown, colour in zip(rows, wanted, strict=True):
            assert abs(shown.red() - colour.red()) + abs(shown.green() - colour.green()) < 12


def test_that_names_keep_the_height_of_a_line_and_scroll(opened: TensorsPanel) -> None:
    heat_map = opened.heat_map
    n = 400
    stats = np.zeros((3, n, 16))
    stats[:, :, 9] = 10
    exponents = np.zeros((3, n, 256))
    exponents[:, :, 100] = 10
    rows = Rows(
        "gradient", tuple(f"layers.{i}.attention.weight" for i in range(n)), np.array([1, 5, 9]), exponents, stats
    )
    heat_map.show_shares(lost_shares(grouped(rows, "by tensor"), "e4m3fn", 0))
    assert heat_map.verticalScrollBar().maximum() > (n - 60) * heat_map.row_px
    heat_map.choose(300, 5.0)
    assert 0 < heat_map.verticalScrollBar().value() <= 300 * heat_map.row_px
    assert heat_map.shares is not None
    assert np.all(heat_map.shares.share == 1)  # 2^-27 is zero in E4M3
