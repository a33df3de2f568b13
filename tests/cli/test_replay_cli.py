"""`precgui replay` on a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.engine.models import images
from precgui.runs.anatomy import ANATOMIES
from precgui.runs.layer_errors import LAYERS
from precgui.runs.replays import REPLAYS, StepReplay

SOURCE = Path(images.__file__).read_text(encoding="utf-8").splitlines()
HEAD = f"models/images.py:{next(number for number, line in enumerate(SOURCE, 1) if 'self.head(' in line)}"


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "run.h5"
    settings = ["precision=bf16-amp", "train.max_steps=4", "device=cpu", "threads=1", "data.batch_size=32"]
    assert main(["run", "digits-quick", "-o", str(path), "--json", *(f"--set={s}" for s in settings)]) == 0
    return path


def test_that_a_step_is_replayed_and_kept_beside_the_run(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["replay", str(run_file), "--step", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "healthy"
    assert told["precision_is_to_blame"] is False
    assert told["explained"] == pytest.approx(1, abs=0.02)
    assert told["first_nonfinite"] is None
    assert {"flush", "rounding", "casts", "flips", "overflow"} == told["mechanisms"].keys()
    first = told["lines"][0]
    assert first["line"].endswith(HEAD)
    assert 0 <= first["left_measured"] < 1
    assert "last bit" in told["notes"][-1]
    assert [(replay.step, replay.verdict) for replay in REPLAYS.all(run_file)] == [(3, "healthy")]


def test_that_the_table_names_lines_and_the_side_file(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run_file)]) == 0
    out = capsys.readouterr().out
    assert "step 4: healthy" in out
    assert HEAD.rpartition("/")[2] in out
    assert "-0.0%" not in out
    assert REPLAYS.path(run_file, 4).name in "".join(out.split())


def test_that_a_step_that_is_not_there_is_one_sentence(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run_file), "--step", "9", "--json"]) == 2
    assert "no step 9" in capsys.readouterr().err


def test_that_side_files_of_others_are_data(tmp_path: Path) -> None:
    run = tmp_path / "run[1].h5"
    replay = StepReplay.model_validate(
        {
            "step": 7, "verdict": "problems", "message": "m", "precision_is_to_blame": None, "gradient_error": None,
            "ideal_error": None, "explained": None, "lines": [], "first_nonfinite": None,
            "mechanisms": dict.fromkeys(("flush", "rounding", "casts", "flips", "overflow"), 0.0),
        }
    )  # fmt: skip
    REPLAYS.path(run, 7).write_text(replay.model_dump_json())
    REPLAYS.path(run, 8).write_text("{")
    REPLAYS.path(run, 9).write_text('{"step": "x"}')
    (tmp_path / "run1.h5.replay-000001.json").write_text(replay.model_dump_json())
    assert REPLAYS.all(run) == [replay]


def test_that_layers_are_compared_and_kept_beside_the_run(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["replay", str(run_file), "--step", "2", "--layers", "fp32,bf16-amp", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    kept = LAYERS.all(run_file)
    assert [(replay.step, replay.precisions) for replay in kept] == [(2, ["fp32", "bf16-amp"])]
    head = next(layer for layer in document["layers"] if layer["name"] == "head")
    assert 1e-4 < head["gradient"]["bf16-amp"]["relative_l2"] < 0.1
    assert main(["replay", str(run_file), "--step", "2", "--layers", "fp32"]) == 0
    assert "relative l2 distance from FP64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("fp64", "--layers: fp64 is what the others are compared with"),
        ("fp32,tf32,bf16-amp,fp16-amp,fp8,mxfp4", "--layers: name 1 to 5 precisions, not 6"),
        ("fp33", "--layers: "),
    ],
)
def test_that_other_layers_are_one_sentence(
    run_file: Path, names: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(run_file), "--step", "2", "--layers", names]) == 2
    assert sentence in capsys.readouterr().err


def test_that_the_anatomy_is_printed_and_kept(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run_file), "--step", "2", "--anatomy"]) == 0
    out = capsys.readouterr().out
    assert "Step: the optimizer updates the weights." in out and "autograd" in out
    assert [(kept.step, kept.precision) for kept in ANATOMIES.all(run_file)][:1] == [(2, "bf16-amp")]
    assert main(["replay", str(run_file), "--step", "2", "--anatomy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["anatomy"]["moments"]["scale"] == 1.0
