"""Run > Existing model: measured in a child, kept, and shown in Inspect; code of a task only after consent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pytestqt.qtbot import QtBot

from precgui import config
from precgui.engine.adapters.weights_file import tensors_of, write_weights
from precgui.engine.tasks import make
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.gui.panels.setup.panel import EXISTING, SetupPanel
from precgui.gui.session import Session
from precgui.places.settings import add_place, command_place
from precgui.runs.models.model_file import read_effects
from tests.fakes import FakeChild


@pytest.fixture
def session(qtbot: QtBot, tmp_path: Path) -> Session:
    made = Session()
    made.set_folder(tmp_path / "runs")
    return made


@pytest.fixture
def panel(qtbot: QtBot, session: Session) -> SetupPanel:
    made = SetupPanel(session)
    qtbot.addWidget(made)
    made.kind.choose(EXISTING)
    made.show()
    return made


def test_that_only_what_a_trained_model_needs_is_shown(panel: SetupPanel) -> None:
    assert panel.existing.isVisible() and panel.can_start()
    hidden = (panel.form, panel.precision, panel.study, panel.recipes, panel.start_button, panel.outlook)
    assert not any(part.isVisible() for part in hidden)
    panel.start()
    assert panel.existing.answer.text() == "Choose the weights of a model, or a run."
    panel.kind.choose("One run")
    assert not panel.existing.isVisible() and panel.form.isVisible() and panel.start_button.isVisible()
    panel.show_tab("existing")
    assert panel.place() == (EXISTING, None) and panel.existing.isVisible()


def test_that_a_model_is_measured_and_opened(qtbot: QtBot, session: Session, panel: SetupPanel, tmp_path: Path) -> None:
    chosen = config.load("digits-quick", ["data.batch_size=32"])
    torch.manual_seed(0)
    weights = tmp_path / "digits.safetensors"
    write_weights(tensors_of(make(chosen).model()), weights, {"config": chosen.model_dump_json()})
    form = panel.existing
    form.source.setText(str(weights))
    form.formats.setText("int8/row")
    for box in (form.rounded["inputs"], form.rounded["k"], form.rounded["v"]):
        box.setChecked(False)
    form.target.setCurrentText("torchao")
    assert form.place.text() == str(tmp_path / "runs" / "digits-torchao") and form.place.isEnabled()
    form.target.setCurrentText("GGUF (llama.cpp)")
    assert form.place.text().endswith("digits.gguf")
    form.target.setCurrentText("vLLM, transformers")
    form.place.clear()
    form.start_button.click()
    assert form.answer.text() == "Choose where the quantised model is written."
    form.place.setText(str(tmp_path / "new"))
    form.formats.setText("e4m3fn")
    form.start_button.click()
    qtbot.waitUntil(lambda: form.start_button.text() == "Measure")
    assert "no form for e4m3fn" in form.answer.text()
    form.formats.setText("int8/row")
    form.budget.setText("bits=16")
    with qtbot.waitSignal(form.kept) as kept:
        form.start_button.click()
        assert form.start_button.text() == "Stop"
    file = tmp_path / "runs" / "digits.model.h5"
    assert kept.args == [file]
    effects = read_effects(file)
    assert effects is not None and [row.rounded for row in effects.whole] == ["weights"]
    qtbot.waitUntil(lambda: form.start_button.text() == "Measure")
    assert session.runs.current == session.runs.key_of(file)
    assert "every number of the layers is the one that was measured" in form.answer.text()
    assert {each.name for each in open_checkpoint(tmp_path / "new").tensors} >= {"head.weight", "features.0.weight"}


def test_that_what_goes_wrong_is_told_and_code_waits_for_consent(
    qtbot: QtBot, panel: SetupPanel, tmp_path: Path
) -> None:
    form = panel.existing
    form.source.setText(str(tmp_path / "no.safetensors"))
    form.task.setText(f"{tmp_path / 'mine.py'}:make_task")
    form.start_button.click()
    assert panel.consent.question is not None and form.start_button.text() == "Measure"
    panel.consent.question.reject()
    form.task.setText("digits-quick")
    form.start_button.click()
    qtbot.waitUntil(lambda: form.start_button.text() == "Measure")
    assert "there is no" in form.answer.text()


def test_that_a_model_is_measured_at_a_place_or_a_sentence_says_how(
    panel: SetupPanel, children: list[FakeChild], tmp_path: Path
) -> None:
    add_place(command_place("box", ["a-command"]))
    form = panel.existing
    form.where.read()
    assert not form.where.isHidden()
    form.where.choose("box")
    large = tmp_path / "large.safetensors"
    with large.open("wb") as file:
        file.truncate(40 << 20)  # sparse
    form.source.setText(str(large))
    form.start_button.click()
    assert form.answer.text().endswith("copy it to box, such as with scp, and name it box:PATH.")
    assert children == []
    (tmp_path / "runs").mkdir()
    form.source.setText("box:/data/large.safetensors")
    form.task.setText("digits-quick")
    form.target.setCurrentText("vLLM, transformers")
    form.start_button.click()
    there = children[-1].there
    assert there is not None
    assert children[-1].arguments["order"]["source"] == "/data/large.safetensors"
    assert {Path(str(children[-1].arguments["output"])), Path(form.place.text())} == set(there.homes)
    form.start_button.click()
    assert children[-1].is_stopped
