"""The answer of a place: large first sentence, smaller where it is long."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.kit.answer_label import MOST_LINES, AnswerLabel
from precgui.gui.kit.measures import points
from precgui.gui.theme import themes


def shown(qtbot: QtBot, text: str, width: int) -> AnswerLabel:
    answer = AnswerLabel()
    qtbot.addWidget(answer)
    themes().dress(answer)
    answer.resize(width, 200)
    answer.setText(text)
    answer.show()
    return answer


def test_that_the_first_sentence_is_twice_the_size_of_what_follows(qtbot: QtBot) -> None:
    answer = shown(qtbot, "Stay with fp32 here. bf16-amp saves 42 % of 1.5 MiB. Use it there.", 700)
    assert answer.first.text() == "Stay with fp32 here."
    assert answer.more.text() == "bf16-amp saves 42 % of 1.5 MiB. Use it there."
    assert answer.first.font().pointSizeF() == points("answer") == pytest.approx(2 * points("text"), abs=0.1)
    assert answer.more.font().pointSizeF() == pytest.approx(points("text"), abs=0.1)
    assert answer.text() == "Stay with fp32 here. bf16-amp saves 42 % of 1.5 MiB. Use it there."


def test_that_a_long_sentence_takes_a_smaller_size_where_there_is_no_room_and_grows_again(qtbot: QtBot) -> None:
    text = "bf16-amp beside fp32: same accuracy (one seed), 42 % less memory, speed not different."
    answer = shown(qtbot, text, 300)
    assert answer.first.font().pointSizeF() == points("title")
    answer.resize(700, 200)
    qtbot.waitUntil(lambda: answer.first.font().pointSizeF() == points("answer"))
    assert answer.first.heightForWidth(700) <= (MOST_LINES + 0.5) * answer.first.fontMetrics().lineSpacing()
    answer.setText("Done.")
    assert not answer.more.isVisible()
