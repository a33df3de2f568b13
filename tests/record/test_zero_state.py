"""States of optimizers beside gradients that are not stored as the weights are."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn as nn

import precgui


def test_that_sparse_gradients_of_fewer_elements_do_not_end_a_recording(tmp_path: Path) -> None:
    """The gradient of a table holds the rows that were looked up, each once, fewer than the table has."""
    torch.manual_seed(0)
    table = nn.Embedding(200, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), 1e-2)
    with precgui.Recorder(tmp_path / "run.h5", table, optimizer) as recorder:
        for _ in range(10):
            loss = table(torch.randint(0, 150, (256,))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == ("completed", 10)
