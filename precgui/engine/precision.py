"""How a run uses formats: one small class per precision; the training loop never asks which one it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from precgui.config import RunConfig, ScalingConfig
from precgui.engine.certificate import TRUE_FP32_BELOW, gemm_error, slowdown
from precgui.engine.emulate import emulate_matmuls, exact, to_fp16, to_tf32
from precgui.engine.errors import EngineError

SLOW = 4.0  # times FP32: beyond this a CPU kernel is not worth having and its arithmetic is emulated


class Precision:
    """FP32 storage and a plain step; subclasses change what their format changes.

    Order of calls: `prepare` once before the model is built, `convert` once after, then for each step
    `cast` around the forward pass, `backward`, `unscale`, and `step`.
    """

    tf32: ClassVar[bool] = False
    scaling: ClassVar[Literal["none", "dynamic"]] = "none"

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.device = device
        self.notes: list[str] = []  # what a person must know about how this run really computes
        self.scaling_mode = self.scaling if config.scaling.mode == "auto" else config.scaling.mode
        self._scaler = _scaler(config.scaling, device, enabled=self.scaling_mode != "none")
        self._static = config.scaling.initial_scale if self.scaling_mode == "static" else None
        self.scale = self._scaler.get_scale()

    def prepare(self) -> None:
        """Set torch's process-wide switches."""
        set_fp32_arithmetic(tf32=self.tf32)

    def convert(self, model: nn.Module) -> nn.Module:
        """The model in this precision, on the device."""
        return model.to(self.device)

    def cast(self) -> contextlib.AbstractContextManager[object]:
        """The context of the forward pass."""
        return contextlib.nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Back-propagate the scaled loss."""
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the loss scale, so that they can be read and clipped."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update the weights unless the scaler found Inf or NaN, then the scale. Returns True when it was skipped."""
        taken: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: taken.append(True))
        self._scaler.step(optimizer)
        hook.remove()
        self._scaler.update(self._static)
        if self._scaler.is_enabled():
            self.scale = self._scaler.get_scale()
        return not taken


class FP32(Precision):
    """True FP32: a product that is not FP32 to the last bits is refused."""

    def convert(self, model: nn.Module) -> nn.Module:
        error = gemm_error(self.device)
        if error > TRUE_FP32_BELOW:
            raise EngineError(
                f"this device does not multiply in true FP32 (relative error {error:.1e}, FP32 gives 3e-7); "
                "look for NVIDIA_TF32_OVERRIDE or ONEDNN_DEFAULT_FPMATH_MODE in the environment"
            )
        return super().convert(model)


class TF32(Precision):
    """TF32 products where the device has them, emulated where it has not; told apart by the error of a product."""

    tf32 = True

    def convert(self, model: nn.Module) -> nn.Module:
        if gemm_error(self.device) < TRUE_FP32_BELOW:
            names = emulate_matmuls(model, operand=to_tf32, result=exact)
            self.notes.append(
                f"TF32 is emulated in {len(names)} layers: this device multiplies FP32 operands exactly, "
                "so they are rounded to 10 mantissa bits first; speed says nothing about TF32 hardware"
            )
        return super().convert(model)


class Autocast(Precision):
    """torch.amp.autocast to a 16-bit format; weights, gradients and optimizer stay FP32."""

    dtype: ClassVar[torch.dtype]

    def cast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=self.dtype)


class BF16Amp(Autocast):
    dtype = torch.bfloat16

    def convert(self, model: nn.Module) -> nn.Module:
        if self.device.type == "cpu" and (ratio := slowdown(self.dtype)) > SLOW:
            self.notes.append(
                f"this CPU has no fast BF16: a product takes {ratio:.0f} times its FP32 time; the numbers are BF16's, "
                "the speed is not"
            )
        return super().convert(model)


class FP16Amp(Autocast):
    dtype = torch.float16
    scaling = "dynamic"

    def convert(self, model: nn.Module) -> nn.Module:
        # Weight gradients of FP16 convolutions run a reference kernel on every CPU seen (about 150x FP32).
        if self.device.type == "cpu":
            names = emulate_matmuls(model, operand=to_fp16, result=to_fp16)
            self.notes.append(
                f"FP16 is emulated in {len(names)} layers: CPUs have no fast FP16 training kernels, so operands and "
                "results are rounded to FP16 and multiplied in FP32; speed says nothing about FP16 hardware"
            )
        return super().convert(model)


PRECISIONS: dict[str, type[Precision]] = {"fp32": FP32, "tf32": TF32, "bf16-amp": BF16Amp, "fp16-amp": FP16Amp}


def _scaler(config: ScalingConfig, device: torch.device, *, enabled: bool) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler(
        device.type,
        init_scale=config.initial_scale,
        growth_factor=config.growth_factor,
        backoff_factor=config.backoff_factor,
        growth_interval=config.growth_interval,
        enabled=enabled,
    )
    if scaler.is_enabled() != enabled:
        raise EngineError(f"loss scaling is not available on {device.type}; set scaling.mode = none")
    return scaler


def set_fp32_arithmetic(*, tf32: bool) -> None:
    """Allow or forbid TF32 for FP32 products, convolutions and RNNs of this process.

    On CUDA through the switches that keep torch's old and new getters consistent; on the CPU per operation, because
    the general oneDNN switch would write cuDNN's, too.
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    for operation in (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv):  # type: ignore[attr-defined]
        operation.fp32_precision = "tf32" if tf32 else "ieee"


def first_nonfinite(named: Iterable[tuple[str, nn.Parameter]]) -> str:
    """The name of the first parameter whose gradient holds NaN or Inf, or ''."""
    for name, parameter in named:
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return name
    return ""
