"""The form shows what the config says, keeps what was typed, and complains beside the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from precgui.config import PRECISION_GROUPS, RECIPES, ConfigError, RunConfig, build, load
from precgui.gui.kit.editors import ChoiceEditor, editor_for, number_text, read_number
from precgui.gui.kit.form import Form, at, leaves
from precgui.gui.kit.form_rows import SectionCard
from precgui.gui.kit.reading_order import reading_order
from precgui.gui.panels.setup.precision_cards import ChoiceCards


class Inner(BaseModel):
    kind: Literal["a", "b"] = Field("a", title="Kind")
    only_for_b: int = Field(3, ge=1, json_schema_extra={"show_if": {"inner.kind": ["b"]}})
    seldom: int = Field(7, ge=1, title="Seldom", json_schema_extra={"rare": True})


class Outer(BaseModel):
    rate: float = Field(1e-6, gt=0, title="Rate", description="How fast.", json_schema_extra={"unit": "1/s"})
    count: int | None = Field(None, ge=1)
    keep: list[str] = Field(default_factory=lambda: ["*norm*"])
    fast: bool = False
    inner: Inner = Field(default_factory=Inner, title="Inner part")


def build_outer(tree: Mapping[str, Any]) -> Outer:
    try:
        made = Outer.model_validate(tree)
    except ValidationError as error:
        raise ConfigError({".".join(map(str, e["loc"])): e["msg"] for e in error.errors()}) from None
    if made.fast and made.count == 13:
        raise ConfigError({"": "fast and 13 do not go together"})
    return made


@pytest.fixture
def form(qtbot: QtBot) -> Form[RunConfig]:
    made: Form[RunConfig] = Form(RunConfig, build)
    qtbot.addWidget(made)
    made.set_base(RunConfig())
    made.set_value(RunConfig())
    made.resize(900, 700)
    made.show()
    return made


@pytest.fixture
def other(qtbot: QtBot) -> Form[Outer]:
    made: Form[Outer] = Form(Outer, build_outer)
    qtbot.addWidget(made)
    made.set_base(Outer())
    made.set_value(Outer())
    made.show()
    return made


def paths(tree: Mapping[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in tree.items():
        found |= paths(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {prefix + name}
    return found


EVERY_KEY = paths(RunConfig().model_dump())


def line(form: Form[Any], path: str) -> QLineEdit:
    found = form.findChild(QLineEdit, path)
    assert isinstance(found, QLineEdit)
    return found


def test_that_every_key_of_the_config_has_an_editor(form: Form[RunConfig]) -> None:
    assert set(form.editors) == EVERY_KEY


@pytest.mark.parametrize("recipe", RECIPES)
def test_that_a_recipe_comes_back_as_it_was_put_in(form: Form[RunConfig], recipe: str) -> None:
    form.set_value(RECIPES[recipe][1])
    assert form.value() == RECIPES[recipe][1]


@pytest.mark.parametrize("typed", ["1e-6", "0.000001", "1E-06", " 1e-6 "])
def test_that_what_was_typed_stays_as_it_was_typed(form: Form[RunConfig], typed: str) -> None:
    line(form, "optimizer.lr").setText(typed)
    value = form.value()
    assert value is not None and value.optimizer.lr == 1e-6
    form.set_value(value)
    assert line(form, "optimizer.lr").text() == typed


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_that_a_number_is_written_so_that_it_reads_back_exactly(value: float) -> None:
    assert float(read_number(number_text(value))) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-6, "1e-6"), (65536.0, "65536"), (0.05, "0.05"), (2.0**126, "8.507059173023462e37"), (7, "7")],
)
def test_that_numbers_are_written_as_people_write_them(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("path", "typed", "complaint"),
    [
        ("optimizer.lr", "-1", "-1 is too small, it must be above 0"),
        ("optimizer.lr", "fast", "'fast' is not a number; write it as 0.05 or 5e-2"),
        ("data.batch_size", "12.5", "12.5 is not a whole number"),
        ("data.batch_size", "", "a number is missing"),
        ("optimizer.momentum", "nan", "nan is not a finite number"),
        ("device", "gpu", "'gpu' is not a device"),
        ("train.epochs", "9" * 30, "is too large"),
    ],
)
def test_that_a_fault_is_told_beside_its_field_and_the_text_is_kept(
    form: Form[RunConfig], path: str, typed: str, complaint: str
) -> None:
    line(form, path).setText(typed)
    assert form.value() is None
    assert complaint in form.faults[path]
    told = form.rows[path].hint
    assert told.isVisible() and told.text().lower() == form.faults[path].lower()
    assert line(form, path).text() == typed
    assert form.first_fault() is line(form, path)


def test_that_formats_of_layers_are_typed_as_pairs_and_a_fault_in_one_is_told_beside_the_field(
    form: Form[RunConfig],
) -> None:
    field = line(form, "precision_options.layers")
    field.setText("blocks.0.*=e4m3fn, head=fp32")
    value = form.value()
    assert value is not None and value.precision_options.layers == {"blocks.0.*": "e4m3fn", "head": "fp32"}
    form.set_value(value)
    assert field.text() == "blocks.0.*=e4m3fn, head=fp32"
    for typed, complaint in [("head=fp33", "fp33"), ("head", "'head' is not pattern=format")]:
        field.setText(typed)
        assert form.value() is None and form.first_fault() is field
        assert complaint in form.rows["precision_options.layers"].hint.text().lower()
        assert form.general.isHidden()


def test_that_a_fault_moves_nothing(form: Form[RunConfig]) -> None:
    before = [row.widget.mapTo(form, QPoint()) for row in form.rows.values()]
    line(form, "data.batch_size").setText("-1")
    QApplication.processEvents()
    assert [row.widget.mapTo(form, QPoint()) for row in form.rows.values()] == before


def test_that_an_empty_line_means_no_limit(form: Form[RunConfig]) -> None:
    line(form, "train.max_steps").setText("40")
    value = form.value()
    assert value is not None and value.train.max_steps == 40
    line(form, "train.max_steps").setText(" ")
    value = form.value()
    assert value is not None and value.train.max_steps is None


def test_that_a_change_is_bold_until_it_is_reset(form: Form[RunConfig]) -> None:
    row = form.rows["optimizer.lr"]
    assert not row.label.font().bold() and not row.reset.isVisible()
    line(form, "optimizer.lr").setText("0.2")
    assert row.label.font().bold() and row.reset.isVisible()
    row.reset.click()
    assert form.value() == RunConfig()
    assert not row.label.font().bold() and not row.reset.isVisible()


def test_that_a_field_shows_when_its_condition_holds(form: Form[RunConfig]) -> None:
    name = form.editors["optimizer.name"]
    assert form.rows["optimizer.momentum"].widget.isVisible()
    name.set("adamw")
    assert not form.rows["optimizer.momentum"].widget.isVisible()


def test_that_a_hidden_field_at_fault_shows_itself(other: Form[Outer]) -> None:
    assert not other.rows["inner.only_for_b"].widget.isVisible()
    other.editors["inner.only_for_b"].set(-5)
    assert other.value() is None
    assert other.rows["inner.only_for_b"].widget.isVisible()


def test_that_rare_fields_are_folded_until_they_are_asked_for(other: Form[Outer]) -> None:
    row = other.rows["inner.seldom"]
    more = row.card.more
    assert not row.isVisible() and more.text() == "1 more" and more.toolTip() == "Seldom"
    more.click()
    assert row.isVisible() and more.text() == "Fewer"
    more.click()
    assert not row.isVisible()


def test_that_a_rare_field_that_is_changed_or_at_fault_is_seen(other: Form[Outer]) -> None:
    row = other.rows["inner.seldom"]
    other.set_base(Outer())
    other.editors["inner.seldom"].set(8)
    assert row.isVisible() and not row.card.more.isVisible()
    other.editors["inner.seldom"].set(-8)
    assert row.isVisible() and other.value() is None
    row.reset.click()
    assert not row.isVisible() and row.card.more.isVisible()


def test_that_a_fault_of_the_whole_stands_on_top(other: Form[Outer]) -> None:
    other.editors["fast"].set(True)
    other.editors["count"].set(13)
    assert other.value() is None
    assert other.general.isVisible() and other.general.text() == "fast and 13 do not go together"
    other.editors["count"].set(12)
    assert not other.general.isVisible()
    assert other.value() == Outer(fast=True, count=12)


def test_that_any_model_becomes_a_form_with_units_and_headings(other: Form[Outer]) -> None:
    assert other.value() == Outer()
    assert other.rows["rate"].unit.text() == "1/s"
    assert line(other, "rate").text() == "1e-6"
    assert line(other, "keep").text() == "*norm*"
    assert "Inner part" in {label.text() for label in other.findChildren(QLabel)}


def test_that_labels_name_their_editors(form: Form[RunConfig]) -> None:
    for row in form.rows.values():
        assert row.label.buddy() is row.widget
        assert row.widget.accessibleName() == row.label.text()
        assert row.widget.toolTip()


def test_that_the_wheel_scrolls_the_page_and_not_the_choice(form: Form[RunConfig]) -> None:
    choice = form.findChild(ChoiceEditor, "model.size")
    assert isinstance(choice, ChoiceEditor)
    choice.clearFocus()
    turn = QWheelEvent(
        QPointF(5, 5), QPointF(5, 5), QPoint(), QPoint(0, -120), Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(choice, turn)
    assert choice.get() == "small"


def test_that_an_editor_outside_belongs_to_the_form(qtbot: QtBot) -> None:
    cards = ChoiceCards(PRECISION_GROUPS)
    made: Form[RunConfig] = Form(RunConfig, build, {"precision": cards})
    qtbot.addWidget(cards)
    qtbot.addWidget(made)
    made.set_value(RunConfig(precision="bf16-amp"))
    assert cards.get() == "bf16-amp"
    with qtbot.waitSignal(made.changed):
        cards.cards["tf32"].button.click()
    value = made.value()
    assert value is not None and value.precision == "tf32"
    assert "precision" not in made.rows


def test_that_nothing_is_cut_off_in_a_small_window(form: Form[RunConfig], qtbot: QtBot) -> None:
    line(form, "device").setText("a device that does not exist " * 5)
    form.resize(660, 700)
    form.resize(660, form.heightForWidth(660))
    qtbot.wait(20)
    for row in form.rows.values():
        told = row.hint
        if told.isVisible():
            assert told.height() >= told.heightForWidth(told.width()), row.path
    widths = [card.width() for card in form.findChildren(SectionCard)]
    assert max(widths) <= form.width()


def test_that_rows_that_appear_in_two_columns_get_their_height(form: Form[RunConfig], qtbot: QtBot) -> None:
    form.resize(1080, 1400)
    form.show()
    qtbot.waitExposed(form)
    cards = form.findChildren(SectionCard)
    qtbot.waitUntil(lambda: len({card.x() for card in cards if card.isVisible()}) == 2)
    general = cards[0]
    before = general.height()
    form.set_value(load("digits-quick", ["device=cpu", "threads=1"]))
    qtbot.waitUntil(lambda: general.height() >= general.heightForWidth(general.width()) > before)


def test_that_a_type_without_an_editor_is_named() -> None:
    with pytest.raises(TypeError, match="no editor for the type"):
        editor_for(dict[str, int])


def test_that_paths_lead_to_their_values() -> None:
    assert dict(leaves(RunConfig)).keys() == EVERY_KEY
    assert at({"a": {"b": 3}}, "a.b") == 3


def test_that_tab_goes_through_the_fields_in_their_order(form: Form[RunConfig]) -> None:
    order = [row.widget for row in form.rows.values()]
    found: list[QWidget] = []
    at_widget = order[0]
    for _ in range(4000):
        if at_widget in order:
            found.append(at_widget)
        following = at_widget.nextInFocusChain()
        assert following is not None
        at_widget = following
        if at_widget is order[0]:
            break
    assert found == order


def test_that_the_fold_of_a_section_has_the_focus_after_its_fields(form: Form[RunConfig]) -> None:
    card = form.rows["title"].card
    form.show()
    order = reading_order(form)
    fields = [order.index(row.widget) for row in card.rows if row.widget in order]
    assert len(fields) > 2 and fields == sorted(fields) and order.index(card.more) > max(fields)
