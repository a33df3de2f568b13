"""A place for the pictures: a host behind ssh, played by a program `ssh` of our own that starts an agent here.

Once `lose` is called, it fails as ssh does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import psutil

from precgui.places.settings import NamedPlace, add_place, ssh_place

NAME = "gpu1"
_SSH = """#!/bin/sh
if [ -e {lost} ]; then
  echo "ssh: connect to host gpu1 port 22: No route to host" >&2
  exit 255
fi
PRECGUI_STATE={there} exec {python} -m precgui serve --stdio
"""


class StagedPlace:
    """`place` trains here, in a folder of its own below `folder`; its `ssh` comes before the others of the path."""

    def __init__(self, folder: Path) -> None:
        self._lost, self._there = folder / "lost", folder / "there"
        program = folder / "programs" / "ssh"
        program.parent.mkdir()
        program.write_text(_SSH.format(lost=self._lost, there=self._there, python=sys.executable), encoding="utf-8")
        program.chmod(0o755)
        os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        self.place: NamedPlace = ssh_place(NAME, NAME)
        add_place(self.place)

    def lose(self) -> None:
        """End its agents, and let none start any more."""
        self._lost.touch()
        self._end(("serve", "--stdio"))

    def find(self) -> None:
        """Let agents start again."""
        self._lost.unlink(missing_ok=True)

    def end(self) -> None:
        """End all that runs there."""
        self._end(())

    def _end(self, words: tuple[str, ...]) -> None:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_there = process.environ().get("PRECGUI_STATE") == str(self._there)
                if is_there and all(word in process.cmdline() for word in words):
                    process.kill()
