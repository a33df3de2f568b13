"""Child processes never run modules that merely lie in the working directory."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANTED = ("struct", "multiprocessing", "signal", "token")
START = """
import os
import sys
sys.path.insert(0, sys.argv[1])
from precgui.process import spawn

if __name__ == "__main__":
    process = spawn.ChildProcess(target=os.getenv, args=("PATH",))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
NESTED = """
import os
import sys
sys.path.insert(0, sys.argv[1])
from multiprocessing import get_context
from precgui.process import spawn

def inside(path):
    open(path, "w").write(os.environ.get("PYTHONSAFEPATH", "none"))
    grandchild = get_context("spawn").Process(target=os.getenv, args=("PATH",))
    grandchild.start()
    grandchild.join()
    assert grandchild.exitcode == 0

if __name__ == "__main__":
    process = spawn.ChildProcess(target=inside, args=(sys.argv[2],))
    process.start()
    process.join()
    assert "PYTHONSAFEPATH" not in os.environ
    sys.exit(process.exitcode)
"""


COMPILE = """
import os
import sys
sys.path.insert(0, sys.argv[1])
os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.argv[2]
import torch
from precgui.engine.execution import compile_model

if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    compile_model(model)
    model(torch.ones(4, 8)).sum().backward()
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with files named like modules of Python; each leaves a mark when it is imported."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise OSError\n")
    return folder


def run(script: str, planted: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    file = planted.parent / "start_process.py"
    file.write_text(script)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    command = [sys.executable, str(file), str(ROOT), *arguments]
    return subprocess.run(command, cwd=planted, env=environment, capture_output=True, text=True, check=False)


def test_that_a_child_process_ignores_modules_in_the_working_directory(planted: Path) -> None:
    done = run(START, planted)
    assert not (planted.parent / "ran").exists(), (planted.parent / "ran").read_text()
    assert done.returncode == 0, done.stderr


def test_that_processes_of_the_child_are_as_safe_and_other_programs_see_the_users_environment(planted: Path) -> None:
    told = planted.parent / "environment"
    done = run(NESTED, planted, str(told))
    assert not (planted.parent / "ran").exists(), (planted.parent / "ran").read_text()
    assert done.returncode == 0, done.stderr
    assert told.read_text() == "none"


def test_that_torch_compile_runs_nothing_of_the_working_directory(planted: Path) -> None:
    """Inductor starts `python -c "from ctypes import cdll ..."`, which puts the working directory first."""
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("train.compile needs a C++ compiler and there is none on the PATH")
    (planted / "ctypes.py").write_text((planted / "struct.py").read_text().replace("struct", "ctypes"))
    (planted / "subprocess.py").write_text((planted / "struct.py").read_text().replace("struct", "subprocess"))
    done = run(COMPILE, planted, str(planted.parent / "inductor"))
    assert not (planted.parent / "ran").exists(), (planted.parent / "ran").read_text()
    assert done.returncode == 0, done.stderr


def test_that_repair_as_the_documentation_calls_it_ignores_them_too(planted: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert "python -P -m precgui.runs.file.repair" in (ROOT / "docs" / "run-file.md").read_text(encoding="utf-8")
    command = [sys.executable, "-P", "-m", "precgui.runs.file.repair", "--help"]
    subprocess.run(command, cwd=planted, env=environment, capture_output=True, check=True)
    assert not (planted.parent / "ran").exists()


def test_that_every_process_of_precgui_is_started_so() -> None:
    others = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (ROOT / "precgui").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("Process", "get_context", "Pool", "ProcessPoolExecutor")
        and "psutil" not in ast.unparse(node.func)
        and (file.parts[-2] != "hardware")  # has a Process of its own, a reading
    ]
    assert not others, f"use precgui.process.spawn.ChildProcess: {others}"
