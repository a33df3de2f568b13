"""How a run uses formats: one small class per precision; the training loop never asks which one it has."""

from __future__ import annotations

import torch

from precgui.config import EMULATED, RunConfig
from precgui.engine.precisions.amp import BF16Amp
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.fp16 import FP16Amp, FP16Pure
from precgui.engine.precisions.full import FP32, FP64
from precgui.engine.precisions.low import FP8, MXFP4, MXFP6, MXFP8, NVFP4, AnyFormat
from precgui.engine.precisions.pure import BF16Pure
from precgui.engine.precisions.qat import Int1, Int2, Int4, Int8
from precgui.engine.precisions.stochastic import BF16Stochastic
from precgui.engine.precisions.tf32 import TF32

__all__ = ["PRECISIONS", "Precision", "chosen", "make"]

PRECISIONS: dict[str, type[Precision]] = {
    "fp64": FP64,
    "fp32": FP32,
    "tf32": TF32,
    "bf16-amp": BF16Amp,
    "fp16-amp": FP16Amp,
    "bf16-pure": BF16Pure,
    "fp16-pure": FP16Pure,
    "bf16-sr": BF16Stochastic,
    "fp8": FP8,
    "mxfp8": MXFP8,
    "mxfp6": MXFP6,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
    "int8-qat": Int8,
    "int4-qat": Int4,
    "int2-qat": Int2,
    "int1-qat": Int1,
}


def chosen(config: RunConfig) -> type[Precision]:
    """The class of the precision that the config names."""
    return AnyFormat if config.precision.startswith(EMULATED) else PRECISIONS[config.precision]


def make(config: RunConfig, device: torch.device) -> Precision:
    """The precision that the config names."""
    return chosen(config)(config, device)
