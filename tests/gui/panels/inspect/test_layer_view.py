"""Error by layer: comparisons beside a run, without torch."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.shadow.error_views import ErrorViews
from precgui.gui.panels.inspect.shadow.layer_view import strength
from precgui.gui.session import Session
from precgui.runs.layer_errors import LAYERS, LayersReplay
from tests.gui.conftest import write_run

NEAR = {"relative_l2": 2e-3, "cosine": 0.999998, "sqnr_db": 54.0}
LOST = {"relative_l2": None, "cosine": None, "sqnr_db": None}


def comparison(step: int) -> LayersReplay:
    return LayersReplay.model_validate(
        {
            "step": step, "precisions": ["bf16-amp", "fp16-amp"], "losses": {"fp64": 1.5, "fp16-amp": None},
            "scales": {}, "notes": ["dropout is off in this comparison"],
            "layers": [
                {"name": "head", "kind": "Linear", "forward": {"bf16-amp": NEAR, "fp16-amp": LOST},
                 "gradient": {"bf16-amp": NEAR}},
            ],
        }
    )  # fmt: skip


def test_that_the_layers_of_a_run_are_shown_with_their_distances(
    qtbot: QtBot, tmp_path: Path, session: Session, panel: InspectPanel
) -> None:
    path = write_run(tmp_path / "one.h5", "one")
    key = session.runs.open_file(path)
    session.requests.inspect(key, "error")
    views = panel.tab("error")
    assert isinstance(views, ErrorViews)
    views.show_run(key)
    views.choice.choose("By layer")
    assert views.layers.is_empty and "five precisions above" in views.layers.empty.text.text()
    LAYERS.keep(path, comparison(4))
    LAYERS.path(path, 5).write_text('{"step": 5}')
    views.layers.refresh()
    table = views.layers.table
    assert not views.layers.is_empty and views.layers.step_choice.count() == 1
    assert [table.item(0, column).text() for column in range(4)] == ["2.0e-03", "not finite", "2.0e-03", ""]
    assert "cosine 0.999998" in table.item(0, 0).toolTip()
    views.layers.metric_choice.setCurrentText("Signal to noise, dB")
    assert table.item(0, 0).text() == "54.0"
    assert "fp16-amp not finite" in views.layers.notes.text()


def test_that_the_colour_follows_the_decade_of_the_distance() -> None:
    assert strength(0.0) == strength(1e-9) == 0.0
    assert strength(1e-4) < strength(1e-2) < strength(1.0) == strength(100.0)
