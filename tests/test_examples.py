"""The bundled examples: each says what it is for, none can be written to, and none names a place of the machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py
import pytest

import precgui
from precgui.cli.main import main
from precgui.examples import EXAMPLES, Example, title_for_reader
from precgui.paths import examples_dir, is_example
from precgui.runs.errors import RunFileError
from precgui.runs.library import annotate
from precgui.runs.side_files import write_side_file
from precgui.safe_open import replace_file
from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import SweepFolder
from precgui.sweeps.report import sweep_document
from precgui.sweeps.study import SweepReader

RUNS = [each for each in EXAMPLES if not each.is_study]
STUDY = next(each for each in EXAMPLES if each.is_study)
MOST_BYTES = 2_000_000


def ids(each: Example) -> str:
    return each.name


@pytest.mark.parametrize("each", RUNS, ids=ids)
def test_that_an_example_run_is_diagnosed_as_it_says(each: Example) -> None:
    run = precgui.open_run(each.path)
    findings = precgui.diagnose(run)
    assert findings[0].rule == each.rule
    assert run.title == each.title and each.title.startswith("Example: ")
    assert run.config.title == "", "a run that is made of its settings is no example"
    assert not run.notes
    assert all(run.tensors().values()), "tensors can be looked at"


def test_that_the_example_of_a_study_is_finished_and_judged() -> None:
    folder = SweepFolder(STUDY.path)
    document = sweep_document(folder)
    assert document.left == 0
    runs = [member for member in document.members if member.kind == "run"]
    assert len({member.seed for member in runs}) == 5
    assert {arm.name for arm in folder.spec.arms()} == {"fp32", "bf16-amp", "fp16-amp"}
    assert folder.spec.title == STUDY.title
    groups = {group.precision: group for group in SweepReader(folder).study().groups}
    assert {name: group.n for name, group in groups.items()} == {"fp32": 5, "bf16-amp": 5, "fp16-amp": 5}


def test_that_examples_are_small_and_tell_nothing_of_the_machine_that_made_them() -> None:
    files = [path for path in examples_dir().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert {path.name for path in files if "lock" in path.name} == set()
    for path in files:
        text = " ".join(_texts(path)) if path.suffix == ".h5" else path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|Users)/", text), path


def _texts(path: Path) -> list[str]:
    found: list[str] = []
    with h5py.File(path) as file:
        file.visititems(
            lambda _, item: (
                found.append(bytes(item[()]).decode())
                if isinstance(item, h5py.Dataset) and item.shape == () and item.dtype.kind == "S"
                else None
            )
        )
    return found


def test_that_nothing_is_kept_beside_an_example(tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in examples_dir().rglob("*")}
    for path in (RUNS[0].path, STUDY.path / "sweep.toml"):
        with pytest.raises(OSError, match="example of precgui, which stays as it is"):
            replace_file(path, b"")
    with pytest.raises(RunFileError, match="example of precgui"):
        annotate(RUNS[0].path, "a note")
    with pytest.raises(RunFileError, match="example of precgui"):
        write_side_file(RUNS[0].path.with_suffix(".json"), "{}")
    with pytest.raises(SweepError, match="example of precgui"):
        SweepFolder(STUDY.path).add_seeds(1)
    with pytest.raises(SweepError, match="copy the folder first"):
        SweepFolder(STUDY.path).runner.acquire()
    assert {path: path.stat().st_mtime_ns for path in examples_dir().rglob("*")} == before
    assert not is_example(tmp_path / "examples" / "mine.h5")


def test_that_the_command_lists_the_examples_with_their_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["examples"]
    assert [row["name"] for row in rows] == [each.name for each in EXAMPLES]
    assert all(Path(row["path"]).exists() for row in rows)
    assert main(["examples"]) == 0
    assert f"precgui diagnose {RUNS[0].path}" in capsys.readouterr().out.replace("\n", "")
    assert main(["diagnose", rows[0]["path"]]) == 1
    assert "Gradients are clipped before they are unscaled" in capsys.readouterr().out


def test_that_the_title_of_an_example_alone_is_shown_in_the_language_of_the_reader(tmp_path: Path) -> None:
    for each in EXAMPLES:
        path = each.path / "sweep.toml" if each.is_study else each.path
        assert title_for_reader(each.title, path, str.upper) == each.title.upper()
        assert title_for_reader(each.title, tmp_path / "copy.h5", str.upper) == each.title
        assert title_for_reader(each.title, None, str.upper) == each.title
