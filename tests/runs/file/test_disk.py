"""Where a run file cannot have the room that it needs, a sentence names the cause and the cure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precgui.runs.errors import RunFileError
from precgui.runs.file.disk import ReservedSpace


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may have more than 1 MiB."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(sys.platform == "win32", reason="limits on the size of files are of POSIX")
@pytest.mark.usefixtures("small_files")
def test_that_a_limit_on_the_size_of_files_is_named_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"the 4 MB that a run needs at least; raise the limit .*ulimit -f"):
        ReservedSpace(tmp_path)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder here takes no files from root, too")
def test_that_a_folder_named_by_a_dot_is_told_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc")
    with pytest.raises(RunFileError, match=r"^/proc cannot be written: "):
        ReservedSpace(Path())
