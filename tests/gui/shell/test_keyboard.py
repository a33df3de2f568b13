"""Focus and keys: one frame for what is chosen, Tab enters a group at the chosen item, every key is listed."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QLabel, QTreeWidget, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.kit.pages import loading
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.plots.linked import LinkedPlots
from precgui.gui.session import Session
from precgui.gui.shell.command_palette import KEYS, KeyList
from precgui.gui.shell.help_dialog import HelpDialog
from precgui.gui.shell.window import Window


def test_that_the_focus_goes_with_the_choice_in_the_navigation(window: Window, qtbot: QtBot) -> None:
    buttons = window.navigation.buttons
    window.activateWindow()
    qtbot.mouseClick(buttons["live"], Qt.MouseButton.LeftButton)
    assert buttons["live"].isChecked()
    tabbed = [name for name, button in buttons.items() if button.focusPolicy() & Qt.FocusPolicy.TabFocus]
    assert tabbed == ["live"]
    window.show_panel("compare")
    assert not buttons["live"].focusPolicy() & Qt.FocusPolicy.TabFocus
    assert not any(button.hasFocus() for name, button in buttons.items() if name != "compare")


def test_that_tab_enters_the_precisions_at_the_chosen_one(qtbot: QtBot) -> None:
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    panel.precision.set("fp8")
    cards = panel.precision.cards
    assert [name for name, card in cards.items() if card.button.focusPolicy() & Qt.FocusPolicy.TabFocus] == ["fp8"]


def test_that_f1_lists_the_keys_of_every_place(window: Window, qtbot: QtBot) -> None:
    keys = KeyList(window.actions_, window)
    qtbot.addWidget(keys)
    table = keys.findChild(QTreeWidget)
    assert isinstance(table, QTreeWidget)
    told = {table.topLevelItem(row).text(0) for row in range(table.topLevelItemCount())}
    assert {f"{place}: {text}" for place, rows in KEYS.items() for text, _ in rows} <= told
    assert "Help: Documentation" in told


def test_that_the_documentation_opens_at_a_topic_and_follows_its_links(window: Window, qtbot: QtBot) -> None:
    dialog = HelpDialog(window)
    qtbot.addWidget(dialog)
    titles = [dialog.topics.item(row).text() for row in range(dialog.topics.count())]
    assert "Architecture" in titles
    dialog.topics.setCurrentRow(titles.index("Architecture"))
    assert "may import" in dialog.text.toPlainText()


def test_that_all_plots_ask_for_the_same_height(qtbot: QtBot) -> None:
    plots = LinkedPlots()
    qtbot.addWidget(plots)
    assert {frame.chart.sizeHint() for frame in plots.frames} == {QSize(480, 140)}


def test_that_a_page_says_that_it_loads_while_it_is_made(qtbot: QtBot) -> None:
    page = QWidget()
    qtbot.addWidget(page)
    column = QVBoxLayout(page)
    with loading("Range", column):
        label = column.itemAt(0).widget()
        assert isinstance(label, QLabel)
        assert label.text() == "Loading Range..."
    assert column.count() == 0
