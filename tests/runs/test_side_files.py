"""Side files of a run: one way to name, write and read them, for every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precgui import words
from precgui.runs.anatomy import ANATOMIES
from precgui.runs.errors import RunFileError
from precgui.runs.layer_errors import LAYERS, LayersReplay
from precgui.runs.replays import REPLAYS, ErrorMechanisms, StepReplay
from precgui.runs.side_files import SideFilePart, SideFiles
from precgui.runs.speedup.profile_file import profile_path, write_profile
from precgui.runs.twins import TWINS
from precgui.sentences import L_, Sentence

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


def test_that_the_verdict_of_a_replay_is_kept_so_that_it_is_read_in_another_language(tmp_path: Path) -> None:
    size = Sentence(
        "The gradient is off by {error:.2e}, which is {times:.1f} times the error that the products and casts of this "
        "precision cost alone",
        error=0.25,
        times=3.0,
    )
    message = Sentence("{error}; no line adds an error of its own.", error=size)
    replay = StepReplay(
        step=3, verdict="healthy", message=message, precision_is_to_blame=False, gradient_error=0.25, ideal_error=0.1,
        explained=1.0, mechanisms=ErrorMechanisms(flush=0, rounding=1, casts=0, flips=None, overflow=0), lines=[],
        first_nonfinite=None, notes=[L_("dropout is off in this comparison")],
    )  # fmt: skip
    path = REPLAYS.keep(tmp_path / "run.h5", replay)
    kept = REPLAYS.one(tmp_path / "run.h5", 3)
    assert kept is not None and kept == replay
    assert kept.message == str(message)
    words.use("zh_CN")
    try:
        assert words.translated(kept.message) == words.translated(message) != message
    finally:
        words.use("en")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document.pop("sentences")
    path.write_text(json.dumps(document), encoding="utf-8")  # as an earlier version wrote it
    assert REPLAYS.one(tmp_path / "run.h5", 3) == replay
