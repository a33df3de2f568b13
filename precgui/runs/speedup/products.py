"""The products of a kept profile: what this model's layers reach on the device in each format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precgui.sentences import kept_text

_MOST_MODULES = 2  # named in a row


@dataclass(frozen=True, slots=True)
class ProductRate:
    """One product in one format. `speedup` is over FP32, None where that was not measured; `spread` the interquartile
    range over the median; `note` says why there is no rate."""

    flops_s: float | None
    speedup: float | None = None
    spread: float | None = None
    flops_per_byte: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Product:
    """One product of the step with the modules that make it and its rate by format."""

    operation: str
    modules: tuple[str, ...]
    phase: str
    sizes: str
    calls: int
    flops: int
    rates: Mapping[str, ProductRate]

    @property
    def modules_text(self) -> str:
        """The first modules, and how many there are besides."""
        named = ", ".join(module or "(model)" for module in self.modules[:_MOST_MODULES])
        more = len(self.modules) - _MOST_MODULES
        return f"{named} + {more}" if more > 0 else named


@dataclass(frozen=True, slots=True)
class Products:
    """All that was measured. Rates in FLOP/s, `bandwidth` in bytes a second (None where it was not measured);
    `flops_share` is the part of the step's FLOPs that these products make."""

    formats: tuple[str, ...]
    products: tuple[Product, ...]
    bandwidth: float | None
    roofs: Mapping[str, float]
    flops_share: float


def products_of(profile: Mapping[str, Any]) -> Products | None:
    """The products of a profile, None of one that has none. Raises KeyError, TypeError or ValueError for no profile."""
    measured = profile.get("products")
    if not measured or not measured["rows"]:
        return None
    formats = tuple(str(name) for name in measured["formats"])
    products = tuple(_product(row, formats) for row in measured["rows"])
    return Products(
        formats, products, _number(measured["bandwidth_bytes_s"]),
        _roofs(formats, products, measured["square_flops_s"]), float(measured["flops_share"]),
    )  # fmt: skip


def _roofs(formats: Sequence[str], products: Sequence[Product], square: Mapping[str, Any]) -> dict[str, float]:
    """The best rate that was seen in each format, by a large square product or one of the step."""
    roofs: dict[str, float] = {}
    for fmt in formats:
        rates = [product.rates[fmt].flops_s for product in products if fmt in product.rates]
        known = [rate for rate in (*rates, _number(square.get(fmt))) if rate]
        if known:
            roofs[fmt] = max(known)
    return roofs


def _product(row: Mapping[str, Any], formats: Sequence[str]) -> Product:
    return Product(
        str(row["operation"]), tuple(str(name) for name in row["modules"]), str(row["phase"]),
        sizes_text(row["operation"], row["shapes"]), int(row["calls"]), int(row["flops"]),
        {str(fmt): _rate(rate) for fmt, rate in row["formats"].items() if fmt in formats},
    )  # fmt: skip


def _rate(rate: Mapping[str, Any]) -> ProductRate:
    if rate.get("note"):
        return ProductRate(None, note=kept_text(rate["note"]))
    return ProductRate(
        float(rate["flops_s"]), _number(rate["speedup"]), _number(rate["spread"]), float(rate["flops_per_byte"])
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def sizes_text(operation: str, shapes: Sequence[Sequence[int]]) -> str:
    """The sizes of a product: m x k x n of matrices; of other work the shapes of the input and of the weight."""
    operands = [shape for shape in shapes if len(shape) > 1]
    if operation in ("mm", "addmm", "bmm", "baddbmm") and len(operands) >= 2:
        left, right = operands[-2:]
        return " x ".join(str(size) for size in (*left, right[-1]))
    return ", ".join(" x ".join(str(size) for size in shape) for shape in operands[-2:])
