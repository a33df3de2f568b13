"""From a model to the graph that torchao trains, and from saved integers back to a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from precgui.config import RunConfig
from precgui.engine.casting import cast_floats
from precgui.engine.errors import EngineError
from precgui.engine.precisions import fp32_modules
from precgui.engine.qat.pt2e import graph as graphs
from precgui.engine.qat.pt2e.graph import kept_first
from precgui.engine.qat.pt2e.lowering import Lowered
from precgui.engine.qat.pt2e.state import set_state
from precgui.engine.tasks import Task

_SAMPLES = 4  # for torch.export: more than one, which it would take for a constant


def sample(task: Task, device: torch.device) -> Any:
    """A few samples, taken without moving on the random numbers of the run."""
    with torch.random.fork_rng(devices=[]):
        inputs, _ = next(iter(task.validation_batches()))
    return kept_first(cast_floats(inputs, torch.float32, device), _SAMPLES)


def prepared(model: nn.Module, inputs: Any, config: RunConfig, kept: Mapping[str, nn.Module]) -> fx.GraphModule:
    """The model as a graph with fake quantisation. Raises EngineError for one that has none or cannot be quantised."""
    try:
        with torch.random.fork_rng(devices=[]):
            graph = graphs.export(model, inputs)
            graph = graphs.prepare(graph, per_channel=config.qat.per_channel, kept=kept)
    except graphs.NOT_EXPORTABLE as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()[:200]
        raise EngineError(
            f"qat.backend = torchao cannot export {config.model_name}: {why}; set qat.backend = own"
        ) from error
    if not any(True for _ in graphs.products(graph)):
        raise EngineError(f"precision {config.precision}: the model has no linear or convolutional layer left")
    return graph


def restored_graph(
    task: Task, config: RunConfig, inputs: Any, state: Mapping[str, Tensor], made_for: tuple[int, ...]
) -> nn.Module:
    """A fresh model of the task with saved integers, on integer kernels. Raises ValueError when they do not fit."""
    model = task.model()
    kept = fp32_modules.find(model, config.precision_options.keep_fp32) if config.precision_options.keep_fp32 else {}
    graph = prepared(model, kept_first(inputs, _SAMPLES), config, kept)
    graphs.set_mode(graph, training=False, norms=False)
    with torch.no_grad():
        graph(inputs)  # ranges, any, without which there is nothing to convert
    graphs.set_quantisation(graph, active=True, observing=False)
    integers = graphs.convert(graph)
    set_state(integers, dict(state))
    return Lowered(integers, inputs, made_for)
