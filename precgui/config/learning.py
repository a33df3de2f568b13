"""The sections of a config that say what is learned: model, data and quantisation-aware training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from precgui.config.names import DOWNLOADED, IMAGE_TASKS, MODELS, SIZELESS
from precgui.config.precision_traits import TRAITS
from precgui.config.section import Section
from precgui.sentences import L_

_BELOW_8_BITS: list[JsonValue] = [name for name, row in TRAITS.items() if row.weight_bits and row.weight_bits < 8]
_QAT: dict[str, JsonValue] = {"precision": ["*-qat"]}
_SUGGESTED: list[JsonValue] = ["auto", *dict.fromkeys(name for names in MODELS.values() for name in names)]


class ModelConfig(Section):
    name: str = Field(
        "auto",
        pattern=r"^[A-Za-z0-9_.\-]{1,80}$",
        title=L_("Model"),
        description=L_("auto: the usual one of the task. For images also any classification model of torchvision."),
        json_schema_extra={"suggestions": _SUGGESTED},
    )
    size: Literal["small", "medium", "large"] = Field(
        "small",
        title=L_("Size"),
        description=L_("Width and depth; large wants a GPU."),
        json_schema_extra={"show_if": {"model.name": ["auto", *(n for n in _SUGGESTED if n not in SIZELESS)]}},
    )


class DataConfig(Section):
    batch_size: int = Field(
        64,
        ge=1,
        le=1_000_000,
        title=L_("Batch size"),
        description=L_("Samples per step."),
        json_schema_extra={"unit": L_("samples")},
    )
    workers: int = Field(
        0,
        ge=0,
        le=256,
        title=L_("Loader processes"),
        description=L_("0 loads the data in the training process."),
        json_schema_extra={"rare": True},
    )
    epoch_steps: int | None = Field(
        None,
        ge=1,
        le=10**9,
        title=L_("Steps per epoch"),
        description=L_("At most so many batches make an epoch; empty: the whole set, or what the task thinks fit."),
        json_schema_extra={"rare": True, "unit": L_("batches")},
    )
    path: str = Field(
        "",
        max_length=4096,
        title=L_("Data path"),
        description=L_("Folder of the data set, or the file or folder of your text; empty: the usual place."),
        json_schema_extra={"show_if": {"task": ["text", "image-folder", *DOWNLOADED]}},
    )
    download: bool = Field(
        True,
        title=L_("Download"),
        description=L_("Fetch the data set when it is not in the data path."),
        json_schema_extra={"show_if": {"task": [*DOWNLOADED]}},
    )
    augment: bool = Field(
        False,
        title=L_("Augment"),
        description=L_("Move images at random by up to an eighth, and mirror half of them unless they show digits."),
        json_schema_extra={"rare": True, "show_if": {"task": [*IMAGE_TASKS]}},
    )
    corpus: Literal["library", "manual"] = Field(
        "library",
        title=L_("Text"),
        description=L_(
            "Without a path. library: modules of Python's standard library; manual: its language reference."
        ),
        json_schema_extra={"show_if": {"task": ["text"], "data.path": [""]}},
    )
    sequence_length: int = Field(
        128,
        ge=1,
        le=65536,
        title=L_("Sequence length"),
        description=L_("Bytes of text that the model sees at once."),
        json_schema_extra={"show_if": {"task": ["text"]}, "unit": L_("bytes")},
    )
    pixels: int = Field(
        64,
        ge=8,
        le=1024,
        title=L_("Image size"),
        description=L_("Images are scaled and cut to a square of this edge."),
        json_schema_extra={"show_if": {"task": ["image-folder"]}, "unit": L_("pixels")},
    )


class QatConfig(Section):
    start_epoch: int = Field(
        1,
        ge=1,
        le=1_000_000,
        title=L_("Quantise from epoch"),
        description=L_("Epochs before it train in FP32 while the ranges are observed."),
        json_schema_extra={"show_if": _QAT},
    )
    observers_off_after_epoch: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        title=L_("Freeze ranges after epoch"),
        description=L_("The ranges of activations stay as they are from then on; empty: never."),
        json_schema_extra={"show_if": _QAT},
    )
    freeze_bn_after_epoch: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        title=L_("Freeze batch norm after epoch"),
        description=L_("Batch norm uses its running statistics from then on; empty: never."),
        json_schema_extra={"show_if": _QAT},
    )
    per_channel: bool = Field(
        True,
        title=L_("Scale per channel"),
        description=L_("One scale for each output channel of a weight; off: one for the tensor."),
        json_schema_extra={"show_if": _QAT},
    )
    activations: Literal["int8", "int4", "fp32"] = Field(
        "int8",
        title=L_("Activations"),
        description=L_(
            "Format of the inputs of quantised layers, one scale and zero point for each; fp32: not quantised."
        ),
        json_schema_extra={"show_if": {"precision": _BELOW_8_BITS}},
    )
    learned_scales: bool = Field(
        False,
        title=L_("Learn the scales"),
        description=L_("Scales of weights are trained with the weights (LSQ) instead of following their range."),
        json_schema_extra={"show_if": {"precision": ["int8-qat", "int4-qat"]}},
    )
    learned_ranges: bool = Field(
        False,
        title=L_("Learn the input ranges"),
        description=L_("Bounds of inputs are trained (PACT) instead of following what was seen; wants weight decay."),
        json_schema_extra={"show_if": _QAT},
    )
    ends: Literal["int8", "fp32", "same"] = Field(
        "int8",
        title=L_("First and last layer"),
        description=L_("They suffer most from few bits; same: quantised as all others."),
        json_schema_extra={"show_if": {"precision": _BELOW_8_BITS}},
    )
    save_to: str = Field(
        "",
        max_length=4096,
        title=L_("Save converted model"),
        description=L_("File for the converted model, auto: beside the run's file; empty: it is measured, not kept."),
        json_schema_extra={"show_if": {**_QAT, "qat.measure": [True]}},
    )
    measure: bool = Field(
        True,
        title=L_("Measure the result"),
        description=L_("Convert to integers at the end; measure size, latency, accuracy and the error of each layer."),
        json_schema_extra={"show_if": _QAT},
    )

    @model_validator(mode="before")
    @classmethod
    def _without_back_end(cls, values: Any) -> Any:
        """Configs of earlier versions name the only back end that is left."""
        if isinstance(values, Mapping) and values.get("backend") == "own":
            return {name: value for name, value in values.items() if name != "backend"}
        return values
