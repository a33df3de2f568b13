"""A trained model with its task: what the effect of formats is measured on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine import tasks
from precgui.engine.adapters.weights_file import load_weights
from precgui.engine.errors import EngineError
from precgui.engine.ptq.effects import CALIBRATION_BATCHES, EffectMeter
from precgui.engine.ptq.held_out import HeldOut
from precgui.engine.ptq.hf_model import hugging_face_task
from precgui.engine.tasks.base import Batch, Task
from precgui.engine.tasks.download import Tell
from precgui.formats.weight_formats import WeightFormat
from precgui.sentences import Sentence


@dataclass(frozen=True)
class Subject:
    """A model in FP32 on its device, in evaluation mode."""

    task: Task
    model: nn.Module
    device: torch.device

    def meter(self, formats: Sequence[WeightFormat], most_samples: int, stopped: Callable[[], bool]) -> EffectMeter:
        """A meter over at most so many held-out samples. Raises EngineError."""
        held_out = list(_first(self.task.validation_batches(), most_samples))
        calibration = list(itertools.islice(self.task.train_batches(), CALIBRATION_BATCHES))
        return EffectMeter(HeldOut(self.task, self.model, held_out, self.device, stopped), calibration, formats)


def from_config(config: RunConfig, weights: Path, tell: Tell) -> Subject:
    """The model of a config with weights from a file. Raises EngineError for what does not fit."""
    device = _device(config.device)
    torch.manual_seed(config.seed)
    task = tasks.make(config, tell)
    if not getattr(task.metric, "of_outputs", True):
        raise EngineError(
            Sentence(
                "the task {task} has no loss of outputs on held-out data, so no effect is measured", task=config.task
            )
        )
    model = task.model().float()
    load_weights(model, str(weights), "weights", also_torch=True)
    return Subject(task, model.to(device).eval(), device)


def from_folder(folder: Path, text: str, length: int, batch_size: int, device: str) -> Subject:
    """A causal language model of transformers. Raises EngineError."""
    place = _device(device)
    task = hugging_face_task(folder, text, length, batch_size)
    return Subject(task, task.model().to(place).eval(), place)


def _device(requested: str) -> torch.device:
    devices.pin_threads(None)
    device = devices.choose(requested)
    devices.make_current(device)
    return device


def _first(batches: object, most: int) -> Iterator[Batch]:
    """Batches of at most `most` samples together; the last one is cut where it is a tensor of rows."""
    left = most
    for inputs, targets in batches:  # type: ignore[attr-defined]
        if len(targets) > left and isinstance(inputs, torch.Tensor) and len(inputs) == len(targets):
            inputs, targets = inputs[:left], targets[:left]
        yield inputs, targets
        left -= len(targets)
        if left <= 0:
            return
