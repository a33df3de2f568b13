"""How soon the window is there: seconds from the start of Python to the first paint and to painted plots.

    python benchmarks/startup.py [--starts N]

Each start is a new process with fresh settings. The last line compares with a start that imports torch first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

WINDOW = "from precgui.cli.main import main; import sys; sys.exit(main(['--fresh']))"
TORCH_FIRST = "import torch; " + WINDOW


def start_once(code: str) -> dict[str, float]:
    """Seconds by moment, as the window itself tells them."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "QT_QPA_PLATFORM": os.environ.get("QT_QPA_PLATFORM", "offscreen"),
            "PRECGUI_TRACE_STARTUP": "1",
            "PRECGUI_EXIT_AFTER_PLOTS": "1",
            "PRECGUI_STATE": folder,
            "PRECGUI_RUNS": folder,
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
    moments: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=7, help="starts of each kind (default 7)")
    starts = parser.parse_args().starts
    start_once(WINDOW)  # fills the disk cache
    kinds = {"precgui": WINDOW, "torch imported first": TORCH_FIRST}
    seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(starts):
        for kind, code in kinds.items():
            seen[kind].append(start_once(code))
    for kind, moments in seen.items():
        for name in ("first_paint_s", "plots_painted_s"):
            values = [moment[name] for moment in moments]
            spread = f"median {statistics.median(values):.3f}, least {min(values):.3f}, most {max(values):.3f}"
            print(f"{kind}: {name} {spread}")


if __name__ == "__main__":
    main()
