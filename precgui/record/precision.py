"""The precision of a recorded loop, by the operations of its first step, not by the types of its modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from precgui.config.precision_traits import TRAITS
from precgui.engine.census import AutocastState
from precgui.engine.dtype_names import dtype_name
from precgui.sentences import L_, Sentence, filled, together

VISIBLE = {name: row for name, row in TRAITS.items() if row.is_visible_in_dtypes}  # the names that are given here
_AMP = {row.operand: name for name, row in VISIBLE.items() if row.autocast}
_PURE = {row.storage: name for name, row in VISIBLE.items() if row.storage == row.operand}
_LEAST_SHARE = 0.05  # of the FLOPs that run in 16 bits make it mixed


@dataclass(frozen=True)
class PrecisionFact:
    """The name, the method that determined it, a reason, and the precision given to the recorder, '' for none."""

    name: str
    source: str
    reason: str
    given: str = ""

    def fact(self) -> dict[str, str]:
        return asdict(self)


def of_weights(trained: Sequence[Tensor]) -> PrecisionFact:
    """The precision by the dtype of most elements of the updated weights; known before the first step."""
    name, sizes = _main_dtype(trained)
    share = sizes[name] / max(sizes.total(), 1)
    reason = Sentence("{share:.0%} of the trained weights are held in {format}", share=share, format=name.upper())
    return PrecisionFact(_PURE.get(name, "fp32"), "weights", reason)


def of_first_step(
    trained: Sequence[Tensor],
    census: Mapping[str, Any] | None,
    autocast: AutocastState | None,
    fp32_products: str,
) -> PrecisionFact:
    """The precision by the census of the first step, else by the state of autocast, else by the weights."""
    reported = of_weights(trained)
    if reported.name != "fp32":
        return reported
    if census is not None and census["formats"]:
        return _of_census(census["formats"], fp32_products)
    if autocast is not None and autocast.dtype in _AMP:
        reason = Sentence("autocast to {format} was on where the model was called", format=autocast.dtype.upper())
        return PrecisionFact(_AMP[autocast.dtype], "autocast", reason)
    if fp32_products == "tf32":
        text = L_("{reason}, and products of FP32 run in TF32 on this device")
        return PrecisionFact("tf32", "weights", filled(text, reason=reported.reason))
    return reported


def _of_census(formats: Mapping[str, float], fp32_products: str) -> PrecisionFact:
    """The precision by `formats`, the share of the FLOPs of the first step by executed format."""
    low = {name: sum(share for ran, share in formats.items() if name in ran.split(" x ")) for name in _AMP}
    if fp32_products in low:  # products of FP32 operands; autocast is not the reason
        low[fp32_products] = 0.0
    shares = [Sentence("{share:.1%} in {format}", share=share, format=name.upper()) for name, share in formats.items()]
    reason = Sentence(
        "the weights are held in FP32; of the FLOPs of the first step ran {shares}",
        shares=together(*shares, between=", "),
    )
    best = max(low, key=lambda name: low[name])
    if low[best] >= _LEAST_SHARE:
        return PrecisionFact(_AMP[best], "census", reason)
    return PrecisionFact("tf32" if fp32_products == "tf32" else "fp32", "census", reason)


def _main_dtype(trained: Sequence[Tensor]) -> tuple[str, Counter[str]]:
    sizes: Counter[str] = Counter()
    for tensor in trained:
        if tensor.is_floating_point() or tensor.is_complex():
            dtype = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
            sizes[dtype_name(dtype)] += tensor.numel()
    return max(sizes, key=lambda name: sizes[name], default="fp32"), sizes
