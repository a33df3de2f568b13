"""How a recorded loop may end: with an exception, inside `with` or not, caught or not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import precgui
from precgui.record import Recorder
from tests.record.test_recorder import batches, network
from tests.warm_children import python


def test_that_an_exception_in_the_loop_is_kept_and_goes_on(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        loss = model(batches(1)[0][0]).sum()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        raise ZeroDivisionError("in the loop")
    assert not any(module._forward_hooks for module in model.modules())
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.message, run.steps) == ("failed", "ZeroDivisionError at step 2: in the loop", 1)
        assert "raise ZeroDivisionError" in run.details


LOOP = """
import sys, torch, precgui
from torch import nn

def loop(recorder, model, optimizer):
    for step in range(4):
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        if step == 2:
            {ending}

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recorder = precgui.Recorder(sys.argv[1], model, optimizer)
try:
    loop(recorder, model, optimizer)
except OSError:
    pass
{after}
"""


ENDINGS = [
    ("raise ZeroDivisionError('in the loop')", "", "failed", "ZeroDivisionError at step 4: in the loop", "in loop"),
    ("raise KeyboardInterrupt", "", "stopped", "interrupted inside step 4", ""),
    ("raise OSError('caught')", "", "completed", "ended after step 3 without close()", ""),
    ("return", "", "completed", "ended after step 3 without close()", ""),
    ("return", "del recorder", "completed", "the recorder was deleted after step 3 without close()", ""),
    ("raise OSError('caught')", "int('x')", "failed", "ValueError at step 4: invalid literal", "in <module>"),
]


@pytest.mark.parametrize("ending", ENDINGS, ids=[" then ".join(each[:2]) for each in ENDINGS])
def test_that_a_script_that_ends_without_close_says_why(tmp_path: Path, ending: tuple[str, ...]) -> None:
    in_loop, after, status, message, details = ending
    python("-c", LOOP.format(ending=in_loop, after=after), tmp_path / "run.h5")
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == (status, 3)
        assert message in run.message
        assert details in run.details


def test_that_an_exception_of_a_session_that_goes_on_is_not_taken_for_the_end_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    recorder = Recorder(tmp_path / "run.h5", model, torch.optim.SGD(model.parameters(), lr=0.1))
    monkeypatch.setattr(sys, "last_value", ZeroDivisionError(), raising=False)
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    recorder.abandon()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.message == "ended after step 0 without close()"
