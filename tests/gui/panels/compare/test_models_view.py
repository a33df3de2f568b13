"""Compare > Models: two scanned models, and what moved between their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pytestqt.qtbot import QtBot

from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.weight_formats import weight_format
from precgui.gui.panels.compare.panel import MODELS, ComparePanel
from precgui.gui.session import Session
from precgui.runs.models.model_file import write_model_file
from tests.formats.checkpoint_files import safetensors
from tests.gui.conftest import write_run


def kept_model(path: Path, shift: float) -> Path:
    """A model file without figures, as a scan begins it, beside its weights."""
    values = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
    weights = {"same": ("F32", values), "moved": ("F32", values + np.float32(shift))}
    model = open_checkpoint(safetensors(path.with_suffix(".safetensors"), weights))
    write_model_file(path, model, [weight_format("fp16")], [])
    return path


@pytest.fixture
def session(qtbot: QtBot) -> Session:
    return Session()


@pytest.fixture
def panel(qtbot: QtBot, session: Session, tmp_path: Path) -> ComparePanel:
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    for name, shift in (("a", 0.0), ("b", 0.25)):
        session.runs.open_file(kept_model(tmp_path / f"{name}.h5", shift))
    return panel


def test_that_two_chosen_models_show_what_moved(
    qtbot: QtBot, session: Session, panel: ComparePanel, tmp_path: Path
) -> None:
    session.requests.compare(*list(session.runs))
    qtbot.waitUntil(lambda: panel.models.table.cells.rowCount() == 2)
    assert panel.view.current == MODELS and panel.view.buttons[MODELS].isVisible()
    whole, moved = panel.models.table.texts()
    assert whole[0] == "All compared tensors" and moved[0] == "moved" and moved[2] == "100.000%"
    assert 11.0 < float(moved[3]) < 13.0  # 1 over 1/16 of variance
    assert panel.models.result_text.text().startswith("1 of 2 compared tensors differ")
    panel.models.second.setCurrentIndex(0)
    panel.models.second.activated.emit(0)
    assert panel.models.table.texts() == []
    panel.models.start.click()
    qtbot.waitUntil(lambda: "hold the same numbers" in panel.models.result_text.text())
    (tmp_path / "a.safetensors").unlink()
    panel.models.start.click()
    qtbot.waitUntil(lambda: "there is no" in panel.models.result_text.text())


def test_that_models_are_offered_only_where_one_is_open(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    session.runs.open_file(write_run(tmp_path / "run.h5", "run", "fp32"))
    assert not panel.view.buttons[MODELS].isVisible()
    session.runs.open_file(kept_model(tmp_path / "a.h5", 0.0))
    qtbot.waitUntil(panel.view.buttons[MODELS].isVisible)
    panel.view.choose(MODELS)
    assert not panel.models.start.isEnabled() and "scan another one" in panel.models.result_text.text()
