"""Bytes of one number by precision, optimizer and base format; sources beside them."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.config.precision_traits import TRAITS, PrecisionTraits, traits


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


_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


def _bytes_of(row: PrecisionTraits) -> PrecisionBytes:
    """The bytes of a row; quantised and emulated operands are held in the format of the weights."""
    stored = _BYTES[row.storage]
    return PrecisionBytes(
        weight=stored,
        gradient=stored,
        state=_BYTES[row.state or row.storage],
        master=0,
        products=_BYTES[row.operand] if row.autocast else stored,
        stream=stored,
        cached=_BYTES[row.operand] if row.autocast else 0,
    )


STORAGE: dict[str, PrecisionBytes] = {
    **{name: _bytes_of(row) for name, row in TRAITS.items()},
    # 16-bit weights and gradients, FP32 master weights and moments: 2 + 2 + 12 bytes with Adam
    # (Rajbhandari et al. 2020, "ZeRO", section 3.1; DeepSpeed and Megatron-LM)
    "bf16-master": PrecisionBytes(2, 2, 4, 4, 2, 2),
}

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
    """The bytes of a precision by its name in a config, or one of STORAGE. Raises KeyError for another name."""
    row = TRAITS.get(precision)
    if master_weights and row is not None and row.may_have_master_weights:
        return STORAGE["bf16-master"]
    return STORAGE[precision] if precision in STORAGE else _bytes_of(traits(precision))
