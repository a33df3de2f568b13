"""Labels keep a number and its unit on one line."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from precgui.gui.kit.plain_text import PlainLabel


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("accuracy 99.16 % in 56.6 s.", "accuracy 99.16\u00a0% in 56.6\u00a0s."),
        ("2.68 MiB, 3 min", "2.68\u00a0MiB, 3\u00a0min"),
        ("3 seeds of 5 runs", "3 seeds of 5 runs"),
        ("step 3 starts", "step 3 starts"),
    ],
)
def test_that_a_number_does_not_part_from_its_unit(qtbot: QtBot, text: str, shown: str) -> None:
    label = PlainLabel(text)
    qtbot.addWidget(label)
    assert QLabel.text(label) == shown and label.text() == text
