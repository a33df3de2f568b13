"""Runs, and what their exported scripts print, for the tests that compare them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from precgui import config
from precgui.engine.train import train
from precgui.events import Event

_RUNNER = """
import pathlib, runpy, sys
sys.modules["precgui"] = None
for path in sys.argv[1:]:
    print("script", path)
    sys.path.insert(0, str(pathlib.Path(path).parent))
    runpy.run_path(path, run_name="__main__")
"""


def printed_by(paths: Iterable[Path]) -> list[str]:
    """The output of each script, without precgui; in one process, because importing torch takes seconds."""
    command = [sys.executable, "-W", "error", "-I", "-c", _RUNNER, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    return re.split(r"^script .*\n", done.stdout, flags=re.MULTILINE)[1:]


def recorded(settings: Iterable[str]) -> tuple[config.RunConfig, list[Event]]:
    """A config for digits on the CPU, and the events of its run."""
    events: list[Event] = []
    loaded = config.load("digits-quick", ["device=cpu", "threads=1", "record.tensors=false", *settings])
    train(loaded, events.append, lambda: False)
    return loaded, events
