"""The comparison of two checkpoints as cells and sentences, for the terminal and for the window."""

from __future__ import annotations

import math
from collections.abc import Sequence

from precgui.formats.checkpoints.comparison import ModelComparison, TensorChange
from precgui.formats.text import grouped
from precgui.sanitize import visible_name
from precgui.sentences import L_, Sentence, together

TITLES = (
    L_("Tensor"),
    L_("Formats"),
    L_("Changed"),
    L_("Signal to noise, dB"),
    L_("Largest change"),
    L_("Ulps of"),
    L_("Median ulps"),
    L_("Most ulps"),
)
_MOST_NAMES = 8
_NONE = "-"


def change_rows(result: ModelComparison) -> list[tuple[str, ...]]:
    """A row of TITLES for all compared tensors together, then for each that differs, the most changed in dB first."""
    moved = sorted(
        (each for each in result.changes if each.changed),
        key=lambda each: (math.isnan(each.sqnr_db), each.sqnr_db, each.name),
    )
    changed = _share(result.changed_numbers, result.numbers)
    sizes = [each.largest for each in moved if not math.isnan(each.largest)]
    largest = max(sizes, default=math.nan if moved else 0.0)
    whole = (L_("All compared tensors"), "", changed, _decibel(result.sqnr_db), _figure(largest), "", "", "")
    return [whole, *(_row(each) for each in moved)]


def _row(each: TensorChange) -> tuple[str, ...]:
    formats = (
        each.dtype
        if each.dtype == each.other_dtype
        else Sentence("{before} to {after}", before=each.dtype, after=each.other_dtype)
    )
    return (
        visible_name(each.name), formats, _share(each.changed, each.size), _decibel(each.sqnr_db),
        _figure(each.largest), each.ulps_of, _ulps(each.median_ulps), _ulps(each.largest_ulps),
    )  # fmt: skip


def _share(count: int, of: int) -> str:
    return f"{count / max(of, 1):.3%}" if count else L_("none")


def _figure(value: float) -> str:
    return _NONE if math.isnan(value) else f"{value:.3g}"


def _decibel(value: float) -> str:
    if math.isnan(value):
        return _NONE
    return f"{value:.1f}" if math.isfinite(value) else L_("exact") if value > 0 else "-inf"


def _ulps(value: float) -> str:
    return _NONE if math.isnan(value) else f"{value:.3g}" if value < 1000 else f"{value:.2e}"


def comparison_notes(result: ModelComparison) -> list[str]:
    """Sentences on tensors that are not compared, in other formats, or with numbers that are not finite."""
    found: list[str] = []
    if result.only_source:
        found.append(Sentence("Only in the first model: {names}.", names=_names(result.only_source)))
    if result.only_other:
        found.append(Sentence("Only in the second model: {names}.", names=_names(result.only_other)))
    if result.other_shapes:
        shapes = [
            Sentence(
                "{name} ({shape} and {other_shape})", name=visible_name(name), shape=_shape(a), other_shape=_shape(b)
            )
            for name, a, b in result.other_shapes
        ]
        found.append(Sentence("Of other shapes, not compared: {names}.", names=_listed(shapes)))
    kinds = [each.name for each in result.changes if each.dtype != each.other_dtype]
    if kinds:
        found.append(Sentence("In another format: {names}.", names=_names(kinds)))
    found += [
        Sentence(
            "{name} has {count} changed numbers that are NaN or infinite on one side; they count as changed and are in "
            "no other figure.",
            name=visible_name(each.name),
            count=grouped(each.nonfinite),
        )
        for each in result.changes
        if each.nonfinite
    ]
    if result.skipped:
        skipped = [Sentence("{value} ({remark})", value=visible_name(name), remark=why) for name, why in result.skipped]
        found.append(Sentence("Not read: {names}.", names=_listed(skipped)))
    return found


def _names(names: Sequence[str]) -> str:
    return _listed([visible_name(name) for name in names])


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMES
    listed = together(*texts[:_MOST_NAMES], between=", ")
    return Sentence("{names} and {count} more", names=listed, count=grouped(more)) if more > 0 else listed


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or L_("one number")
