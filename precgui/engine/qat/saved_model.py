"""A converted model as a file: weights and what is needed to build the model again, read without running code."""

from __future__ import annotations

import json
import zipfile
from _pickle import UnpicklingError  # the error only: nothing is unpickled here but by torch, weights only
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from precgui import config as configs
from precgui.config import ConfigError, RunConfig, is_own_task
from precgui.config.new_places import place_fault
from precgui.engine import tasks
from precgui.engine.errors import EngineError
from precgui.engine.qat.integer_layers import Integer
from precgui.engine.qat.layers import quantizable
from precgui.engine.qat.measure import evaluate, saved_bytes, some_batches
from precgui.engine.torch_private import BatchNormNd
from precgui.safe_open import replaced
from precgui.sentences import L_, Sentence, first_line, message_of

_SCHEMA = 1
_UNREADABLE = (OSError, RuntimeError, UnpicklingError, ValueError, EOFError, KeyError, AttributeError, TypeError,
               IndexError, OverflowError, RecursionError, zipfile.BadZipFile)  # fmt: skip
_BITS = (1, 2, 4, 8)


def check_place(save_to: str) -> None:
    """Raises EngineError at once, not after the training, where nothing could be saved."""
    if fault := place_fault(save_to):
        raise EngineError(Sentence("{key}: {fault}", key="qat.save_to", fault=fault))


def save(
    path: Path,
    config: RunConfig,
    state: Mapping[str, Tensor],
    layers: Mapping[str, tuple[int, int | None]],
    evaluation: Mapping[str, Any],
) -> None:
    """Write the model, in full or not at all. `layers` has the bits of weights and of inputs of each layer."""
    document = {
        "precgui_integer_model": _SCHEMA,
        "config": config.model_dump_json(),
        "layers": {name: [bits, inputs or 0] for name, (bits, inputs) in layers.items()},
        "evaluation": json.dumps(evaluation),
        "state": dict(state),
    }
    with replaced(path) as file:
        torch.save(document, file)


def load(path: Path) -> dict[str, Any]:
    """Loads a file that `save` wrote, with `config` as a RunConfig. Raises EngineError for another file."""
    if path.exists() and not path.is_file():  # a pipe would be waited for, a device has no end
        raise EngineError(
            Sentence("{path} cannot be read as a model: it is not a regular file; qat.save_to writes one", path=path)
        )
    if path.is_file() and not zipfile.is_zipfile(path):
        raise EngineError(
            Sentence(
                "{path} cannot be read as a model: torch has not written it whole; qat.save_to writes one", path=path
            )
        )
    try:
        _refuse_compression(path)
        document = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise EngineError(Sentence("{path} does not exist", path=path)) from None
    except UnpicklingError:  # torch advises to load it all the same, which would run what it holds
        reason = L_("it holds more than tensors and plain values, or is damaged; precgui never loads that")
        raise EngineError(Sentence("{path} cannot be read as a model: {why}", path=path, why=reason)) from None
    except _UNREADABLE as error:
        raise EngineError(
            Sentence("{path} cannot be read as a model: {why}", path=path, why=first_line(error))
        ) from None
    schema = document.get("precgui_integer_model") if isinstance(document, dict) else None
    if not isinstance(schema, int) or schema != _SCHEMA:
        raise EngineError(Sentence("{path} is no integer model of precgui; qat.save_to writes one", path=path))
    try:
        return {**document, "config": configs.build(json.loads(document["config"])), **_checked(document)}
    except (ConfigError, *_UNREADABLE) as error:
        if isinstance(error, ConfigError) and "qat.backend" in error.faults:
            raise EngineError(
                Sentence("{path} holds a graph of torchao, which precgui reads no more; train it again", path=path)
            ) from None
        raise EngineError(Sentence("{path} is damaged: {why}", path=path, why=first_line(error))) from None


def _refuse_compression(path: Path) -> None:
    """torch.save stores its entries as they are; a compressed one could be a thousand times as long in memory.

    Raises ValueError, OSError and BadZipFile.
    """
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > entry.compress_size:
                raise ValueError(
                    Sentence(
                        "{entry!r} in it is compressed, as nothing is that torch writes", entry=entry.filename[:80]
                    )
                )


def _checked(document: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that are not tensors, by type; raises ValueError, TypeError or KeyError."""
    layers = {str(name): (int(bits), int(inputs)) for name, (bits, inputs) in document["layers"].items()}
    if any(bits not in _BITS or not 0 <= inputs <= 8 for bits, inputs in layers.values()):
        raise ValueError(L_("a layer has an odd number of bits"))
    state = document["state"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(L_("its weights are no tensors"))
    evaluation = json.loads(document["evaluation"])
    if not isinstance(evaluation, dict):
        raise ValueError(L_("its evaluation is no table"))
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in evaluation.values()):
        raise ValueError(L_("its evaluation is no table of numbers"))
    return {"layers": layers, "state": state, "evaluation": evaluation}


@dataclass(frozen=True)
class RestoredModel:
    """An integer model on the CPU with its task and the samples that were taken after its training."""

    saved: dict[str, Any]
    config: RunConfig
    task: tasks.Task
    batches: list[tasks.Batch]
    model: nn.Module


def restore_file(path: Path, *, own_code: bool = False) -> RestoredModel:
    """Build the model of a file again. Raises EngineError for what cannot be read, and for a task of the user's own,
    which is code, unless `own_code`.
    """
    saved = load(path)
    config: RunConfig = saved["config"].model_copy(update={"device": "cpu"})
    if is_own_task(config.task) and not own_code:
        raise EngineError(
            Sentence(
                "{path} was trained on {task}, which is code; allow it with --own-code", path=path, task=config.task
            )
        )
    torch.manual_seed(config.seed)
    task = tasks.make(config)
    batches = some_batches(task)
    return RestoredModel(saved, config, task, batches, rebuilt(path, saved, task))


def evaluate_file(path: Path, *, own_code: bool = False, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Evaluate the model of a file on the CPU, on the samples that were taken after its training.

    Gives the config's title, task and precision, `samples`, `saved` and `now` (loss, metric), `bytes` of the file and
    of its weights alone, and the name of the metric. Raises EngineError as `restore_file`.
    """
    restored_model = restore_file(path, own_code=own_code)
    saved, config, task = restored_model.saved, restored_model.config, restored_model.task
    batches, model = restored_model.batches, restored_model.model
    return {
        "title": config.display_title,
        "task": config.task,
        "precision": config.precision,
        "metric": task.metric.title,
        "unit": task.metric.unit,
        "samples": sum(len(targets) for _, targets in batches),
        "bytes": path.stat().st_size,
        "weights_bytes": saved_bytes(saved["state"]),
        "saved": saved["evaluation"],
        "now": {} if stopped() else evaluate(model, task, batches, torch.device("cpu")),
    }


def evaluate_in_child(emit: Callable[[Any], None], control: Any, *, path: str) -> None:
    """`evaluate_file` as the task of a child process: emits its figures, or an `error`."""
    try:
        emit(evaluate_file(Path(path), stopped=control.stopped))
    except EngineError as error:
        emit({"error": message_of(error)})


def rebuilt(path: Path, saved: Mapping[str, Any], task: tasks.Task) -> nn.Module:
    """The integer model. Raises EngineError when the file does not fit the model of its config."""
    try:
        return restored(task.model(), saved["layers"], saved["state"])
    except (RuntimeError, ValueError) as error:
        raise EngineError(
            Sentence("{path} does not fit the model of its config: {why}", path=path, why=first_line(error))
        ) from None


def restored(model: nn.Module, layers: Mapping[str, tuple[int, int]], state: Mapping[str, Tensor]) -> nn.Module:
    """A fresh model of the task with the saved integers. Raises ValueError or RuntimeError when they do not fit."""
    known = quantizable(model, set())
    for name, (bits, inputs) in layers.items():
        if name not in known or f"{name}.scales" not in state:
            raise ValueError(Sentence("{layer} is no layer that can be quantised", layer=name))
        scales, layer = state[f"{name}.scales"].numel(), known[name]
        if scales not in (1, len(layer.weight)):  # type: ignore[arg-type]
            raise ValueError(Sentence("{layer} has {count} scales", layer=name, count=scales))
        model.set_submodule(name, Integer(layer, bits, inputs or None, scales=scales, bias=f"{name}.bias" in state))
    for name, module in list(model.named_modules()):
        if isinstance(module, BatchNormNd) and module.running_mean is not None and f"{name}.running_mean" not in state:
            model.set_submodule(name, nn.Identity())  # folded into the layer before it
        elif f"{name}.bias" in state and getattr(module, "bias", "") is None and not isinstance(module, Integer):
            module.bias = nn.Parameter(torch.zeros(len(module.weight)))
    model.load_state_dict(dict(state))
    return model.eval()
