"""What a language adds to the start of a command: CPU seconds of `precgui encode 0.1` in Chinese against English.

    python benchmarks/language_start.py [--pairs N]

Each pair runs both languages in new processes, in random order. CPU time (user and system) counts, not the clock, so
that other programs disturb it less. The last line is the median of the differences with its 95 % interval by bootstrap.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys

COMMAND = (sys.executable, "-m", "precgui", "encode", "0.1")
LANGUAGES = ("en", "zh_CN")
_RESAMPLES = 2000


def start_ms(language: str) -> float:
    """CPU milliseconds of one command in a new process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(COMMAND, env={**os.environ, "PRECGUI_LANGUAGE": language}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def interval(values: list[float], order: random.Random) -> tuple[float, float]:
    """95 % around the median."""
    medians = sorted(statistics.median(order.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of starts (default 30)")
    pairs, order = parser.parse_args().pairs, random.Random(0)
    for language in LANGUAGES:  # fills the disk cache, compiles the catalogue
        start_ms(language)
    spent: dict[str, list[float]] = {language: [] for language in LANGUAGES}
    for _ in range(pairs):
        for language in order.sample(LANGUAGES, len(LANGUAGES)):
            spent[language].append(start_ms(language))
    for language, values in spent.items():
        print(f"{language}: median {statistics.median(values):.0f} ms, least {min(values):.0f}, most {max(values):.0f}")
    added = [chinese - english for english, chinese in zip(spent["en"], spent["zh_CN"], strict=True)]
    low, high = interval(added, order)
    print(f"zh_CN against en: {statistics.median(added):+.1f} ms ({low:+.1f} to {high:+.1f})")


if __name__ == "__main__":
    main()
