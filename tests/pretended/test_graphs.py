"""`train.cuda_graph` on the pretended device, whose graphs compute nothing while they are captured."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.pretended.conftest import Script
from tests.pretended.test_training import CLOSE, check_row, rows_of

STEPS = 7
WARM_UP_STEPS = 3
PRECISIONS = ("bf16-amp", "fp32", "bf16-pure") if os.environ.get("PRETENDED_LONG") else ("bf16-amp",)
_SINGLE = """
import json
from tests.pretended.training import print_run
from precgui.engine.captured_step import CapturedStep
def printed(compute_waits):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)).to("cuda")
    def compute(batches):
        for p in model.parameters():
            p.grad = None
        loss = sum(model(x.to("cuda") if x.is_cpu else x).square().mean() for x, _ in batches)
        loss.backward()
        if compute_waits:
            float(loss)
        return loss.detach()
    def rows(gradients):
        torch.manual_seed(2)
        found = []
        for size in (8, 8, 8, 8, 8, 3, 8):
            batches = [(torch.randn(size, 5), torch.zeros(size)) for _ in range(2)]
            loss = gradients(batches)
            found.append([float(loss), *(float(p.grad.double().square().sum()) for p in model.parameters())])
            found[-1] += [float(model[1].running_mean.sum()), int(model[1].num_batches_tracked)]
        return found
    state = {name: value.clone() for name, value in model.state_dict().items()}
    plain = rows(compute)
    model.load_state_dict(state)
    told = []
    host_math.record.clear()
    own = rows(CapturedStep(compute, model, torch.device("cuda:0"), told.append))
    print("ROW " + json.dumps([plain, own, told, host_math.record.operations["graph"]]))
"""
_SINGLE_CALLS = {"single": "printed(False)", "single that waits": "printed(True)"}


@pytest.fixture(scope="module")
def runs(on_pretended_gpu: Script) -> dict[str, Any]:
    """Rows of runs and of single steps, all of one process, because its start takes longer than they do."""
    calls = {
        name: f"print_run('digits-quick', 'precision={name}', steps={STEPS}, of_gpu=['train.cuda_graph=true'])"
        for name in PRECISIONS
    }
    calls |= _SINGLE_CALLS
    return dict(zip(calls, rows_of(on_pretended_gpu, list(calls.values()), begin=_SINGLE), strict=True))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_that_a_run_in_a_graph_has_the_losses_of_the_cpu(runs: dict[str, Any], precision: str) -> None:
    row = runs[precision]
    check_row(row, CLOSE.get(precision, 1e-6))
    assert sum(step["graphs"] for step in row["steps"]) == STEPS - WARM_UP_STEPS
    assert [step["waits"] for step in row["steps"][WARM_UP_STEPS + 1 :]] == [1] * (STEPS - WARM_UP_STEPS - 1)


def test_that_other_shapes_go_beside_the_graph_and_a_wait_is_told_once(runs: dict[str, Any]) -> None:
    plain, own, told, replays = runs["single"]
    plain_waiting, own_waiting, told_waiting, replays_waiting = runs["single that waits"]
    assert own == plain
    assert (told, replays) == ([], 3)
    assert own_waiting == plain_waiting
    assert replays_waiting == 0
    assert len(told_waiting) == 1
    assert told_waiting[0].startswith(
        "train.cuda_graph: the step cannot be captured (CUDA error: operation not permitted"
    )
    assert told_waiting[0].endswith("set it to false")
