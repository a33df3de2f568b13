"""The config: limits, sentences, TOML, recipes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from precgui import config
from precgui.config.validation import build, key_table
from tests import needs


@pytest.mark.parametrize("name", config.RECIPES)
def test_that_a_recipe_survives_toml(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(config.to_toml(config.RECIPES[name][1]))
    assert config.load(file) == config.load(name)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("precision=fp99", "precision: 'fp99' is not one of fp64, fp32, tf32"),
        ("precision_options.accumulator=mxfp4", "mxfp4 is a format of blocks, but a sum is one number"),
        ("precision=bf16amp", "did you mean bf16-amp or fp16-amp?"),
        ("precision=int8", "did you mean int8-qat or emulated:int8?"),
        ("optimizer.lr=-1", "optimizer.lr: -1 is too small, it must be above 0"),
        ("optimizer.lr=nan", "optimizer.lr: nan is not a finite number"),
        ("optimizer.lr=fast", "optimizer.lr: 'fast' is not a number; write it as 0.05 or 5e-2"),
        ("optimizer.lr=0,05", "optimizer.lr: '0,05' is not a number; write it as 0.05 or 5e-2"),
        ("optimizer.lr=", "optimizer.lr: a number is missing"),
        ("train.epochs=2.5", "train.epochs: 2.5 is not a whole number"),
        ("train.epochs=1e99", "train.epochs: 1e+99 is too large"),
        ("train.compile=perhaps", "train.compile: 'perhaps' is neither true nor false"),
        ("data.batch_size=0", "data.batch_size: 0 is too small, the least is 1"),
        ("model.depth=3", "model.depth: unknown key"),
        ("seed.x=3", "seed.x: unknown key"),
        ("device=gpu", "device: 'gpu' is not a device"),
        ("precision", "has no value"),
    ],
)
def test_that_a_bad_setting_is_named_with_its_value_and_cure(setting: str, sentence: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.load("digits-quick", [setting])
    assert sentence in str(caught.value)


def test_that_every_fault_is_told_at_once() -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.build({"precision": "x", "optimizer": {"lr": 0}, "nonsense": 1})
    assert set(caught.value.faults) == {"precision", "optimizer.lr", "nonsense"}


@pytest.mark.parametrize(
    ("content", "sentence"), [(b"precision = ", "not valid TOML"), (b"\xff\xfe", "cannot be read")]
)
def test_that_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(config.ConfigError, match=sentence):
        config.load(file)


def test_that_a_name_that_is_neither_file_nor_recipe_lists_the_recipes() -> None:
    with pytest.raises(config.ConfigError, match="neither a file nor a recipe; the recipes are digits-quick"):
        config.load("digit-quick")


def test_that_settings_take_toml_values_and_plain_words() -> None:
    loaded = config.load(
        "digits-quick", ["title=a run = mine", "train.max_steps=12", "train.clip_norm=", "optimizer.lr=1e-6"]
    )
    assert (loaded.title, loaded.train.max_steps, loaded.train.clip_norm) == ("a run = mine", 12, None)
    assert loaded.optimizer.lr == 1e-6


def test_that_every_key_is_explained() -> None:
    table = config.key_table()
    assert {"precision", "scaling.growth_interval", "optimizer.lr"} <= {path for path, _, _ in table}
    assert all(description for _, description, _ in table)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("seed=" + "9" * 5000, "a number has more than 4300 digits"),
        ("seed=0x" + "f" * 6000, "a number has more than 4300 digits"),
        ("precision_options.keep_fp32=[0x" + "f" * 6000 + "]", "a number has more than 4300 digits"),
        ("title=" + "[" * 20_000, "it is nested too deeply"),
        ("title=" + "{a=" * 20_000, "it is nested too deeply"),
        (".".join(["a"] * 20_000) + "=1", "a key has more than 100 parts"),
        ("a" * 20_000, "has no value"),
    ],
)
def test_that_a_setting_that_no_parser_can_take_is_one_sentence(text: str, why: str) -> None:
    with pytest.raises(config.ConfigError, match=why) as refused:
        config.load("digits-quick", [text])
    assert "\n" not in str(refused.value)
    assert "sys." not in str(refused.value), "a setting of Python is no cure for a user"
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("text", ["seed = " + "9" * 5000, "a = " + "[" * 20_000, ".".join(["a"] * 20_000) + " = 1"])
def test_that_a_toml_file_that_no_parser_can_take_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(config.ConfigError, match="is not valid TOML") as refused:
        config.load(tmp_path / "x.toml")
    assert "sys." not in str(refused.value)


def test_that_a_number_too_long_to_be_written_is_one_sentence() -> None:
    with pytest.raises(config.ConfigError, match="seed: a number of too many digits is too large"):
        config.build({"seed": 16**6000})


@needs.named_pipes
def test_that_a_pipe_is_no_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.toml")
    with pytest.raises(config.ConfigError, match="regular file"):
        config.load(tmp_path / "x.toml")


def test_that_an_empty_text_can_be_set() -> None:
    assert config.load("digits-quick", ["record.snapshot_to="]).record.snapshot_to == ""
    with pytest.raises(config.ConfigError, match="'' is not one of"):
        config.load("digits-quick", ["precision="])


def test_that_no_sentence_of_the_checker_of_settings_is_passed_on() -> None:
    """They are in English alone, and some speak of parsing."""
    for path, _about, _default in key_table():
        for value in ("perhaps", "-7.25", "1e99"):
            try:
                build(_tree(path, value))
            except config.ConfigError as error:
                for fault in error.faults.values():
                    assert "nput should" not in fault and "parse" not in fault, (path, value, fault)


def _tree(path: str, value: object) -> dict[str, object]:
    *parents, last = path.split(".")
    tree: dict[str, object] = {last: value}
    for parent in reversed(parents):
        tree = {parent: tree}
    return tree
