"""The plan of a config: its ledger before the run, whether it fits, the largest batch, and what to change first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from precgui.config import ConfigError, RunConfig, build
from precgui.config.dotted import put_at
from precgui.engine import device as devices
from precgui.engine.errors import EngineError
from precgui.engine.profile.predict import predicted_ledger, with_batch
from precgui.hardware.free_memory import free_memory_bytes
from precgui.planner.ledger import Ledger, difference_sentence
from precgui.planner.plan import MARGIN, usable_bytes
from precgui.sentences import L_, message_of

_FEWEST_HALVED = 4  # samples


def plan_config(config: RunConfig, size_bytes: int | None, *, alternatives: bool = True) -> dict[str, Any]:
    """The plan as plain values, with the keys of `precgui plan --json`. `size_bytes` None: this machine's own memory.

    Raises EngineError for faults that the user can correct.
    """
    result = predicted_ledger(config)
    size, where = (size_bytes, "as given") if size_bytes is not None else machine_memory(config.device)
    limit = usable(size, given=size_bytes is not None, device=config.device)
    plain = result.to_json()
    plain["memory"] = {"device_bytes": size, "from": where, "margin": MARGIN, "limit_bytes": limit}
    plain["fits"] = result.total_bytes <= limit
    plain["batch_size"] = batch = config.data.batch_size
    other = batch // 2 if batch >= _FEWEST_HALVED else 2 * batch  # batch norm takes no single sample
    of_other = predicted_ledger(with_batch(config, other)).total_bytes
    plain["largest_batch"] = carried_on((batch, result.total_bytes), (other, of_other), limit)
    if alternatives:
        rows = [_row(change, settings, predicted, limit) for change, settings, predicted in _alternatives(config)]
        plain["changes"] = rows
        plain["first_change"] = None if plain["fits"] else first(rows)
        plain["against_fp32"] = _against_fp32(config, result)
    return plain


def usable(size: int, *, given: bool, device: str) -> int:
    """Bytes that tensors may take; of the host's free memory all but the margin, since the process is there already."""
    return usable_bytes(size) if given or device != "cpu" else int(size * (1 - MARGIN))


def machine_memory(requested: str) -> tuple[int, str]:
    """Bytes of the device that a config names, and in words whose they are."""
    device = devices.choose(requested)
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory), devices.name(device)
    return free_memory_bytes(), L_("free memory of this machine")


def carried_on(own: tuple[int, int], other: tuple[int, int], limit: int) -> int:
    """The largest batch whose peak is below the limit, by the straight line through two batches (samples, peak bytes);
    0 when not even one sample fits."""
    batch, total = own
    slope = (total - other[1]) / (batch - other[0])
    if slope <= 0:
        return batch
    return max(0, int(batch + (limit - total) // slope))


def _alternatives(config: RunConfig) -> Iterator[tuple[str, dict[str, Any], Ledger]]:
    """Each thing that can be changed alone, by what it costs, with the ledger after it."""
    train, batch = config.train, config.data.batch_size
    changed: list[tuple[str, dict[str, Any], Callable[[], RunConfig]]] = []
    if config.precision in ("fp64", "fp32", "tf32"):
        changed.append(_change(L_("Train with autocast to BF16."), {"precision": "bf16-amp"}, config))
    if batch > 1:
        settings = {"data.batch_size": -(-batch // 2), "train.accumulation": 2 * train.accumulation}
        changed.append(_change(L_("Halve the batch and accumulate twice as often: the same step."), settings, config))
    if not train.checkpointing:
        sentence = L_("Compute activations again in the backward pass: about a third more time.")
        changed.append(_change(sentence, {"train.checkpointing": True}, config))
    if config.precision in ("fp64", "fp32", "tf32", "bf16-amp"):
        sentence = L_(
            "Keep weights, gradients and optimizer state in BF16, rounded stochastically: check the accuracy."
        )
        changed.append(_change(sentence, {"precision": "bf16-sr"}, config))
    for sentence, settings, make in changed:
        try:
            yield sentence, settings, predicted_ledger(make())
        except (EngineError, ConfigError):
            continue  # a model without blocks has no checkpoints, a precision may not go with other settings


def _change(
    sentence: str, settings: dict[str, Any], config: RunConfig
) -> tuple[str, dict[str, Any], Callable[[], RunConfig]]:
    def make() -> RunConfig:
        tree = config.model_dump()
        for path, value in settings.items():
            put_at(tree, path, value)
        return build(tree)

    return sentence, settings, make


def _row(sentence: str, settings: dict[str, Any], predicted: Ledger, limit: int) -> dict[str, Any]:
    return {
        "change": sentence,
        "settings": settings,
        "total_bytes": predicted.total_bytes,
        "fits": predicted.total_bytes <= limit,
    }


def first(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first row that fits, else the one that needs least; None without rows."""
    fitting = [row for row in rows if row["fits"]]
    return fitting[0] if fitting else min(rows, key=lambda row: int(row["total_bytes"]), default=None)


def _against_fp32(config: RunConfig, ledger: Ledger) -> str | None:
    if config.precision == "fp32":
        return None
    try:
        fp32 = predicted_ledger(config.model_copy(update={"precision": "fp32"}))
    except EngineError:
        return None
    return difference_sentence(fp32, ledger, config.precision)


def serve(emit: Callable[[Any], None], control: Any, config: dict[str, Any], size_bytes: int | None = None) -> None:
    """Task of a child process: emits the plan, or the sentence of what is wrong with the config."""
    try:
        emit({"kind": "plan", "plan": plan_config(RunConfig.model_validate(config), size_bytes)})
    except (EngineError, MemoryError) as error:
        emit({"kind": "fault", "message": message_of(error)})
