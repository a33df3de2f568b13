"""A living run while the clock of the system is set forward or back by an hour: what says that it has failed?

python benchmarks/clock_step.py         needs libfaketime (Debian: apt-get install libfaketime)
The run trains in a process whose clock is stepped in the middle. Commands, the repair and the window look at it with a
stepped clock, too, and (as root) with a moved boot time in /proc/stat, as the system shows it after its clock was set.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import precgui

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
HOUR_S = 3600
WINDOW = """
import select, sys, time
from pathlib import Path
from PySide6.QtWidgets import QApplication
from precgui.gui.session import Session
app = QApplication([])
session, notices = Session(), []
session.notice.connect(lambda problem: notices.append(problem.message))
run = session.runs[session.runs.open_file(Path(sys.argv[1]))].run
first, end = run.steps, time.monotonic() + 6
while time.monotonic() < end:
    app.processEvents()
    select.select([], [], [], 0.01)  # libfaketime spoils time.sleep
print(run.status, "went on" if run.steps > first else "stood still", *notices)
sys.exit(run.status != "running")
"""


def clock(offset: str) -> dict[str, str]:
    """The environment of a process whose wall clock is moved; its monotonic clock is not, as by a step."""
    told = {"FAKETIME_TIMESTAMP_FILE": offset} if offset.startswith("/") else {"FAKETIME": offset}
    return {**os.environ, **told, "LD_PRELOAD": str(LIBRARY), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "QT_QPA_PLATFORM": "offscreen"}  # fmt: skip


def with_boot_time(command: list[str], folder: Path, step_s: int) -> list[str]:
    """The command with a /proc/stat whose boot time has moved, where this may be done."""
    if os.geteuid() != 0:
        return command
    stat = folder / f"stat{step_s}"
    text = Path("/proc/stat").read_text()
    stat.write_text(re.sub(r"btime (\d+)", lambda found: f"btime {int(found[1]) + step_s}", text))
    inside = f"mount --bind {shlex.quote(str(stat))} /proc/stat && exec {shlex.join(command)}"
    return ["unshare", "--mount", "sh", "-c", inside]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if LIBRARY is None:
        sys.exit("libfaketime is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name, "run.h5")
        offset = folder / "offset"
        offset.write_text("+0")
        me = [sys.executable, "-m", "precgui.cli.main"]
        settings = ["--set", "train.epochs=100000", "--set", "threads=1"]
        writer = subprocess.Popen([*me, "run", "-o", str(path), *settings], env=clock(str(offset)),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            wait_for_steps(path, 20)
            for step_s in (HOUR_S, -HOUR_S):
                offset.write_text(f"{step_s:+d}")
                wait_for_steps(path, 5)
                observe(path, folder, step_s, me)
        finally:
            writer.terminate()
            writer.wait()
        with precgui.open_run(path) as run:
            steps = run.series("loss")[0]
            whole = steps.tolist() == list(range(1, len(steps) + 1))
            print(f"at the end: {run.status}, {run.steps} steps, {'unbroken' if whole else 'BROKEN'}")


def wait_for_steps(path: Path, more: int) -> None:
    first = None
    while True:
        time.sleep(0.5)
        if path.exists():
            with precgui.open_run(path) as run:
                assert run.status == "running", run.status
                first = run.steps if first is None else first
                if run.steps >= first + more:
                    return


def observe(path: Path, folder: Path, step_s: int, me: list[str]) -> None:
    repair = [sys.executable, "-P", "-m", "precgui.runs.file.repair", str(path)]
    looks = {
        "export --json": [*me, "export", str(path), "--json"],
        "compare": [*me, "compare", str(path), "--json"],
        "the repair": repair,
        "the window": [sys.executable, "-c", WINDOW, str(path)],
    }
    for what, command in looks.items():
        inode = path.stat().st_ino
        done = subprocess.run(with_boot_time(command, folder, step_s), env=clock(f"{step_s:+d}"), check=False,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)  # fmt: skip
        said = done.stdout or done.stderr
        if what == "export --json" and done.returncode == 0:
            said = json.loads(said)["status"]
        elif what == "compare" and done.returncode == 0:
            said = json.loads(said)["runs"][0].get("status", "")
        replaced = "" if path.stat().st_ino == inode else ", FILE REPLACED"
        print(f"clock {step_s:+d} s, {what}: exit code {done.returncode}, {said.strip()[-160:]}{replaced}", flush=True)


if __name__ == "__main__":
    main()
