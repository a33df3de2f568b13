"""The window shows what a quantised run measured of its integers, and evaluates the saved model once more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from precgui import config
from precgui.gui.open_run import Problem
from precgui.gui.panels.library.folder import RunsFolder
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.library.quantised_dialog import IntegerDialog, IntegerModels
from precgui.gui.session import Session
from precgui.job import Job
from precgui.runs.file.reader import open_run
from precgui.runs.quantised_model import integer_model
from tests.gui.conftest import write_run


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a quantised run, its saved model beside it, and a plain run."""
    folder = tmp_path_factory.mktemp("quantised") / "runs"
    write_run(folder / "plain.h5", "the plain one", "fp32", "2026-01-01T10:00:00+00:00")
    settings = [
        "device=cpu", "threads=1", "precision=int4-qat", "model.name=mlp", "train.max_steps=4",
        "record.tensors=false", "qat.save_to=auto", "title=few bits",
    ]  # fmt: skip
    Job(config.load("digits-quick", settings), folder / "few.h5").run()
    return folder


@pytest.fixture
def session(quantised: Path) -> Session:
    made = Session()
    made.set_folder(quantised)
    return made


@pytest.fixture
def panel(qtbot: QtBot, session: Session) -> LibraryPanel:
    panel = LibraryPanel(session)
    panel.resize(1000, 600)
    qtbot.addWidget(panel)
    panel.show()
    qtbot.waitUntil(lambda: panel.table.rowCount() == 2 and not panel.findChild(RunsFolder).is_reading)
    return panel


def choose(panel: LibraryPanel, name: str) -> None:
    panel.view.clearSelection()
    (row,) = [row for row in range(panel.table.rowCount()) if panel.table.entry(row).path.name == name]
    panel.view.selectRow(panel.filtered.mapFromSource(panel.table.index(row, 0)).row())


def opened(qtbot: QtBot, panel: LibraryPanel) -> IntegerDialog:
    choose(panel, "few.h5")
    panel.actions_["integers"].trigger()
    qtbot.waitUntil(lambda: bool(panel.window().findChildren(IntegerDialog)))
    (dialog,) = panel.window().findChildren(IntegerDialog)
    return dialog


def texts(table: Any) -> list[list[str]]:
    return [
        [table.item(row, column).text() for column in range(table.columnCount())] for row in range(table.rowCount())
    ]


def test_that_only_quantised_runs_have_an_integer_model(panel: LibraryPanel) -> None:
    choose(panel, "plain.h5")
    assert not panel.actions_["integers"].isEnabled()
    choose(panel, "few.h5")
    assert panel.actions_["integers"].isEnabled()


def test_that_the_figures_of_the_file_are_shown(qtbot: QtBot, panel: LibraryPanel, quantised: Path) -> None:
    dialog = opened(qtbot, panel)
    with open_run(quantised / "few.h5") as run:
        facts = run.environment["quantised"]
    rows = texts(dialog.models)
    assert [row[0] for row in rows] == ["FP32", "BF16 autocast", "Rounded as in training", "Integers"]
    assert rows[0][1] == f"{facts['bytes']['fp32'] / 1024:.0f} KiB"
    assert rows[3][2] == f"{100 * facts['evaluation']['integer']['metric']:.2f} %"
    times = facts["latency_s"]["64"]
    assert rows[0][5] == f"{1e3 * times['fp32']:.2f} ms (integers {times['integer'] / times['fp32']:.2f}x)"
    layers = texts(dialog.layers)
    assert sorted(row[0] for row in layers) == sorted(facts["layers"])
    errors = [float(row[3].removesuffix(" %")) for row in layers]
    assert errors == sorted(errors, reverse=True)
    assert str(quantised / "few.int4.pt") in dialog.message.text()


def test_that_the_saved_model_is_evaluated_again(qtbot: QtBot, panel: LibraryPanel) -> None:
    dialog = opened(qtbot, panel)
    with qtbot.waitSignal(dialog.evaluated) as heard:
        dialog.again.click()
        assert not dialog.again.isEnabled()
    assert heard.args is not None
    told = heard.args[0]
    assert told["now"] == told["saved"]
    assert dialog.message.text().startswith(f"Evaluated again on {told['samples']} samples: Accuracy")
    qtbot.waitUntil(dialog.again.isEnabled)


def test_that_a_run_without_integers_is_one_sentence(
    qtbot: QtBot, session: Session, panel: LibraryPanel, quantised: Path
) -> None:
    with qtbot.waitSignal(session.notice) as heard:
        panel.findChild(IntegerModels).show_model(quantised / "plain.h5")
    assert heard.args is not None
    problem: Problem = heard.args[0]
    assert problem.message.startswith("plain.h5 has no integer model")


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"bytes": 3, "evaluation": [], "layers": {"a": 1, "b": {"bits": "x"}}, "latency_s": {"²": {}, "9" * 5000: {}}},
        {"bytes": {"fp32": float("nan")}, "latency_s": {"1": {"fp32": 0}}, "threads": True, "file": 7},
    ],
)
def test_that_damaged_figures_are_left_out(facts: Mapping[str, Any]) -> None:
    run: Any = SimpleNamespace(environment={"quantised": facts}, path=None)
    model = integer_model(run)
    assert model is not None
    assert not model.layers
    assert all(form.size_bytes is None and not form.latency_s for form in model.models)
    assert integer_model(SimpleNamespace(environment={}, path=None)) is None
