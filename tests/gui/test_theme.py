"""Colours are measured: contrast by WCAG 2.2, distance by CIELAB under simulated colour blindness."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PySide6.QtCore import QTimer
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QApplication, QLabel, QScrollArea, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot
from shiboken6 import delete

import precgui.gui
from precgui.gui.colours import DARK, DASHES, LIGHT, Theme
from precgui.gui.style_sheet import palette, style_sheet
from precgui.gui.theme import themes
from tests.gui.theme_changes import change_theme

BOTH = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> NDArray[np.float64]:
    coded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(colour) @ TO_XYZ[1]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_that_black_on_white_has_the_contrast_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the known grey just below 4.5


@BOTH
def test_that_every_run_colour_can_be_seen_on_the_plot(theme: Theme) -> None:
    assert len(theme.runs) == 7
    assert min(contrast(colour, theme.base) for colour in theme.runs) >= 3.0


@BOTH
@pytest.mark.parametrize("sight", SIGHTS)
def test_that_run_colours_stay_apart_for_every_kind_of_sight(theme: Theme, sight: str) -> None:
    seen = [lab(SIGHTS[sight] @ linear(colour)) for colour in theme.runs]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) >= 23


@BOTH
@pytest.mark.parametrize("name", ["text", "muted", "accent", "info", "warning", "error", "ok"])
def test_that_text_is_legible_on_both_surfaces(theme: Theme, name: str) -> None:
    colour = getattr(theme, name)
    assert min(contrast(colour, theme.window), contrast(colour, theme.base)) >= 4.5


@BOTH
def test_that_text_on_the_accent_is_legible(theme: Theme) -> None:
    assert contrast(theme.on_accent, theme.accent) >= 4.5


@BOTH
def test_that_the_sheet_has_no_name_left_open(theme: Theme) -> None:
    assert not re.findall(r"@\w+@", style_sheet(theme))


@BOTH
def test_that_drawings_named_in_the_sheet_exist(theme: Theme) -> None:
    named = re.findall(r'url\("([^"]+)"\)', style_sheet(theme))
    assert named and all(Path(path).is_file() for path in named)


def test_that_a_run_is_told_apart_by_dash_too() -> None:
    assert len(set(DASHES)) == len(DASHES) >= 4
    assert DASHES[0] == ()


def test_that_pinning_changes_the_palette_once(qapp: QApplication, qtbot: QtBot) -> None:
    followed = themes()
    followed.set_mode("light")
    with qtbot.waitSignal(followed.changed):
        followed.set_mode("dark")
    assert qapp.palette().color(QPalette.ColorRole.Base).name() == DARK.base
    with qtbot.assertNotEmitted(followed.changed):
        followed.set_mode("dark")


def test_that_a_window_is_dressed_before_and_after_a_change_and_the_application_never(
    qapp: QApplication, qtbot: QtBot
) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    early, late = QLabel("early", window), QLabel("late")
    for label in (early, late):
        label.setProperty("kind", "muted")
    change_theme(qtbot, "light")
    themes().dress(window)
    window.show()
    change_theme(qtbot, "dark")
    late.setParent(window)
    for label in (early, late):
        label.ensurePolished()
        assert label.palette().color(QPalette.ColorRole.WindowText).name() == DARK.muted
    assert not qapp.styleSheet()  # a change of it costs five times as much


def parts_of(window: QWidget, count: int = 3) -> list[QWidget]:
    """Parts of a window, each dressed by itself and in view once the window is shown."""
    parts = [QWidget(window) for _ in range(count)]
    for at, part in enumerate(parts):
        part.setGeometry(0, 100 * at, 100, 100)
        themes().dress(part)
    window.resize(100, 100 * count)
    return parts


def are_dark(parts: Sequence[QWidget]) -> list[bool]:
    return [DARK.accent in part.styleSheet() for part in parts]


@pytest.fixture
def take_turn(qtbot: QtBot) -> Callable[[], None]:
    """One turn of a change of the theme; the event loop of the test takes none meanwhile."""
    change_theme(qtbot, "light")
    turns = themes().findChild(QTimer)
    assert turns is not None
    return turns.timeout.emit


@pytest.fixture
def shown(qtbot: QtBot) -> QWidget:
    window = QWidget()
    qtbot.addWidget(window)
    return window


def test_that_parts_in_view_take_the_theme_one_in_a_turn_and_are_painted_together(
    shown: QWidget, take_turn: Callable[[], None]
) -> None:
    parts, told = parts_of(shown), list[str]()
    themes().follow(parts[0], lambda: told.append("follower"))
    shown.show()
    themes().set_mode("dark")
    assert sum(are_dark(parts)) == 0 and not told and not shown.updatesEnabled()
    for count in range(1, len(parts) + 1):
        take_turn()
        assert sum(are_dark(parts)) == count and not told and not shown.updatesEnabled()
    take_turn()
    assert told == ["follower"] and shown.updatesEnabled() and parts[0].updatesEnabled()


def test_that_all_parts_have_the_last_theme_where_it_changes_twice(
    shown: QWidget, take_turn: Callable[[], None], qtbot: QtBot
) -> None:
    parts, told = parts_of(shown), list[str]()
    themes().follow(parts[0], lambda: told.append(themes().theme.name))
    shown.show()
    themes().set_mode("dark")
    take_turn()
    themes().set_mode("light")
    change_theme(qtbot, "dark")
    assert are_dark(parts) == [True] * 3 and set(told) == {DARK.name} and shown.updatesEnabled()
    themes().set_mode("light")
    take_turn()
    change_theme(qtbot, "light")
    assert are_dark(parts) == [False] * 3 and told[-1] == LIGHT.name and shown.updatesEnabled()


def test_that_windows_and_parts_that_go_during_a_change_leave_the_others_their_turns(
    shown: QWidget, take_turn: Callable[[], None], qtbot: QtBot
) -> None:
    parts, told = parts_of(shown), list[str]()
    gone, closed = QWidget(), QWidget()
    qtbot.addWidget(closed)
    of_gone, of_closed = parts_of(gone), parts_of(closed)
    themes().follow(of_gone[0], lambda: told.append("gone"))
    for window in (gone, shown, closed):
        window.show()
    themes().set_mode("dark")
    take_turn()
    delete(gone)
    closed.close()
    delete(parts.pop())
    qtbot.waitUntil(lambda: not themes().is_changing)
    assert are_dark([*parts, *of_closed]) == [True] * 5 and not told
    assert shown.updatesEnabled() and closed.updatesEnabled()


def test_that_a_part_made_during_a_change_has_the_new_theme_at_once(
    shown: QWidget, take_turn: Callable[[], None], qtbot: QtBot
) -> None:
    parts_of(shown)
    shown.show()
    themes().set_mode("dark")
    take_turn()
    late = QWidget(shown)
    themes().dress(late)
    late.show()
    assert are_dark([late]) == [True] and not late.updatesEnabled()  # it is painted with the others
    change_theme(qtbot, "dark")
    assert late.updatesEnabled()


def test_that_a_part_of_a_window_that_is_not_shown_follows_at_once(take_turn: Callable[[], None]) -> None:
    told: list[str] = []
    alone = QWidget()
    themes().follow(alone, lambda: told.append(themes().theme.name))
    themes().set_mode("dark")
    assert told == [DARK.name]


def test_that_a_hidden_part_is_dressed_after_those_in_view_or_when_it_is_needed(
    take_turn: Callable[[], None], qtbot: QtBot
) -> None:
    parts = [QWidget() for _ in range(3)]
    for part in parts:
        qtbot.addWidget(part)
        themes().dress(part)
    parts[1].show()
    themes().set_mode("dark")
    take_turn()
    assert are_dark(parts) == [False, True, False]
    themes().dress(parts[2])
    assert are_dark(parts) == [False, True, True]
    qtbot.waitUntil(lambda: DARK.accent in parts[0].styleSheet())


def test_that_a_part_that_is_scrolled_away_takes_the_theme_later_or_when_it_comes_into_view(
    take_turn: Callable[[], None], qtbot: QtBot
) -> None:
    page, scroller = QWidget(), QScrollArea()
    qtbot.addWidget(scroller)
    column = QVBoxLayout(page)
    parts = [QWidget(page) for _ in range(3)]
    for part in parts:
        part.setFixedSize(100, 300)
        column.addWidget(part)
    scroller.setWidget(page)
    scroller.resize(200, 200)
    frames = (scroller, scroller.viewport(), page)
    themes().dress_parts(frames)
    with qtbot.waitExposed(scroller):
        scroller.show()
    qtbot.waitUntil(lambda: not parts[0].visibleRegion().isEmpty())
    themes().set_mode("dark")
    while not scroller.updatesEnabled():
        take_turn()
    assert are_dark(parts) == [True, False, False]
    assert not any(frame.styleSheet() for frame in frames)
    scroller.ensureWidgetVisible(parts[1])
    themes().dress_in_view(scroller)
    assert not scroller.updatesEnabled()
    qtbot.waitUntil(scroller.updatesEnabled)
    assert are_dark(parts)[:2] == [True, True]
    change_theme(qtbot, "dark")
    assert are_dark(parts) == [True] * 3


def test_that_a_drawing_that_comes_into_view_takes_the_theme_before_it_is_painted(
    shown: QWidget, take_turn: Callable[[], None], qtbot: QtBot
) -> None:
    drawings, told = parts_of(shown, 9), list[int]()
    for at, drawing in enumerate(drawings):
        drawing.hide()
        themes().follow(drawing, lambda at=at: told.append(at))
    shown.show()
    themes().set_mode("dark")
    drawings[-1].show()
    themes().dress_in_view(shown)
    assert not told and not shown.updatesEnabled()
    qtbot.waitUntil(shown.updatesEnabled)
    assert 8 in told and len(told) < 8
    change_theme(qtbot, "dark")
    assert sorted(told) == list(range(9))


def test_that_there_is_one_theme_an_application(qapp: QApplication) -> None:
    assert themes() is themes()


def test_that_an_unknown_mode_is_refused(qapp: QApplication) -> None:
    with pytest.raises(ValueError, match="'blue' is not a theme mode"):
        themes().set_mode("blue")


def test_that_disabled_text_differs_from_enabled_text() -> None:
    made = palette(LIGHT)
    group = QPalette.ColorGroup
    assert made.color(group.Disabled, QPalette.ColorRole.Text) != made.color(group.Active, QPalette.ColorRole.Text)


def test_that_colours_are_named_in_one_room_alone() -> None:
    room = Path(precgui.gui.__file__).parent
    named = {
        path.relative_to(room).as_posix(): found
        for path in room.rglob("*.py")
        if path.name != "colours.py"
        and (found := re.findall(r"[\"']#[0-9a-fA-F]{3,8}[\"']", path.read_text(encoding="utf-8")))
    }
    assert not named
