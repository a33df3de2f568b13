"""A new precision is one class and one row: added to a copy of the package, it is there wherever precisions are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CLASS = '''

class MXFP6E3M2(Low):
    """Elements in E3M2."""

    name = "mxfp6-e3m2"
    formats: ClassVar[dict[Role, str]] = dict.fromkeys(ROLES, "mxfp6_e3m2")
'''
ROW = """    "mxfp6-e3m2": PrecisionTraits(
        _8_BITS, "MX blocks of 32 values in E3M2; planted by a test.",
        "low:MXFP6E3M2", "fp32", "mxfp6_e3m2", "mxfp6_e3m2",
    ),
"""
CLI = ("-c", "import sys; from precgui.cli.main import main; sys.exit(main())")
FORM = """
import sys
from PySide6.QtWidgets import QApplication, QAbstractButton, QLabel
from precgui.gui.session import Session
from precgui.gui.panels.setup.panel import SetupPanel
application = QApplication(sys.argv)
panel = SetupPanel(Session())
texts = [w.text() for w in panel.findChildren(QAbstractButton)] + [w.text() for w in panel.findChildren(QLabel)]
assert "mxfp6-e3m2" in texts, sorted(set(texts))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("*.pyc")  # and not __pycache__, which has the compiled kernels
    shutil.copytree(ROOT / "precgui", folder / "precgui", ignore=ignored)
    (folder / "resources").symlink_to(ROOT / "resources")
    classes = folder / "precgui" / "engine" / "precisions" / "low.py"
    classes.write_text(classes.read_text(encoding="utf-8") + CLASS, encoding="utf-8")
    table = folder / "precgui" / "config" / "precision_traits.py"
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace('    "int8-qat"', f'{ROW}    "int8-qat"', 1), encoding="utf-8")
    return folder


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "QT_QPA_PLATFORM": "offscreen"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(copy: Path) -> dict[str, object]:
    """The result of a run from the command line."""
    settings = ("precision=mxfp6-e3m2", "device=cpu", "threads=1", "train.max_steps=3")
    flags = [part for each in settings for part in ("--set", each)]
    line = run(copy, *CLI, "run", "digits-quick", "-o", "a.h5", "--json", *flags)
    document: dict[str, object] = json.loads(line)
    return document


def test_that_the_command_line_trains_in_it(trained: dict[str, object]) -> None:
    assert (trained["precision"], trained["status"], trained["steps"]) == ("mxfp6-e3m2", "completed", 3)


def test_that_the_form_offers_it(copy: Path) -> None:
    run(copy, "-c", FORM)


def test_that_the_census_names_its_formats(copy: Path, trained: dict[str, object]) -> None:
    shown = run(copy, *CLI, "export", "a.h5", "--json")
    assert "mxfp6_e3m2" in json.dumps(json.loads(shown)["environment"]["census"])


def test_that_what_if_reads_its_run(copy: Path, trained: dict[str, object]) -> None:
    document = json.loads(run(copy, *CLI, "whatif", "a.h5", "--format", "e3m2", "--json"))
    assert document["kinds"]


def test_that_its_run_becomes_a_script(copy: Path, trained: dict[str, object]) -> None:
    run(copy, *CLI, "export", "a.h5", "--script", "a.py")
    printed = run(copy, "a.py")
    assert printed.count("loss") >= 3
