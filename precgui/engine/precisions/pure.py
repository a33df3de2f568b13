"""Weights, gradients and optimizer state in 16 bits, with or without FP32 master weights."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine.emulation.operands import BatchSeed
from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.amp import emulate_fp16, half_products, slow_bf16
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.master_weights import MasterWeights
from precgui.engine.quantize.elements import quantize

_SMALLEST_FP16 = 2.0**-24


class Pure(Precision):
    """The whole model in a 16-bit format, but for the modules that are kept in FP32."""

    storage: ClassVar[torch.dtype]
    keeps = True
    masters: MasterWeights | None = None

    def _convert(self, model: nn.Module) -> nn.Module:
        model.to(self.storage)
        for module in self.fp32_modules.values():
            fp32_modules.run_in_fp32(module, self.device.type, returns=self.storage)
        return model

    def weights(self, model: nn.Module) -> list[nn.Parameter]:
        if not self.options.master_weights:
            return super().weights(model)
        self.masters = MasterWeights(super().weights(model))
        return self.masters.parameters

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        if self.masters is not None:
            self.masters.take_gradients()
        super().unscale(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        skipped = super().step(optimizer)
        if self.masters is not None:
            self.masters.give_weights()
        return skipped


class BF16Pure(Pure):
    storage = torch.bfloat16

    def _convert(self, model: nn.Module) -> nn.Module:
        self.notes += slow_bf16(self.device)
        return super()._convert(model)


class BF16Stochastic(BF16Pure):
    """BF16 weights; the update is made in FP32 and rounded stochastically, up or down by the distance to each side.

    Nothing of FP32 is kept but the optimizer's state: the FP32 weight lives for the length of a step.
    """

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self._clock = BatchSeed(config.seed)

    def weights(self, model: nn.Module) -> list[nn.Parameter]:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.masters = MasterWeights(trained, kept=False, write_back=self._rounded)
        return self.masters.parameters

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        self._clock.tick += 1
        return super().step(optimizer)

    def _rounded(self, weight: Tensor, place: int) -> Tensor:
        return quantize(weight, "bf16", rounding="stochastic", seed=self._clock.draw(f"weight {place}"))


class _FP16Scaler(torch.amp.GradScaler):
    """A scaler that also divides FP16 gradients; torch's own refuses them, because small ones are lost by it."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


class FP16Pure(Pure):
    storage = torch.float16
    scaling = "dynamic"

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        tiny = config.optimizer.name == "adamw" and config.optimizer.eps < _SMALLEST_FP16
        if tiny and not self.options.master_weights:
            self.notes.append(
                f"optimizer.eps = {config.optimizer.eps:g} is zero in FP16, so weights whose gradient vanishes become "
                "NaN; set optimizer.eps = 1e-4 or precision_options.master_weights = true"
            )

    def _convert(self, model: nn.Module) -> nn.Module:
        if self.device.type == "cpu":
            self.labels, note = emulate_fp16(model, self.fp32_modules)
            self.notes.append(note)
        return super()._convert(model)

    def forward_context(self) -> contextlib.AbstractContextManager[object]:
        return half_products(self.device)

    def _scaler_type(self) -> type[torch.amp.GradScaler]:
        return _FP16Scaler
