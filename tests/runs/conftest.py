"""What the tests of the record share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precgui.config import RunConfig
from tests.runs.synthetic import open_writer, synthetic_events
from tests.written_once import written_once


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
