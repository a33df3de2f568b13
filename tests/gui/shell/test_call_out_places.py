"""What a call-out speaks of is in view, and the call-out does not lie over it: three languages, two sizes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from PySide6.QtCore import QPoint, QRect, QTimer
from PySide6.QtWidgets import QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from precgui.examples import EXAMPLES
from precgui.gui.notices import Notices
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.shell import guide as guides
from precgui.gui.shell.call_out import CallOut, filled_area
from precgui.gui.shell.first_paths import FORMATS, WRONG
from precgui.gui.shell.guided_path import FirstPath, PathStep, diagnose_of
from precgui.gui.shell.precision_paths import WHICH
from precgui.gui.shell.window import Window
from tests.gui.test_translated_layout import opened, settle

SIZES = ((800, 600), (1280, 800))
STUDY = next(each.path for each in EXAMPLES if each.is_study)
TENSORS = next(each.path for each in EXAMPLES if each.name == "bf16-stagnation")
LOOK_MS = 5


def covered(call_out: CallOut, parts: list[QWidget], window: Window) -> list[QRect]:
    """What of these parts lies under the call-out."""
    under = [call_out.geometry() & filled_area(part, window) for part in parts]
    return [each for each in under if not each.isEmpty()]


def out_of_view(parts: list[QWidget]) -> list[str]:
    """The parts of a page that scrolls that are cut off, though there is room for them beside the target, the first."""
    found = []
    for part in parts[1:]:
        page, area = scrolled_page(part)
        if area is None or page is None or not part.isVisible():
            continue
        place = QRect(part.mapTo(page, QPoint()), part.size())
        wanted = place
        for other in parts[: parts.index(part)]:
            if scrolled_page(other)[0] is page and other.isVisible():
                wanted = wanted.united(QRect(other.mapTo(page, QPoint()), other.size()))
        seen = QRect(-page.pos(), area.viewport().size())
        if wanted.height() <= seen.height() and not (seen.top() <= place.top() and place.bottom() <= seen.bottom()):
            found.append(f"{type(part).__name__} {place} is not in {seen}")
    return found


def scrolled_page(part: QWidget) -> tuple[QWidget | None, QScrollArea | None]:
    """The page that a part scrolls with, and the area that shows it."""
    parent = part.parentWidget()
    while parent is not None and not isinstance(parent, QScrollArea):
        parent = parent.parentWidget()
    return (parent.widget(), parent) if parent is not None else (None, None)


def ready(window: Window, name: str, until: Callable[[Callable[[], bool]], None]) -> None:
    """Bring the window to where the step begins, as the steps before it would."""
    session = window.session
    assert session is not None
    if name == "which 1":
        for member in ("s01-fp32", "s01-bf16-amp"):
            session.runs.open_file(STUDY / "members" / f"{member}.h5")
        until(lambda: len(session.runs) == 2)
    elif name == "which 4":
        session.open_study(STUDY)
        until(lambda: session.study.grid is not None)
    elif name == "which 5":  # the members of the study have no tensors
        key = session.runs.open_file(TENSORS)
        assert key is not None
        session.runs.choose(key)
    elif name == "wrong 1":
        until(lambda: bool(diagnose_of(window).cards))
    elif name == "wrong 2":
        diagnose_of(window).cards[0].show_button.click()
    elif name == "formats 4":
        library = cast(LibraryPanel, window.host.load("library"))
        library.refresh()
        until(lambda: library.table.rowCount() > 0)


def unhurried(path: FirstPath) -> FirstPath:
    """The path with steps that only Next ends, begun without a training."""
    steps = tuple(replace(step, watch=lambda _: lambda: False) for step in path.steps)
    return replace(path, begin=(lambda _: None) if path is WHICH else path.begin, steps=steps)


def placed(window: Window, qtbot: QtBot, step: PathStep) -> CallOut:
    """The call-out, once it has looked at the window as it is."""
    call_out = window.guide.call_out
    assert call_out is not None
    timer = window.guide.findChild(QTimer)
    assert timer is not None
    looks: list[int] = []
    timer.timeout.connect(lambda: looks.append(1))
    for count in (4, 8):
        settle()
        qtbot.waitUntil(lambda count=count: len(looks) >= count)
    qtbot.waitUntil(lambda: call_out.frame.isVisible() and window.guide.target is step.target(window))
    return call_out


@pytest.mark.parametrize("language", ["en", "zh_CN", "pseudo"])
def test_that_what_a_call_out_speaks_of_is_in_view_and_free(
    qtbot: QtBot, notices: Notices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setattr(guides, "LOOK_MS", LOOK_MS)
    kept = tmp_path / "runs"
    kept.mkdir()
    for member in ("s01-fp32", "s01-bf16-amp"):
        shutil.copy(STUDY / "members" / f"{member}.h5", kept)
    wrong: list[str] = []
    with opened(qtbot, notices, language) as window:
        for path in map(unhurried, (WHICH, WRONG, FORMATS)):
            window.guide.follow(path)
            for at, step in enumerate(path.steps, 1):
                name = f"{path.name} {at}"
                ready(window, name, qtbot.waitUntil)
                step.show(window)
                for size in SIZES:
                    window.resize(*size)
                    call_out = placed(window, qtbot, step)
                    target = step.target(window)
                    assert target is not None
                    assert window.rect().contains(call_out.geometry()), f"{name} {size}: outside of the window"
                    under = covered(call_out, [target, *step.about(window)], window)
                    wrong += [f"{name} {size}: {call_out.geometry()} covers {part}" for part in under]
                    wrong += [f"{name} {size}: {each}" for each in out_of_view([target, *step.about(window)])]
                call_out.skip.click()
    assert not wrong, "\n".join(wrong)
