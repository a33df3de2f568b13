"""What a run is asked to do: one frozen pydantic tree, the same in TOML, in the form and in the run file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from precgui.config.names import Task, check_precision
from precgui.config.sections import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    PrecisionOptions,
    ScalingConfig,
    Section,
    TrainConfig,
)

PrecisionName = Annotated[str, AfterValidator(check_precision)]


class RunConfig(Section):
    title: str = Field(
        "", max_length=200, title="Title", description="Your name for the run; empty: made from the rest."
    )
    task: Task = Field("digits", title="Task", description="What is learned.")
    precision: PrecisionName = Field("fp32", title="Precision", description="How the run uses number formats.")
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
    precision_options: PrecisionOptions = Field(default_factory=PrecisionOptions, title="Precision in detail")

    @field_validator("title")
    @classmethod
    def _one_line(cls, title: str) -> str:
        return " ".join(title.split())

    @property
    def display_title(self) -> str:
        return self.title or f"{self.task} {self.model.name} {self.precision}"
