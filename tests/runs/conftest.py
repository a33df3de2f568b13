"""What the tests of the record share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precgui.config import RunConfig
from tests.runs.synthetic import open_writer, synthetic_events
from tests.written_once import written_once

DYING = """
import os, sys
from pathlib import Path
from tests.runs.synthetic import open_writer, synthetic_events
emit = open_writer(Path(sys.argv[1]))
for event in synthetic_events()[:-1]:
    emit(event)
emit.flush()
os._exit(9)
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run file of synthetic events and returns its path."""

    def write(name: str = "run.h5", config: RunConfig | None = None, **options: Any) -> Path:
        def events_into(path: Path) -> None:
            with open_writer(path, config) as writer:
                for event in synthetic_events(**options):
                    writer(event)

        key = ("synthetic", config and config.model_dump_json(), repr(sorted(options.items())))
        return written_once(tmp_path / name, key, events_into)

    return write


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """The file of a process that died after 300 steps."""

    def write(path: Path) -> None:
        assert subprocess.run([sys.executable, "-c", DYING, str(path)], check=False).returncode == 9

    return written_once(tmp_path / "dead.h5", "of a process that died", write)
