"""Casts to floating point in 8 bits that make Inf or NaN out of numbers which are all finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import FLOAT8_DTYPES, dtype_name
from precgui.engine.operation_names import base_of, cast_operand
from precgui.engine.tensor_marks import TensorMarks

_MOST = 2**24  # elements of a tensor that is looked at


class OverflowingCasts:
    """Told of each operation with its result; remembers by which number the operand of a cast was last multiplied."""

    def __init__(self) -> None:
        self._scales = TensorMarks[Any]()

    def clear(self) -> None:
        self._scales.clear()

    def observe(self, name: str, args: Any, out: Any) -> dict[str, Any] | None:
        """`format`, `value` (the largest magnitude), `share` (of the elements) and `scale` of a cast that overflows.

        None for any other operation; a scale is None where the operand is not the product with one number.
        """
        if not (isinstance(out, Tensor) and args and isinstance(args[0], Tensor)):
            return None
        if base_of(name) in ("mul", "div") and out.is_floating_point() and len(args) > 1:
            self._scales[out] = _number(args[1], inverse=name.startswith("div"))
        source = cast_operand(name, args)
        if source is None or out.dtype not in FLOAT8_DTYPES or not 0 < out.numel() <= _MOST:
            return None
        if not isinstance(source, Tensor) or source.dtype in FLOAT8_DTYPES or source.is_meta:
            return None
        bad = ~out.detach().float().isfinite()
        if not bool(bad.any()) or not bool(source.detach().isfinite().all()):
            return None
        scale = self._scales.get(source)
        return {
            "format": dtype_name(out.dtype), "value": float(source.detach().abs().max()),
            "share": float(bad.float().mean()), "scale": scale() if scale is not None else None,
        }  # fmt: skip


def _number(factor: Any, *, inverse: bool) -> Any:
    """A function that reads a factor of one number, as the scale that it stands for; None for any other."""
    if not (isinstance(factor, float | int) or (isinstance(factor, Tensor) and factor.numel() == 1)):
        return None

    def read() -> float:
        value = float(factor)
        return (1 / value if value else torch.inf) if inverse else value

    return read
