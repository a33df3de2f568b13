"""The plan of memory on a pretended GPU: the caching allocator is torch's own, tensors lie in main memory."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.pretended.conftest import Script
from tests.pretended.test_training import rows_of

_PLANNED = """
import json
from precgui import config
from precgui.engine.memory import workspace_bytes
from precgui.engine.profile.measure import measured_ledger
from precgui.engine.profile.predict import predicted_ledger
def planned(recipe, precision):
    settings = ["device=cuda:0", f"precision={precision}", "data.batch_size=16", "threads=1"]
    chosen = config.load(recipe, settings)
    row = {"own": predicted_ledger(chosen).to_json()}
    held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    cached = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    del cached
    row |= {"beside": predicted_ledger(chosen).to_json(), "measured": measured_ledger(chosen).to_json()}
    del held
    print("ROW " + json.dumps({**row, "workspaces": workspace_bytes(torch.device("cuda:0"))}))
"""
_ALL = (("lstm-quick", "fp32"), ("digits-quick", "fp8"), ("digits-quick", "fp32"))
ROWS = _ALL if os.environ.get("PRETENDED_LONG") else _ALL[:1]


@pytest.fixture(scope="module")
def rows(on_pretended_gpu: Script) -> list[dict[str, Any]]:
    return rows_of(
        on_pretended_gpu, [f"planned({recipe!r}, {precision!r})" for recipe, precision in ROWS], begin=_PLANNED
    )


@pytest.mark.parametrize("place", range(len(ROWS)), ids=["-".join(row) for row in ROWS])
def test_that_a_plan_counts_a_step_and_not_what_else_the_process_holds(rows: list[dict[str, Any]], place: int) -> None:
    own, beside, measured, workspaces = (rows[place][name] for name in ("own", "beside", "measured", "workspaces"))
    assert workspaces == 64 << 20
    assert own["parts"]["temporary_bytes"] >= workspaces
    assert beside["total_bytes"] == pytest.approx(own["total_bytes"], rel=0.05)
    for each in (own, beside):
        assert each["total_bytes"] == pytest.approx(measured["total_bytes"], rel=0.25), each["parts"]
