"""`precgui replay` of a step that was kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precgui import replay_job
from precgui.cli.main import main
from precgui.runs.replays import snapshot_path


def test_that_a_kept_step_is_replayed_without_a_second_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.h5"
    settings = ["precision=fp16-pure", "optimizer.lr=3e4", "scaling.mode=none", "train.max_steps=5", "device=cpu"]
    main(["run", "digits-quick", "-o", str(path), "--json", *(f"--set={s}" for s in [*settings, "threads=1"])])
    capsys.readouterr()
    monkeypatch.setattr("precgui.engine.shadow.of_run.shadow_of_run", None)
    assert main(["replay", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert snapshot_path(path, document["step"]).exists()
    assert document["first_nonfinite"] is not None and "without training" in document["notes"][-1]


def test_that_a_kept_step_of_another_loss_says_so() -> None:
    assert "as recorded, to the last bit" in replay_job._comparison_of_step([1.0, 2.0], 2.0, 2)
    assert "recorded 2: other hardware" in replay_job._comparison_of_step([1.0, 2.0], 2.5, 2)
