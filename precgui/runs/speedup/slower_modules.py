"""Modules whose products take longer in the format of a run than in FP32, though the device has fast products in it.

A fused kernel can be slow in a format whose plain products are fast, such as the backward pass of attention over short
sequences in BF16 on processors with AMX. These modules gain when they stay in FP32, with all that they hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from precgui.sentences import L_, filled

_SLOWER = 1.25  # times the time in FP32, so that noise names no module
_WORTH = 0.03  # of the step, that keeping the modules of a pattern in FP32 saves at least
_MOST = 3  # patterns
_KEEP = L_(
    "Keep {modules} in FP32 (precision_options.keep_fp32): the products there take {times:.1f} times as long in "
    "{format} as in FP32 on this device, and about {share:.0%} of the step is saved."
)


@dataclass(frozen=True, slots=True)
class SlowerModules:
    """`patterns` of modules by name, most saved first. Their products take `times` as long as in FP32, and `share` of
    the step would be saved in FP32, casts at the borders not counted."""

    patterns: tuple[str, ...]
    times: float
    share: float

    def remedy(self, fmt: str) -> str:
        """How to keep them in FP32, in a sentence; `fmt` is the format of the run."""
        return filled(_KEEP, modules=", ".join(self.patterns), times=self.times, format=fmt, share=self.share)


def slower_modules(profile: Mapping[str, Any]) -> SlowerModules | None:
    """The modules of a kept profile that are better left in FP32; None where there are none.

    Where the device multiplies no faster in the format, or that was not measured, no module is singled out.
    """
    if not (profile["peak"]["ratio"] or 0.0) > 1:
        return None
    rows, step_s = profile["layers"], float(profile["run"]["step_s"])
    slow = {row["module"] for row in rows if row["module"] and _ratio(_rows_of(rows, row["module"])) > _SLOWER}
    saved = {pattern: _saved_s(_rows_of(rows, pattern)) for pattern in map(_pattern, slow)}
    worth = sorted((p for p in saved if saved[p] > _WORTH * step_s), key=lambda p: (-saved[p], p))[:_MOST]
    if not worth:
        return None
    chosen = [row for row in rows if any(_lies_in(row["module"], pattern) for pattern in worth)]
    if _saved_s(rows) >= _saved_s(chosen):
        return None  # nothing else gains by the format: the run is better in FP32 as a whole
    return SlowerModules(tuple(worth), _ratio(chosen), _saved_s(chosen) / step_s)


def _pattern(module: str) -> str:
    """The name with `*` for the numbers of repeated blocks."""
    return re.sub(r"\b\d+\b", "*", module)


def _rows_of(rows: Sequence[Mapping[str, Any]], pattern: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if _lies_in(row["module"], pattern)]


def _lies_in(module: str, pattern: str) -> bool:
    """Whether a module, or one that holds it, matches the pattern."""
    parts = module.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _ratio(rows: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(row["run_s"]) for row in rows) / max(sum(float(row["fp32_s"]) for row in rows), 1e-12)


def _saved_s(rows: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(row["run_s"]) - float(row["fp32_s"]) for row in rows)
