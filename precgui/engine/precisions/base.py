"""Base class of all precisions: FP32 storage and a plain step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from precgui.engine.backend_flags import set_fp32_arithmetic
from precgui.engine.casting import cast_floats
from precgui.engine.errors import EngineError
from precgui.engine.precisions import fp32_modules
from precgui.sentences import Sentence

if TYPE_CHECKING:
    from precgui.config import RunConfig, ScalingConfig
    from precgui.engine.tasks.base import Task


class Precision:
    """FP32 storage and a plain step; subclasses change what their format changes.

    Order of calls: `prepare` once before the model is built, `convert` once after it, `weights` for the optimizer,
    then for each step `convert_input`, `forward_context` around the forward pass, `convert_output`, `backward`,
    `unscale`, and `step`.
    """

    tf32: ClassVar[bool] = False
    scaling: ClassVar[Literal["none", "dynamic"]] = "none"
    storage: ClassVar[torch.dtype] = torch.float32  # of parameters and of floating-point inputs
    loss_dtype: ClassVar[torch.dtype] = torch.float32
    keeps: ClassVar[bool] = False  # whether there is anything to keep in FP32
    has_layer_formats: ClassVar[bool] = False  # whether layers may have formats of their own

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.options = config.precision_options
        self.notes: list[str] = []  # what a person must know about how this run really computes
        self.labels: dict[str, str] = {}  # modules whose FP32 operands are rounded to a format, with its name
        self.fp32_modules: dict[str, nn.Module] = {}
        self.scaling_mode = self.scaling if config.scaling.mode == "auto" else config.scaling.mode
        self._scaler = self._make_scaler(config.scaling)
        self._static = config.scaling.initial_scale if self.scaling_mode == "static" else None
        self.scale = self._scaler.get_scale()

    @property
    def batch_count(self) -> int:
        """Batches so far, where they seed the rounding of the forward pass."""
        return 0

    def continue_from(self, batch_count: int) -> None:
        """Go on counting batches from `batch_count`, as after a resumed run."""

    def state(self) -> dict[str, Any]:
        """Plain values and tensors, beside the weights, on which the next steps depend, for a checkpoint."""
        return {"scaler": self._scaler.state_dict(), "scale": self.scale, "batch_count": self.batch_count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint. Raises KeyError, TypeError or ValueError for another one."""
        self._scaler.load_state_dict(dict(state["scaler"]))
        self.scale = float(state["scale"])
        self.continue_from(int(state["batch_count"]))

    @property
    def rounds_by_itself(self) -> bool:
        """Whether layers or products were exchanged for ones that round in code of precgui; known after `convert`."""
        return bool(self.labels)

    @property
    def has_history(self) -> bool:
        """Whether a step depends on batches before it through more than the weights."""
        return False

    @property
    def reads_buffers(self) -> bool:
        """Whether the forward pass of a training step depends on buffers that it also changes."""
        return False

    def prepare(self) -> None:
        """Set torch's process-wide switches."""
        set_fp32_arithmetic(tf32=self.tf32)

    def convert(self, model: nn.Module) -> nn.Module:
        """The model in this precision, on the device; the same object. Raises EngineError for a useless pattern."""
        model = model.to(self.device)
        if self.options.keep_fp32 and self.keeps:
            self.fp32_modules = fp32_modules.find(model, self.options.keep_fp32)
        elif self.options.keep_fp32:
            self.notes.append(
                Sentence("precision_options.keep_fp32 does nothing in {precision}", precision=self.config.precision)
            )
        if self.options.layers and not self.has_layer_formats:
            self.notes.append(
                Sentence("precision_options.layers does nothing in {precision}", precision=self.config.precision)
            )
        return self._convert(model)

    def _convert(self, model: nn.Module) -> nn.Module:
        return model

    def weights(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters that the optimizer updates."""
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    def begin_epoch(self, model: nn.Module, epoch: int) -> None:
        """Prepare an epoch, counted from 1; called when it begins, with the model in training mode."""

    def finish(
        self, model: nn.Module, task: Task, stopped: Callable[[], bool]
    ) -> Iterable[tuple[dict[str, Any], list[str]]]:
        """Convert the trained model, where the precision does, and return facts for the record, each with sentences."""
        return ()

    def convert_input(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """A batch on the device: floating-point inputs as the model stores its weights, targets as the loss wants."""
        return cast_floats(inputs, self.storage, self.device), cast_floats(targets, self.loss_dtype, self.device)

    def forward_context(self) -> contextlib.AbstractContextManager[object]:
        """The context of the forward pass."""
        return contextlib.nullcontext()

    def convert_output(self, outputs: Any) -> Any:
        """The model's output in the format of the loss: a loss scaled by 65536 does not fit into FP16."""
        return cast_floats(outputs, self.loss_dtype, self.device)

    def backward(self, loss: Tensor) -> None:
        """Back-propagate the scaled loss; gradients add up to those that are there."""
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the loss scale, so that they can be read and clipped."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update the weights unless the scaler found Inf or NaN, then the scale. Returns True when it was skipped."""
        if not self._scaler.is_enabled():
            optimizer.step()
            return False
        taken: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: taken.append(True))
        self._scaler.step(optimizer)
        hook.remove()
        self._scaler.update(self._static)
        self.scale = self._scaler.get_scale()
        return not taken

    def _make_scaler(self, config: ScalingConfig) -> torch.amp.GradScaler:
        enabled = self.scaling_mode != "none"
        scaler = self._scaler_type()(
            self.device.type,
            init_scale=config.initial_scale,
            growth_factor=config.growth_factor,
            backoff_factor=config.backoff_factor,
            growth_interval=config.growth_interval,
            enabled=enabled,
        )
        if scaler.is_enabled() != enabled:
            raise EngineError(
                Sentence("loss scaling is not available on {device}; set scaling.mode = none", device=self.device.type)
            )
        return scaler

    def _scaler_type(self) -> type[torch.amp.GradScaler]:
        return torch.amp.GradScaler
