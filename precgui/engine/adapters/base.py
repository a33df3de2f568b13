"""The weights of a base: from a file, or trained in FP32 first and kept for the next run."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from precgui import paths
from precgui.config import OptimizerConfig, RecordConfig, RunConfig, TrainConfig
from precgui.config.adapters import AdapterConfig
from precgui.engine import backend_flags
from precgui.engine.adapters.weights_file import check_new_file, load_weights, tensors_of, write_weights
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.journal import Journal
from precgui.engine.loop import Loop
from precgui.engine.pruning.hook import Pruning
from precgui.engine.run_parts import RunParts
from precgui.engine.setup import build_run
from precgui.engine.tasks.download import Tell
from precgui.sentences import Sentence

_LR = 2e-3  # of AdamW, as in the recipe gpt-quick
_CONTENT = "parameters and buffers"  # of a kept file: files with other content are not found


def prepare_base(model: nn.Module, config: RunConfig, tell: Tell, stopped: Callable[[], bool]) -> None:
    """Fill the model with the weights of its base, which is trained in a run of its own where no file has them.

    Raises EngineError, and Stopped when `stopped()` becomes true.
    """
    if config.adapter.save_to:
        check_new_file(config.adapter.save_to, "adapter.save_to")
    if config.base.weights:
        load_weights(model, config.base.weights)
    elif config.base.train_steps:
        path = kept_base(config)
        if not path.is_file():
            _train(config, path, tell, stopped)
        load_weights(model, str(path))


def kept_base(config: RunConfig) -> Path:
    """The file of a base that was trained for such a config."""
    asked = _training(config).model_dump(mode="json", exclude={"title", "device", "threads", "record"})
    key = json.dumps([asked, str(torch.__version__), sys.version, _CONTENT], sort_keys=True)
    return paths.state_dir() / "bases" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"


def _training(config: RunConfig) -> RunConfig:
    """The run that trains the base: FP32, the usual data of the task, seed 0."""
    data = config.data.model_copy(update={"path": "", "corpus": "library"} if config.task == "text" else {})
    train = TrainConfig(epochs=1_000_000, max_steps=config.base.train_steps, clip_norm=1.0)
    return config.model_copy(
        update={
            "title": "", "precision": "fp32", "seed": 0, "data": data, "train": train, "adapter": AdapterConfig(),
            "base": type(config.base)(), "optimizer": OptimizerConfig(name="adamw", lr=_LR, weight_decay=0.1),
            "record": RecordConfig(tensors=False),
        }
    )  # fmt: skip


def _train(config: RunConfig, path: Path, tell: Tell, stopped: Callable[[], bool]) -> None:
    steps = config.base.train_steps
    tell(
        Sentence(
            "training the base first: {steps} steps in FP32, kept for the next run; base.weights names another one",
            steps=steps,
        )
    )
    parts = _trained(_training(config), stopped)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_weights(tensors_of(parts.model), path)
    except OSError as error:
        raise EngineError(
            Sentence("the trained base cannot be kept in {folder}: {why}", folder=path.parent, why=error.strerror)
        ) from None


def _trained(config: RunConfig, stopped: Callable[[], bool]) -> RunParts:
    """The parts of a run that nobody watches, after its last step."""

    def check(message: str) -> None:
        if stopped():
            raise Stopped

    with backend_flags.restored():
        parts = build_run(config, check)
        Loop(
            config, parts, Journal(lambda event: None), stopped, (Pruning,)
        ).train()  # no other hook changes the weights
    if stopped():
        raise Stopped
    return parts
