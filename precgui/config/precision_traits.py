"""The facts about each precision by which other modules decide: one row a precision, the only list of names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from precgui.sentences import L_

EMULATED = "emulated:"  # and the name of a format
EMULATED_SENTENCE = L_(
    "Products of operands rounded to any format, summed in FP32 or in a format; each role on its own. "
    "Floats are cast without a scale."
)
_FP32_RANGE = ("fp64", "fp32", "tf32", "bf16")  # formats with eight exponent bits or more


@dataclass(frozen=True)
class PrecisionTraits:
    """Formats by their registry names.

    storage: of weights and gradients. state: of optimizer state, '' for the same as storage. operand: of the inputs of
    products in the forward pass. gradient_operand: of the incoming gradient in the products of the backward pass.
    loss_scaling: the mode that `scaling.mode = auto` stands for. weight_bits: of quantised weights, None where they
    are not quantised.
    may_have_master_weights: whether FP32 copies of low weights are available. engine_class: the class that trains
    in it, as `module:Class` below `engine.precisions`. group, sentence: its heading and description in lists.
    not_replicated, not_sharded: why it cannot run on several processes that have the whole model each (DDP) or a part
    of it each (FSDP2); empty where it can.
    """

    group: str
    sentence: str
    engine_class: str
    storage: str
    operand: str
    gradient_operand: str
    loss_scaling: Literal["none", "dynamic"] = "none"
    autocast: bool = False
    weight_bits: int | None = None
    may_have_master_weights: bool = False
    state: str = ""
    not_replicated: str = ""
    not_sharded: str = ""

    @property
    def is_stored_low(self) -> bool:
        """Whether the weights themselves are kept in fewer bits than FP32."""
        return self.storage in ("bf16", "fp16")

    @property
    def is_visible_in_dtypes(self) -> bool:
        """Whether the dtypes of a step tell it from others: all of one format, autocast, or products in TF32."""
        own = self.storage == self.operand == self.gradient_operand and not self.state
        return own or self.autocast or self.operand == "tf32"

    @property
    def has_narrow_range(self) -> bool:
        """Whether operands may leave the range of the format where FP32 would hold them."""
        return self.weight_bits is None and self.operand not in _FP32_RANGE

    @property
    def has_few_digits(self) -> bool:
        """Whether operands have the range of FP32 with fewer significant digits."""
        return self.operand in ("tf32", "bf16")


# Reasons against shards (FSDP2), each of which ended runs that were tried without the refusal; of emulated formats,
# those with a kernel on the CPU, such as e4m3fn.
_SHARES_MEMORY = L_("its kernels that round share the memory of gathered weights, which FSDP2 then cannot free")
_WHOLE_AT_END = L_("its integer model is built from whole weights at the end, of which a rank has a part")
_WHOLE_UPDATES = L_("its updates are rounded on whole weights, of which a rank has a part")

_FULL, _16_BITS, _8_BITS, _QUANTISED = L_("Full"), L_("16 bits"), L_("8 bits and fewer"), L_("Quantised")
TRAITS: dict[str, PrecisionTraits] = {
    "fp64": PrecisionTraits(
        _FULL, L_("Everything in FP64: the yardstick for rounding itself, slow on most hardware."),
        "full:FP64", "fp64", "fp64", "fp64",
    ),
    "fp32": PrecisionTraits(
        _FULL, L_("True FP32: no TF32 anywhere, the reference of every comparison."),
        "full:FP32", "fp32", "fp32", "fp32",
    ),
    "tf32": PrecisionTraits(
        _FULL, L_("FP32 storage, TF32 multiplication (10-bit mantissa); emulated where the hardware has none."),
        "tf32:TF32", "fp32", "tf32", "tf32", not_sharded=_SHARES_MEMORY,
    ),
    "bf16-amp": PrecisionTraits(
        _16_BITS,
        L_("Automatic mixed precision (autocast), BF16: FP32 weights, BF16 arithmetic, no loss scaling needed."),
        "amp:BF16Amp", "fp32", "bf16", "bf16", autocast=True,
    ),
    "fp16-amp": PrecisionTraits(
        _16_BITS, L_("Automatic mixed precision (autocast), FP16 with loss scaling: FP32 weights, FP16 arithmetic."),
        "fp16:FP16Amp", "fp32", "fp16", "fp16", "dynamic", autocast=True,
    ),
    "bf16-pure": PrecisionTraits(
        _16_BITS, L_("Weights, gradients and optimizer state in BF16; FP32 master weights on request."),
        "pure:BF16Pure", "bf16", "bf16", "bf16", may_have_master_weights=True,
    ),
    "fp16-pure": PrecisionTraits(
        _16_BITS, L_("Weights, gradients and optimizer state in FP16; FP32 master weights on request."),
        "fp16:FP16Pure", "fp16", "fp16", "fp16", "dynamic", may_have_master_weights=True,
    ),
    "bf16-sr": PrecisionTraits(
        _16_BITS, L_("BF16 weights whose updates are rounded stochastically, so that small ones are not lost."),
        "stochastic:BF16Stochastic", "bf16", "bf16", "bf16", state="fp32", not_sharded=_WHOLE_UPDATES,
    ),
    "fp8": PrecisionTraits(
        _8_BITS, L_("E4M3 forward, E5M2 gradients, scaled; native on Ada, Hopper and Blackwell, emulated elsewhere."),
        "low:FP8", "fp32", "e4m3fn", "e5m2",
    ),
    "mxfp8": PrecisionTraits(
        _8_BITS, L_("Microscaling (MX) blocks of 32 values in E4M3 that share a power-of-two scale; emulated."),
        "low:MXFP8", "fp32", "mxfp8_e4m3", "mxfp8_e4m3", not_sharded=_SHARES_MEMORY,
    ),
    "mxfp6": PrecisionTraits(
        _8_BITS, L_("Microscaling (MX) blocks of 32 values in E2M3 that share a power-of-two scale; emulated."),
        "low:MXFP6", "fp32", "mxfp6_e2m3", "mxfp6_e2m3", not_sharded=_SHARES_MEMORY,
    ),
    "mxfp4": PrecisionTraits(
        _8_BITS, L_("Microscaling (MX) blocks of 32 values in E2M1 that share a power-of-two scale; emulated."),
        "low:MXFP4", "fp32", "mxfp4", "mxfp4", not_sharded=_SHARES_MEMORY,
    ),
    "nvfp4": PrecisionTraits(
        _8_BITS, L_("NVIDIA's blocks of 16 values in E2M1 with an E4M3 scale and a scale for the tensor; emulated."),
        "low:NVFP4", "fp32", "nvfp4", "nvfp4", not_sharded=_SHARES_MEMORY,
    ),
    "int8-qat": PrecisionTraits(
        _QUANTISED, L_("Quantisation-aware training (QAT): weights and activations learn to live on 8-bit integers; "
        "the result runs on integer kernels."),
        "qat:Int8", "fp32", "int8", "fp32", weight_bits=8, not_sharded=_WHOLE_AT_END,
    ),
    "int4-qat": PrecisionTraits(
        _QUANTISED, L_("Quantisation-aware training (QAT): weights on 16 values, activations in 8 bits; "
        "straight-through gradients."),
        "qat:Int4", "fp32", "int4", "fp32", weight_bits=4, not_sharded=_WHOLE_AT_END,
    ),
    "int2-qat": PrecisionTraits(
        _QUANTISED, L_("Quantisation-aware training (QAT): ternary weights, -s, 0 and s, one s for each channel; "
        "straight-through gradients."),
        "qat:Int2", "fp32", "int2", "fp32", weight_bits=2, not_sharded=_WHOLE_AT_END,
    ),
    "int1-qat": PrecisionTraits(
        _QUANTISED, L_("Quantisation-aware training (QAT): binary weights, -s and s, one s for each channel; "
        "straight-through gradients."),
        "qat:Int1", "fp32", "int1", "fp32", weight_bits=1, not_sharded=_WHOLE_AT_END,
    ),
}  # fmt: skip


def traits(precision: str) -> PrecisionTraits:
    """The row of a precision, `emulated:FORMAT` included. Raises KeyError for a name that is none."""
    if precision.startswith(EMULATED):
        fmt = precision.removeprefix(EMULATED)
        return PrecisionTraits(
            _8_BITS, EMULATED_SENTENCE, "low:AnyFormat", "fp32", fmt, fmt, not_sharded=_SHARES_MEMORY
        )
    return TRAITS[precision]
