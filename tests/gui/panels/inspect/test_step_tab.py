"""Step: the anatomy of a replayed step beside a run, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.step.rails import error_share, range_used
from precgui.gui.panels.inspect.step.step_tab import StepTab
from precgui.gui.session import Session
from precgui.runs.anatomy import ANATOMIES, StepAnatomy, StepOperation
from tests.gui.conftest import write_run

MOMENTS = {
    "scale": 1024.0, "given_largest": 1.0, "casts": 1, "forward_operations": 2, "forward_largest": 3.0, "loss": 2.0,
    "scaled_loss": 2048.0, "backward_operations": 1, "backward_largest": None, "gradient_largest": None,
    "unscaled_largest": None, "gradients_are_finite": False,
}  # fmt: skip
CASTS = {
    "asked_by": "autocast: linear", "source": "fp32", "target": "fp16", "of": "weights and inputs", "count": 3,
    "bytes": 12345, "reused": 1,
}  # fmt: skip


def operation(name: str, **changed: Any) -> StepOperation:
    values = {
        "operation": name, "module": "head", "line": "model.py:3", "backward": False, "format": "fp16",
        "inputs": ["fp16"], "bytes": 8, "largest": 65504.0, "largest_input": 1.0, "finite": True, "local_error": 1e-4,
        "rounding_error": 1e-4, "asked_by": "",
    }  # fmt: skip
    return StepOperation.model_validate(values | changed)


def test_that_the_operations_of_a_step_are_shown_on_two_rails(
    qtbot: QtBot, tmp_path: Path, session: Session, panel: InspectPanel
) -> None:
    path = write_run(tmp_path / "one.h5", "one")
    key = session.runs.open_file(path)
    session.requests.inspect(key, "step")
    tab = panel.tab("step")
    assert isinstance(tab, StepTab)
    tab.show_run(key)
    assert tab.is_empty and "Choose a step above" in tab.empty.text.text()
    steps = [operation("_to_copy", asked_by="autocast: linear"), operation("mm"), operation("mm", backward=True)]
    values = {"step": 7, "precision": "fp16-amp", "operations": steps, "casts": [CASTS], "moments": MOMENTS}
    ANATOMIES.keep(path, StepAnatomy.model_validate(values))
    tab.refresh()
    assert not tab.is_empty and tab.casts.item(0, 5).text() == "12 345"
    assert "fp16: 3" in tab.legend.text and "NaN or Inf was met" in tab.moments.text()
    qtbot.mouseClick(tab.rails, Qt.MouseButton.LeftButton, pos=tab.rails.area(1).center().toPoint())
    assert tab.rails.chosen == 2 and "mm in head, backward, model.py:3" in tab.details.text()
    qtbot.keyClick(tab.rails, Qt.Key.Key_Left)
    qtbot.keyClick(tab.rails, Qt.Key.Key_Left)
    assert "asked for by autocast: linear" in tab.details.text()
    tab.rails.grab()


def test_that_range_and_error_are_parts_of_their_height() -> None:
    assert range_used(operation("mm")) == 1.0 and range_used(operation("mm", largest=2.0**-14)) == 0.0
    assert range_used(operation("mm", largest=None)) is None
    assert error_share(1e-12) == 0.0 < error_share(1e-4) < error_share(1.0) == 1.0


def test_that_in_a_small_window_nothing_of_a_step_lies_over_something_else(
    qtbot: QtBot, tmp_path: Path, session: Session, panel: InspectPanel
) -> None:
    path = write_run(tmp_path / "one.h5", "one")
    values = {"step": 7, "precision": "fp32", "operations": [operation("mm")], "casts": [], "moments": MOMENTS}
    ANATOMIES.keep(path, StepAnatomy.model_validate(values))
    panel.resize(700, 420)
    key = session.runs.open_file(path)
    session.requests.inspect(key, "step")
    tab = panel.tab("step")
    assert isinstance(tab, StepTab)
    tab.show_run(key)
    qtbot.waitUntil(tab.moments.isVisible)
    inner = tab.rails.parentWidget()
    assert inner is not None
    assert inner.layout() is not None and inner.height() >= inner.layout().minimumSize().height()
    assert tab.rails.geometry().bottom() < tab.details.geometry().top() < tab.moments.geometry().top()
    assert tab.moments.height() >= tab.moments.heightForWidth(tab.moments.width())
    assert tab.casts.isHidden()
