"""Formats of weights as the tables of constants that the kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.engine.quantize.plan import ADDING as ADDING_METHODS
from precgui.engine.quantize.plan import SINGLE, book_thresholds, make_plan
from precgui.engine.survey import kernels as k
from precgui.formats.model import CodeBook, FloatFormat, IntFormat, floor_log2
from precgui.formats.registry import UnknownFormatError, get
from precgui.formats.rounding import CastPolicy
from precgui.formats.weight_formats import WeightFormat
from precgui.sentences import Sentence

_ROUNDINGS = {"even": k.EVEN, "away": k.AWAY, "up": k.UP}


@dataclass(frozen=True)
class FormatTables:
    """Constants of several formats, one row each, and the one code book."""

    wholes: NDArray[np.int64]
    reals: NDArray[np.float32]
    values: NDArray[np.float32]
    thresholds: NDArray[np.float32]


def format_tables(formats: Sequence[WeightFormat]) -> FormatTables:
    """The tables of formats. Raises UnknownFormatError for one that the kernels cannot round."""
    wholes = np.zeros((len(formats), k.INTEGERS), np.int64)
    reals = np.zeros((len(formats), k.FLOATS), np.float32)
    for fmt, whole, real in zip(formats, wholes, reals, strict=True):
        _element(fmt, whole, real)
        _rule(fmt, whole)
        real[k.DIVISOR] = fmt.divisor
    book = get("nf4")
    assert isinstance(book, CodeBook)
    values = np.array([float(value) for value in book.values], np.float32)
    return FormatTables(wholes, reals, values, np.array(book_thresholds(book, SINGLE, "nearest_even"), np.float32))


def _element(fmt: WeightFormat, whole: NDArray[np.int64], real: NDArray[np.float32]) -> None:
    element = fmt.element
    if isinstance(element, CodeBook):
        if element.name != "nf4":
            raise UnknownFormatError(
                Sentence("{format} has a code book other than NF4, which is not scanned", format=fmt.name)
            )
        whole[k.KIND] = k.BOOK
        return
    if isinstance(element, IntFormat):
        whole[k.KIND], whole[k.ROUNDING] = k.INTEGER, _ROUNDINGS[fmt.rounding]
        real[k.LARGEST], real[k.LEAST] = element.max_ordinal, element.min_ordinal
        return
    assert isinstance(element, FloatFormat)
    plan = make_plan(element, CastPolicy(overflow="saturate"), SINGLE)
    real[k.LARGEST] = np.array(plan.largest, np.uint32).view(np.float32)
    if plan.method in ADDING_METHODS and plan.magic_exponent > 0:
        whole[k.KIND], whole[k.LOWEST], whole[k.MAGIC] = k.ADDING, plan.lowest_binade, plan.magic_exponent
    elif plan.method == "bit_mask":
        whole[k.KIND], whole[k.DROP] = k.MASKING, plan.dropped_bits
    else:
        raise UnknownFormatError(
            Sentence("{format} cannot be scanned: its exponents go beyond those of FP32", format=fmt.name)
        )


def _rule(fmt: WeightFormat, whole: NDArray[np.int64]) -> None:
    whole[k.GROUP], whole[k.HALF_SCALE] = max(fmt.group, 0), fmt.half_scale
    simple: dict[Any, int] = {"none": k.NONE, "signed": k.SIGNED, "nvfp4": k.NVFP4,
                              "nvfp4_divided": k.NVFP4_DIVIDED}  # fmt: skip
    if fmt.rule in simple:
        whole[k.RULE] = simple[fmt.rule]
    elif fmt.rule == "absmax":
        whole[k.RULE] = {0: k.TENSOR, -1: k.ROW}.get(fmt.group, k.ABSMAX)
    else:
        whole[k.RULE] = k.POWER
        _power(fmt, whole)


def _power(fmt: WeightFormat, whole: NDArray[np.int64]) -> None:
    """The rules of MX on the bits of the largest magnitude: what is added before its exponent is cut, and a limit."""
    element = fmt.element
    whole[k.TOP_EXPONENT] = floor_log2(element.max_finite)
    digits = element.mantissa_bits if isinstance(element, FloatFormat) else element.bits - 2
    if fmt.rule == "even":
        whole[k.SHIFT] = 1 << (22 - digits)
    elif fmt.rule == "ceil":
        whole[k.LIMIT] = 1
    elif fmt.rule == "rceil":
        mantissa = int(np.float32(float(element.max_finite)).view(np.uint32)) & 0x7FFFFF
        whole[k.LIMIT] = mantissa + 1
