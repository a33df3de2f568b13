"""TrainingArguments as JSON: read into a config, written from one, what they cannot hold, and files of others."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from precgui.cli.main import main
from precgui.config import RECIPES, ConfigError, RunConfig
from precgui.config.trainer_arguments import read_arguments, trainer_arguments

BASE = RECIPES["gpt-quick"][1]
# of TrainingArguments(..., bf16=True).to_json_string(), shortened
GIVEN: dict[str, Any] = {
    "output_dir": "out", "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "learning_rate": 2e-5,
    "weight_decay": 0.01, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "max_grad_norm": 1.0,
    "num_train_epochs": 2.5, "max_steps": -1, "lr_scheduler_type": "linear", "warmup_ratio": 0.1, "warmup_steps": 0,
    "seed": 7, "bf16": True, "fp16": False, "tf32": None, "gradient_checkpointing": True, "torch_compile": False,
    "optim": "adamw_torch_fused", "dataloader_num_workers": 2, "full_determinism": False, "fsdp": [],
}  # fmt: skip


def written(folder: Path, content: object) -> Path:
    path = folder / "training_args.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_that_arguments_become_settings_and_what_has_none_is_named(tmp_path: Path) -> None:
    read = read_arguments(written(tmp_path, GIVEN), BASE)
    config = read.config
    assert (config.task, config.precision, config.seed) == ("text", "bf16-amp", 7)
    assert (config.data.batch_size, config.train.accumulation, config.data.workers) == (16, 4, 2)
    assert (config.train.epochs, config.train.max_steps, config.train.clip_norm) == (3, None, 1.0)
    assert (config.train.checkpointing, config.train.compile) == (True, False)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay, optimizer.eps) == ("adamw", 2e-5, 0.01, 1e-6)
    assert read.left_out == (
        "warmup_ratio = 0.1 has no setting here",
        "adam_beta2 = 0.95 has no setting here",
        "num_train_epochs = 2.5 is rounded up to 3",
        "lr_scheduler_type = linear has no setting here; choose optimizer.schedule yourself",
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-amp", "fp16-amp"])
def test_that_arguments_written_from_a_config_are_read_back_to_it(tmp_path: Path, precision: str) -> None:
    changes = {"precision": precision, "device": "cpu", "train": {"max_steps": 50, "clip_norm": 0.5, "epochs": 2}}
    config = RunConfig.model_validate({**BASE.model_dump(), **changes})
    base = RunConfig.model_validate({**BASE.model_dump(), "precision": "bf16-amp"})
    read = read_arguments(written(tmp_path, trainer_arguments(config)), base)
    assert read.left_out == ()
    assert read.config == config


def test_that_a_precision_that_a_trainer_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="a Trainer has no fp8; it has fp32, tf32, bf16-amp, fp16-amp"):
        trainer_arguments(RunConfig(precision="fp8"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ([1], "is no table of arguments"),
        ({"name": "x"}, "holds no TrainingArguments"),
        ({"fp16": True, "bf16": True}, "fp16 and bf16 are both on"),
        ({"learning_rate": "much"}, "optimizer.lr"),
        ({"learning_rate": float("nan")}, "optimizer.lr"),
        ({"per_device_train_batch_size": 0}, "data.batch_size: 0 is too small"),
        ({"max_grad_norm": -1.0}, "train.clip_norm"),
    ],
)
def test_that_a_file_of_others_is_one_sentence(
    tmp_path: Path, content: object, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trainer", str(written(tmp_path, content))]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_that_the_command_goes_both_ways_and_reads_no_pickle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.toml"
    assert main(["trainer", str(written(tmp_path, GIVEN)), "--base", "gpt-quick", "-o", str(config)]) == 0
    assert "warmup_ratio = 0.1 has no setting here" in capsys.readouterr().err
    assert tomllib.loads(config.read_text(encoding="utf-8"))["precision"] == "bf16-amp"
    assert main(["trainer", str(config)]) == 0
    back = json.loads(capsys.readouterr().out)
    assert (back["bf16"], back["per_device_train_batch_size"], back["num_train_epochs"]) == (True, 16, 3)
    assert main(["trainer", "digits-quick"]) == 0
    assert "the sgd of a Trainer has none" in capsys.readouterr().err
    assert main(["trainer", str(config), "-o", str(config)]) == 2
    assert main(["trainer", str(tmp_path / "training_args.bin")]) == 2
    assert "is a pickle" in capsys.readouterr().err
