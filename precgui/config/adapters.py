"""The sections of a config for training small adapters beside a frozen base model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from precgui.config.names import check_format
from precgui.config.section import Patterns, Section
from precgui.sentences import L_, Sentence

_LORA: dict[str, JsonValue] = {"adapter.kind": ["lora"]}
_PLAIN_FORMATS = ("fp32", "bf16", "fp16")  # as torch stores them; others up to 8 bits are packed


def _check_base_format(name: str) -> str:
    """The format when a base can be held in it. Raises ValueError."""
    from precgui.formats.registry import blocks, get  # loads the tables of formats: not at start-up

    kept = check_format(name)
    if kept in _PLAIN_FORMATS or kept in blocks() or get(kept).bits <= 8:
        return kept
    raise ValueError(
        Sentence(
            "{kept} has {bits} bits; a base is held in up to 8 bits, or in fp32, bf16 or fp16",
            kept=kept,
            bits=get(kept).bits,
        )
    )


BaseFormat = Annotated[str, AfterValidator(_check_base_format)]


class AdapterConfig(Section):
    """Low-rank adapters (LoRA; Hu et al. 2021): a product of two thin matrices is added to a layer that is frozen."""

    kind: Literal["none", "lora"] = Field(
        "none",
        title=L_("Adapters"),
        description=L_("lora: train two thin matrices beside each layer of a frozen base."),
        json_schema_extra={"rare": True},
    )
    rank: int = Field(
        8,
        ge=1,
        le=4096,
        title=L_("Rank"),
        description=L_("Columns of the thin matrices."),
        json_schema_extra={"show_if": _LORA},
    )
    alpha: float = Field(
        16.0,
        gt=0,
        le=1e6,
        title=L_("Alpha"),
        description=L_("What the adapter gives is multiplied by alpha / rank."),
        json_schema_extra={"show_if": _LORA},
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        title=L_("Dropout"),
        description=L_("Share of the adapter's inputs that are dropped in training."),
        json_schema_extra={"rare": True, "show_if": _LORA},
    )
    targets: Patterns = Field(
        ["blocks"],
        title=L_("Layers"),
        description=L_(
            "Linear layers that get an adapter, by name or type of them or of a module around them; commas."
        ),
        json_schema_extra={"show_if": _LORA},
    )
    weights: str = Field(
        "",
        max_length=4096,
        title=L_("Begin with"),
        description=L_(
            "A folder of PEFT's LoRA to begin with: rank, alpha and layers are then its own; empty: random."
        ),
        json_schema_extra={"rare": True, "show_if": _LORA},
    )
    merge_at_end: bool = Field(
        False,
        title=L_("Merge at the end"),
        description=L_("Add the adapters to the base as it is held, and evaluate that model, too."),
        json_schema_extra={"show_if": _LORA},
    )
    save_to: str = Field(
        "",
        max_length=4096,
        title=L_("Save weights"),
        description=L_("New .safetensors file for the weights at the end: merged, or the adapters alone; empty: none."),
        json_schema_extra={"rare": True, "show_if": _LORA},
    )


class BaseConfig(Section):
    """The frozen base: where its weights are from, and the format that holds them."""

    format: BaseFormat = Field(
        "nf4",
        title=L_("Format"),
        description=L_("fp32, bf16, fp16, or any format up to 8 bits: nf4, int4, int8, e4m3fn, e2m1, mxfp4 ..."),
        json_schema_extra={"show_if": _LORA, "suggestions": ["fp32", "bf16", "nf4", "int8", "int4", "e4m3fn", "mxfp4"]},
    )
    block: int = Field(
        64,
        ge=8,
        le=65536,
        multiple_of=8,
        title=L_("Block"),
        description=L_("Weights that share a scale; mx and nvfp4 formats have their own."),
        json_schema_extra={"show_if": _LORA, "unit": L_("weights")},
    )
    double_quant: bool = Field(
        False,
        title=L_("Double quantisation"),
        description=L_("Hold the scales in 8 bits (Dettmers et al. 2023), 256 of them with one FP32 scale."),
        json_schema_extra={"show_if": _LORA},
    )
    keep_unpacked: Literal["auto", "always", "never"] = Field(
        "auto",
        title=L_("Keep unpacked"),
        description=L_(
            "FP32 copies of weights stay from forward to backward: faster, more memory; auto: up to 256 MiB."
        ),
        json_schema_extra={"rare": True, "show_if": _LORA},
    )
    backend: Literal["auto", "own", "torchao", "bitsandbytes"] = Field(
        "auto",
        title=L_("Back end"),
        description=L_("auto: own, on CUDA bitsandbytes or torchao for nf4; the run's notes say which."),
        json_schema_extra={"rare": True, "show_if": _LORA},
    )
    weights: str = Field(
        "",
        max_length=4096,
        title=L_("Weights"),
        description=L_(
            "A .safetensors file, or a folder of several with their index, with the weights of this model; "
            "empty: the base is trained first."
        ),
        json_schema_extra={"show_if": _LORA},
    )
    train_steps: int = Field(
        300,
        ge=0,
        le=10**9,
        title=L_("Train the base"),
        description=L_(
            "Steps in FP32 on the usual data of the task, when there are no weights; kept for the next run."
        ),
        json_schema_extra={"show_if": {**_LORA, "base.weights": [""]}, "unit": L_("steps")},
    )
