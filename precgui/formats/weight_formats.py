"""How weights are stored in a format: element, who shares a scale, how scales are found.

A name is an entry of `facts/targets.json` (`int4/128`, `nvfp4`, `gguf:q4_0`, `vllm:w4a16`), or an element, such
as any eXmY or INT2 to INT8, alone (one scale for the tensor) or with `/row`, `/none` or a group: `e3m4/32`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from precgui.formats.arrays import quantize_array
from precgui.formats.blocks import SCALE_RULES, mx_exponents
from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.registry import UnknownFormatError, get
from precgui.formats.rounding import CastPolicy
from precgui.paths import resources
from precgui.sentences import L_, Sentence, filled

Singles = NDArray[np.float32]
Rule = Literal["none", "absmax", "signed", "nvfp4", "nvfp4_divided", "floor", "ceil", "even", "rceil"]
NVFP4_DIVIDED = "nvfp4_divided"
_NVFP4 = ("nvfp4", NVFP4_DIVIDED)
Rounding = Literal["even", "away", "up"]
NVFP4_LEAST = 0.125  # that compressed-tensors puts for a scale of zero
LEAST_PEAK = 2.0**-114  # below, the reciprocal would be infinite
_INTEGER = re.compile("int[2-8]")
GROUPS = (16, 32, 64, 128)
DEFAULT = ("fp16", "e4m3fn", "e4m3fn/row", "e5m2", "int8/row", "int4/128", "int4/32", "nf4/64", "mxfp8_e4m3",
           "mxfp6_e2m3", "mxfp4", "nvfp4")  # fmt: skip


@dataclass(frozen=True)
class WeightFormat:
    """`group` is how many numbers share a scale: 0 the tensor, -1 a row. `divisor` takes the largest to its code.

    rule: none; absmax (largest magnitude / divisor); signed (the number of largest magnitude / divisor); nvfp4 (E4M3 of
    absmax, and an FP32 scale of the tensor); nvfp4_divided (the same with the reciprocal of that scale, as
    compressed-tensors has it: other last bits); the others are powers of two of MX. half_scale: scales are kept in
    FP16, and numbers are multiplied by the reciprocal of a scale, as ggml does. rounding: to even, or halves away or
    up.
    whole_groups: a row that is no multiple of the group has no such form.
    """

    name: str
    title: str
    element: Format
    group: int
    rule: Rule
    divisor: float
    half_scale: bool = False
    rounding: Rounding = "even"
    whole_groups: bool = False
    library: str = ""

    @property
    def scale_bits(self) -> int:
        """Bits of one scale."""
        if self.rule == "none":
            return 0
        return 8 if self.rule in _NVFP4 or self.rule in SCALE_RULES else 16 if self.half_scale else 32

    def nbytes(self, shape: Sequence[int], line: int) -> int:
        """Bytes of a tensor of this shape whose rows are `line` long."""
        size = math.prod(shape)
        rows = size // line if line else 0
        scales = {0: 1, -1: rows}.get(self.group) or (rows * -(-line // self.group) if self.group > 0 else 1)
        extra = 4 if self.rule in _NVFP4 else 0
        return -(-size * self.element.bits // 8) + scales * self.scale_bits // 8 + extra

    def misfit(self, line: int) -> str:
        """Why rows of this length have no such form; empty where they have."""
        if self.whole_groups and line % self.group:
            return Sentence("rows of {width} are no multiple of {multiple}", width=line, multiple=self.group)
        return ""


@cache
def known_formats() -> dict[str, WeightFormat]:
    """The entries of `facts/targets.json` by name."""
    facts = json.loads((resources() / "facts" / "targets.json").read_text(encoding="utf-8"))
    return {name: _of_row(name, row) for name, row in facts["formats"].items()}


def _of_row(name: str, row: dict[str, Any]) -> WeightFormat:
    element = _element_of(row["element"])
    group = {"tensor": 0, "row": -1}.get(row["group"], row["group"])
    whole = bool(row.get("whole_groups")) or (isinstance(element, IntFormat) and group > 0)
    return WeightFormat(
        name, row["title"], element, group, row["rule"], float(row.get("divisor", _top(element))),
        row.get("scale") == "fp16", row.get("rounding", "even"), whole, row.get("library", ""),
    )  # fmt: skip


def _element_of(name: str) -> Format:
    return IntFormat(name, name.upper(), int(name[3])) if _INTEGER.fullmatch(name) else get(name)


def _top(element: Format) -> float:
    return float(element.max_ordinal if isinstance(element, IntFormat) else element.max_finite)


@cache
def weight_format(name: str) -> WeightFormat:
    """The format of that name. Raises UnknownFormatError, one sentence."""
    known = known_formats()
    if name in known:
        return known[name]
    base, _, rest = name.partition("/")
    stem, _, rule = base.partition(":")
    if stem in known and known[stem].rule in SCALE_RULES and rule in SCALE_RULES and not rest:
        return WeightFormat(**{**vars(known[stem]), "name": name, "rule": rule})
    try:
        element = _element_of(base)
    except UnknownFormatError:
        near = difflib.get_close_matches(name, known, 3, 0.4)
        hint = ", ".join(near) if near else L_("precgui model --help names them")
        raise UnknownFormatError(
            Sentence("{name!r} is no format of weights; near it: {hint}", name=name, hint=hint)
        ) from None
    groups = {"": 0, "row": -1, "none": 0} | {str(n): n for n in GROUPS}
    if rest not in groups:
        known_groups = ", ".join(map(str, GROUPS))
        raise UnknownFormatError(
            Sentence("{name!r}: after / stands row, none, or a group of {groups}", name=name, groups=known_groups)
        )
    if why := _unusable(element):
        raise UnknownFormatError(filled(why, name=name))
    whole = isinstance(element, IntFormat) and groups[rest] > 0
    rule_of: Rule = "none" if rest == "none" else "absmax"
    return WeightFormat(name, element.title, element, groups[rest], rule_of, _top(element), whole_groups=whole)


def _unusable(element: Format) -> str:
    """Why it is none for weights, with `{name}` for its name; empty where it is one."""
    if not element.signed or element.bits > 16:
        return L_("{name!r} is no format of weights: it has a sign and at most 16 bits")
    if isinstance(element, IntFormat) and not 2 <= element.bits <= 8:
        return L_("{name!r} has codes that are not used for weights: INT2 to INT8 are")
    if isinstance(element, FloatFormat) and not 1 <= element.exponent_bits <= 8:
        return L_("{name!r} has more exponents than FP32, or none")
    return ""


def round_weights(values: NDArray[np.floating[Any]], fmt: WeightFormat, largest: float | None = None) -> Singles:
    """Rows of weights, shape (rows, line), rounded, in FP32 as a library computes it: the reference of the scan.

    largest: the largest magnitude of the whole tensor of which these are rows. Raises ValueError for a misfit.
    """
    array = np.asarray(values, np.float32)
    if why := fmt.misfit(array.shape[-1]):
        raise ValueError(why)
    peak = np.float32(np.abs(array).max(initial=0.0) if largest is None else largest)
    width = array.shape[-1]
    group = {0: width, -1: width}.get(fmt.group, fmt.group)
    padded = np.pad(array, ((0, 0), (0, -width % group))).reshape(-1, group)
    factor, scale = _scales(padded, fmt, peak)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = padded * factor if fmt.half_scale else padded / factor
    scaled = np.where(scale == 0, np.float32(0), scaled)
    values_ = (_elements(scaled, fmt) * scale).astype(np.float32)
    return values_.reshape(len(array), -1)[:, :width]


def round_one_scale(values: Singles, fmt: WeightFormat, largest: np.float32) -> tuple[Singles, NDArray[np.bool_]]:
    """Numbers of a tensor rounded to a format with one scale for all of it, and which of them are cut off.

    largest: the largest magnitude of the tensor.
    """
    scale = np.float32(1) if fmt.rule == "none" else np.float32(largest) / np.float32(fmt.divisor)
    scaled = values / (scale or np.float32(1))
    rounded = (_elements(scaled, fmt) * scale).astype(np.float32)
    if isinstance(fmt.element, IntFormat):
        codes = np.rint(scaled)
        return rounded, (codes < fmt.element.min_ordinal) | (codes > fmt.element.max_ordinal)
    assert isinstance(fmt.element, FloatFormat | CodeBook)
    return rounded, _beyond(scaled, fmt.element)


def _beyond(scaled: Singles, element: Format) -> NDArray[np.bool_]:
    """Which numbers round to more than the largest value."""
    top = float(element.max_finite)
    if not isinstance(element, FloatFormat):
        return np.zeros(scaled.shape, bool)
    gap = 2.0 ** (math.floor(math.log2(top)) - element.mantissa_bits)
    beyond: NDArray[np.bool_] = np.abs(scaled.astype(np.float64)) > (top + gap / 2)
    return beyond


def _scales(rows: Singles, fmt: WeightFormat, peak: np.float32) -> tuple[Singles, Singles]:
    """By what numbers are divided (multiplied, where scales are in FP16), and by what codes are multiplied."""
    own = np.abs(rows).max(1, keepdims=True)
    divisor = np.float32(fmt.divisor)
    if fmt.rule == "none":
        one = np.ones_like(own)
        return one, one
    if fmt.rule == "nvfp4":
        whole = peak / np.float32(448 * 6)
        if whole == 0:
            return np.zeros_like(own), np.zeros_like(own)
        local = quantize_array(own / np.float32(6) / whole, get("ue4m3"), CastPolicy(overflow="saturate"))
        scale = local.astype(np.float32) * whole
        return scale, scale
    if fmt.rule == NVFP4_DIVIDED:
        factor = np.float32(1) / peak * np.float32(448 * 6) if peak >= LEAST_PEAK else np.float32(1)
        local = quantize_array(factor * (own / np.float32(6)), get("ue4m3"), CastPolicy(overflow="saturate"))
        scale = np.where(local == 0, np.float32(NVFP4_LEAST), local.astype(np.float32)) / factor
        return scale.astype(np.float32), scale.astype(np.float32)
    if fmt.rule in SCALE_RULES:
        powers = np.ldexp(np.float32(1), mx_exponents(own.astype(np.float64), fmt.element, fmt.rule))
        return powers.astype(np.float32), powers.astype(np.float32)
    signed = np.take_along_axis(rows, np.abs(rows).argmax(1)[:, None], 1) if fmt.rule == "signed" else own
    scale = (np.full_like(own, peak) if fmt.group == 0 else signed) / divisor
    if not fmt.half_scale:
        return scale, scale
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scale == 0, np.float32(0), 1 / scale), scale.astype(np.float16).astype(np.float32)


def _elements(scaled: Singles, fmt: WeightFormat) -> Singles:
    element = fmt.element
    if not isinstance(element, IntFormat):
        rounded: Singles = quantize_array(scaled, element, CastPolicy(overflow="saturate")).astype(np.float32)
        return rounded
    low, high = np.float32(element.min_ordinal), np.float32(element.max_ordinal)
    if fmt.rounding == "away":
        whole = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)
    elif fmt.rounding == "up":
        whole = np.trunc(scaled + (np.float32(0.5) - low)) + low
    else:
        whole = np.rint(scaled)
    return np.clip(whole, low, high)
