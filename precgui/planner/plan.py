"""Whether a training step fits into the memory of a device, by formula: no model is built, no torch is loaded.

The peak is the largest of three moments. When the backward pass begins, all activations are there and no gradients,
unless they are accumulated; when it reaches the first block, all gradients are there and the activations of that
block; when the optimizer steps, all gradients and no activations. Between the first two, activations go as
gradients come, layer by layer, so that no other moment is higher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from precgui.planner.ledger import PARTS
from precgui.planner.network import Transformer
from precgui.planner.storage import BASE_BITS, OPTIMIZERS, PrecisionBytes, storage_of
from precgui.sentences import L_, Sentence

CONTEXT_BYTES = 600 * 2**20  # of the driver and of the libraries' kernels in a CUDA process, about
MARGIN = 0.05  # of the device is left free: the allocator cannot use every gap
MOST_BATCH = 1 << 20


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The subject of a plan. `batch` is that of one micro-step on one rank; `lora_rank` 0: all weights are trained;
    `offload` none, optimizer or parameters (to the host's memory); `zero_stage` 0 to 3 over `ranks` devices."""

    network: Transformer = field(default_factory=Transformer)
    batch: int = 1
    precision: str = "bf16-amp"
    master_weights: bool = False
    optimizer: str = "adamw"
    checkpointing: bool = False
    accumulation: int = 1
    offload: str = "none"
    zero_stage: int = 0
    ranks: int = 1
    lora_rank: int = 0
    base_format: str = "bf16"


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts at the peak, which they add up to; `host_bytes` lie in the host's memory instead.

    `fits` is None where the size of the device is not known."""

    request: PlanRequest
    parts: dict[str, int]
    moment: str
    host_bytes: int
    states_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    def fits(self, device_bytes: int | None) -> bool | None:
        """Whether the peak leaves the margin free; None when the size of the device is not known."""
        return None if device_bytes is None else self.total_bytes <= usable_bytes(device_bytes)


def usable_bytes(device_bytes: int) -> int:
    """Bytes that tensors may take of a device: without the margin and, from 2 GiB on, the context of the process."""
    context = CONTEXT_BYTES if device_bytes >= 2 * 2**30 else 0
    return int(device_bytes * (1 - MARGIN)) - context


def device_bytes(text: str) -> int:
    """The size of a device from text such as 24GB, 80 GiB or 512MB.

    GB means GiB, as makers of cards write it: a card of 24 GB has 24564 MiB. Raises ValueError with a sentence.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT])i?B?\s*", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ValueError(Sentence("{value!r} is not a size of memory; write 24GB or 512MB", value=text[:40]))
    return int(float(match[1]) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()])


def plan(request: PlanRequest) -> Plan:
    """The ledger of a request. Raises ValueError with a sentence for what cannot be."""
    _check(request)
    storage = storage_of(request.precision, master_weights=request.master_weights)
    model, host = _model_parts(request, storage)
    network, batch = request.network, request.batch
    step = {
        "activations": network.activation_bytes(batch, storage, checkpointing=request.checkpointing),
        "cast_cache": _cached_bytes(request, storage),
        "temporary": network.temporary_bytes(batch, storage) + _gathered_bytes(request, storage),
    }
    backward = {**model, **step, "gradients": model["gradients"] if request.accumulation > 1 else 0}
    last = {**model, **step, "activations": network.recomputed_bytes(batch, storage)}
    last["cast_cache"] = min(step["cast_cache"], network.largest_block * storage.cached)
    update = {**model, "temporary": _gathered_bytes(request, storage)}
    moments = {"backward": backward, "first block": last, "update": update}
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = {name: moments[moment].get(name, 0) for name in PARTS}
    return Plan(request, parts, moment, host, sum(model.values()) + host)


def _check(request: PlanRequest) -> None:
    if request.optimizer not in OPTIMIZERS:
        raise ValueError(
            Sentence(
                "{optimizer!r} is not an optimizer of the planner; choose {names}",
                optimizer=request.optimizer,
                names=", ".join(OPTIMIZERS),
            )
        )
    if request.base_format not in BASE_BITS:
        raise ValueError(
            Sentence(
                "{base_format!r} is not a base format; choose {names}",
                base_format=request.base_format,
                names=", ".join(BASE_BITS),
            )
        )
    if request.zero_stage not in range(4) or request.ranks < 1 or request.batch < 1:
        raise ValueError(L_("the ZeRO stage is 0 to 3, ranks and batch are at least 1"))
    if request.offload not in ("none", "optimizer", "parameters"):
        raise ValueError(
            Sentence("{offload!r} is not an off-load; choose none, optimizer or parameters", offload=request.offload)
        )


def trained_parameters(request: PlanRequest) -> int:
    """Parameters that have a gradient: those of the adapters, or all."""
    network = request.network
    return network.adapter_parameters(request.lora_rank) if request.lora_rank else network.parameters


def _model_parts(request: PlanRequest, storage: PrecisionBytes) -> tuple[dict[str, int], int]:
    """Bytes of weights, gradients, optimizer state and master weights on this rank, and those off-loaded."""
    network = request.network
    trained = trained_parameters(request)
    base = 0.0
    if request.lora_rank:
        remainder = network.parameters - network.block_matrices  # embeddings, head and norms stay in 16 bits at least
        base = network.block_matrices * BASE_BITS[request.base_format] / 8
        base += remainder * max(2.0, BASE_BITS[request.base_format] / 8 if request.base_format == "fp32" else 2.0)
    numbers, size = OPTIMIZERS[request.optimizer]
    stage, ranks = request.zero_stage, request.ranks
    parts = {
        "weights": (base + trained * storage.weight) / (ranks if stage >= 3 else 1),
        "gradients": trained * storage.gradient / (ranks if stage >= 2 else 1),
        "optimizer": trained * numbers * (storage.state if size is None else size) / (ranks if stage >= 1 else 1),
        "master": trained * storage.master / (ranks if stage >= 1 else 1),
    }
    away = {"none": (), "optimizer": ("optimizer", "master"), "parameters": ("optimizer", "master", "weights")}
    host = sum(parts[name] for name in away[request.offload])
    return {name: 0 if name in away[request.offload] else round(size) for name, size in parts.items()}, round(host)


def sharded_bytes(parts: Mapping[str, int], stage: int, ranks: int, *, shared_batch: bool) -> int:
    """The peak of one rank from the parts of the peak of one process, where ZeRO spreads some of them over the ranks
    (Rajbhandari et al. 2020, figure 1), without the block that stage 3 gathers. With `shared_batch` each rank has its
    part of the batch, and so of what is kept and made of it."""
    spread = {"optimizer": 1, "master": 1, "gradients": 2, "weights": 3}
    if shared_batch:
        spread |= {"activations": 0, "temporary": 0, "batch": 0}
    return round(sum(size / (ranks if stage >= spread.get(name, 4) else 1) for name, size in parts.items()))


def _cached_bytes(request: PlanRequest, storage: PrecisionBytes) -> int:
    """Copies in 16 bits that autocast keeps until its context ends, of weights that learn (ATen autocast_mode.cpp)."""
    return trained_parameters(request) * storage.cached


def _gathered_bytes(request: PlanRequest, storage: PrecisionBytes) -> int:
    """The block that is in use where weights lie elsewhere, and the next one, which is fetched meanwhile."""
    if request.zero_stage < 3 and request.offload != "parameters":
        return 0
    return 2 * request.network.largest_block * min(storage.weight, storage.products)


def largest_batch(request: PlanRequest, size_bytes: int) -> int:
    """The largest micro-batch that fits by formula; 0 when not even one sample does."""
    if not plan(replace(request, batch=1)).fits(size_bytes):
        return 0
    low, high = 1, 2
    while high < MOST_BATCH and plan(replace(request, batch=high)).fits(size_bytes):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if plan(replace(request, batch=middle)).fits(size_bytes) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to change, as a sentence and as settings of a config where precgui has them; the plan after it."""

    sentence: str
    settings: dict[str, str]
    plan: Plan
    fits: bool | None


def changes(request: PlanRequest, size_bytes: int | None) -> list[Change]:
    """Changes, each alone, in the order of what it costs: first what costs neither time nor quality."""
    results = []
    now = plan(request)
    for sentence, settings, change in _CHANGES:
        changed = change(request)
        if changed is None:
            continue
        after = plan(changed)
        if after.total_bytes < now.total_bytes:
            results.append(Change(sentence, settings(changed), after, after.fits(size_bytes)))
    return results


def first_change(request: PlanRequest, size_bytes: int | None) -> Change | None:
    """The cheapest change that makes the step fit; the one that saves most where none does alone; None when it fits."""
    if plan(request).fits(size_bytes) is not False:
        return None
    result = changes(request, size_bytes)
    fitting = [change for change in result if change.fits]
    return fitting[0] if fitting else min(result, key=lambda change: change.plan.total_bytes, default=None)


def _amp(request: PlanRequest) -> PlanRequest | None:
    return replace(request, precision="bf16-amp") if request.precision in ("fp32", "tf32", "fp64") else None


def _half_batch(request: PlanRequest) -> PlanRequest | None:
    if request.batch < 2:
        return None
    return replace(request, batch=-(-request.batch // 2), accumulation=2 * request.accumulation)


def _with(**values: object) -> Callable[[PlanRequest], PlanRequest | None]:
    def change(request: PlanRequest) -> PlanRequest | None:
        changed = replace(request, **values)  # type: ignore[arg-type]
        return None if changed == request else changed

    return change


def _zero(request: PlanRequest) -> PlanRequest | None:
    return replace(request, zero_stage=3) if request.ranks > 1 and request.zero_stage < 3 else None


def _lora(request: PlanRequest) -> PlanRequest | None:
    if request.lora_rank or not request.network.adapter_parameters(1):
        return None
    return replace(request, lora_rank=16)


def _nf4(request: PlanRequest) -> PlanRequest | None:
    changed = request if request.lora_rank else _lora(request)
    return None if changed is None or changed.base_format == "nf4" else replace(changed, base_format="nf4")


_Change = tuple[str, Callable[[PlanRequest], dict[str, str]], Callable[[PlanRequest], PlanRequest | None]]
_CHANGES: tuple[_Change, ...] = (
    (L_("Train with autocast to BF16."), lambda _: {"precision": "bf16-amp"}, _amp),
    (
        L_("Halve the batch and accumulate twice as often: the same step, more launches."),
        lambda r: {"data.batch_size": str(r.batch), "train.accumulation": str(r.accumulation)},
        _half_batch,
    ),
    (
        L_("Compute activations again in the backward pass: about a third more time."),
        lambda _: {"train.checkpointing": "true"},
        _with(checkpointing=True),
    ),
    (L_("Keep the optimizer's state in 8 bits."), lambda _: {}, _with(optimizer="adamw-8bit")),
    (L_("Share weights, gradients and optimizer state among the ranks (ZeRO-3)."), lambda _: {}, _zero),
    (L_("Keep the optimizer's state in the host's memory: slower updates."), lambda _: {}, _with(offload="optimizer")),
    (L_("Train low-rank adapters of rank 16 instead of all weights."), lambda _: {}, _lora),
    (L_("Train low-rank adapters on a base in NF4 (QLoRA)."), lambda _: {}, _nf4),
)
