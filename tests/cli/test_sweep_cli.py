"""`precgui sweep` and `precgui compare` of a sweep, without training: what is printed, written and refused."""

import json
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.sweeps.folder import SweepFolder
from tests.sweeps.sample_sweep import small_sweep, write_member

_NEW = ("regression-precise", "--precisions", "fp32,bf16-amp", "--set", "train.max_steps=5")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Five seeds of two arms with a twin, all ended: bf16-amp is worse by 0.02 and twice as fast."""
    folder = small_sweep(tmp_path, seeds=5)
    for member in folder.plan.members:
        is_low = member.arm == "bf16-amp"
        noise, loss = 0.01 * (member.seed % 3), 0.02 * is_low + 0.0005 * ((member.seed + is_low) % 2)
        write_member(folder, member, accuracy=0.9 + noise - loss, step_s=0.01 / (1 + is_low))
    return folder.path


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)


def test_that_the_plan_of_a_new_sweep_is_shown_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *_NEW, "--seeds", "5", "--plan", "--json", "-o", str(tmp_path / "s")]) == 0
    document = _json(capsys)
    assert (document["done"], document["left"], document["looks"]) == (0, 14, [5, 10])
    assert not (tmp_path / "s").exists()
    assert main(["sweep", "digits-quick", "--precisions", "fp32,int8-qat", "--seeds", "5", "--plan"]) == 0
    assert "smallest difference that can be told apart: about" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["regression-precise", "-o", "s"], "--precisions is missing"),
        ([*_NEW], "-o is missing"),
        ([*_NEW, "-o", "s", "--seeds", "0"], "seeds:"),
        ([*_NEW, "-o", "s", "--vary", "lr=1,2"], "--vary lr: unknown key"),
        ([*_NEW, "-o", "s", "--set", "optimizer.lr=-1"], "optimizer.lr"),
        ([*_NEW, "-o", "s", "--add-seeds", "2"], "--add-seeds is for the folder of a sweep"),
        (["none.toml", "--precisions", "fp32", "-o", "s"], "none.toml is neither a file nor a recipe"),
    ],
)
def test_that_a_wrong_question_is_one_sentence(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_that_a_finished_sweep_is_shown_and_can_be_extended(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(sweep), "--json"]) == 0
    document = _json(capsys)
    assert (document["done"], document["left"], document["left_s"]) == (14, 0, 0.0)
    assert main(["sweep", str(sweep), "--add-seeds", "2", "--skip", "s06-fp32", "--plan", "--json"]) == 0
    document = _json(capsys)
    assert (document["done"], document["left"]) == (14, 3)
    assert main(["sweep", str(sweep), "--seeds", "7"]) == 2
    assert "use --add-seeds" in capsys.readouterr().err
    assert main(["sweep", str(sweep), "--pause"]) == 0
    assert SweepFolder(sweep).paused


def test_that_a_sweep_is_compared_with_verdicts(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(sweep), "--json"]) == 0
    document = _json(capsys)
    assert {"baseline", "runs", "groups", "twin", "answer", "claims"} <= document.keys()
    low = next(group for group in document["groups"] if group["group"] == "bf16-amp")  # type: ignore[attr-defined]
    assert low["seeds"] == [0, 1, 2, 3, 4]
    assert low["verdicts"]["accuracy_lost"]["verdict"] == "missed"
    assert low["verdicts"]["speedup"]["value"] == pytest.approx(2.0)
    assert low["metrics"]["metric"]["difference"] == pytest.approx(-0.02, abs=1e-3)
    assert main(["compare", str(sweep)]) == 0
    assert "Stay with fp32 here." in capsys.readouterr().out


def test_that_reports_are_written_once_and_never_over_another(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, beginning in (("--html", "<!DOCTYPE html>"), ("--markdown", "# "), ("--csv", "group,precision")):
        target = sweep.parent / f"report{option}"
        assert main(["compare", str(sweep), option, str(target)]) == 0
        assert target.read_text(encoding="utf-8").startswith(beginning)
        assert main(["compare", str(sweep), option, str(target)]) == 2
        assert "already exists" in capsys.readouterr().err


def test_that_one_call_writes_several_reports_and_prints_json(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, page = sweep.parent / "both.html", sweep.parent / "both.md"
    assert main(["compare", str(sweep), "--html", str(html), "--markdown", str(page), "--json"]) == 0
    assert "groups" in _json(capsys)
    assert html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert page.read_text(encoding="utf-8").startswith("# ")
    assert main(["compare", str(sweep), "--csv", str(sweep.parent / "new.csv"), "--html", str(html), "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_that_targets_come_from_a_file(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--targets-template"]) == 0
    targets = sweep.parent / "targets.toml"
    targets.write_text(capsys.readouterr().out.replace("accuracy_lost = 0.005", "accuracy_lost = 0.1"))
    assert main(["compare", str(sweep), "--targets", str(targets), "--json"]) == 0
    low = _json(capsys)["groups"][1]
    assert low["verdicts"]["accuracy_lost"]["verdict"] == "met"
    targets.write_text("speed = 3")
    assert main(["compare", str(sweep), "--targets", str(targets)]) == 2
    assert "speed is not a target" in capsys.readouterr().err


def test_that_run_files_are_grouped_by_their_settings(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(path) for path in sorted((sweep / "members").glob("s*.h5"))]
    assert main(["compare", *files, "--json"]) == 0
    document = _json(capsys)
    assert [(group["group"], group["n"]) for group in document["groups"]] == [("fp32", 5), ("bf16-amp", 5)]  # type: ignore[attr-defined]
    assert document["twin"]["n"] == 3
    assert len(document["runs"]) == 13
    verdicts = {run["run"]: run["verdicts"] for run in document["runs"]}  # type: ignore[attr-defined]
    base = document["baseline"]
    assert verdicts[base] == {}
    assert verdicts["s01-bf16-amp"]["accuracy_lost"] == "not measurable"  # one pair
    assert verdicts["s01-bf16-amp"]["failures"] == "undecided"  # one run says nothing of a share
    assert main(["compare", str(sweep), files[0]]) == 2
    assert "compare it alone" in capsys.readouterr().err
