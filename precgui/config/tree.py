"""The configuration of a run: one frozen pydantic tree, the same in TOML, in the form and in the run file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from precgui.config.adapters import AdapterConfig, BaseConfig
from precgui.config.learning import DataConfig, ModelConfig, QatConfig
from precgui.config.names import MODELS, TASKS, check_model, check_precision, check_task
from precgui.config.parallel import ParallelConfig, check_parallel
from precgui.config.schedule import PrecisionSchedule, changes_of, check_schedule
from precgui.config.section import Section
from precgui.config.sections import (
    OptimizerConfig,
    PowerConfig,
    PrecisionOptions,
    RecordConfig,
    ScalingConfig,
    TrainConfig,
)
from precgui.config.sparsity import PruningConfig
from precgui.sentences import L_

TaskName = Annotated[str, AfterValidator(check_task)]
PrecisionName = Annotated[str, AfterValidator(check_precision)]


class RunConfig(Section):
    title: str = Field(
        "", max_length=200, title=L_("Title"), description=L_("Your name for the run; empty: made from the rest.")
    )
    task: TaskName = Field(
        "digits",
        title=L_("Task"),
        description=L_("What is learned; or your own: file.py:make_task."),
        json_schema_extra={"suggestions": [*TASKS]},
    )
    precision: PrecisionName = Field("fp32", title=L_("Precision"), description=L_("How the run uses number formats."))
    seed: int = Field(
        0, ge=0, lt=2**63, title=L_("Seed"), description=L_("Of the weights, the split and the order of the data.")
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?|mps|xpu(:\d+)?)$",
        title=L_("Device"),
        description=L_("auto takes an accelerator when there is one; or cpu, cuda, cuda:1 ..."),
        json_schema_extra={"rare": True},
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=4096,
        title=L_("CPU threads"),
        description=L_("Threads of torch; empty: physical cores minus one, at most OMP_NUM_THREADS."),
        json_schema_extra={"rare": True},
    )
    model: ModelConfig = Field(default_factory=ModelConfig, title=L_("Model"))
    data: DataConfig = Field(default_factory=DataConfig, title=L_("Data"))
    train: TrainConfig = Field(default_factory=TrainConfig, title=L_("Training"))
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, title=L_("Optimizer"))
    scaling: ScalingConfig = Field(default_factory=ScalingConfig, title=L_("Loss scaling"))
    precision_options: PrecisionOptions = Field(default_factory=PrecisionOptions, title=L_("Precision options"))
    qat: QatConfig = Field(default_factory=QatConfig, title=L_("Quantisation-aware training"))
    pruning: PruningConfig = Field(default_factory=PruningConfig, title=L_("Pruning"))
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, title=L_("Adapters"))
    base: BaseConfig = Field(default_factory=BaseConfig, title=L_("Frozen base"))
    record: RecordConfig = Field(default_factory=RecordConfig, title=L_("Record"))
    power: PowerConfig = Field(default_factory=PowerConfig, title=L_("Power"))
    parallel: ParallelConfig = Field(default_factory=ParallelConfig, title=L_("Distributed"))
    precision_schedule: PrecisionSchedule = Field(
        {},
        title=L_("Precision schedule"),
        description=L_(
            "Precisions that follow, commas between them: step:100=bf16-amp, share:0.9=fp32; plateau:N when "
            "the mean loss over N steps no longer falls by 1 %, underflow:X when a share X of the gradients is below "
            "the normal numbers. Weights and optimizer state stay as they are."
        ),
        json_schema_extra={"rare": True},
    )

    @field_validator("title")
    @classmethod
    def _one_line(cls, title: str) -> str:
        return " ".join(title.split())

    @field_validator("model")
    @classmethod
    def _model_of_the_task(cls, model: ModelConfig, known: ValidationInfo) -> ModelConfig:
        if "task" in known.data:
            check_model(model.name, known.data["task"])
        return model

    @field_validator("parallel")
    @classmethod
    def _parallel_with_the_others(cls, parallel: ParallelConfig, known: ValidationInfo) -> ParallelConfig:
        check_parallel(parallel, known.data)
        return parallel

    @field_validator("precision_schedule")
    @classmethod
    def _schedule_with_the_others(cls, schedule: dict[str, str], known: ValidationInfo) -> dict[str, str]:
        check_schedule(schedule, known.data)
        return schedule

    @property
    def model_name(self) -> str:
        """The model that is trained: the usual one of the task when the config leaves it open."""
        return MODELS.get(self.task, ("own",))[0] if self.model.name == "auto" else self.model.name

    @property
    def display_title(self) -> str:
        what = f"{self.task} {self.model_name}" if self.task in TASKS else re.split(r"[\\/]", self.task)[-1]
        return self.title or f"{what} {self.precision}{self._later}{self._reduction}"

    @property
    def _later(self) -> str:
        """The part of the title that names the precisions of the schedule."""
        return "".join(f" then {change.precision}" for change in changes_of(self.precision_schedule))

    @property
    def _reduction(self) -> str:
        """The part of the title that says how the model is made smaller."""
        pruning = self.pruning
        if self.adapter.kind != "none":
            return f" LoRA on {self.base.format}"
        if pruning.method == "none":
            return ""
        return " pruned 2:4" if pruning.method == "2:4" else f" pruned {100 * pruning.share:g} %"
