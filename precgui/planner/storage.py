"""Bytes of one number by precision, optimizer and base format; sources beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrecisionBytes:
    """Bytes of a weight, a gradient, one number of the optimizer's state, a master weight, an operand of a product, and
    of the stream of residuals between blocks. `cached` is the 16-bit copy that autocast keeps of a weight."""

    weight: int
    gradient: int
    state: int
    master: int
    products: int
    stream: int
    cached: int = 0


STORAGE: dict[str, PrecisionBytes] = {
    "fp64": PrecisionBytes(8, 8, 8, 0, 8, 8),
    "fp32": PrecisionBytes(4, 4, 4, 0, 4, 4),
    "tf32": PrecisionBytes(4, 4, 4, 0, 4, 4),
    "bf16-amp": PrecisionBytes(4, 4, 4, 0, 2, 4, cached=2),
    "fp16-amp": PrecisionBytes(4, 4, 4, 0, 2, 4, cached=2),
    "bf16-pure": PrecisionBytes(2, 2, 2, 0, 2, 2),
    "fp16-pure": PrecisionBytes(2, 2, 2, 0, 2, 2),
    "bf16-sr": PrecisionBytes(2, 2, 4, 0, 2, 2),
    # 16-bit weights and gradients, FP32 master weights and moments: 2 + 2 + 12 bytes with Adam
    # (Rajbhandari et al. 2020, "ZeRO", section 3.1; DeepSpeed and Megatron-LM)
    "bf16-master": PrecisionBytes(2, 2, 4, 4, 2, 2),
}
OTHERWISE = STORAGE["fp32"]  # quantised and emulated precisions keep FP32 weights, gradients and operands

# Numbers of state for each weight, and bytes of one where it is not the one of the precision.
OPTIMIZERS: dict[str, tuple[int, float | None]] = {
    "sgd": (1, None),  # with momentum
    "sgd-plain": (0, None),
    "adamw": (2, None),
    # one byte and, for each block of 256, an FP32 scale (Dettmers et al. 2022, "8-bit optimizers", bitsandbytes)
    "adamw-8bit": (2, 1 + 4 / 256),
}

# Bits of a weight of the frozen base.
BASE_BITS: dict[str, float] = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "int8": 8 + 32 / 128,  # an FP32 scale for each 128
    # 4 bits, an 8-bit scale for each 64 and an FP32 one for each 256 of those: 4.127 bits
    # (Dettmers et al. 2023, "QLoRA", section 3, double quantisation)
    "nf4": 4 + 8 / 64 + 32 / (64 * 256),
}


def storage_of(precision: str, *, master_weights: bool = False) -> PrecisionBytes:
    """The bytes of a precision by its name in a config."""
    if master_weights and precision in ("bf16-pure", "fp16-pure"):
        return STORAGE["bf16-master"]
    return STORAGE.get(precision, OTHERWISE)
