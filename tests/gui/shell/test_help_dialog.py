"""The documentation: pictures are as wide as the view at most, whatever size it takes, and keep their colours."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QColor, QImage, QTextDocument
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from precgui import words
from precgui.gui.shell import help_dialog
from precgui.gui.shell.help_dialog import HelpDialog, TopicView


@pytest.fixture
def topic(tmp_path: Path) -> Path:
    for name, width in (("wide", 1600), ("small", 80)):
        picture = QImage(width, 100, QImage.Format.Format_RGB32)
        picture.fill(QColor("red"))
        picture.save(str(tmp_path / f"{name}.png"))
    (tmp_path / "topic.md").write_text("# Topic\n\n![wide](wide.png)\n\n![small](small.png)\n\n![gone](gone.png)\n")
    return tmp_path / "topic.md"


def picture(view: TopicView, name: str) -> QImage:
    image = view.document().resource(QTextDocument.ResourceType.ImageResource.value, QUrl(f"{name}.png"))
    assert isinstance(image, QImage)
    return image


def is_read(view: TopicView, name: str) -> bool:
    return picture(view, name).pixelColor(1, 1) == QColor("red")


def test_that_pictures_fit_the_view_before_and_after_it_gets_wider(qtbot: QtBot, topic: Path) -> None:
    view = TopicView()
    qtbot.addWidget(view)
    view.resize(400, 300)
    with qtbot.waitExposed(view):
        view.show()
    view.show_topic(topic)
    for width in (400, 700):
        view.resize(width, 300)
        qtbot.waitUntil(lambda: is_read(view, "wide") and is_read(view, "small"))
        qtbot.waitUntil(lambda: 0.8 * view.viewport().width() < picture(view, "wide").width())
        assert picture(view, "wide").width() <= view.viewport().width()
        assert view.horizontalScrollBar().maximum() == 0
        assert picture(view, "small").width() == 80
        assert picture(view, "gone").isNull()


def test_that_another_topic_may_be_chosen_before_its_pictures_are_read(qtbot: QtBot, topic: Path) -> None:
    view = TopicView()
    qtbot.addWidget(view)
    view.show_topic(topic)
    other = topic.parent / "other.md"
    other.write_text("# Other\n\n![small](small.png)\n")
    view.show_topic(other)
    qtbot.waitUntil(lambda: is_read(view, "small"))
    assert "Other" in view.toPlainText()


@pytest.mark.parametrize(("language", "titles"), [("en", ["Alpha", "Beta"]), ("zh_CN", ["Alpha", "贝塔"])])
def test_that_each_document_is_listed_once_in_the_language_of_the_reader(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, titles: list[str]
) -> None:
    for name, title in (("alpha.md", "Alpha"), ("beta.md", "Beta"), ("beta.zh-CN.md", "贝塔")):
        (tmp_path / name).write_text(f"# {title}\n", encoding="utf-8")
    monkeypatch.setattr(help_dialog, "docs", lambda: tmp_path)
    words.use(language)
    try:
        parent = QWidget()
        qtbot.addWidget(parent)
        dialog = HelpDialog(parent)
    finally:
        words.use("en")
    items = [dialog.topics.item(row) for row in range(dialog.topics.count())]
    assert [item.text() for item in items if item] == titles
    dialog.text.anchorClicked.emit(QUrl("beta.md"))
    assert dialog.topics.currentRow() == 1
