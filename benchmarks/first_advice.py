"""How soon a newcomer reads which precision suits a model on this machine: seconds from the start of the process.

    python benchmarks/first_advice.py [--starts 5]

Each start is a new process with fresh settings and an empty folder of runs. The first sentence is about the recipe that
is set when the window opens; then `gpt-quick` is chosen. Both by the clock and in CPU seconds of the process. Asked:
5 s by the clock, without training; `tests/gui/shell/test_first_answer.py` counts the clicks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

RECIPE = "gpt-quick"
LONGEST_S = 300.0


def read_advice() -> dict[str, float]:
    """Open the window in this process and wait for both sentences. Returns the seconds by moment."""
    from PySide6.QtCore import QEventLoop
    from PySide6.QtWidgets import QApplication

    from precgui.gui.notices import Notices
    from precgui.gui.settings import Settings
    from precgui.gui.shell.startup import StartupStages, seconds_since_start
    from precgui.gui.shell.window import Window

    app = QApplication([])
    window = Window(Settings(fresh=True), Notices())
    start = StartupStages(window, [])
    window.show()

    def advice() -> str:
        panel = window.host.panels.get("setup")
        label = getattr(getattr(panel, "outlook", None), "advice_text", None)
        return label.text() if label is not None and label.isVisible() else ""

    while not advice().startswith("Advised for this model here"):
        if seconds_since_start() > LONGEST_S:
            raise SystemExit(f"no advice within {LONGEST_S:.0f} s, but {advice()!r}")
        app.processEvents(QEventLoop.ProcessEventsFlag.AllEvents, 20)
    moments = {"first_s": seconds_since_start(), "first_cpu_s": time.process_time()}
    begin, cpu = time.perf_counter(), time.process_time()
    window.host.panels["setup"].use_recipe(RECIPE)  # type: ignore[attr-defined]
    app.processEvents()
    assert advice().startswith("Advised for this model here"), advice()
    moments |= {"another_s": time.perf_counter() - begin, "another_cpu_s": time.process_time() - cpu}
    window.close()
    start.deleteLater()
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(read_advice()), flush=True)
        os._exit(0)  # the other panels may still load
    taken = []
    for _ in range(args.starts):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "PRECGUI_STATE": folder, "PRECGUI_RUNS": folder}
            done = subprocess.run(
                [sys.executable, __file__, "--child"],
                env=environment, check=True, text=True, stdout=subprocess.PIPE, timeout=2 * LONGEST_S,
            )  # fmt: skip
            taken.append(json.loads(done.stdout.splitlines()[-1]))
    for name in taken[0]:
        values = [moments[name] for moments in taken]
        print(f"{name}: median {statistics.median(values):.2f}, least {min(values):.2f}, most {max(values):.2f}")


if __name__ == "__main__":
    main()
