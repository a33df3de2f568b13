"""Drafts of run files that killed processes have left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from precgui.runs.file import atomic
from tests.runs.synthetic import open_writer

DYING = """
import os, signal, sys
from pathlib import Path
from precgui.runs.file import table_file
from tests.runs.synthetic import open_writer
table_file.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
open_writer(Path(sys.argv[1]))
"""


def aged(path: Path, age_s: float) -> Path:
    path.touch()
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def of_dead(folder: Path, host: str = "", kind: str = "new") -> Path:
    """The name of a draft that a process made which has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return folder / f".run.h5.{host or atomic._host()}.{ended.pid}.{kind}"


def test_that_the_draft_of_a_killed_process_is_removed_when_the_next_run_begins(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DYING, str(tmp_path / "run.h5")], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".run.h5.")
    open_writer(tmp_path / "first.h5").close()
    assert left.exists()  # younger than a minute: perhaps of a process that cannot be seen from here
    aged(left, 120)
    open_writer(tmp_path / "second.h5").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.h5", "second.h5"]


@pytest.mark.parametrize("kind", ["new", "copy"])
def test_that_a_draft_is_stale_when_its_process_is_dead_or_it_is_of_another_day(tmp_path: Path, kind: str) -> None:
    own = atomic.draft_path(tmp_path / "run.h5", kind)
    assert not atomic.is_stale(aged(own, 3600))
    assert atomic.is_stale(aged(own, 2 * 86_400))
    assert atomic.is_stale(aged(of_dead(tmp_path, kind=kind), 120))
    assert not atomic.is_stale(aged(of_dead(tmp_path, kind=kind), 20))
    elsewhere = aged(of_dead(tmp_path, "0123abcd", kind), 3600)
    assert not atomic.is_stale(elsewhere)
    assert atomic.is_stale(aged(elsewhere, 2 * 86_400))


OTHERS = [".run.h5", "run.h5.1.new", ".run.h5.new", ".notes.txt.new", ".run.h5.12.new", ".run.h5.0123abcd.1.new.h5"]


@pytest.mark.parametrize("name", OTHERS)
def test_that_other_files_are_left_alone_whatever_their_age(tmp_path: Path, name: str) -> None:
    aged(tmp_path / name, 9 * 86_400)
    (tmp_path / ".a.h5.0123abcd.1.new").mkdir()
    (tmp_path / ".b.h5.0123abcd.1.new").symlink_to(tmp_path / name)
    os.utime(tmp_path / ".a.h5.0123abcd.1.new", (0, 0))
    atomic.remove_stale(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
