"""The `TrainingArguments` of a Hugging Face Trainer, saved as JSON, as settings of a run and back.

The file is what `arguments.to_json_string()` gives. It is data: nothing of it is run, and no pickle
(`training_args.bin`) is read. The model and the data are not in it: those of a recipe stay.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui.config.dotted import put_at
from precgui.config.reading import load, to_toml
from precgui.config.tree import RunConfig
from precgui.config.validation import ConfigError, build
from precgui.safe_open import read_text
from precgui.sentences import L_, Sentence

MOST_BYTES = 1 << 20
# Arguments that are settings of a run under another name, with the same meaning of their values.
_SAME: dict[str, str] = {
    "per_device_train_batch_size": "data.batch_size", "gradient_accumulation_steps": "train.accumulation",
    "learning_rate": "optimizer.lr", "weight_decay": "optimizer.weight_decay", "adam_epsilon": "optimizer.eps",
    "gradient_checkpointing": "train.checkpointing", "torch_compile": "train.compile",
    "full_determinism": "train.deterministic", "dataloader_num_workers": "data.workers", "seed": "seed",
}  # fmt: skip
_OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "sgd": "sgd"}
_SCHEDULES = ("constant", "cosine")
_PRECISIONS = {"fp32": {}, "tf32": {"tf32": True}, "bf16-amp": {"bf16": True}, "fp16-amp": {"fp16": True}}
# Arguments that change a training and have no setting here, with the value that says nothing.
_WITHOUT: dict[str, tuple[Any, ...]] = {
    "warmup_steps": (0,), "warmup_ratio": (0, 0.0, None), "adam_beta1": (0.9,), "adam_beta2": (0.999,),
    "label_smoothing_factor": (0, 0.0), "neftune_noise_alpha": (None,), "deepspeed": (None,),
    "fsdp": ("", [], None, False), "bf16_full_eval": (False,), "fp16_full_eval": (False,), "group_by_length": (False,),
}  # fmt: skip


@dataclass(frozen=True)
class ReadArguments:
    """The config, and a sentence for each argument that it does not hold."""

    config: RunConfig
    left_out: tuple[str, ...]


def read_arguments(path: Path, base: RunConfig) -> ReadArguments:
    """The settings of a JSON file on top of a config. Raises ConfigError with a sentence."""
    arguments = _loaded(path)
    known = [*_SAME, "max_steps", "num_train_epochs", "max_grad_norm", "fp16", "bf16", "optim", "lr_scheduler_type"]
    if not any(name in arguments for name in known):
        raise ConfigError(
            {"": Sentence("{path} holds no TrainingArguments; write them with to_json_string()", path=path)}
        )
    changes, left_out = _changes(arguments)
    tree = base.model_dump()
    for setting, value in changes.items():
        put_at(tree, setting, value)
    try:
        return ReadArguments(build(tree), tuple(left_out))
    except ConfigError as error:
        raise ConfigError({"": Sentence("{path}: {error}", path=path, error=error)}) from None


def read_config(path: Path, base: RunConfig) -> ReadArguments:
    """The config in a TOML file, or, for a .json, that of arguments on top of `base`. Raises ConfigError."""
    return read_arguments(path, base) if path.suffix == ".json" else ReadArguments(load(path), ())


def config_text(config: RunConfig, path: Path) -> str:
    """The text that a file of this name holds: arguments for a .json, else TOML. Raises ConfigError."""
    if path.suffix != ".json":
        return to_toml(config)
    return json.dumps(trainer_arguments(config), indent=2, allow_nan=False) + "\n"


def _loaded(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(read_text(path, MOST_BYTES))
    except OSError as error:
        raise ConfigError(
            {"": Sentence("{path} cannot be read: {reason}; choose another file", path=path, reason=error.strerror)}
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(
            {"": Sentence("{path} is no JSON; write it with TrainingArguments.to_json_string()", path=path)}
        ) from None
    if not isinstance(tree, dict):
        raise ConfigError(
            {
                "": Sentence(
                    "{path} is no table of arguments; write it with TrainingArguments.to_json_string()", path=path
                )
            }
        )
    return tree


def _changes(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    changes = {setting: arguments[name] for name, setting in _SAME.items() if arguments.get(name) is not None}
    left_out: list[str] = [
        Sentence("{name} = {value} has no setting here", name=name, value=_short(arguments[name]))
        for name, silent in _WITHOUT.items()
        if name in arguments and arguments[name] not in silent
    ]
    if any(name in arguments for name in ("fp16", "bf16", "tf32")):
        changes["precision"] = _precision(arguments)
    if isinstance(steps := arguments.get("max_steps"), int):
        changes["train.max_steps"] = steps if steps > 0 else None
    if isinstance(norm := arguments.get("max_grad_norm"), int | float):
        changes["train.clip_norm"] = norm or None
    left_out += _epochs(arguments.get("num_train_epochs"), changes)
    for name, setting, known in (
        ("optim", "optimizer.name", _OPTIMIZERS),
        ("lr_scheduler_type", "optimizer.schedule", {each: each for each in _SCHEDULES}),
    ):
        given = arguments.get(name)
        if isinstance(given, str) and given in known:
            changes[setting] = known[given]
        elif given is not None:
            left_out.append(
                Sentence(
                    "{name} = {given} has no setting here; choose {setting} yourself",
                    name=name, given=_short(given), setting=setting,
                )
            )  # fmt: skip
    if changes.get("optimizer.name") == "sgd":
        changes["optimizer.momentum"] = 0.0  # of the Trainer's
    if arguments.get("use_cpu") or arguments.get("no_cuda"):
        changes["device"] = "cpu"
    return changes, left_out


def _epochs(epochs: object, changes: dict[str, Any]) -> list[str]:
    """Put whole epochs into `changes`; a sentence where they were a part of one."""
    if not isinstance(epochs, int | float) or not math.isfinite(epochs):
        return []
    whole = changes["train.epochs"] = math.ceil(epochs)
    if epochs == whole:
        return []
    return [Sentence("num_train_epochs = {epochs:g} is rounded up to {whole}", epochs=epochs, whole=whole)]


def _precision(arguments: Mapping[str, Any]) -> str:
    if arguments.get("fp16") and arguments.get("bf16"):
        raise ConfigError({"": L_("fp16 and bf16 are both on; a Trainer takes one of them")})
    names = {"fp16": "fp16-amp", "bf16": "bf16-amp", "tf32": "tf32"}
    return next((precision for name, precision in names.items() if arguments.get(name)), "fp32")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def trainer_arguments(config: RunConfig) -> dict[str, Any]:
    """The arguments of a Trainer that trains with the settings of a config, for `TrainingArguments(**arguments)`.

    Raises ConfigError for a precision that a Trainer does not have.
    """
    if config.precision not in _PRECISIONS:
        names = ", ".join(_PRECISIONS)
        raise ConfigError(
            {
                "precision": Sentence(
                    "a Trainer has no {precision}; it has {names}", precision=config.precision, names=names
                )
            }
        )
    tree = config.model_dump()
    arguments = {name: _value_at(tree, setting) for name, setting in _SAME.items()}
    arguments |= {
        "num_train_epochs": config.train.epochs, "max_steps": config.train.max_steps or -1,
        "max_grad_norm": config.train.clip_norm or 0.0, "lr_scheduler_type": config.optimizer.schedule,
        "optim": "adamw_torch" if config.optimizer.name == "adamw" else "sgd",
    }  # fmt: skip
    if config.device == "cpu":
        arguments["use_cpu"] = True
    return arguments | {"fp16": False, "bf16": False} | _PRECISIONS[config.precision]


def not_held(config: RunConfig) -> list[str]:
    """A sentence for each setting that a Trainer does differently."""
    if config.optimizer.name == "sgd" and config.optimizer.momentum:
        return [
            Sentence(
                "optimizer.momentum = {momentum:g} is not held: the sgd of a Trainer has none",
                momentum=config.optimizer.momentum,
            )
        ]
    return []


def _value_at(tree: Mapping[str, Any], setting: str) -> Any:
    value: Any = tree
    for part in setting.split("."):
        value = value[part]
    return value
