"""`precgui fp16-or-bf16` without training: a new study of the three precisions, the folder of one, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.events import RunEnded
from precgui.sweeps.folder import SweepFolder
from tests.sweeps.sample_sweep import small_sweep, write_member


def write(folder: SweepFolder, name: str) -> None:
    """The file of a member: bf16-amp is worse by 0.05 in each pair."""
    member = folder.plan.member(name)
    noise = 0.01 * (member.seed % 3) + 0.0005 * ((member.seed + (member.arm == "fp16-amp")) % 2)
    write_member(folder, member, accuracy=0.9 + noise - 0.05 * (member.arm == "bf16-amp"))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = small_sweep(tmp_path, seeds=5, precisions=("fp32", "fp16-amp", "bf16-amp"))
    for member in folder.plan.members:
        write(folder, member.name)
    return folder.path


def test_that_the_folder_of_a_study_is_judged(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = study.parent / "page.html"
    assert main(["fp16-or-bf16", str(study), "--json", "--html", str(page)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["choice"] == "fp16-amp"
    assert document["sentence"].startswith(
        "Of the two, use fp16-amp here: fp16-amp keeps the result of FP32; bf16-amp loses"
    )
    assert document["gradients"] is None
    assert "use fp16-amp here" in page.read_text(encoding="utf-8")
    assert main(["fp16-or-bf16", str(study)]) == 0
    assert "BF16 beside FP16" in capsys.readouterr().out


def test_that_a_config_becomes_a_study_of_short_runs_in_three_precisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = []

    def written(config: object, path: Path, emit: object, stopped: object, **_: object) -> RunEnded:
        steps.append(config.train.max_steps)  # type: ignore[attr-defined]
        write(SweepFolder(tmp_path / "s"), path.stem)
        return RunEnded(0.7, "completed")

    monkeypatch.setattr("precgui.sweeps.runner.run_in_process", written)
    small = ["--set", "device=cpu", "--set", "threads=1"]
    code = main(["fp16-or-bf16", "regression-precise", *small, "--seeds", "1", "-o", str(tmp_path / "s"), "--json"])
    assert code == 1  # one seed decides nothing
    assert json.loads(capsys.readouterr().out)["choice"] == "not decided"
    folder = SweepFolder(tmp_path / "s")
    assert folder.spec.precisions == ["fp32", "fp16-amp", "bf16-amp"]
    assert max(steps) == 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["digits-quick"], "-o is missing"),
        (["none.toml", "-o", "s"], "none.toml is neither a file nor a recipe"),
        (["{other}"], "FP16 and BF16 are not both there"),
        (["{other}", "--seeds", "3"], "--seeds is for a new study"),
    ],
)
def test_that_a_wrong_question_is_one_sentence(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = small_sweep(tmp_path, seeds=1)
    for member in other.plan.members:
        write_member(other, member)
    assert main(["fp16-or-bf16", *(word.format(other=other.path) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
