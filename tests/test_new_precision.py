"""A new precision is one class and one row: added to a copy of the package, it is there wherever precisions are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_children import python

ROOT = Path(__file__).parent.parent
CLASS = '''

class MXFP6E3M2(LowPrecisionMatmul):
    """Elements in E3M2."""

    name = "mxfp6-e3m2"
    formats: ClassVar[dict[Role, str]] = dict.fromkeys(ROLES, "mxfp6_e3m2")
'''
ROW = """    "mxfp6-e3m2": PrecisionTraits(
        _8_BITS, "MX blocks of 32 values in E3M2; planted by a test.",
        "low:MXFP6E3M2", "fp32", "mxfp6_e3m2", "mxfp6_e3m2",
    ),
"""
COMMANDS = """
import contextlib, io, json, sys
from precgui.cli.main import main
outputs = {}
for name, arguments in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert main(arguments) == 0, name
    outputs[name] = output.getvalue()
print(json.dumps(outputs))
"""
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

PLACES = """
import torch, precgui
from precgui.config.precision_traits import TRAITS
from precgui.gui.panels.setup.plan_sheet import _CHOICES
from precgui.record.precision import VISIBLE
assert "mxfp6-e3m2" in _CHOICES["precision"][1]
assert {name for name, row in TRAITS.items() if row.is_visible_in_dtypes} == VISIBLE.keys()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with precgui.Recorder("own.h5", model, optimizer, precision="mxfp6-e3m2") as recorder:
    for _ in range(2):
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        optimizer.step()
        recorder.step(loss.detach())
assert precgui.open_run("own.h5").config.precision == "mxfp6-e3m2"
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "precgui", folder / "precgui")  # with the compiled kernels in __pycache__
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
def printed(copy: Path) -> dict[str, str]:
    """The output of each command; they run in one process, because importing torch takes seconds."""
    settings = ("precision=mxfp6-e3m2", "device=cpu", "threads=1", "train.max_steps=3")
    flags = [part for each in settings for part in ("--set", each)]
    commands = {
        "run": ["run", "digits-quick", "-o", "a.h5", "--json", *flags],
        "facts": ["export", "a.h5", "--json"],
        "whatif": ["whatif", "a.h5", "--format", "e3m2", "--json"],
        "script": ["export", "a.h5", "--script", "a.py"],
        "plan": ["plan", "--network", "llama-7b", "--precision", "mxfp6-e3m2", "--json"],
    }
    outputs: dict[str, str] = json.loads(run(copy, "-c", COMMANDS, json.dumps(commands)))
    return outputs


def test_that_the_command_line_trains_in_it(printed: dict[str, str]) -> None:
    document = json.loads(printed["run"])
    assert (document["precision"], document["status"], document["steps"]) == ("mxfp6-e3m2", "completed", 3)


def test_that_the_form_offers_it(copy: Path) -> None:
    run(copy, "-c", FORM)


def test_that_the_census_names_its_formats(printed: dict[str, str]) -> None:
    assert "mxfp6_e3m2" in json.dumps(json.loads(printed["facts"])["environment"]["census"])


def test_that_what_if_reads_its_run(printed: dict[str, str]) -> None:
    assert json.loads(printed["whatif"])["kinds"]


def test_that_the_planner_counts_its_bytes(printed: dict[str, str]) -> None:
    assert json.loads(printed["plan"])["parts"]["weights_bytes"] > 0


def test_that_the_plan_in_the_window_and_the_recorder_know_it(copy: Path) -> None:
    run(copy, "-c", PLACES)


def test_that_its_run_becomes_a_script(copy: Path, printed: dict[str, str]) -> None:
    assert "a.py" in printed["script"]
    assert python("a.py", cwd=copy).stdout.count("loss") >= 3
