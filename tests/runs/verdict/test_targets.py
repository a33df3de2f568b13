"""Targets that a person edits: read, written, refused with one sentence, turned into goals."""

import math
from pathlib import Path

import pytest

from precgui.runs.verdict.targets import DEFAULT_TARGETS, TargetError, Targets, goals, load_targets, targets_toml


def _file(folder: Path, text: str) -> Path:
    path = folder / "targets.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_that_the_file_that_is_offered_reads_back_as_the_defaults(tmp_path: Path) -> None:
    assert load_targets(_file(tmp_path, targets_toml())) == DEFAULT_TARGETS


def test_that_a_target_can_be_changed_and_switched_off(tmp_path: Path) -> None:
    changed = load_targets(_file(tmp_path, "speedup = 1.5\nmemory_saved = false\n"))
    assert (changed.speedup, changed.memory_saved, changed.accuracy_lost) == (1.5, None, 0.005)
    assert load_targets(_file(tmp_path, targets_toml(changed))) == changed


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("speed = 2", "speed is not a target; the targets are speedup"),
        ("speedup = -1", "speedup = -1: input should be greater than 0"),
        ("speedup = nan", "speedup = nan"),
        ("memory_saved = 30", "memory_saved = 30"),
        ('speedup = "fast"', "speedup = 'fast'"),
        ("speedup = ", "is not valid TOML"),
    ],
)
def test_that_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(TargetError, match=r"^[^\n]*$") as caught:
        load_targets(_file(tmp_path, text))
    assert told in str(caught.value)


def test_that_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot be read"):
        load_targets(tmp_path / "none.toml")


def test_that_goals_are_on_the_scale_of_the_paired_quantities() -> None:
    found = {goal.name: goal for goal in goals(DEFAULT_TARGETS, metric_is_share=True, baseline_value=0.97)}
    assert found["speedup"].bound == pytest.approx(math.log(2))
    assert found["memory_saved"].bound == pytest.approx(math.log(0.7))
    assert found["accuracy_lost"].bound == 0.005
    assert found["energy_saved"].systematic == pytest.approx(math.log(1.05))
    assert "failures" not in found


def test_that_a_metric_without_a_unit_is_measured_by_the_value_of_the_baseline() -> None:
    found = {goal.name: goal for goal in goals(DEFAULT_TARGETS, metric_is_share=False, baseline_value=3.2)}
    assert found["accuracy_lost"].bound == pytest.approx(0.032)
    none = goals(DEFAULT_TARGETS, metric_is_share=False, baseline_value=None)
    assert "accuracy_lost" not in {goal.name for goal in none}


def test_that_a_target_switched_off_has_no_goal() -> None:
    off = Targets(**dict.fromkeys(Targets.model_fields))
    assert goals(off, metric_is_share=True, baseline_value=1.0) == []
