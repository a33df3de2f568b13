"""The sections of a config: limits, titles and descriptions are defined here only.

Titles and descriptions are the labels and help texts of the form and of the command line. `json_schema_extra`
carries hints for the form: `unit`, `suggestions` for a text, `rare` for a field that stays folded until it is asked
for, and `show_if`, a mapping from a config path to the values (`*` stands for anything) for which the field matters.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
)

from precgui.config.intervals import IntervalText
from precgui.config.names import BELOW_16_BITS, EMULATED, QUANTISED, check_format, check_number_format
from precgui.config.precision_traits import TRAITS
from precgui.config.section import Patterns, Section, as_table
from precgui.formats.rounding import RoundingMode
from precgui.sentences import L_


def _as_formats(value: Any) -> Any:
    return as_table(value, "pattern=format", "blocks.0.*=e4m3fn")


FormatName = Annotated[str, AfterValidator(check_format)]
NumberName = Annotated[str, AfterValidator(check_number_format)]
LayerFormats = Annotated[dict[str, FormatName], BeforeValidator(_as_formats)]

_WITH_MASTERS: dict[str, JsonValue] = {
    "precision": [name for name, row in TRAITS.items() if row.may_have_master_weights]
}
_LOW: dict[str, JsonValue] = {"precision": [*BELOW_16_BITS]}
_EMULATED: dict[str, JsonValue] = {"precision": [f"{EMULATED}*"]}
_FP8: dict[str, JsonValue] = {"precision": ["fp8"]}


BESIDE_THE_RUN = "auto"  # of settings that name a file


class TrainConfig(Section):
    epochs: int = Field(20, ge=1, le=1_000_000, title=L_("Epochs"), description=L_("Passes over the training set."))
    max_steps: int | None = Field(
        None,
        ge=1,
        le=10**9,
        title=L_("Maximum steps"),
        description=L_("Stop after this many steps; empty: no limit."),
        json_schema_extra={"rare": True},
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        title=L_("Clip gradient norm"),
        description=L_("Largest L2 norm of the unscaled gradients; empty: no clipping."),
    )
    accumulation: int = Field(
        1,
        ge=1,
        le=100_000,
        title=L_("Gradient accumulation"),
        description=L_("Batches whose gradients are added up for one step."),
        json_schema_extra={"rare": True, "unit": L_("batches")},
    )
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        title=L_("Weight averaging"),
        description=L_(
            "Decay of an exponential moving average of the weights (0.999), used for validation; empty: none."
        ),
        json_schema_extra={"rare": True},
    )
    checkpointing: bool = Field(
        False,
        title=L_("Activation checkpointing"),
        description=L_("Compute activations again backward: less memory, slower."),
        json_schema_extra={"rare": True},
    )
    offload_activations: bool = Field(
        False,
        title=L_("Off-load activations"),
        description=L_("Keep what the backward pass needs in the host's memory meanwhile: less on a GPU, slower."),
        json_schema_extra={"rare": True},
    )
    channels_last: bool = Field(
        False, title=L_("Channels last"), description=L_("Images as NHWC in memory."), json_schema_extra={"rare": True}
    )
    attention: Literal["auto", "math", "flash", "efficient", "cudnn"] = Field(
        "auto",
        title=L_("Attention kernel"),
        description=L_("Back end of scaled dot-product attention."),
        json_schema_extra={"rare": True},
    )
    compile: bool = Field(
        False,
        title="torch.compile",
        description=L_("Compile the model; needs a C++ compiler."),
        json_schema_extra={"rare": True},
    )
    cuda_graph: bool = Field(
        False,
        title=L_("CUDA graph"),
        description=L_("Launch forward and backward pass by one call of an NVIDIA GPU: faster where steps are short."),
        json_schema_extra={"rare": True},
    )
    stop_at_nonfinite: bool = Field(
        False,
        title=L_("Stop at NaN"),
        description=L_("End the run after a step that was taken with a loss or gradients of NaN or Inf."),
        json_schema_extra={"rare": True},
    )
    stop_after_skipped: int | None = Field(
        None,
        ge=1,
        le=10**9,
        title=L_("Stop after skipped steps"),
        description=L_(
            "End the run after so many skipped steps in a row; empty: never. A search for the scale takes 20."
        ),
        json_schema_extra={"rare": True, "unit": L_("steps")},
    )
    deterministic: bool = Field(
        False,
        title=L_("Deterministic"),
        description=L_("Refuse operations whose result changes from run to run."),
        json_schema_extra={"rare": True},
    )
    rounding_twin: bool = Field(
        False,
        title=L_("Rounding twin"),
        description=L_(
            "Move start weights to a neighbouring number: what then differs from the run is rounding alone."
        ),
        json_schema_extra={"rare": True},
    )
    checkpoint_every: IntervalText = Field(
        "10 min",
        max_length=40,
        title=L_("Checkpoint every"),
        description=L_(
            "Time or steps between checkpoints beside the run's file, from which it can go on; empty: none."
        ),
        json_schema_extra={"rare": True, "suggestions": ["", "10 min", "1 h", "500 steps"]},
    )
    save_to: str = Field(
        "",
        max_length=4096,
        title=L_("Save weights"),
        description=L_(
            "New .safetensors file for the weights at the end, of adapters a new PEFT folder; auto: beside the "
            "run's file; empty: none."
        ),
        json_schema_extra={"suggestions": [BESIDE_THE_RUN]},
    )
    save_average: bool = Field(
        False,
        title=L_("Save the average"),
        description=L_("The file of weights gets their moving average instead of those after the last step."),
        json_schema_extra={"rare": True, "show_if": {"train.save_to": ["?*"], "train.ema_decay": ["[0-9]*"]}},
    )

    @field_validator("save_average")
    @classmethod
    def _average_is_kept(cls, save_average: bool, known: ValidationInfo) -> bool:
        if save_average and known.data.get("ema_decay", 0.0) is None:
            raise ValueError(L_("no average is kept; set train.ema_decay, or this to false"))
        return save_average


class OptimizerConfig(Section):
    name: Literal["sgd", "adamw"] = Field("sgd", title=L_("Optimizer"), description=L_("sgd: with momentum; adamw."))
    lr: float = Field(0.05, gt=0, le=1e6, title=L_("Learning rate"), description=L_("Step size at the first step."))
    momentum: float = Field(
        0.9,
        ge=0,
        lt=1,
        title=L_("Momentum"),
        description=L_("Of SGD."),
        json_schema_extra={"show_if": {"optimizer.name": ["sgd"]}},
    )
    eps: float = Field(
        1e-8,
        gt=0,
        le=1,
        title=L_("Epsilon"),
        description=L_("Added to AdamW's denominator; below 6e-8 it is zero in FP16."),
        json_schema_extra={"rare": True, "show_if": {"optimizer.name": ["adamw"]}},
    )
    weight_decay: float = Field(
        0.0, ge=0, le=1e6, title=L_("Weight decay"), description=L_("L2 penalty; decoupled in AdamW.")
    )
    schedule: Literal["constant", "cosine"] = Field(
        "cosine", title=L_("Schedule"), description=L_("How the learning rate changes over the run.")
    )


class ScalingConfig(Section):
    mode: Literal["auto", "none", "static", "dynamic"] = Field(
        "auto",
        title=L_("Loss scaling"),
        description=L_("auto: dynamic for FP16, none otherwise. static keeps the initial scale for the whole run."),
    )
    initial_scale: float = Field(
        65536.0,
        gt=0,
        le=2.0**126,
        title=L_("Initial scale"),
        description=L_("Factor on the loss; a power of two loses no bits."),
    )
    growth_factor: float = Field(
        2.0,
        gt=1,
        le=2.0**32,
        title=L_("Growth factor"),
        description=L_("Factor on the scale after enough finite steps."),
        json_schema_extra={"rare": True},
    )
    backoff_factor: float = Field(
        0.5,
        gt=0,
        lt=1,
        title=L_("Backoff factor"),
        description=L_("Factor on the scale after a step with Inf or NaN gradients."),
        json_schema_extra={"rare": True},
    )
    growth_interval: int = Field(
        2000,
        ge=1,
        le=10**9,
        title=L_("Growth interval"),
        description=L_("Finite steps in a row before the scale grows."),
        json_schema_extra={"rare": True, "unit": L_("steps")},
    )


class PrecisionOptions(Section):
    keep_fp32: Patterns = Field(
        [],
        title=L_("Keep in FP32"),
        description=L_("Modules by name or type (*norm*, BatchNorm2d, head), or first, last; commas between them."),
        json_schema_extra={"show_if": {"precision": ["bf16-*", "fp16-*", *BELOW_16_BITS, *QUANTISED]}},
    )
    layers: LayerFormats = Field(
        {},
        title=L_("Formats of layers"),
        description=L_(
            "pattern=format, commas between them (blocks.0.*=e4m3fn, head=fp32); the first pattern that "
            "matches a layer counts, other layers have the format of the precision."
        ),
        json_schema_extra={"rare": True, "show_if": _LOW},
    )
    master_weights: bool = Field(
        False,
        title=L_("FP32 master weights"),
        description=L_("The optimizer updates an FP32 copy of the weights."),
        json_schema_extra={"show_if": _WITH_MASTERS},
    )
    rounding: RoundingMode = Field(
        "nearest_even",
        title=L_("Rounding"),
        description=L_("Of the operands of products and of stored weights."),
        json_schema_extra={"show_if": _LOW},
    )
    weights: FormatName | None = Field(
        None,
        title=L_("Weight format in matmuls"),
        description=L_("Format; empty: the one of the precision."),
        json_schema_extra={"show_if": _EMULATED},
    )
    activations: FormatName | None = Field(
        None,
        title=L_("Activations in products"),
        description=L_("Format; empty: the one of the precision."),
        json_schema_extra={"show_if": _EMULATED},
    )
    gradients: FormatName | None = Field(
        None,
        title=L_("Gradients in products"),
        description=L_("Format; empty: the one of the precision."),
        json_schema_extra={"show_if": _EMULATED},
    )
    products: Literal["auto", "layers", "all"] = Field(
        "auto",
        title=L_("Rounded products"),
        description=L_(
            "layers: linear and convolutional ones; all: attention and recurrent layers, too; "
            "auto: all in tf32 and emulated formats, layers in FP8 and block formats, as hardware recipes do."
        ),
        json_schema_extra={"rare": True, "show_if": {"precision": ["tf32", *BELOW_16_BITS]}},
    )
    updates: FormatName | None = Field(
        None,
        title=L_("Stored weight format"),
        description=L_("Format to which the weights are rounded after each step; empty: FP32."),
        json_schema_extra={"show_if": _EMULATED},
    )
    accumulator: NumberName | None = Field(
        None,
        title=L_("Accumulator"),
        description=L_("Format in which products are summed; empty: FP32."),
        json_schema_extra={"rare": True, "show_if": _LOW},
    )
    accumulator_block: int = Field(
        32,
        ge=1,
        le=65536,
        title=L_("Accumulator block"),
        description=L_("Products summed in FP32 before their sum is rounded to the accumulator."),
        json_schema_extra={"rare": True, "show_if": _LOW, "unit": L_("products")},
    )
    scale_rule: Literal["floor", "ceil", "even", "rceil"] = Field(
        "floor",
        title=L_("Scale rule"),
        description=L_("How an MX block's power-of-two scale follows from its largest value."),
        json_schema_extra={"show_if": {"precision": ["mx*", f"{EMULATED}mx*"]}},
    )
    fp8_scaling: Literal["tensorwise", "rowwise"] = Field(
        "tensorwise",
        title=L_("FP8 scale"),
        description=L_("One scale for each tensor, or for each row and column of a product."),
        json_schema_extra={"show_if": _FP8},
    )
    fp8_sums: Literal["auto", "hopper"] = Field(
        "auto",
        title=L_("FP8 sums"),
        description=L_(
            "auto: as the device adds where FP8 is native, in FP32 where it is emulated; hopper: emulated as its "
            "tensor cores add, in 14 bits, which takes long."
        ),
        json_schema_extra={"rare": True, "show_if": _FP8},
    )
    fp8_amax: Literal["current", "delayed"] = Field(
        "current",
        title=L_("FP8 amax"),
        description=L_("Taken from the tensor itself, or from the steps before (delayed, tensor-wise only)."),
        json_schema_extra={"show_if": _FP8},
    )
    fp8_history: int = Field(
        16,
        ge=1,
        le=4096,
        title=L_("FP8 history"),
        description=L_("Steps that delayed scaling looks back."),
        json_schema_extra={
            "rare": True,
            "show_if": {"precision": ["fp8"], "precision_options.fp8_amax": ["delayed"]},
            "unit": L_("steps"),
        },
    )


_RECORDED: dict[str, JsonValue] = {"record.tensors": [True]}


def _every(steps: int, title: str) -> Any:
    return Field(
        steps,
        ge=0,
        le=10**9,
        title=title,
        description=L_("0: never. Less often where the budget does not allow it."),
        json_schema_extra={"rare": True, "show_if": _RECORDED, "unit": L_("steps")},
    )


class RecordConfig(Section):
    """Which tensors are measured, how often, and at which cost at most."""

    tensors: bool = Field(
        True,
        title=L_("Record tensors"),
        description=L_("Statistics and exponent histograms of gradients, weights and more."),
        json_schema_extra={"rare": True},
    )
    budget: float = Field(
        0.03,
        gt=0,
        le=100,
        title=L_("Budget"),
        description=L_("Share of the step time that measuring tensors may take; larger tensors are then sampled."),
        json_schema_extra={"rare": True, "show_if": _RECORDED},
    )
    least_measurements: int = Field(
        20,
        ge=0,
        le=1000,
        title=L_("At least"),
        description=L_(
            "Measurements of each kind of tensor that are spread over the run whatever the budget. 0: none."
        ),
        json_schema_extra={"rare": True, "show_if": _RECORDED},
    )
    gradients_every: int = _every(1, L_("Gradients every"))
    weights_every: int = _every(10, L_("Weights and updates every"))
    optimizer_every: int = _every(50, L_("Optimizer state every"))
    activations_every: int = _every(10, L_("Activations every"))
    activation_gradients_every: int = _every(50, L_("Activation gradients every"))
    snapshot_to: str = Field(
        BESIDE_THE_RUN,
        max_length=4096,
        title=L_("Snapshots"),
        description=L_(
            "Files of batch, weights and random state before the first step with NaN or Inf, for replay; "
            "auto: beside the run's file; empty: none."
        ),
        json_schema_extra={"rare": True},
    )
    snapshot_step: int = Field(
        0,
        ge=0,
        le=10**9,
        title=L_("Snapshot of step"),
        description=L_("A step that is kept whatever it holds, counted from 1. 0: only the first one with NaN or Inf."),
        json_schema_extra={"rare": True},
    )


class PowerConfig(Section):
    """An idle baseline and a limit of power; only the limit moves the time of a step and its energy."""

    idle_s: float = Field(
        0.0,
        ge=0,
        le=600,
        title=L_("Idle baseline"),
        description=L_("The power of the idle devices is read for so long before the run. 0: not at all."),
        json_schema_extra={"rare": True, "unit": "s"},
    )
    limit_w: float | None = Field(
        None,
        gt=0,
        le=100_000,
        title=L_("Power limit"),
        description=L_(
            "Of the GPU that trains: set for the run and set back after it. NVIDIA's driver lets an "
            "administrator alone do so. Empty: as it is."
        ),
        json_schema_extra={"rare": True, "unit": "W"},
    )
