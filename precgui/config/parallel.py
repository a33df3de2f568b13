"""The section of a config that spreads one run over several processes, and what does not go with it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue

from precgui.config.names import check_format
from precgui.config.precision_traits import traits
from precgui.config.section import Section
from precgui.sentences import L_, Sentence, together

ALLREDUCED = ("fp32", "fp16", "bf16")  # summed by the collective itself
POWERSGD = re.compile(r"powersgd:([1-9]\d{0,3})")
_DDP: dict[str, JsonValue] = {"parallel.strategy": ["ddp"]}
_FSDP: dict[str, JsonValue] = {"parallel.strategy": ["fsdp"]}
_ANY: dict[str, JsonValue] = {"parallel.strategy": ["ddp", "fsdp"]}
_NOT_SPLIT = {
    "gan": L_("its two networks learn in turns inside one backward pass"),
    "cartpole": L_("its next batch is played by the model while it learns"),
    "detection": L_("its loss is a mean over boxes, not over samples"),
}


def check_gradient_format(name: str) -> str:
    """The format as it is kept. Raises ValueError, one sentence, for what gradients cannot be sent in."""
    from precgui.formats.registry import blocks, get

    kept = name.strip().lower()
    if kept == "auto" or POWERSGD.fullmatch(kept):
        return kept
    if kept.startswith("powersgd"):
        raise ValueError(
            Sentence("{name!r} has no rank; write powersgd:R with R from 1 to 9999, such as powersgd:4", name=name)
        )
    kept = check_format(kept)
    if kept in blocks():
        raise ValueError(
            Sentence(
                "{kept} has blocks of its own; choose the format of its elements, {element}, whose values "
                "share a scale in blocks of parallel.block",
                kept=kept,
                element=blocks()[kept].element,
            )
        )
    bits = get(kept).bits
    if bits > 8 and kept not in ALLREDUCED:
        raise ValueError(
            Sentence(
                "{kept} has {bits} bits; gradients are sent as auto, {names}, powersgd:R or a format of 8 bits "
                "or fewer",
                kept=kept,
                bits=bits,
                names=", ".join(ALLREDUCED),
            )
        )
    return kept


GradientFormat = Annotated[str, AfterValidator(check_gradient_format)]


class ParallelConfig(Section):
    """One run on several processes, called ranks: replicas of the model (DDP), or shards of it (FSDP2)."""

    strategy: Literal["none", "ddp", "fsdp"] = Field(
        "none",
        title=L_("Strategy"),
        description=L_("none: one process; ddp: each rank has the whole model; fsdp: each rank keeps a part of it."),
        json_schema_extra={"rare": True},
    )
    ranks: int = Field(
        2,
        ge=1,
        le=1024,
        title=L_("Ranks"),
        description=L_("Processes of this machine that share each batch; under torchrun, its own number counts."),
        json_schema_extra={"show_if": _ANY},
    )
    gradient_format: GradientFormat = Field(
        "auto",
        title=L_("All-reduce format"),
        description=L_("auto: as they are stored; fp32, fp16, bf16, powersgd:R, or a format of 8 bits or fewer."),
        json_schema_extra={
            "show_if": _DDP,
            "suggestions": ["auto", *ALLREDUCED, "int8", "e4m3fn", "e5m2", "int4", "powersgd:4"],
        },
    )
    block: int = Field(
        1024,
        ge=16,
        le=1 << 20,
        title=L_("Block"),
        description=L_("Values that share an FP32 scale in formats of 8 bits or fewer."),
        json_schema_extra={"rare": True, "show_if": _DDP, "unit": L_("values")},
    )
    error_feedback: bool = Field(
        False,
        title=L_("Error feedback"),
        description=L_("Add the rounding error of one step to the gradients of the next; PowerSGD always does."),
        json_schema_extra={"show_if": _DDP},
    )
    error_every: int = Field(
        10,
        ge=0,
        le=10**9,
        title=L_("Measure the error every"),
        description=L_("Compare the reduced gradient with its FP32 sum, which is sent in addition; 0: never."),
        json_schema_extra={"rare": True, "show_if": _DDP, "unit": L_("steps")},
    )
    bucket_mb: float | None = Field(
        None,
        gt=0,
        le=1 << 20,
        title=L_("Bucket"),
        description=L_("Gradients that are sent together; empty: 25 MB, or all of them where PowerSGD needs that."),
        json_schema_extra={"rare": True, "show_if": _DDP, "unit": "MiB"},
    )
    param_dtype: Literal["auto", "bf16", "fp16"] = Field(
        "auto",
        title=L_("All-gather dtype"),
        description=L_("Format in which shards are gathered and products computed; auto: as they are stored."),
        json_schema_extra={"show_if": _FSDP},
    )
    reduce_dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        title=L_("Reduced gradients"),
        description=L_("Format in which gradients are summed; auto: that of the gathered parameters."),
        json_schema_extra={"show_if": _FSDP},
    )
    offload: bool = Field(
        False,
        title=L_("Off-load to the CPU"),
        description=L_("Keep shards, gradients and optimizer state in main memory; parameters visit the device."),
        json_schema_extra={"show_if": _FSDP},
    )
    oversubscribe: bool = Field(
        False,
        title=L_("Oversubscribe"),
        description=L_("Allow it; the numbers hold, times say nothing."),
        json_schema_extra={"rare": True, "show_if": _ANY},
    )
    time_limit_s: float = Field(
        60.0,
        ge=2,
        le=86400,
        title=L_("Time limit"),
        description=L_("A rank that does not answer for so long ends the run."),
        json_schema_extra={"rare": True, "show_if": _ANY, "unit": "s"},
    )


def check_parallel(parallel: ParallelConfig, known: dict[str, Any]) -> None:
    """Raises ValueError, a sentence for each fault, where settings do not go together; `known` holds other fields."""
    if parallel.strategy == "none":
        return
    if faults := _faults(parallel, known):
        raise ValueError(together(*faults, between="; "))


def _faults(parallel: ParallelConfig, known: dict[str, Any]) -> list[str]:
    name, strategy = known.get("precision", "fp32"), parallel.strategy
    row = traits(name)
    result: list[str] = []
    reason = row.not_replicated if strategy == "ddp" else row.not_sharded or row.not_replicated
    if reason:
        result.append(
            Sentence(
                "precision {name} does not work with strategy {strategy}: {reason}; choose another precision",
                name=name,
                strategy=strategy,
                reason=reason,
            )
        )
    if known.get("task") in _NOT_SPLIT:
        result.append(
            Sentence(
                "task {task} cannot be shared by ranks: {reason}; set strategy none",
                task=known["task"],
                reason=_NOT_SPLIT[known["task"]],
            )
        )
    if "train" in known:
        result += _training_faults(strategy, known)
    if parallel.error_feedback and not _is_coded(parallel.gradient_format):
        result.append(
            Sentence(
                "error_feedback belongs to formats of 8 bits or fewer, not to {gradient_format}; set it to false",
                gradient_format=parallel.gradient_format,
            )
        )
    if row.storage != "fp32" and POWERSGD.fullmatch(parallel.gradient_format):
        result.append(
            Sentence(
                "powersgd needs FP32 gradients, but {name} stores them in {storage}; choose {storage}",
                name=name,
                storage=row.storage,
            )
        )
    return result


def _training_faults(strategy: str, known: dict[str, Any]) -> list[str]:
    train = known["train"]
    result: list[str] = []
    if strategy == "fsdp" and train.compile:
        result.append(L_("train.compile does not go with fsdp here; set it to false, or choose ddp"))
    power = known.get("power")
    if power is not None and power.limit_w is not None:
        result.append(L_("power.limit_w is set for the GPU of one process; leave it empty"))
    pruning = known.get("pruning")
    if pruning is not None and pruning.method == "wanda":
        result.append(
            L_("pruning.method = wanda reads the inputs of layers, of which a rank has a part; choose magnitude")
        )
    elif strategy == "fsdp" and pruning is not None and pruning.method != "none":
        result.append(L_("pruning compares all weights of a layer, of which an fsdp rank has a part; choose ddp"))
    adapter = known.get("adapter")
    if strategy == "fsdp" and adapter is not None and adapter.kind != "none":
        result.append(L_("adapters stand beside packed weights, of which fsdp gives no rank a part; choose ddp"))
    if strategy == "fsdp" and train.ema_decay is not None:
        result.append(L_("train.ema_decay averages whole weights, of which an fsdp rank has a part; leave it empty"))
    if strategy == "fsdp" and train.save_to:
        result.append(L_("train.save_to writes whole weights, of which an fsdp rank has a part; leave it empty"))
    options = known.get("precision_options")
    if strategy == "fsdp" and options is not None and options != type(options)():
        result.append(
            L_(
                "precision_options have not been tried with shards of weights; leave them at their defaults or "
                "choose ddp"
            )
        )
    return result


def carries_residuals(parallel: ParallelConfig) -> bool:
    """Whether a step takes over rounding errors of gradients from the one before it, or cuts them by bucket."""
    name = parallel.gradient_format
    return parallel.strategy == "ddp" and (_is_coded(name) or bool(POWERSGD.fullmatch(name)))


def _is_coded(name: str) -> bool:
    return name not in ("auto", *ALLREDUCED) and not POWERSGD.fullmatch(name)
