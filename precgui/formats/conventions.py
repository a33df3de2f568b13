"""Where libraries agree on the bits and disagree on the rest: overflow, infinity and NaN, by the name of the stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from precgui.formats import text
from precgui.formats.codec import decode, encode
from precgui.formats.model import FloatFormat, Format, IntFormat
from precgui.formats.real import ExtendedReal, finite
from precgui.formats.report import Report, report
from precgui.formats.rounding import CastPolicy, NanPolicy, Overflow, RoundingMode
from precgui.sentences import L_


@dataclass(frozen=True)
class Preset:
    """A stack: its name, what to know about it, and its convention for each format.

    `is_torch`: it casts to TORCH_CASTS only, and to E8M0 in a way of its own.
    """

    name: str
    about: str
    cast_policy: Callable[[Format], CastPolicy]
    is_torch: bool = False


def _everywhere(overflow: Overflow, nan: NanPolicy = "negative_zero") -> Callable[[Format], CastPolicy]:
    return lambda fmt: CastPolicy(overflow=overflow, nan=nan)


def _saturating(
    chosen: Callable[[FloatFormat], bool], nan: NanPolicy = "negative_zero"
) -> Callable[[Format], CastPolicy]:
    def cast_policy(fmt: Format) -> CastPolicy:
        saturates = isinstance(fmt, FloatFormat) and chosen(fmt)
        return CastPolicy(overflow="saturate" if saturates else "ieee", nan=nan)

    return cast_policy


def _narrow(fmt: FloatFormat) -> bool:
    return fmt.bits <= 8


def _nan_on_overflow(fmt: Format) -> CastPolicy:
    narrow = isinstance(fmt, FloatFormat) and _narrow(fmt)
    return CastPolicy(overflow="nan" if narrow else "ieee")


# As torch 2.15 was found to do; other formats, FP4 and FP6 among them, raise NotImplementedError or have no dtype.
TORCH_CASTS = ("fp64", "fp32", "bf16", "fp16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0")
_TORCH_E8M0 = L_("Drops the sign, stores 0 as 2^-127, and rounds all between 2^-127 and 2^-126 up.")

PRESETS: tuple[Preset, ...] = (
    Preset(
        "IEEE 754 / ml_dtypes", L_("Overflow gives infinity, else NaN, else the largest value."), _everywhere("ieee")
    ),
    Preset(
        "torch >= 2.12",
        L_("Casts to E4M3FN saturate, infinity included; E5M2 and FNUZ overflow as before."),
        _saturating(lambda fmt: fmt.name == "e4m3fn"),
        is_torch=True,
    ),
    Preset("torch <= 2.11", L_("All casts overflow to infinity or NaN, as ml_dtypes does."), _everywhere("ieee"), True),
    Preset(L_("OCP saturating"), L_("FP8 ends at its largest value, for infinity, too."), _saturating(_narrow)),
    Preset(L_("OCP non-saturating"), L_("E5M2 overflows to infinity, E4M3 to NaN."), _everywhere("ieee")),
    Preset(
        L_("CUDA satfinite"),
        L_("8 bits and fewer saturate; NaN in FP6 and FP4 becomes the largest value."),
        _saturating(_narrow, nan="max"),
    ),
    Preset(
        L_("NaN on overflow"), L_("In 8 bits and fewer, all beyond the range is NaN, infinity too."), _nan_on_overflow
    ),
)
BY_NAME = {preset.name: preset for preset in PRESETS}


def as_in(stack: str, rounding: RoundingMode, fmt: Format) -> CastPolicy:
    """How a stack treats overflow and NaN of a format, with this rounding."""
    return replace(BY_NAME[stack].cast_policy(fmt), rounding=rounding)


@dataclass(frozen=True)
class LibraryResult:
    """The code that one software stack stores for an input, and whether it differs from the first stack's.

    `report` is None where the stack has no cast to the format.
    """

    stack: str
    about: str
    report: Report | None
    differs: bool

    @property
    def bits(self) -> str:
        """The code, empty without a cast."""
        return self.report.bits if self.report else ""

    @property
    def value(self) -> str:
        """The value that is stored, in short, or that there is no cast."""
        return text.short(self.report.stored.real) if self.report else L_("no cast")


def library_table(real: ExtendedReal, fmt: Format, rounding: RoundingMode = "nearest_even") -> list[LibraryResult]:
    """The code that each software stack stores for `real` in `fmt`."""
    first = report(real, fmt, as_in(PRESETS[0].name, rounding, fmt), random=0).stored.code
    rows = []
    for preset in PRESETS:
        result = _as_stored(real, fmt, as_in(preset.name, rounding, fmt), preset)
        about = _TORCH_E8M0 if preset.is_torch and fmt.name == "e8m0" else preset.about
        rows.append(LibraryResult(preset.name, about, result, result is not None and result.stored.code != first))
    return rows


def _as_stored(real: ExtendedReal, fmt: Format, cast_policy: CastPolicy, preset: Preset) -> Report | None:
    if not preset.is_torch or isinstance(fmt, IntFormat):
        return report(real, fmt, cast_policy, random=0)
    if fmt.name not in TORCH_CASTS:
        return None
    if fmt.name != "e8m0" or not real.is_finite:
        return report(real, fmt, cast_policy, random=0)
    magnitude, smallest = abs(real.value), fmt.value(0)
    if magnitude <= smallest:
        return Report(real, decode(0, fmt), cast_policy)
    if magnitude < 2 * smallest and cast_policy.rounding == "nearest_even":
        return Report(real, decode(1, fmt), cast_policy)
    return Report(real, decode(encode(finite(magnitude), fmt, cast_policy, 0), fmt), cast_policy)
