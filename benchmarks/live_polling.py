"""What live polling costs, and whether it gains memory or file handles, over some minutes.

    python benchmarks/live_polling.py [--minutes 10] [--double]

Polls every sensor of this machine as the Live tab does. `--double` polls an H200 that is not there: the library in C of
tests/hardware/fake_nvml.c, through the real binding. Exit code 1 when polling takes 2 % of a core or more, or when
memory grows by more than 1 MiB after the first minute.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from precgui.hardware.live import HardwareSnapshot, LivePoller

SOURCE = Path(__file__).parent.parent / "tests" / "hardware" / "fake_nvml.c"
MOST_SHARE, MOST_GROWTH = 0.02, 1 << 20


def with_double(arguments: list[str]) -> int:
    """The same in a process that finds the double in the place of the driver's library."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        return subprocess.run([sys.executable, __file__, *arguments], env=environment, check=False).returncode


def measure(minutes: float) -> int:
    """Poll, print the figures each minute and at the end."""
    process, counted = psutil.Process(), [0, 0]

    def count(snapshot: HardwareSnapshot) -> None:
        counted[0] += 1
        counted[1] += snapshot.full

    poller = LivePoller(count)
    poller.start()
    time.sleep(min(60.0, 6.0 * minutes))  # the first allocations are no leak
    memory, handles = process.memory_info().rss, process.num_fds()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - start_s < 60 * minutes:
        time.sleep(min(60.0, 60 * minutes))
        share = (time.process_time() - start_cpu_s) / (time.perf_counter() - start_s)
        growth = process.memory_info().rss - memory
        gained = process.num_fds() - handles
        print(f"{counted[0]} snapshots, {counted[1]} of everything: {share:.2%} of a core, "
              f"memory {growth / 1024:+.0f} KiB, file handles {gained:+d}", flush=True)  # fmt: skip
    poller.stop()
    return int(share >= MOST_SHARE or growth > MOST_GROWTH or gained > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--double", action="store_true")
    asked = parser.parse_args()
    return with_double(["--minutes", str(asked.minutes)]) if asked.double else measure(asked.minutes)


if __name__ == "__main__":
    sys.exit(main())
