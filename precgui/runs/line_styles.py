"""The style of a line that stands for a precision: the colour of its format, and a dash of its own in that colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from precgui.config.precision_traits import traits

HUES, DASHES, SHADES = 7, 4, 3
_FULL = ("fp32", "bf16", "fp16", "e4m3fn", "e5m2", "e2m1", "int8")  # in the order of the hues
_PALE = ("fp64", "tf32", "int2", "e3m2", "e2m3", "nf4", "int4")  # the same hues, half laid over the ground


@dataclass(frozen=True)
class LineStyle:
    """`colour` is a full hue below HUES and a pale one from there on; `shade` counts how often the dashes ran out."""

    colour: int
    dash: int = 0
    shade: int = 0


def format_place(name: str) -> int:
    """The colour of a number format as a place below 2 * HUES; formats beside the fourteen usual ones share these."""
    usual = (*_FULL, *_PALE)
    return usual.index(name) if name in usual else crc32(name.encode()) % len(usual)


def precision_place(name: str) -> int:
    """The place of the format in which a precision multiplies; that of its name where it is none of precgui's."""
    try:
        return format_place(traits(name).operand)
    except KeyError:
        return format_place(name)


def line_styles(precisions: Mapping[str, str]) -> dict[str, LineStyle]:
    """A style for each line, by the precision that it stands for; no two are alike up to 12 of one colour.

    Args:
        precisions: the precision of each line, by the name of the line.
    """
    before: Counter[int] = Counter()
    styles = {}
    for line, precision in precisions.items():
        place = precision_place(precision)
        styles[line] = LineStyle(place, before[place] % DASHES, before[place] // DASHES % SHADES)
        before[place] += 1
    return styles
