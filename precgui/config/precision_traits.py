"""The facts about each precision by which other rooms decide: one row a precision, so that nobody else lists names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from precgui.config.names import EMULATED

_FP32_RANGE = ("fp64", "fp32", "tf32", "bf16")  # formats with eight exponent bits or more


@dataclass(frozen=True)
class PrecisionTraits:
    """Formats by their registry names.

    storage: of weights, gradients and optimizer state. operand: of the inputs of matrix products in the forward pass.
    gradient_operand: of the incoming gradient in the products of the backward pass. loss_scaling: the mode that
    `scaling.mode = auto` stands for. weight_bits: of quantised weights, None where they are not quantised.
    may_have_master_weights: whether FP32 copies of low weights can be asked for.
    """

    storage: str
    operand: str
    gradient_operand: str
    loss_scaling: Literal["none", "dynamic"] = "none"
    autocast: bool = False
    weight_bits: int | None = None
    may_have_master_weights: bool = False

    @property
    def is_stored_low(self) -> bool:
        """Whether the weights themselves are kept in fewer bits than FP32."""
        return self.storage in ("bf16", "fp16")

    @property
    def has_narrow_range(self) -> bool:
        """Whether operands may leave the range of the format where FP32 would hold them."""
        return self.weight_bits is None and self.operand not in _FP32_RANGE

    @property
    def has_few_digits(self) -> bool:
        """Whether operands have the range of FP32 with fewer significant digits."""
        return self.operand in ("tf32", "bf16")


def _same(storage: str, operand: str) -> PrecisionTraits:
    return PrecisionTraits(storage, operand, operand)


def _quantised(bits: int) -> PrecisionTraits:
    return PrecisionTraits("fp32", f"int{bits}", "fp32", weight_bits=bits)


TRAITS: dict[str, PrecisionTraits] = {
    "fp64": _same("fp64", "fp64"),
    "fp32": _same("fp32", "fp32"),
    "tf32": _same("fp32", "tf32"),
    "bf16-amp": PrecisionTraits("fp32", "bf16", "bf16", autocast=True),
    "fp16-amp": PrecisionTraits("fp32", "fp16", "fp16", "dynamic", autocast=True),
    "bf16-pure": PrecisionTraits("bf16", "bf16", "bf16", may_have_master_weights=True),
    "fp16-pure": PrecisionTraits("fp16", "fp16", "fp16", "dynamic", may_have_master_weights=True),
    "bf16-sr": _same("bf16", "bf16"),
    "fp8": PrecisionTraits("fp32", "e4m3fn", "e5m2"),
    "mxfp8": _same("fp32", "mxfp8_e4m3"),
    "mxfp6": _same("fp32", "mxfp6_e2m3"),
    "mxfp4": _same("fp32", "mxfp4"),
    "nvfp4": _same("fp32", "nvfp4"),
    "int8-qat": _quantised(8),
    "int4-qat": _quantised(4),
    "int2-qat": _quantised(2),
    "int1-qat": _quantised(1),
}


def traits(precision: str) -> PrecisionTraits:
    """The row of a precision, `emulated:FORMAT` included. Raises KeyError for a name that is none."""
    if precision.startswith(EMULATED):
        return _same("fp32", precision.removeprefix(EMULATED))
    return TRAITS[precision]
