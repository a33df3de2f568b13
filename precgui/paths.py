"""Where things live: the user's runs, the application's state, the bundled resources."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path


@cache
def resources() -> Path:
    """The bundled data: beside the package in a checkout, inside it when installed."""
    inside = Path(__file__).parent / "resources"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "resources"


def examples_dir() -> Path:
    """Where the bundled examples are, which nothing writes to (`precgui.safe_open`)."""
    return resources() / "examples"


def is_example(path: Path) -> bool:
    """Whether a path lies among the bundled examples."""
    asked = os.path.normcase(os.path.abspath(path))  # noqa: PTH100 - links are not followed
    return asked.startswith(os.path.join(os.path.normcase(examples_dir()), ""))  # noqa: PTH118 - of each row of Runs


def docs() -> Path | None:
    """The folder of the documentation, inside the package when installed; None where it was left out."""
    places = (Path(__file__).parent / "docs", Path(__file__).parent.parent / "docs")
    return next((place for place in places if place.is_dir()), None)


def runs_dir() -> Path:
    """Where new runs go: $PRECGUI_RUNS, else ~/precgui-runs. Not created here."""
    return Path(os.environ.get("PRECGUI_RUNS") or Path.home() / "precgui-runs")


def datasets_dir() -> Path:
    """Where downloaded data sets go: $PRECGUI_DATA, else ~/precgui-data. Not created here."""
    return Path(os.environ.get("PRECGUI_DATA") or Path.home() / "precgui-data")


def state_dir() -> Path:
    """Where settings, window layout and crash logs go: $PRECGUI_STATE, else the platform's place. Not created here."""
    if chosen := os.environ.get("PRECGUI_STATE"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "precgui"
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/precgui"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "precgui"
