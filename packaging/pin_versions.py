"""Write `packaging/constraints.txt`: the newest versions that fit pyproject.toml, for every platform, with hashes.

Run it with `make constraints`. It asks the package index, so its result depends on the day.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "packaging" / "constraints.txt"
HEADER = """\
# Exact versions of everything that precgui and its tests need, for Python 3.11 to 3.13 on Linux, macOS and Windows,
# with the hashes of their files. Written by `make constraints`; the bounds stand in pyproject.toml.
"""
RESOLVE = [
    "uv", "pip", "compile", "pyproject.toml",
    "--extra", "dev", "--universal", "--python-version", "3.11", "--upgrade",
    "--generate-hashes", "--no-header", "--no-annotate", "--quiet",
]  # fmt: skip


def main() -> None:
    pinned = subprocess.run([sys.executable, "-m", *RESOLVE], cwd=ROOT, check=True, capture_output=True, text=True)
    TARGET.write_text(HEADER + pinned.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
