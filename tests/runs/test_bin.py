"""Files that were moved to the bin of a freedesktop.org desktop come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.runs.bin import can_restore, move_to_bin, restore
from precgui.runs.errors import RunFileError

pytestmark = pytest.mark.skipif(not can_restore(), reason="the bin of this system is its file manager's alone")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of a bin: a folder of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setattr("send2trash.plat_other.HOMETRASH_B", str(tmp_path / "share" / "Trash").encode(), raising=False)


def test_that_a_deleted_file_comes_back_and_the_last_of_several_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a run, 100 %.h5"
    path.parent.mkdir()
    for text in ("first", "second"):
        path.write_text(text, encoding="utf-8")
        move_to_bin(path)
        assert not path.exists()
    restore(path)
    assert path.read_text(encoding="utf-8") == "second"
    with pytest.raises(RunFileError, match="is there already"):
        restore(path)
    path.unlink()
    restore(path)
    assert path.read_text(encoding="utf-8") == "first"
    path.unlink()
    with pytest.raises(RunFileError, match="was not found in the bin"):
        restore(path)


def test_that_a_record_of_somebody_else_is_no_way_out_of_the_bin(tmp_path: Path) -> None:
    trash = tmp_path / "share" / "Trash"
    (trash / "info").mkdir(parents=True)
    (trash / "files").mkdir()
    (trash / "info" / "x.h5.trashinfo").write_text("[Trash Info]\nPath=/elsewhere/x.h5\n", encoding="utf-8")
    (trash / "info" / "y.trashinfo").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunFileError):
        restore(tmp_path / "x.h5")
