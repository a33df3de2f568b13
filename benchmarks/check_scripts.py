"""Counts what `precgui check` finds in a folder of training scripts: one row a rule, each finding with its line.

    python benchmarks/check_scripts.py FOLDER [--infos] [--json FILE]

Files are taken that call backward() and step(). Nothing is judged: read the lines that are printed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from precgui.lint.check import ScriptError, ScriptFinding, check_file

_MENTIONED = (b"torch", b"backward(", b".step(")


def scripts_in(folder: Path) -> list[Path]:
    """The Python files and notebooks below a folder that train something with torch."""
    paths = sorted(path for kind in ("*.py", "*.ipynb") for path in folder.rglob(kind) if path.is_file())
    return [path for path in paths if all(word in path.read_bytes() for word in _MENTIONED)]


def examine(paths: list[Path]) -> tuple[dict[Path, list[ScriptFinding]], list[str], list[str]]:
    """Findings by script, scripts that are refused with a sentence, and crashes."""
    findings: dict[Path, list[ScriptFinding]] = {}
    refused, crashes = [], []
    for path in paths:
        try:
            findings[path] = check_file(path)
        except ScriptError as error:
            refused.append(str(error))
        except Exception as error:  # noqa: BLE001 - the figure that this program is for
            crashes.append(f"{path}: {type(error).__name__}: {error}")
    return findings, refused, crashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--infos", action="store_true", help="print the lines of infos and deprecations, too")
    parser.add_argument("--json", type=Path, help="write the findings into this file")
    args = parser.parse_args()
    paths = scripts_in(args.folder)
    began = time.process_time()
    findings, refused, crashes = examine(paths)
    used = time.process_time() - began
    counts: Counter[tuple[str, str]] = Counter()
    for path, group in findings.items():
        for each in group:
            counts[each.severity, each.rule] += 1
            if args.infos or (each.severity != "info" and each.rule != "deprecated-amp"):
                place = f"{each.line}" if each.cell is None else f"{each.cell}:{each.line}"
                print(f"{path.relative_to(args.folder)}:{place}: {each.severity} {each.title} ({each.rule})")
    print(f"\n{'severity':9} {'rule':28} findings")
    for (severity, rule), count in sorted(counts.items()):
        print(f"{severity:9} {rule:28} {count}")
    print("\n".join(["", *refused, *crashes]))
    print(f"{len(paths)} scripts, {len(refused)} refused, {len(crashes)} crashes, {used:.1f} s of processor time")
    if args.json is not None:
        documents = [{"script": str(path), **asdict(each)} for path, group in findings.items() for each in group]
        args.json.write_text(json.dumps(documents, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
