"""Training loops of other people on the pretended device, in a process of `on_pretended_gpu`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.devices.foreign_loops import run_loop
from tests.pretended import host_math


def print_loop(name: str, folder: str, steps: int = 6, device: str = "cuda:0") -> None:
    """Print one line of JSON: the losses, as hexadecimal text, and counts of each step, without a recorder and with."""
    path = Path(folder) / f"{name}.h5"
    path.parent.mkdir(exist_ok=True)
    result: dict[str, Any] = {"losses": {}, "steps": {}, "weights": {}, "file": str(path)}
    for way, file in (("alone", None), ("recorded", path)):
        counts: list[dict[str, Any]] = []

        def count(counts: list[dict[str, Any]] = counts) -> None:
            counts.append(host_math.counts())
            host_math.record.clear()

        host_math.record.clear()
        losses, weights = run_loop(name, device, steps, file, count)
        result["losses"][way] = [loss.hex() for loss in losses]
        result["weights"][way] = [total.hex() for total in weights]
        result["steps"][way] = counts
    rest = {"lost": host_math.lost(), "records": [host_math.records(number) for number in (0, 1)]}
    print("ROW " + json.dumps({**result, **rest}))  # noqa: T201
