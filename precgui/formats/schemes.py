"""Ways to quantise a tensor, under one call: integers, ternary and binary weights, NF4, MX and NVFP4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from precgui.formats.affine import Affine, choose_scale, quantize_affine, quantize_sign, quantize_ternary
from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.blocks import BlockTensor, ScaleRule, code_book_blocks, quantize_blocks_array
from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.pieces import PIECE, OnProgress, TensorReader, spans
from precgui.formats.registry import bits_per_value, blocks, get
from precgui.formats.rounding import CastPolicy, RoundingMode
from precgui.formats.weight_formats import known_formats
from precgui.sentences import L_, Sentence, together

INTEGERS = ("int8", "int4", "int2", "uint8", "uint4")
SCHEMES: tuple[str, ...] = (*INTEGERS, "int1", "ternary", "nf4", *blocks(), "e4m3fn", "e5m2", "e2m1", "fp16", "bf16")
GROUPINGS = (L_("tensor"), L_("row"), L_("group of 32"), L_("group of 128"))
NF4_BLOCK = 64
Codes = tuple[Floats, Floats]


class Quantised(NamedTuple):
    """Numbers after quantisation, and which of them were clipped.

    codes gives, in the same shape, each number in the format of its elements (an integer code where these are
    integers), and the scale by which it is multiplied.
    """

    values: Floats
    clipped: NDArray[np.bool_]
    codes: Callable[[], Codes]


@dataclass(frozen=True)
class Options:
    """How to quantise. `scale` and `zero_point` replace the ones that would be computed (integers, one per tensor)."""

    rounding: RoundingMode = "nearest_even"
    symmetric: bool = True
    grouping: str = "tensor"
    rule: ScaleRule = "floor"
    scale: float | None = None
    zero_point: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Prepared:
    """Facts about a tensor that are known before its first piece is quantised; `element` is the format of its codes.

    line: how many numbers belong together; `apply` takes whole lines, in rows, or a part of one from a multiple of
    PIECE on, and the place of the first number; it gives what they become, and which were clipped. scale and
    zero_point are given where there is one for the tensor.
    """

    element: Format
    line: int
    apply: Callable[[Floats, int], Quantised]
    bits_per_value: float
    scale: float | None = None
    zero_point: int | None = None


def convention(scheme: str, options: Options) -> str:
    """One sentence on how scales are chosen, from which the same numbers can be computed elsewhere."""
    if scheme in INTEGERS:
        return _integer_convention(scheme, options)
    if scheme == "ternary":
        return L_("Codes −1, 0, 1 times the mean magnitude of the tensor (BitNet b1.58).")
    if scheme == "int1":
        return L_("Signs times the mean magnitude of the tensor.")
    if scheme in blocks():
        chosen = blocks()[scheme]
        if chosen.two_level:
            return Sentence(
                "Blocks of {block} along the last axis with an E4M3 scale, largest magnitude / 6, and one "
                "FP32 scale of the tensor, largest magnitude / (448 × 6).",
                block=chosen.block,
            )
        return Sentence(
            "Blocks of {block} along the last axis with a power-of-two scale by rule {rule}.",
            block=chosen.block,
            rule=options.rule,
        )
    if isinstance(get(scheme), CodeBook):
        return Sentence(
            "Blocks of {nf4_block} with an FP32 scale, their largest magnitude (QLoRA without double quantisation).",
            nf4_block=NF4_BLOCK,
        )
    return together(L_("Cast without a scale; larger values become the largest of the format."), _of_libraries(scheme))


def _integer_convention(scheme: str, options: Options) -> str:
    fmt = get(scheme)
    assert isinstance(fmt, IntFormat)
    codes = Sentence(
        "codes {least} to {largest}",
        least=str(fmt.min_ordinal).replace("-", "−"),
        largest=fmt.max_ordinal,
    )
    if options.scale is not None or options.zero_point is not None:
        return Sentence("Scale or zero point as given, {codes}.", codes=codes)
    if not options.symmetric:
        steps = fmt.max_ordinal - fmt.min_ordinal
        return Sentence(
            "Affine: scale (largest − least) / {steps}, over all values without a percentile, {codes}.",
            steps=steps,
            codes=codes,
        )
    largest = fmt.max_ordinal if fmt.signed else fmt.max_ordinal // 2
    text = Sentence(
        "Symmetric: scale largest magnitude / {largest} (absmax / {largest}), over all values without a percentile, "
        "{codes}.",
        largest=largest,
        codes=codes,
    )
    return together(text, _of_libraries(scheme))


_RULE_WORDS = {"absmax": "absmax", "signed": L_("signed max")}
_SHARED_BY = {0: L_("the tensor"), -1: L_("each row")}


def _of_libraries(scheme: str) -> str:
    """A sentence on the scales that libraries write in this format; empty where none is known."""
    written: dict[str, list[str]] = {}
    for fmt in known_formats().values():
        if fmt.library and fmt.element.name == get(scheme).name and fmt.rule in _RULE_WORDS:
            who = _SHARED_BY.get(fmt.group) or Sentence("each group of {group}", group=fmt.group)
            divisor = f"{fmt.divisor:g}".replace("-", "−")
            rule = Sentence("{rule} / {divisor} for {who}", rule=_RULE_WORDS[fmt.rule], divisor=divisor, who=who)
            written.setdefault(rule, []).append(fmt.name)
    kinds = [Sentence("{rule} ({names})", rule=rule, names=", ".join(names)) for rule, names in written.items()]
    return Sentence("Libraries write: {kinds}.", kinds=together(*kinds, between="; ")) if kinds else ""


def check_scheme(scheme: str) -> None:
    """Raises ValueError where there is no such way to quantise."""
    if scheme not in SCHEMES:
        known = ", ".join(SCHEMES)
        raise ValueError(Sentence("{scheme!r} is no way to quantise; there are {known}", scheme=scheme, known=known))


def prepare(source: TensorReader, scheme: str, options: Options, on_progress: OnProgress) -> Prepared:
    """Read the tensor once for the extremes that its scales need; `on_progress` is called with the share that is done.

    Raises ValueError for an unknown scheme or a group that does not fit.
    """
    check_scheme(scheme)
    if scheme in INTEGERS:
        fmt = get(scheme)
        assert isinstance(fmt, IntFormat)
        return _integer(source, fmt, options, on_progress)
    if scheme in ("ternary", "int1"):
        scale = source.extent(on_progress).mean_magnitude
        ternary = scheme == "ternary"
        quantise = partial(quantize_ternary if ternary else quantize_sign, scale=scale)

        def apply(part: Floats, _: int) -> Quantised:
            values = quantise(part)
            return Quantised(values, np.abs(part) > 1.5 * scale, lambda: (np.sign(values), np.full(part.shape, scale)))

        return Prepared(get("int2"), 1, apply, np.log2(3) if ternary else 1.0, scale)
    if scheme in blocks():
        return _blocks(source, scheme, options, on_progress)
    return _plain(source, scheme, options)


def _integer(source: TensorReader, fmt: IntFormat, options: Options, on_progress: OnProgress) -> Prepared:
    quantise = partial(
        quantize_affine, fmt=fmt, symmetric=options.symmetric, rounding=options.rounding, seed=options.seed
    )
    if options.grouping == "tensor":
        extent = source.extent(on_progress)
        result, centre = choose_scale(extent.low, extent.high, fmt, symmetric=options.symmetric)
        scale = float(result) if options.scale is None else options.scale
        zero = int(centre) if options.zero_point is None else options.zero_point
        bits = fmt.bits + 32 / source.size
        return Prepared(fmt, 1, _affine(partial(quantise, scale=scale, zero_point=zero)), bits, scale, zero)
    if options.grouping == "row":
        return _rows(source, fmt, options, on_progress, quantise)
    group = int(options.grouping.rpartition(" ")[2])
    if source.shape[-1] % group:
        raise ValueError(f"a group of {group} does not divide the last axis of {source.shape[-1]} values")
    return Prepared(fmt, group, _affine(partial(quantise, axis=0)), fmt.bits + 32 / group)


def _rows(
    source: TensorReader, fmt: IntFormat, options: Options, on_progress: OnProgress, quantise: Callable[..., Affine]
) -> Prepared:
    """One scale for each index of the first axis; rows longer than a piece are read once before."""
    row = source.size // source.shape[0]
    bits = fmt.bits + 32 / row
    if row <= PIECE:
        return Prepared(fmt, row, _affine(partial(quantise, axis=0)), bits)
    ends = np.zeros((source.shape[0], 2))
    for start, stop in spans(source.size, row):
        part = source.read(start, stop)
        known = part[np.isfinite(part)]
        low, high = ends[start // row]
        ends[start // row] = known.min(initial=low), known.max(initial=high)
        on_progress(stop / source.size)
    scales, zeros = choose_scale(ends[:, 0], ends[:, 1], fmt, symmetric=options.symmetric)

    def apply(part: Floats, place: int) -> Quantised:
        at = place // row
        return _affine(partial(quantise, scale=scales[at], zero_point=zeros[at]))(part, place)

    return Prepared(fmt, row, apply, bits)


def _affine(quantise: Callable[..., Affine]) -> Callable[[Floats, int], Quantised]:
    def apply(part: Floats, place: int) -> Quantised:
        result = quantise(part, first=place)

        def codes() -> Codes:
            return result.codes.astype(float), np.broadcast_to(result.scale.reshape(-1, 1), part.shape)

        return Quantised(result.values, result.clipped, codes)

    return apply


def _blocks(source: TensorReader, scheme: str, options: Options, on_progress: OnProgress) -> Prepared:
    chosen, line = blocks()[scheme], source.shape[-1]
    padded = line + -line % chosen.block
    largest = source.extent(on_progress).largest_magnitude if chosen.two_level else None

    def apply(part: Floats, place: int) -> Quantised:
        first = place // line * padded + place % line
        result = quantize_blocks_array(part, scheme, options.rule, options.rounding, options.seed, first, largest)
        return _of_blocks(result)

    return Prepared(get(chosen.element), line, apply, bits_per_value(scheme))


def _of_blocks(result: BlockTensor) -> Quantised:
    return Quantised(result.values, result.clipped, result.codes)


def _plain(source: TensorReader, scheme: str, options: Options) -> Prepared:
    """Floats, which have no scale, and code books, which have one for each block."""
    fmt = get(scheme)
    if isinstance(fmt, CodeBook):
        bits = fmt.bits + 32 / NF4_BLOCK
        return Prepared(fmt, source.shape[-1], lambda part, _: _of_blocks(code_book_blocks(part, fmt, NF4_BLOCK)), bits)
    assert isinstance(fmt, FloatFormat)
    convention, edge = CastPolicy(options.rounding, "saturate"), float(fmt.overflow_midpoint)

    def apply(part: Floats, place: int) -> Quantised:
        values = quantize_array(part, fmt, convention, options.seed, place)
        return Quantised(values, np.abs(part) > edge, lambda: (values, np.ones(part.shape)))

    return Prepared(fmt, 1, apply, float(fmt.bits))
