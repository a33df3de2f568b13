"""Side files of a run: one way to name, write and read them, for every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precgui.runs.anatomy import ANATOMIES
from precgui.runs.errors import RunFileError
from precgui.runs.layer_errors import LAYERS, LayersReplay
from precgui.runs.replays import REPLAYS
from precgui.runs.side_files import SideFilePart, SideFiles
from precgui.runs.speedup.profile_file import profile_path, write_profile
from precgui.runs.twins import TWINS

KINDS = [REPLAYS, ANATOMIES, LAYERS, TWINS]


def layers(step: int) -> LayersReplay:
    return LayersReplay(step=step, precisions=["fp32"], losses={"fp32": 1.0}, scales={}, layers=[])


def test_that_documents_are_read_by_step_and_files_that_are_none_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "a[1]*.h5"  # a name that is a pattern matches itself alone
    for step in (1_000_000, 7, 999_999):
        assert LAYERS.keep(run, layers(step)) == LAYERS.path(run, step)
    (tmp_path / f"{run.name}.layers-000008.json").write_text("{")
    (tmp_path / f"{run.name}.layers-8.json").write_text(layers(8).model_dump_json())
    (tmp_path / "a1x.h5.layers-000009.json").write_text(layers(9).model_dump_json())
    assert [each.step for each in LAYERS.all(run)] == [7, 999_999, 1_000_000]
    assert LAYERS.one(run, 7) == layers(7)
    assert LAYERS.one(run, 8) is LAYERS.one(run, 10) is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.path(Path("run.h5"), 1).name)
def test_that_a_folder_that_cannot_be_written_is_named_in_one_sentence(tmp_path: Path, kind: SideFiles[Any]) -> None:
    path = kind.path(tmp_path / "nowhere" / "run.h5", 3)
    with pytest.raises(RunFileError, match=r"nowhere.* cannot be written: No such file or directory; check the folder"):
        kind.write(path, SideFilePart())


def test_that_a_profile_is_refused_in_the_same_words(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"nowhere.* cannot be written: No such file or directory; check the folder"):
        write_profile(profile_path(tmp_path / "nowhere" / "run.h5"), {})
