"""What a run is asked to do: one frozen pydantic tree, the same in TOML, in the form and in the run file.

Titles and descriptions are the labels and help texts of the form and of the command line. Limits live
here and nowhere else. `json_schema_extra` carries hints for the form: `unit`, and `show_if`, a mapping from
a config path to the values for which the field matters.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

PRECISIONS: dict[str, str] = {
    "fp32": "True FP32: no TF32 anywhere, the reference of every comparison.",
    "tf32": "FP32 storage, TF32 multiplication (10-bit mantissa); emulated where the hardware has none.",
    "bf16-amp": "Autocast to BF16: FP32 weights, BF16 arithmetic, no loss scaling needed.",
    "fp16-amp": "Autocast to FP16 with loss scaling: FP32 weights, FP16 arithmetic.",
}
TASKS: dict[str, str] = {"digits": "1 797 handwritten digits of 8x8 pixels, bundled (UCI)."}

Precision = Literal["fp32", "tf32", "bf16-amp", "fp16-amp"]
Task = Literal["digits"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(_Section):
    name: Literal["cnn"] = Field("cnn", title="Model", description="cnn: three convolutions and a linear layer.")
    size: Literal["small", "medium", "large"] = Field(
        "small", title="Size", description="Channels per layer; large wants a GPU."
    )


class DataConfig(_Section):
    batch_size: int = Field(
        64,
        ge=1,
        le=1_000_000,
        title="Batch size",
        description="Samples per step.",
        json_schema_extra={"unit": "samples"},
    )
    workers: int = Field(
        0, ge=0, le=256, title="Loader processes", description="0 loads the data in the training process."
    )


class TrainConfig(_Section):
    epochs: int = Field(20, ge=1, le=1_000_000, title="Epochs", description="Passes over the training set.")
    max_steps: int | None = Field(
        None, ge=1, le=10**9, title="Maximum steps", description="Stop after this many steps; empty: no limit."
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        title="Clip gradient norm",
        description="Largest L2 norm of the unscaled gradients; empty: no clipping.",
    )


class OptimizerConfig(_Section):
    name: Literal["sgd", "adamw"] = Field("sgd", title="Optimizer", description="sgd: with momentum; adamw.")
    lr: float = Field(0.05, gt=0, le=1e6, title="Learning rate", description="Step size at the first step.")
    momentum: float = Field(
        0.9,
        ge=0,
        lt=1,
        title="Momentum",
        description="Of SGD.",
        json_schema_extra={"show_if": {"optimizer.name": ["sgd"]}},
    )
    weight_decay: float = Field(0.0, ge=0, le=1e6, title="Weight decay", description="L2 penalty; decoupled in AdamW.")
    schedule: Literal["constant", "cosine"] = Field(
        "cosine", title="Schedule", description="How the learning rate changes over the run."
    )


class ScalingConfig(_Section):
    mode: Literal["auto", "none", "static", "dynamic"] = Field(
        "auto",
        title="Loss scaling",
        description="auto: dynamic for FP16, none otherwise. static keeps the initial scale for the whole run.",
    )
    initial_scale: float = Field(
        65536.0,
        gt=0,
        le=2.0**126,
        title="Initial scale",
        description="Factor on the loss; a power of two loses no bits.",
    )
    growth_factor: float = Field(
        2.0, gt=1, le=2.0**32, title="Growth factor", description="Factor on the scale after enough finite steps."
    )
    backoff_factor: float = Field(
        0.5,
        gt=0,
        lt=1,
        title="Backoff factor",
        description="Factor on the scale after a step with Inf or NaN gradients.",
    )
    growth_interval: int = Field(
        2000,
        ge=1,
        le=10**9,
        title="Growth interval",
        description="Finite steps in a row before the scale grows.",
        json_schema_extra={"unit": "steps"},
    )


class RunConfig(_Section):
    title: str = Field(
        "", max_length=200, title="Title", description="Your name for the run; empty: made from the rest."
    )
    task: Task = Field("digits", title="Task", description="What is learned.")
    precision: Precision = Field("fp32", title="Precision", description="How the run uses number formats.")
    seed: int = Field(
        0, ge=0, lt=2**63, title="Seed", description="Of the weights, the split and the order of the data."
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?|mps|xpu(:\d+)?)$",
        title="Device",
        description="auto takes an accelerator when there is one; or cpu, cuda, cuda:1 ...",
    )
    threads: int | None = Field(
        None, ge=1, le=4096, title="CPU threads", description="Threads of torch; empty: physical cores minus one."
    )
    model: ModelConfig = Field(default_factory=ModelConfig, title="Model")
    data: DataConfig = Field(default_factory=DataConfig, title="Data")
    train: TrainConfig = Field(default_factory=TrainConfig, title="Training")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, title="Optimizer")
    scaling: ScalingConfig = Field(default_factory=ScalingConfig, title="Loss scaling")

    @field_validator("title")
    @classmethod
    def _one_line(cls, title: str) -> str:
        return " ".join(title.split())

    @property
    def display_title(self) -> str:
        return self.title or f"{self.task} {self.model.name} {self.precision}"


class ConfigError(ValueError):
    """The config cannot be used; the message is one sentence per fault, with path, value and cure."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        self.faults = dict(faults)
        super().__init__("; ".join(f"{path}: {text}" if path else text for path, text in self.faults.items()))


_QUICK = RunConfig()
RECIPES: dict[str, tuple[str, RunConfig]] = {
    "digits-quick": ("Bundled digits, small CNN, seconds on a laptop.", _QUICK),
    "digits-adamw": (
        "The same with AdamW, to see how an adaptive optimiser takes the format.",
        RunConfig(optimizer=OptimizerConfig(name="adamw", lr=2e-3, weight_decay=0.01)),
    ),
    "digits-scale-demo": (
        "FP16 with a loss scale that starts far too high: watch it back off and grow again.",
        RunConfig(
            precision="fp16-amp",
            scaling=ScalingConfig(mode="dynamic", initial_scale=2.0**30, growth_interval=50),
        ),
    ),
    "digits-long": (
        "Medium CNN for some minutes, long enough to watch, zoom and compare.",
        RunConfig(model=ModelConfig(size="medium"), train=TrainConfig(epochs=100)),
    ),
}
DEFAULT_RECIPE = "digits-quick"


def build(tree: Mapping[str, Any]) -> RunConfig:
    """Validate a tree of plain values. Raises ConfigError with one sentence for each fault, keyed by path."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError({_path(e["loc"]): _sentence(e) for e in error.errors()}) from None


def _path(loc: Iterable[int | str]) -> str:
    return ".".join(str(part) for part in loc)


def _sentence(error: Any) -> str:
    """One pydantic error as a sentence that names the value and the cure."""
    kind, ctx = error["type"], error.get("ctx", {})
    shown = _short(error["input"])
    known = {
        "extra_forbidden": "unknown key; `precgui run --keys` lists the known ones",
        "literal_error": f"{shown} is not one of {ctx.get('expected')}",
        "greater_than_equal": f"{shown} is too small, the least is {ctx.get('ge')}",
        "greater_than": f"{shown} is too small, it must be above {ctx.get('gt')}",
        "less_than_equal": f"{shown} is too large, the most is {ctx.get('le')}",
        "less_than": f"{shown} is too large, it must be below {ctx.get('lt')}",
        "string_pattern_mismatch": f"{shown} is not a device; use auto, cpu, cuda, cuda:N, mps or xpu",
        "string_too_long": f"{len(str(error['input']))} characters are too many, the most is {ctx.get('max_length')}",
        "finite_number": f"{shown} is not a finite number",
    }
    return known.get(kind, f"{shown}: {error['msg'][:1].lower()}{error['msg'][1:]}")


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def load(source: str | Path, settings: Iterable[str] = ()) -> RunConfig:
    """Read a recipe by name or a TOML file, then apply `key.path=value` settings. Raises ConfigError."""
    tree = _recipe_tree(str(source)) if str(source) in RECIPES else _toml_tree(Path(source))
    for setting in settings:
        _apply(tree, setting)
    return build(tree)


def _recipe_tree(name: str) -> dict[str, Any]:
    return RECIPES[name][1].model_dump()


def _toml_tree(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        names = ", ".join(RECIPES)
        raise ConfigError({"": f"{path} is neither a file nor a recipe; the recipes are {names}"}) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError({"": f"{path} cannot be read: {error}"}) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError({"": f"{path} is not valid TOML: {error}"}) from None


def _apply(tree: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise ConfigError({"": f"--set {setting!r} has no value; write key=value, e.g. optimizer.lr=0.01"})
    *parents, last = path.strip().split(".")
    for parent in parents:
        child = tree.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError({path.strip(): "unknown key; `precgui run --keys` lists the known ones"})
        tree = child
    tree[last] = _value(text.strip())


def _value(text: str) -> Any:
    """A setting's text as a TOML value when it is one (0.1, true, [1, 2]), as plain text otherwise."""
    if not text:
        return None
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(config: RunConfig) -> str:
    """The config as TOML that `load` reads back to an equal config."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def key_table() -> list[tuple[str, str, Any]]:
    """Every config path with its help text and default, in the order of the form."""
    return list(_walk(RunConfig, ""))


def _walk(section: type[BaseModel], prefix: str) -> Iterable[tuple[str, str, Any]]:
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info.description or "", info.default
