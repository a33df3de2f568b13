"""Bytes that the ranks of a config would send in a step, from the shapes of its model: no rank is started."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from precgui.config import RunConfig
from precgui.config.parallel import ALLREDUCED, POWERSGD, ParallelConfig
from precgui.engine.errors import EngineError
from precgui.engine.parallel.replicated import DEFAULT_BUCKET_MB
from precgui.engine.parallel.sharded import blocks
from precgui.engine.profile.one_step import StepParts, build_step
from precgui.formats.registry import get
from precgui.planner.communication import Traffic, coded_bytes
from precgui.sentences import Sentence, message_of

_DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def traffic_of(config: RunConfig) -> Traffic:
    """The traffic of a step of `config`; with strategy none, that of DDP. Raises EngineError for PowerSGD, whose bytes
    follow from the shapes of matrices, and for what cannot be built."""
    parts = build_step(config, fake=True)
    return _shards(parts, config.parallel) if config.parallel.strategy == "fsdp" else _replicas(parts, config.parallel)


def _replicas(parts: StepParts, parallel: ParallelConfig) -> Traffic:
    name = parallel.gradient_format
    if POWERSGD.fullmatch(name):
        raise EngineError(
            Sentence("the bytes of {name} are not foretold; choose another parallel.gradient_format", name=name)
        )
    trained = [weight for weight in parts.model.parameters() if weight.requires_grad]
    values = sum(weight.numel() for weight in trained)
    stored_bytes = sum(weight.numel() * weight.element_size() for weight in trained)
    pieces = max(math.ceil(stored_bytes / ((parallel.bucket_mb or DEFAULT_BUCKET_MB) * 2**20)), 1)
    if name == "auto":
        return Traffic(stored_bytes, pieces)
    if name in ALLREDUCED:
        return Traffic(values * _DTYPE_BYTES[name], pieces)
    return Traffic(coded_bytes(values, get(name).bits, parallel.block), pieces, coded=True)


def _shards(parts: StepParts, parallel: ParallelConfig) -> Traffic:
    gathered_bytes, gradient_bytes = 0, 0
    for weight in parts.model.parameters():
        gathered = _DTYPE_BYTES.get(parallel.param_dtype, weight.element_size())
        gathered_bytes += weight.numel() * gathered
        gradient_bytes += weight.numel() * _DTYPE_BYTES.get(parallel.reduce_dtype, gathered) * weight.requires_grad
    return Traffic(
        gradient_bytes, len(blocks(parts.model)) + 1, gathered_bytes=gathered_bytes,
        scatters_by_all_reduce=parts.device.type == "cpu",
    )  # fmt: skip


def serve(emit: Callable[[Any], None], control: Any, config: dict[str, Any]) -> None:
    """Task of a child process: emits the traffic, or the sentence of what is wrong with the config."""
    try:
        emit({"kind": "traffic", "traffic": asdict(traffic_of(RunConfig.model_validate(config)))})
    except (EngineError, MemoryError) as error:
        emit({"kind": "fault", "message": message_of(error)})
