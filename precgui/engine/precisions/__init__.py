"""How a run uses formats: one small class per precision; the training loop never asks which one it has."""

from __future__ import annotations

import torch

from precgui.config import RunConfig
from precgui.engine.precisions.amp import BF16Amp, FP16Amp
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.full import FP32, FP64, TF32
from precgui.engine.precisions.pure import BF16Pure, FP16Pure

__all__ = ["PRECISIONS", "Precision", "make"]

PRECISIONS: dict[str, type[Precision]] = {
    "fp64": FP64,
    "fp32": FP32,
    "tf32": TF32,
    "bf16-amp": BF16Amp,
    "fp16-amp": FP16Amp,
    "bf16-pure": BF16Pure,
    "fp16-pure": FP16Pure,
}


def make(config: RunConfig, device: torch.device) -> Precision:
    """The precision that the config names."""
    return PRECISIONS[config.precision](config, device)
