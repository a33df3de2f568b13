"""The Run panel: recipes, precisions, start and queue, files, the command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLineEdit
from pytestqt.qtbot import QtBot

from precgui import words
from precgui.config import PRECISIONS, RECIPES, RunConfig, load
from precgui.gui.panels.setup.command import command, value_text
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.panels.setup.recipe_gallery import TIME
from precgui.runs.outlook import PrecisionOutlook
from precgui.runs.step_times import keep_step_time
from precgui.sentences import Sentence
from tests.fakes import Orders
from tests.runs.synthetic import live_run, synthetic_events


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    return Orders(monkeypatch)


@pytest.fixture
def panel(qtbot: QtBot, orders: Orders) -> SetupPanel:
    made = SetupPanel(orders)
    qtbot.addWidget(made)
    made.resize(1000, 700)
    made.show()
    return made


def line(panel: SetupPanel, path: str) -> QLineEdit:
    found = panel.findChild(QLineEdit, path)
    assert isinstance(found, QLineEdit)
    return found


def test_that_a_click_chooses_the_precision_that_starts(orders: Orders, panel: SetupPanel, qtbot: QtBot) -> None:
    for precision in PRECISIONS:
        panel.precision.cards[precision].button.click()
        with qtbot.waitSignal(orders.requests.place) as wanted:
            panel.start_button.click()
        assert wanted.args == ["live"]
        assert orders.ordered.pop().precision == precision
    assert orders.ordered == []


def test_that_the_form_has_a_place_for_the_weights_of_adapters_too(panel: SetupPanel) -> None:
    row, average = panel.form.rows["train.save_to"], panel.form.rows["train.save_average"]
    assert row.label.text() == "Save weights"
    assert ".safetensors" in row.hint.text()
    assert (row.relevant, row.rare, average.relevant) == (True, False, False)
    row.editor.set("auto")
    panel.form.rows["train.ema_decay"].editor.set(0.99)
    value = panel.form.value()
    assert value is not None and value.train.save_to == "auto"
    assert average.relevant
    row.editor.set("")
    panel.form.rows["adapter.kind"].editor.set("lora")
    assert row.relevant and "PEFT" in row.hint.text()


def test_that_a_card_has_the_outlook_in_the_readers_language(
    panel: SetupPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = PrecisionOutlook("slow", Sentence("Slow: {reason}", reason="x"))
    monkeypatch.setattr(panel.outlook, "levels", lambda config: {"fp16-amp": slow})
    try:
        words.use("zh_CN")
        panel.outlook.known.emit()
        card = panel.precision.cards["fp16-amp"]
        assert card.word.text() == "较慢"
        assert "较慢：x" in card.button.accessibleDescription()
        assert "较慢：x" in panel.study.boxes["fp16-amp"].toolTip()
    finally:
        words.use("en")


def test_that_an_epsilon_that_is_lost_in_fp16_is_told_before_the_run(panel: SetupPanel) -> None:
    def told() -> str:
        panel.outlook.show_config(panel.form.value())
        assert panel.outlook.doubt_text.isHidden() == (not panel.outlook.doubt_text.text())
        return panel.outlook.doubt_text.text()

    panel.use_recipe("digits-adamw")
    assert told() == ""
    panel.precision.set("fp16-pure")
    assert told().startswith("optimizer.eps = 1e-08 is zero in FP16")
    assert panel.outlook.property("severity") == "warning"
    panel.form.rows["optimizer.eps"].editor.set(1e-4)
    assert told() == ""


def test_that_a_family_of_precisions_takes_a_format(panel: SetupPanel) -> None:
    assert panel.precision.family is not None
    panel.precision.family.suffix.setText("e5m2")
    panel.precision.family.button.click()
    value = panel.form.value()
    assert value is not None and value.precision == "emulated:e5m2"
    panel.precision.family.suffix.setText("e99m99")
    assert panel.form.value() is None
    assert "precision" in panel.form.general.text()


def test_that_a_recipe_fills_the_form_and_is_explained(panel: SetupPanel) -> None:
    for recipe, (about, config) in RECIPES.items():
        panel.use_recipe(recipe)
        assert panel.form.value() == config
        assert panel.recipe_note.text() == about
        assert not [row.path for row in panel.form.rows.values() if row.label.font().bold()], recipe


def test_that_start_is_refused_with_its_reason_until_the_fault_is_mended(
    orders: Orders, panel: SetupPanel, qtbot: QtBot
) -> None:
    line(panel, "data.batch_size").setText("0")
    assert not panel.start_button.isEnabled()
    assert "data.batch_size: 0 is too small" in panel.start_button.toolTip()
    assert "data.batch_size" in panel.message.text()
    panel.start()
    assert not orders.ordered
    qtbot.waitUntil(lambda: line(panel, "data.batch_size").hasFocus())
    line(panel, "data.batch_size").setText("16")
    assert panel.start_button.isEnabled()


def test_that_a_run_is_queued_while_another_trains(orders: Orders, panel: SetupPanel, qtbot: QtBot) -> None:
    orders.is_training = True
    orders.training.waiting.append(RunConfig(title="the next one"))
    orders.training.changed.emit()
    assert panel.start_button.text() == "Queue run"
    assert panel.queue_button.isVisible() and panel.queue_button.text() == "1 waiting"
    with qtbot.assertNotEmitted(orders.requests.place):
        panel.start_button.click()
    panel.queue_button.menu().actions()[0].trigger()
    assert not orders.training.waiting
    assert not panel.queue_button.isVisible()


def test_that_a_config_goes_to_a_file_and_back(panel: SetupPanel, tmp_path: Path) -> None:
    line(panel, "optimizer.lr").setText("1e-6")
    line(panel, "title").setText("tiny steps")
    kept = panel.form.value()
    path = tmp_path / "mine.toml"
    panel.save(path)
    assert load(path) == kept
    panel.use_recipe("digits-long")
    panel.load(path)
    assert panel.form.value() == kept
    assert str(path) in panel.recipe_note.text()


def test_that_the_arguments_of_a_trainer_are_loaded_and_saved(
    orders: Orders, panel: SetupPanel, qtbot: QtBot, tmp_path: Path
) -> None:
    path = tmp_path / "training_args.json"
    path.write_text('{"bf16": true, "per_device_train_batch_size": 24, "warmup_steps": 10}', encoding="utf-8")
    with qtbot.waitSignal(orders.notice) as told:
        panel.load(path)
    assert told.args[0].message == "Not taken from training_args.json: warmup_steps = 10 has no setting here."
    config = panel.form.value()
    assert config is not None and (config.precision, config.data.batch_size) == ("bf16-amp", 24)
    panel.save(tmp_path / "back.json")
    assert '"per_device_train_batch_size": 24' in (tmp_path / "back.json").read_text(encoding="utf-8")
    panel.precision.set("fp8")
    with qtbot.waitSignal(orders.notice) as refused:
        panel.save(tmp_path / "fp8.json")
    assert "a Trainer has no fp8" in refused.args[0].message


def test_that_a_bad_file_leaves_the_form_as_it_was(
    orders: Orders, panel: SetupPanel, qtbot: QtBot, tmp_path: Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[optimizer]\nlearning = 3\n", encoding="utf-8")
    before = panel.form.value()
    with qtbot.waitSignal(orders.notice) as told:
        panel.load(path)
    assert "bad.toml cannot be used: optimizer.learning" in told.args[0].message
    assert panel.form.value() == before


def test_that_a_folder_that_is_gone_is_told_when_saving(
    orders: Orders, panel: SetupPanel, qtbot: QtBot, tmp_path: Path
) -> None:
    with qtbot.waitSignal(orders.notice) as told:
        panel.save(tmp_path / "gone" / "mine.toml")
    assert "was not saved" in told.args[0].message


def test_that_the_copied_command_starts_the_same_run(panel: SetupPanel) -> None:
    panel.precision.cards["fp16-amp"].button.click()
    line(panel, "title").setText('what "if" it\'s 1e-3?')
    line(panel, "train.max_steps").setText("50")
    line(panel, "optimizer.lr").setText("1e-3")
    panel.copy_command()
    words = shlex.split(QGuiApplication.clipboard().text())
    assert words[:3] == ["precgui", "run", "digits-quick"]
    assert load(words[2], words[4::2]) == panel.form.value()


def test_that_formats_of_layers_survive_the_command() -> None:
    base = RECIPES["digits-quick"][1]
    wanted = load("digits-quick", ["precision=emulated:bf16", "precision_options.layers=conv*=e4m3fn, head=fp32"])
    words = shlex.split(command("digits-quick", base, wanted))
    assert load("digits-quick", words[4::2]) == wanted


@pytest.mark.parametrize("title", ["true", "1e5", "none", "", "a b", "ü", "[1]", "nan", 'say "hi"', "back\\slash"])
def test_that_any_title_survives_the_command(title: str) -> None:
    base, wanted = RECIPES["digits-long"][1], RECIPES["digits-long"][1].model_copy(update={"title": title})
    words = shlex.split(command("digits-long", base.model_copy(update={"title": "other"}), wanted))
    assert load("digits-long", words[4::2]).title == title


@pytest.mark.parametrize(("value", "text"), [(None, "none"), (True, "true"), (0.5, "0.5"), ("fp32", "fp32"), (3, "3")])
def test_that_plain_values_are_not_quoted(value: object, text: str) -> None:
    assert value_text(value) == text


def test_that_everything_goes_back_to_the_recipe(panel: SetupPanel) -> None:
    line(panel, "seed").setText("77")
    panel.new_run()
    assert panel.form.value() == RECIPES["digits-quick"][1]


def test_that_a_precision_schedule_is_typed_started_and_copied(orders: Orders, panel: SetupPanel, qtbot: QtBot) -> None:
    field = line(panel, "precision_schedule")
    field.setText("step:100=bf16-pure")
    field.editingFinished.emit()
    assert not panel.start_button.isEnabled()
    field.setText("step:100=bf16-amp, share:0.9=fp32")
    field.editingFinished.emit()
    panel.start_button.click()
    assert orders.ordered[-1].precision_schedule == {"step:100": "bf16-amp", "share:0.9": "fp32"}
    panel.copy_command()
    words = shlex.split(QGuiApplication.clipboard().text())
    assert load(words[2], words[4::2]).precision_schedule == orders.ordered[-1].precision_schedule


def test_that_a_study_of_open_runs_is_filled_into_the_form(panel: SetupPanel, orders: Orders) -> None:
    config = load("digits-quick", ["optimizer.lr=0.01"])
    orders.requests.set_up(config, "a run")
    panel.show_tab("study")
    orders.requests.study.emit(["fp32", "tf32", "emulated:e4m3"], 7, {})
    assert panel.is_study
    assert panel.study.chosen() == ["fp32", "tf32", "emulated:e4m3"]
    assert panel.study.seeds.value() == 7
    spec = panel.study.spec(config)
    assert spec is not None and spec.seeds == 7


def test_that_the_page_fits_into_a_window_of_800_pixels(panel: SetupPanel) -> None:
    page = panel.scroller.widget()
    assert page is not None
    for kind in ("One run", "Study"):
        panel.kind.choose(kind)
        assert page.minimumSizeHint().width() <= 720  # beside the navigation and a scroll bar


def test_that_a_study_of_one_precision_varies_a_field(panel: SetupPanel, orders: Orders) -> None:
    config = load("digits-quick")
    panel.study.vary.add()
    orders.requests.set_up(config, "a run")
    panel.show_tab("study")
    orders.requests.study.emit(["bf16-amp"], 5, {"train.compile": (False, True), "data.workers": (0, 2)})
    spec = panel.study.spec(config)
    assert spec is not None
    assert spec.vary == {"train.compile": [False, True], "data.workers": [0, 2]}
    assert [arm.name for arm in spec.baselines()] == ["bf16-amp train.compile=False data.workers=0"]
    orders.requests.study.emit(["bf16-amp"], 5, {})
    assert panel.study.spec(config) is None
    assert "vary a field" in panel.study.fault


def test_that_the_usual_precisions_stand_first_as_large_cards_and_the_others_behind_a_fold(
    panel: SetupPanel, qtbot: QtBot
) -> None:
    cards = panel.precision.cards
    shown = [name for name, card in cards.items() if card.isVisible()]
    assert shown == ["fp32", "bf16-amp", "fp16-amp", "int8-qat"]
    qtbot.waitUntil(lambda: "FP32" in cards["fp32"].here.text())  # type: ignore[attr-defined]
    assert cards["fp32"].here.isVisible()  # type: ignore[attr-defined]
    assert panel.precision.fold.text() == f"All precisions ({len(cards)})"
    panel.precision.fold.click()
    assert cards["mxfp4"].isVisible()
    panel.precision.fold.click()
    panel.precision.set("nvfp4")  # as a recipe does
    assert cards["nvfp4"].isVisible() and panel.precision.fold.isChecked()


def test_that_a_recipe_is_chosen_from_the_gallery_with_its_time_here(
    panel: SetupPanel, orders: Orders, tmp_path: Path
) -> None:
    panel.show()
    run = live_run(synthetic_events(50), RECIPES["gpt-quick"][1])
    run.path = tmp_path / "timed.h5"
    keep_step_time(run)
    gallery = panel.show_gallery()
    items = [gallery.list.item(row) for row in range(gallery.list.count())]
    assert [item.text() for item in items] == list(RECIPES)
    pictures = {item.data(Qt.ItemDataRole.DecorationRole).toImage().sizeInBytes() > 0 for item in items}
    assert pictures == {True} and gallery.list.currentItem().text() == "digits-quick"
    gpt = next(item for item in items if item.text() == "gpt-quick")
    assert gpt.data(TIME).startswith("About ") and gpt.data(TIME).endswith(" here, fp32")
    assert items[0].data(TIME) == "Not timed here yet, fp32"
    gallery.list.setCurrentItem(gpt)
    gallery.grab()
    gallery.use_button.click()
    assert panel.source == "gpt-quick" and orders.undo.last is not None


def test_that_fields_that_few_people_change_are_folded_until_they_are_changed(panel: SetupPanel) -> None:
    panel.show()
    shown = [path for path, row in panel.form.rows.items() if row.isVisible()]
    assert len(shown) <= 18 and {"task", "data.batch_size", "train.epochs", "optimizer.lr"} <= set(shown)
    assert not panel.form.rows["train.max_steps"].isVisible()
    train = panel.base.train.model_copy(update={"max_steps": 5})
    panel.form.set_value(panel.base.model_copy(update={"train": train}))
    assert panel.form.rows["train.max_steps"].isVisible()
