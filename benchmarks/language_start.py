"""What a language adds to the start of a command: CPU seconds of `precgui encode 0.1` in Chinese against English.

    python benchmarks/language_start.py [--pairs N]

Each pair runs both languages in new processes, in random order. CPU time (user and system) counts, not the clock, so
that other programs disturb it less. Two differences are given, each a median with its 95 % interval by bootstrap:

- of the whole command, imports included, whose noise is several milliseconds;
- of the part that differs: in a process that has shown the command in English once, the CPU time of choosing the
  language and showing the command again. What Chinese loads and looks up is in it; modules are loaded before, and
  caches that English has filled are warm, which favours English.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable

COMMAND = (sys.executable, "-m", "precgui", "encode", "0.1")
LANGUAGES = ("en", "zh_CN")
_RESAMPLES = 2000
_PART = """
import contextlib, io, sys, time
from precgui import words
from precgui.cli.main import main

def show(language):
    begin = time.process_time()
    words.use(language)
    with contextlib.redirect_stdout(io.StringIO()):
        main(["encode", "0.1"])
    return 1e3 * (time.process_time() - begin)

show("en")
print(show(sys.argv[1]))
"""


def start_ms(language: str) -> float:
    """CPU milliseconds of one command in a new process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(COMMAND, env={**os.environ, "PRECGUI_LANGUAGE": language}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def part_ms(language: str) -> float:
    """CPU milliseconds of choosing a language and showing the command, in a process that has shown it in English."""
    command = (sys.executable, "-c", _PART, language)
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def interval(values: list[float], order: random.Random) -> tuple[float, float]:
    """95 % around the median."""
    medians = sorted(statistics.median(order.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]


def compare(title: str, measure: Callable[[str], float], pairs: int, order: random.Random) -> None:
    for language in LANGUAGES:  # fills the disk cache, compiles the catalogue
        measure(language)
    spent: dict[str, list[float]] = {language: [] for language in LANGUAGES}
    for _ in range(pairs):
        for language in order.sample(LANGUAGES, len(LANGUAGES)):
            spent[language].append(measure(language))
    print(title)
    for language, values in spent.items():
        print(f"  {language}: median {statistics.median(values):.1f} ms, {min(values):.1f} to {max(values):.1f}")
    added = [chinese - english for english, chinese in zip(spent["en"], spent["zh_CN"], strict=True)]
    low, high = interval(added, order)
    print(f"  zh_CN against en: {statistics.median(added):+.1f} ms ({low:+.1f} to {high:+.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of starts (default 30)")
    pairs, order = parser.parse_args().pairs, random.Random(0)
    compare("the whole command", start_ms, pairs, order)
    compare("the part that differs", part_ms, pairs, order)


if __name__ == "__main__":
    main()
