"""One rank over NCCL: DDP and FSDP have the losses of a rank on the CPU."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="runs are configured with pydantic, which is not installed here")

from precgui.config import load
from tests.devices.ranks import BASE, RUNS, STEPS, losses_close
from tests.engine.parallel import many_runs
from tests.gpu.place import DEVICE, REHEARSED

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Events of one rank by run and device, which one process makes one after the other."""
    places = ("cpu",) if REHEARSED else ("cuda", "cpu")
    runs = {f"{name} {place}": [*BASE, *settings, f"device={place}", "parallel.ranks=1"]
            for name, settings in RUNS.items() for place in places}  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    trees = [load("gpt-quick", settings).model_dump() for settings in runs.values()]
    return dict(zip(runs, many_runs.run_all(trees, 1, tmp_path_factory.mktemp("ranks"), port), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_that_a_rank_over_nccl_has_the_losses_of_one_on_the_cpu(
    told: dict[str, Any], name: str, tell: Callable[[str], None]
) -> None:
    losses = {}
    for place in ("cpu",) if REHEARSED else ("cuda", "cpu"):
        row = told[f"{name} {place}"]
        assert row["error"] == ""
        losses[place] = [event["loss"] for kind, event in row["events"] if kind == "StepDone"]
        assert len(losses[place]) == STEPS
    own = losses.get(DEVICE.partition(":")[0], losses["cpu"])
    tell(f"{name}, one rank over NCCL: {own}, on the CPU {losses['cpu']}")
    assert own == pytest.approx(losses["cpu"], rel=losses_close(name, 1e-4))
