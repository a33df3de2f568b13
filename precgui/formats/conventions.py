"""Where libraries agree on the bits and disagree on the rest: overflow, infinity and NaN, by the name of the stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from precgui.formats.model import FloatFormat, Format
from precgui.formats.real import ExtendedReal
from precgui.formats.report import Report, report
from precgui.formats.rounding import CastPolicy, NanPolicy, Overflow, RoundingMode


@dataclass(frozen=True)
class Preset:
    """A stack: its name, what to know about it, and its convention for each format."""

    name: str
    about: str
    convention: Callable[[Format], CastPolicy]


def _everywhere(overflow: Overflow, nan: NanPolicy = "negative_zero") -> Callable[[Format], CastPolicy]:
    return lambda fmt: CastPolicy(overflow=overflow, nan=nan)


def _saturating(
    chosen: Callable[[FloatFormat], bool], nan: NanPolicy = "negative_zero"
) -> Callable[[Format], CastPolicy]:
    def convention(fmt: Format) -> CastPolicy:
        saturates = isinstance(fmt, FloatFormat) and chosen(fmt)
        return CastPolicy(overflow="saturate" if saturates else "ieee", nan=nan)

    return convention


def _narrow(fmt: FloatFormat) -> bool:
    return fmt.bits <= 8


def _nan_on_overflow(fmt: Format) -> CastPolicy:
    narrow = isinstance(fmt, FloatFormat) and _narrow(fmt)
    return CastPolicy(overflow="nan" if narrow else "ieee")


PRESETS: tuple[Preset, ...] = (
    Preset("IEEE 754 / ml_dtypes", "Overflow gives infinity, else NaN, else the largest value.", _everywhere("ieee")),
    Preset(
        "torch >= 2.12",
        "Casts to E4M3FN saturate, infinity included; E5M2 and FNUZ overflow as before.",
        _saturating(lambda fmt: fmt.name == "e4m3fn"),
    ),
    Preset("torch <= 2.11", "All casts overflow to infinity or NaN, as ml_dtypes does.", _everywhere("ieee")),
    Preset("OCP saturating", "FP8 ends at its largest value, for infinity, too.", _saturating(_narrow)),
    Preset("OCP non-saturating", "E5M2 overflows to infinity, E4M3 to NaN.", _everywhere("ieee")),
    Preset(
        "CUDA satfinite",
        "8 bits and fewer saturate; NaN in FP6 and FP4 becomes the largest value.",
        _saturating(_narrow, nan="max"),
    ),
    Preset("NaN on overflow", "In 8 bits and fewer, all beyond the range is NaN, infinity too.", _nan_on_overflow),
)
BY_NAME = {preset.name: preset for preset in PRESETS}


def as_in(stack: str, rounding: RoundingMode, fmt: Format) -> CastPolicy:
    """How a stack treats overflow and NaN of a format, with this rounding."""
    return replace(BY_NAME[stack].convention(fmt), rounding=rounding)


@dataclass(frozen=True)
class LibraryResult:
    """The code that one software stack stores for an input, and whether it differs from the first stack's."""

    stack: str
    about: str
    report: Report
    differs: bool


def library_table(real: ExtendedReal, fmt: Format, rounding: RoundingMode = "nearest_even") -> list[LibraryResult]:
    """The code that each software stack stores for `real` in `fmt`."""
    results = [(p, report(real, fmt, as_in(p.name, rounding, fmt), random=0)) for p in PRESETS]
    first = results[0][1].stored.code
    return [LibraryResult(p.name, p.about, r, r.stored.code != first) for p, r in results]
