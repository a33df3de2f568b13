"""Write `packaging/constraints.txt`: the newest versions that fit pyproject.toml, for every platform, with hashes.

Run it with `make constraints`. It asks the package index, so its result depends on the day. With `--keep`
(`make constraints ARGS=--keep`) versions that still fit stay, and only what pyproject.toml newly asks for is added.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "packaging" / "constraints.txt"
HEADER = """\
# Exact versions of everything that precgui and its tests need, for Python 3.11 to 3.13 on Linux, macOS and Windows,
# with the hashes of their files. Written by `make constraints`; the bounds stand in pyproject.toml.
"""
RESOLVE = [
    "uv", "pip", "compile", "pyproject.toml",
    "--extra", "dev", "--universal", "--python-version", "3.11",
    "--generate-hashes", "--no-header", "--no-annotate", "--quiet",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Write packaging/constraints.txt.")
    parser.add_argument("--keep", action="store_true", help="keep the versions that still fit")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / TARGET.name
        if keep:
            shutil.copy(TARGET, pinned)  # uv prefers the versions of the file that it writes over
        options = ["--output-file", str(pinned), *([] if keep else ["--upgrade"])]
        subprocess.run([sys.executable, "-m", *RESOLVE, *options], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        TARGET.write_text(HEADER + pinned.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
