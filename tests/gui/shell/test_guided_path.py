"""What the paths of the first run ask of the panels, which they know by protocols alone, is there."""

from __future__ import annotations

from typing import cast

from precgui.gui.shell import guided_path
from precgui.gui.shell.precision_paths import GuidedInspect
from precgui.gui.shell.window import Window


def missing(protocol: type, part: object) -> list[str]:
    """The members of a protocol that a part lacks."""
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    return [name for name in (*protocol.__annotations__, *methods) if not hasattr(part, name)]


def test_that_panels_have_what_paths_ask_of_them(working: Window) -> None:
    live, compare = guided_path.live_of(working), guided_path.compare_of(working)
    asked = (
        (guided_path.GuidedSetup, guided_path.setup_of(working)),
        (guided_path.GuidedLive, live), (guided_path.GuidedGrid, live.study),
        (guided_path.GuidedCompare, compare), (guided_path.GuidedAnswer, compare.answer),
        (guided_path.GuidedDiagnose, guided_path.diagnose_of(working)),
        (guided_path.GuidedLibrary, guided_path.library_of(working)),
        (GuidedInspect, cast(GuidedInspect, working.host.load("inspect"))),
    )  # fmt: skip
    assert [(protocol.__name__, names) for protocol, part in asked if (names := missing(protocol, part))] == []


def test_that_a_panel_without_what_is_asked_is_noticed(working: Window) -> None:
    assert "cards" in missing(guided_path.GuidedDiagnose, guided_path.live_of(working))
