"""Weights, gradients and optimizer state in 16 bits, with or without FP32 master weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.amp import slow_bf16
from precgui.engine.precisions.base import Precision
from precgui.engine.torch_private import foreach_copy_

WriteBack = Callable[[list[Tensor], list[Tensor]], None]  # FP32 copies, and the weights that take their values


class TrueHalf(Precision):
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


class BF16Scaler(torch.amp.GradScaler):
    """A scaler that divides BF16 gradients with operations that every device has: torch's own kernel for GPUs refuses
    them in some versions."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
        own = [p for group in optimizer.param_groups for p in group["params"] if _has_bf16_gradient(p)]
        gradients = [p.grad for p in own]
        for parameter in own:  # let torch divide the others
            parameter.grad = None
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        for parameter, gradient in zip(own, gradients, strict=True):
            parameter.grad = gradient
            place = gradient.device
            has_bad = gradient.isfinite().all().logical_not().float()
            gradient.copy_(gradient.float().mul_(inv_scale.to(place)))
            found[place] = torch.maximum(found.get(place, found_inf.to(place)), has_bad)
        return found


def _has_bf16_gradient(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.dtype is torch.bfloat16 and not parameter.grad.is_sparse


class BF16Pure(TrueHalf):
    storage = torch.bfloat16

    def _convert(self, model: nn.Module) -> nn.Module:
        self.notes += slow_bf16(self.device)
        return super()._convert(model)

    def _scaler_type(self) -> type[torch.amp.GradScaler]:
        return BF16Scaler


class MasterWeights:
    """The optimizer updates FP32 copies; the model's own weights follow them.

    Kept copies hold what the low format cannot (FP32 master weights). With `kept=False` a copy exists during one step
    only: the weights are what the low format holds, rounded by `write_back`. Parameters that are FP32 already
    are updated as they are.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        *,
        kept: bool = True,
        write_back: WriteBack | None = None,
    ) -> None:
        self.weights = list(weights)
        self._kept, self._write_back = kept, write_back or _copied
        self.parameters = [w if w.dtype is torch.float32 else nn.Parameter(w.detach().float()) for w in self.weights]
        self._pairs = [(w, m) for w, m in zip(self.weights, self.parameters, strict=True) if w is not m]
        if not kept:
            self._release()

    def take_gradients(self) -> None:
        """Hand the model's gradients to the copies, as FP32; the model's are dropped."""
        if not self._kept:
            values = _in_fp32([weight.detach() for weight, _ in self._pairs])
            for (_, master), value in zip(self._pairs, values, strict=True):
                master.data = value
        gradients = iter(_in_fp32([weight.grad for weight, _ in self._pairs if weight.grad is not None]))
        for weight, master in self._pairs:
            master.grad = None if weight.grad is None else next(gradients)
            weight.grad = None

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the copies into the model's weights."""
        if self._pairs:
            self._write_back([master for _, master in self._pairs], [weight for weight, _ in self._pairs])
        if not self._kept:
            self._release()

    def _release(self) -> None:
        for _, master in self._pairs:
            master.data = master.data.new_empty(0)
            master.grad = None


def _copied(copies: list[Tensor], weights: list[Tensor]) -> None:
    foreach_copy_(weights, copies)


def _in_fp32(tensors: list[Tensor]) -> list[Tensor]:
    """Copies in FP32; on a GPU all of them by few kernels."""
    copies = [torch.empty_like(tensor, dtype=torch.float32) for tensor in tensors]
    if copies:
        foreach_copy_(copies, tensors)
    return copies
