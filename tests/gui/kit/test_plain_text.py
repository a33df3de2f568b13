"""Text from files is shown as it is: no label, tool tip or message box takes it for HTML."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QAbstractItemModel, QAbstractListModel, QModelIndex, Qt
from PySide6.QtGui import QAction
from PySide6.QtGui import Qt as GuiQt
from PySide6.QtWidgets import QGraphicsTextItem, QGraphicsView, QLabel, QWidget
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig, build
from precgui.events import Evaluated, Incident, Metric, RunEnded, RunStarted, StepDone
from precgui.gui.kit.consent import place_of
from precgui.gui.kit.plain_text import ElidedLabel, PlainLabel, PlainMessageBox, plain_tip
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.gui.shell.window import Window
from precgui.runs.file.writer import RunWriter

GUI = Path(__file__).parents[3] / "precgui" / "gui"
OWN = "kit/plain_text.py"
MADE_THERE = ("QLabel", "QMessageBox", "QInputDialog", "QErrorMessage", "QProgressDialog", "QTextEdit", "QTextBrowser")
HOSTILE = "<img src='/nowhere/pipe'><b>bold</b>"
INDEX = QModelIndex()


def calls(file: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))


def is_plain(text: ast.expr) -> bool:
    """Whether a text in the source is fixed, or comes from `plain_tip`."""
    if isinstance(text, ast.IfExp):
        return is_plain(text.body) and is_plain(text.orelse)
    if isinstance(text, ast.Name):
        return text.id.lstrip("_").isupper()
    if isinstance(text, ast.Constant):
        return not (isinstance(text.value, str) and GuiQt.mightBeRichText(text.value))
    if isinstance(text, ast.Call) and ast.unparse(text.func) == "_":
        return is_plain(text.args[0])
    return isinstance(text, ast.Call) and ast.unparse(text.func) == "plain_tip"


def tip_of(call: ast.Call) -> ast.expr | None:
    """The text of a tool tip that this call sets or shows."""
    name = ast.unparse(call.func)
    if name.endswith(".setToolTip"):
        return call.args[-1]
    if name == "QToolTip.showText":
        return call.args[1]
    if name.endswith(".setItemData") and "ToolTipRole" in ast.unparse(call.args[-1]):
        return call.args[1]
    return None


def test_that_labels_and_boxes_are_made_by_one_helper() -> None:
    wrong = [
        f"{file.relative_to(GUI)}:{call.lineno} {ast.unparse(call.func)}"
        for file in GUI.rglob("*.py")
        if not file.as_posix().endswith(OWN)
        for call in calls(file)
        if ast.unparse(call.func) in MADE_THERE
        or "RichText" in ast.unparse(call)
        or "setHtml" in ast.unparse(call.func)
    ]
    assert not wrong, f"use PlainLabel, RichLabel or PlainMessageBox of gui/{OWN}: {wrong}"


def test_that_tool_tips_are_fixed_texts_or_plain() -> None:
    wrong = [
        f"{file.relative_to(GUI)}:{call.lineno} {ast.unparse(tip)}"
        for file in GUI.rglob("*.py")
        for call in calls(file)
        if (tip := tip_of(call)) is not None and not is_plain(tip)
    ]
    assert not wrong, f"use plain_tip() of gui/{OWN}: {wrong}"


def test_that_a_plain_tip_shows_markup_as_it_is() -> None:
    assert plain_tip("a < b & c") == "a < b & c"
    assert plain_tip(HOSTILE).count("<") == 2  # the paragraph around it
    assert "&lt;img" in plain_tip(HOSTILE)


def test_that_a_plain_label_keeps_the_key_of_its_buddy(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    assert PlainLabel("&Number <b>", window).textFormat() == Qt.TextFormat.PlainText
    box = PlainMessageBox(window, "title", HOSTILE, HOSTILE)
    assert not suspicious_labels(box)


def suspicious_labels(parent: QWidget) -> list[str]:
    return [
        label.text()
        for label in parent.findChildren(QLabel)
        if label.textFormat() != Qt.TextFormat.PlainText and ("<img" in label.text() or _guessed(label))
    ]


def _guessed(label: QLabel) -> bool:
    return label.textFormat() == Qt.TextFormat.AutoText and GuiQt.mightBeRichText(label.text())


def suspicious_tips(parent: QWidget) -> Iterator[str]:
    for child in (parent, *parent.findChildren(QWidget), *parent.findChildren(QAction)):
        if "<img" in child.toolTip():  # type: ignore[attr-defined]
            yield child.toolTip()  # type: ignore[attr-defined]
    for model in parent.findChildren(QAbstractItemModel):
        columns = 1 if isinstance(model, QAbstractListModel) else model.columnCount()
        for row in range(min(model.rowCount(), 50)):
            for column in range(columns):
                tip = model.index(row, column).data(Qt.ItemDataRole.ToolTipRole)
                if "<img" in str(tip):
                    yield str(tip)
        for section in range(columns):
            for direction in Qt.Orientation:
                if section < (columns if direction == Qt.Orientation.Horizontal else model.rowCount()):
                    yield from _rich(str(model.headerData(section, direction, Qt.ItemDataRole.ToolTipRole)))
    for view in parent.findChildren(QGraphicsView):
        for item in view.scene().items() if view.scene() is not None else ():
            if isinstance(item, QGraphicsTextItem) and "<img" in item.toHtml():
                yield item.toHtml()


def _rich(tip: str) -> Iterator[str]:
    if "<img" in tip:
        yield tip


def write_hostile(path: Path) -> Path:
    """A run whose title, metric, device, tensors and messages are all markup."""
    path.parent.mkdir(parents=True, exist_ok=True)
    config = build({"title": f"{path.stem} {HOSTILE}"})
    metric = Metric("accuracy", HOSTILE, HOSTILE)
    with RunWriter(path, config, run_id=path.stem, created=HOSTILE, machine={}, environment={}) as writer:
        writer(RunStarted(0.0, 4, 2, HOSTILE, engine={"metric": vars_of(metric), "note": HOSTILE}))
        for step in range(1, 5):
            writer(StepDone(step, 0.1 * step, 1 / step, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan")))
        writer(Incident(0.3, 3, "note", "warning", HOSTILE, HOSTILE))
        writer(Evaluated(4, 2, 0.5, 0.3, 0.75))
        writer(RunEnded(0.5, "failed", HOSTILE, HOSTILE))
    return path


def vars_of(metric: Metric) -> dict[str, object]:
    return {name: getattr(metric, name) for name in metric.__dataclass_fields__}


def test_that_no_panel_takes_text_of_a_file_for_html(window: Window, qtbot: QtBot, tmp_path: Path) -> None:
    session = Session(window)
    session.set_folder(tmp_path / "runs")
    paths = [write_hostile(tmp_path / "runs" / f"{name}.h5") for name in ("one", "two")]
    window.attach(session)
    window.files.open(paths)
    qtbot.waitUntil(lambda: len(session.runs) == 2)
    for panel in list(window.navigation.buttons):
        window.show_panel(panel)
        qtbot.wait(200)
        assert not suspicious_labels(window), panel
        assert not list(suspicious_tips(window)), panel


# Consent -----------------------------------------------------------------------------------------------------


def test_that_consent_shows_the_real_file_with_nothing_hidden(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = "<table width=400 height=900><tr><td>digits.py</td></tr></table>"
    (tmp_path / trap).mkdir(parents=True)
    (tmp_path / "evil.py").touch()
    monkeypatch.chdir(tmp_path)
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    panel.form.set_value(RunConfig(task=f"{trap}/../../../../evil.py:make_task"))
    panel.start()
    box = panel.consent.question
    assert box is not None
    assert not suspicious_labels(box)
    assert str(tmp_path / "evil.py") in box.text().replace("\u200b", "")
    assert "digits" not in box.text()
    label = next(label for label in box.findChildren(QLabel) if "evil.py" in label.text())
    assert label.wordWrap()
    box.close()


def test_that_the_place_of_a_task_follows_links_and_shows_what_cannot_be_seen(tmp_path: Path) -> None:
    (tmp_path / "deep" / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "folder")
    assert place_of(f"{tmp_path}/link/../mine.py:make").replace("\u200b", "") == str(tmp_path / "deep" / "mine.py")
    turned = f"{tmp_path}/abc\u202egpj.py"
    assert "\\u202e" in place_of(f"{turned}:make").replace("\u200b", "")
    assert place_of("package.module:make").startswith("the module package.module ")


@pytest.mark.parametrize("task", ["a\u202eb.py:make", "a\u200b.py:make", f"{'a' * 2000}.py:make", "a\tb.py:make"])
def test_that_a_task_with_what_cannot_be_seen_is_refused(task: str) -> None:
    with pytest.raises(ValueError, match="cannot be seen"):
        RunConfig(task=task)


def test_that_a_line_without_room_ends_in_dots_and_its_tool_tip_says_all(qtbot: QtBot) -> None:
    label = ElidedLabel()
    qtbot.addWidget(label)
    text = "All together, step 115; one of 2 blocks was counted"
    label.setText(text)
    label.resize(label.fontMetrics().horizontalAdvance(text) + 20, 30)
    whole = label.grab().toImage()
    plain = PlainLabel(text)
    qtbot.addWidget(plain)
    plain.resize(label.size())
    assert whole == plain.grab().toImage()
    label.resize(120, 30)
    plain.resize(120, 30)
    assert label.grab().toImage() != plain.grab().toImage()  # which is cut
    assert label.toolTip() == text
    one_line = label.sizeHint().height()
    label.setText("TF32 is emulated here.\n\nSoftmax stays in FP32.")
    assert label.sizeHint().height() == one_line and label.text() == "TF32 is emulated here. Softmax stays in FP32."
    assert label.toolTip() == "TF32 is emulated here.\n\nSoftmax stays in FP32."
    label.setText(HOSTILE)
    assert not GuiQt.mightBeRichText(label.toolTip()) or label.toolTip() == plain_tip(HOSTILE)
    assert label.textFormat() == Qt.TextFormat.PlainText
