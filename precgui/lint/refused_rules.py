"""Operations that torch refuses in 16 bits, which autocast gives them: factors and inverses of matrices, FFT."""

from __future__ import annotations

import ast
from collections.abc import Callable

from precgui.lint.arguments import keyword
from precgui.lint.autocast_flow import format_around, is_low
from precgui.lint.constants import computed
from precgui.lint.flow import UNKNOWN, cast_of, is_half
from precgui.lint.lightning import trainer_precision
from precgui.lint.origins import calls_in, operand_of, origins
from precgui.lint.sizes import size_at
from precgui.lint.source import CallSite, Mistakes, Source
from precgui.sentences import L_, Sentence

_BY_LINALG = ("inv", "inv_ex", "solve", "solve_ex", "eig", "eigvals", "eigvalsh", "svdvals", "lu", "lu_factor", "lstsq",
              "cholesky_ex", "eigh", "pinv")  # fmt: skip
_BY_ANY = ("inverse", "det", "cholesky", "slogdet", "logdet", "svd", "qr", "pinverse")  # methods of tensors, too
_TRANSFORMS = ("fft", "rfft", "fft2", "rfft2", "fftn", "rfftn")
_MOST_CALLS = 32  # of one kind in a script


def _may_be_low(source: Source) -> bool:
    return bool(source.autocasts) or bool(trainer_precision(source)) or "half()" in source.text


def factored(source: Source) -> Mistakes:
    """A matrix in 16 bits that is inverted or factored."""
    if not _may_be_low(source):
        return
    for site in source.of(*_BY_LINALG, *_BY_ANY)[:_MOST_CALLS]:
        operand = operand_of(source, site.node)
        if operand is None or not _is_of_torch(site) or not (low := _format_of(source, site, operand)):
            continue
        yield (
            site.line, "error", Sentence(
                "{function} of a matrix in {format}: torch has no such operation in it, and raises",
                function=site.method, format=low.upper(),
            ),
            L_("autocast with enabled=False around it, and .float() on the matrix"),
        )  # fmt: skip


def _is_of_torch(site: CallSite) -> bool:
    if site.method in _BY_LINALG:
        return site.name.startswith("torch.linalg.")
    return site.name.startswith("torch.") or (
        site.owner != "self" and not site.name.startswith(("numpy.", "np.", "scipy."))
    )


def _format_of(source: Source, site: CallSite, operand: ast.expr) -> str:
    """The format of 16 bits that an operand certainly has, by autocast or by a cast; '' where it may be wider."""
    if is_half(source, operand):
        return "fp16"
    low = format_around(source, site.node)
    if not low or not is_low(source, operand):
        return ""
    casts = [cast_of(source, each) for each in calls_in(source, origins(source, operand))]
    is_wide = source.of("double", "set_default_dtype") or "float64" in source.text
    return "" if is_wide or any(each is not None and each[0] == UNKNOWN for each in casts) else low


def transformed(source: Source) -> Mistakes:
    """An FFT in BF16, which there is none of, or in FP16 of a length that is no power of two."""
    if not _may_be_low(source):
        return
    for site in source.of(*_TRANSFORMS)[:_MOST_CALLS]:
        operand = operand_of(source, site.node)
        if operand is None or not site.name.startswith("torch.fft."):
            continue
        low = _format_of(source, site, operand)
        length = _length(source, site, operand) if low == "fp16" else None
        if low != "bf16" and (length is None or length & (length - 1) == 0):
            continue
        yield (
            site.line, "error", Sentence(
                "{function} of {length} numbers in FP16, of which cuFFT takes powers of two only: torch raises on CUDA",
                function=site.method, length=length,
            ) if length is not None else Sentence(
                "{function} in BF16: torch has no FFT in it, and raises", function=site.method
            ),
            L_("autocast with enabled=False around it, and .float() on what is transformed"),
        )  # fmt: skip


def _length(source: Source, site: CallSite, operand: ast.expr) -> int | None:
    """The number of values along the dimension that is transformed, where it is written out."""
    given = keyword(site.node, "n", 1)
    if given is not None and not (isinstance(given, ast.Constant) and given.value is None):
        found = computed(source, given)
        return int(found) if found is not None else None
    dim = keyword(site.node, "dim", 2)
    place = -1.0 if dim is None else computed(source, dim)
    if place is None or site.method.endswith(("2", "n")):
        return None
    return size_at(source, operand, int(place))


RULES: dict[str, Callable[[Source], Mistakes]] = {
    "factored-in-16-bits": factored,
    "fft-in-16-bits": transformed,
}
