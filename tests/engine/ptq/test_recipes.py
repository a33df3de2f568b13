"""Recipes of llm-compressor: its own schema takes them where it is installed, and their keys are those of its pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precgui.engine.ptq.recipes import llm_compressor_recipe
from precgui.engine.ptq.scale_folds import ScaleFold
from precgui.formats.weight_formats import weight_format

FORMATS = {"a.q": weight_format("int4/128"), "a.k": weight_format("int4/128"), "b": weight_format("int4/128")}
FOLDS = [ScaleFold("a.norm", ("a.q", "a.k"), False), ScaleFold("b.norm", ("head",), False)]
KEYS = {  # of llm-compressor 0.14
    "SpinQuantModifier": {"rotations", "transform_type"}, "QuIPModifier": {"rotations", "transform_type"},
    "AWQModifier": {"mappings", "duo_scaling"}, "SmoothQuantModifier": {"mappings", "smoothing_strength"},
    "QuantizationModifier": {"ignore", "config_groups"}, "GPTQModifier": {"ignore", "config_groups"},
    "AutoRoundModifier": {"ignore", "config_groups"},
}  # fmt: skip
CASES = [
    ("rtn", (), ["QuantizationModifier"]),
    ("gptq", ("quarot",), ["SpinQuantModifier", "GPTQModifier"]),
    ("rtn", ("spinquant",), ["SpinQuantModifier", "QuantizationModifier"]),
    ("smooth", ("quip", "autoround"), ["QuIPModifier", "SmoothQuantModifier", "AutoRoundModifier"]),
    ("awq", ("autoround",), ["AWQModifier", "AutoRoundModifier"]),
]


def modifiers(text: str) -> dict[str, dict[str, str]]:
    """Names of modifiers and their keys with values of one line, by the indents of the text."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines()[2:]:
        name, _, value = line.strip().partition(":")
        depth = len(line) - len(line.lstrip())
        if depth == 4:
            found[name] = {}
        elif depth == 6:
            found[list(found)[-1]][name] = value.strip()
    return found


@pytest.mark.parametrize(("method", "added", "expected"), CASES)
def test_that_a_recipe_has_the_keys_of_the_library(method: Any, added: tuple[str, ...], expected: list[str]) -> None:
    found = modifiers(llm_compressor_recipe(FORMATS, ["head"], method, FOLDS, added))
    assert list(found) == expected
    assert all(set(keys) == KEYS[name] for name, keys in found.items())
    if "SpinQuantModifier" in found:
        kind = "random-hadamard" if "quarot" in added else "hadamard"
        assert found["SpinQuantModifier"] == {"rotations": '["R1", "R2"]', "transform_type": kind}
    if "AWQModifier" in found:
        pairs = json.loads(found["AWQModifier"]["mappings"])
        assert pairs == [{"smooth_layer": "a.norm", "balance_layers": ["a.q", "a.k"]}]


@pytest.mark.parametrize(("method", "added", "expected"), CASES)
def test_that_the_library_takes_a_recipe(
    method: Any, added: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    library = pytest.importorskip(
        "llmcompressor.recipe", reason="llm-compressor is not installed", exc_type=ImportError
    )
    file = tmp_path / "recipe.yaml"
    file.write_text(llm_compressor_recipe(FORMATS, ["head"], method, FOLDS, added), encoding="utf-8")
    taken = library.Recipe.create_instance(str(file)).modifiers
    assert [type(each).__name__ for each in taken] == expected
    group = taken[-1].config_groups["group_0"]
    assert list(group.targets) == list(FORMATS) and group.weights.num_bits == 4 and group.weights.group_size == 128
