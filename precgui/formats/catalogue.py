"""The table of formats as plain data: structure, limits and use, for JSON, for tables and for the reference page."""

from __future__ import annotations

from fractions import Fraction

from precgui.citations import sources_json, sources_of
from precgui.formats import text
from precgui.formats.model import BlockFormat, CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.registry import bits_per_value, blocks, formats, prose
from precgui.sentences import L_

KINDS: dict[type, str] = {
    FloatFormat: L_("float"),
    IntFormat: L_("integer"),
    CodeBook: L_("code book"),
    BlockFormat: L_("block"),
}


def catalogue() -> list[dict[str, object]]:
    """One row for each named format, block formats last."""
    return [row_of(fmt) for fmt in formats().values()] + [_block_row(block) for block in blocks().values()]


def row_of(fmt: Format) -> dict[str, object]:
    """The properties of a format. Limits are exact decimals as text, None where there is no such value."""
    row: dict[str, object] = {
        "name": fmt.name,
        "title": fmt.title,
        "kind": KINDS[type(fmt)],
        "aliases": list(fmt.aliases),
        "bits": fmt.bits,
        "bytes": fmt.bits / 8,
        **_fields(fmt),
        "max_finite": text.exact_fraction(fmt.max_finite),
        "min_finite": text.exact_fraction(fmt.value(fmt.min_ordinal)),
        "epsilon": text.exact_fraction(fmt.epsilon),
        "decimal_digits": round(fmt.decimal_digits, 2),
        "finite_values": fmt.finite_values,
        "has_inf": fmt.has_inf,
        "has_nan": fmt.has_nan,
        "has_negative_zero": fmt.has_negative_zero,
    }
    return row | _prose(fmt.name)


def _fields(fmt: Format) -> dict[str, object]:
    if not isinstance(fmt, FloatFormat):
        return {"sign_bits": int(fmt.signed), "exponent_bits": None, "mantissa_bits": None, "bias": None,
                "min_normal": None, "min_subnormal": None, "nan_count": 0, "overflow_from": None}  # fmt: skip
    return {
        "sign_bits": fmt.sign_bits,
        "exponent_bits": fmt.exponent_bits,
        "mantissa_bits": fmt.mantissa_bits,
        "bias": fmt.bias,
        "min_normal": _exact(fmt.min_normal),
        "min_subnormal": _exact(fmt.min_subnormal),
        "nan_count": fmt.nan_count,
        "overflow_from": _exact(fmt.overflow_midpoint),
    }


def _exact(value: Fraction | None) -> str | None:
    return None if value is None else text.exact_fraction(value)


def _prose(name: str) -> dict[str, object]:
    words = prose(name)
    if words is None:
        return {}
    return {
        "strengths": words.strengths,
        "weaknesses": words.weaknesses,
        "used": words.used,
        "torch": words.torch,
        "sources": sources_json(sources_of(words.source)),
    }


def _block_row(block: BlockFormat) -> dict[str, object]:
    row: dict[str, object] = {
        "name": block.name,
        "title": block.title,
        "kind": KINDS[BlockFormat],
        "element": block.element,
        "scale": block.scale,
        "block": block.block,
        "bits": bits_per_value(block.name),
        "two_level": block.two_level,
    }
    return row | _prose(block.name)
