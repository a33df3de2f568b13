"""The Tensors panel while a run ends and its rows are read from its file instead of from memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from precgui.config import RunConfig
from precgui.events import RunEnded, RunStarted
from precgui.gui.panels.inspect.tensors.incremental_reader import IncrementalReader
from precgui.runs.file.reader import open_run
from tests.gui.panels.inspect.tensors.test_panel import event, recorded
from tests.runs.synthetic import live_run


def test_that_no_row_counts_twice_when_a_run_is_let_go_to_its_file(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.h5")
    rows = [event(step) for step in range(1, 31)]
    run = live_run([RunStarted(0.0, 30, 30, "cpu"), *rows, RunEnded(9.0, "completed")], RunConfig(precision="fp32"))
    reader = IncrementalReader(run, "gradient")
    reader.read_new()
    before = reader.rows()
    assert run.hand_over(open_run(path))
    reader.read_new()
    while reader.go_on(1.0):
        pass
    after = reader.rows()
    assert before is not None
    assert after is not None
    assert (reader.done, reader.total) == (30, 30)
    np.testing.assert_array_equal(before.exponents, after.exponents)
    np.testing.assert_array_equal(before.stats, after.stats)
