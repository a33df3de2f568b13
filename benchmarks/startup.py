"""How soon the window is there: seconds from the start of Python to the first paint and to painted plots, by the clock
and of CPU time, which tells more on a busy machine.

    python benchmarks/startup.py [--starts N]

Each start is a new process with fresh settings that opens a run file. The last lines tell of starts that import torch
first. Python keeps its bytecode in a folder of its own, as an installed precgui has it, also where the environment says
that none is written.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WINDOW = "import sys; from precgui.cli.main import main; sys.exit(main(['--fresh', *sys.argv[1:]]))"
TORCH_FIRST = "import torch; " + WINDOW


def make_run(path: Path) -> None:
    """A run file to open: 400 steps of the default recipe."""
    command = [
        sys.executable,
        "-m",
        "precgui.cli.main",
        "run",
        "--set",
        "train.max_steps=400",
        "-o",
        str(path),
        "--json",
    ]
    subprocess.run(command, check=True, capture_output=True)


def start_once(code: str, run: Path, bytecode: Path) -> dict[str, float]:
    """Seconds by moment, as the window itself tells them."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "QT_QPA_PLATFORM": os.environ.get("QT_QPA_PLATFORM", "offscreen"),
            "PRECGUI_TRACE_STARTUP": "1",
            "PRECGUI_EXIT_AFTER_PLOTS": "1",
            "PRECGUI_STATE": folder,
            "PRECGUI_RUNS": folder,
            "PYTHONPYCACHEPREFIX": str(bytecode),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [sys.executable, "-c", code, str(run)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    moments: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=7, help="starts of each kind (default 7)")
    starts = parser.parse_args().starts
    kinds = {"precgui": WINDOW, "torch imported first": TORCH_FIRST}
    seen: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        run, bytecode = Path(folder) / "run.h5", Path(folder) / "bytecode"
        make_run(run)
        for code in kinds.values():
            start_once(code, run, bytecode)  # fills the disk cache
        for _ in range(starts):
            for kind, code in kinds.items():
                seen[kind].append(start_once(code, run, bytecode))
    for kind, moments in seen.items():
        for name in ("first_paint_s", "first_paint_cpu_s", "plots_painted_s", "plots_painted_cpu_s"):
            values = [moment[name] for moment in moments]
            spread = f"median {statistics.median(values):.3f}, least {min(values):.3f}, most {max(values):.3f}"
            print(f"{kind}: {name} {spread}")


if __name__ == "__main__":
    main()
