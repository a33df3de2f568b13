"""`python -m precgui`, which torchrun's `-m` starts."""

from __future__ import annotations

import subprocess
import sys


def test_that_the_package_starts_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "precgui", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "precgui" in done.stdout
