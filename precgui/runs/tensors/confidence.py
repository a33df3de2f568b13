"""The certainty of a what-if: by its scale, by the rounding of the run itself, by the share of sampled elements."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from precgui.config.names import EMULATED, OWN_LOOP
from precgui.config.precision_traits import traits
from precgui.runs.run import Run
from precgui.runs.tensors.what_if import range_of
from precgui.sentences import L_, Sentence

Word = Literal["exact", "estimate", "lower bound"]
WORDS = (L_("exact"), L_("estimate"), L_("lower bound"))
BLOCK = 64  # neighbours that are sampled together, see docs/run-file.md
BACKWARD = ("gradient", "activation_gradient")  # the kinds that a loss scale multiplies
NOTHING = "–"
_Z = 2.0  # standard deviations
_FP32_ZERO_BELOW = -126  # what is smaller is subnormal in the record itself


@dataclass(frozen=True)
class Provenance:
    """The origin of a record of one kind of tensors: precision, sampling, skipped steps.

    `skipped_at` is the smallest loss scale at which the run skipped a step, 0 where it skipped none.
    """

    kind: str
    precision: str
    own_loop: bool
    sampled: bool
    skipped_at: float

    def word(self, log2_scale: int) -> Word:
        if self._is_cut(log2_scale) or self._had_lost():
            return "lower bound"
        return "estimate" if self.sampled else "exact"

    def reasons(self, log2_scale: int) -> list[str]:
        """Sentences on what the numbers do not know, the weightiest first; none where they are exact."""
        reported: list[str] = []
        if self._is_cut(log2_scale):
            reported.append(L_("Below a scale of 1 this is a lower bound: more is lost on the way."))
        if self.skipped_at and self.kind in BACKWARD:
            scale = scale_text(self.skipped_at)
            reported.append(Sentence("The run itself skipped steps at a scale of {scale}.", scale=scale))
        if self._had_lost():
            reported.append(
                Sentence(
                    "Recorded in {precision}: what that had lost already is not counted.", precision=self.precision
                )
            )
        elif traits(self.precision).has_few_digits and self._was_rounded():
            reported.append(
                Sentence("Recorded in {precision}: its own rounding is not in the noise.", precision=self.precision)
            )
        if self.sampled:
            reported.append(L_("Estimated from samples: larger values may have been missed."))
        if self.own_loop and self.kind == "gradient":
            reported.append(L_("Gradients were seen after any clipping."))
        return reported

    def _is_cut(self, log2_scale: int) -> bool:
        """Whether the backward pass may have flushed more to zero than the record shows."""
        return log2_scale < 0 and self.kind in BACKWARD

    def _had_lost(self) -> bool:
        """Whether the run's own precision may have turned to zero or to Inf what is recorded."""
        if self.precision.startswith(EMULATED):
            return _is_narrow(self.precision.removeprefix(EMULATED)) and self._was_rounded()
        return traits(self.precision).has_narrow_range and self._was_rounded()

    def _was_rounded(self) -> bool:
        if traits(self.precision).is_stored_low:
            return True
        if traits(self.precision).autocast:
            return self.kind in (*BACKWARD, "activation")
        return self.kind in BACKWARD  # only the operands are rounded, and the record has the products


def basis_of(run: Run, kind: str, *, sampled: bool) -> Provenance:
    """`sampled` says that some rows hold sampled elements only."""
    skipped, scale = (run.series(name)[1] for name in ("skipped", "scale"))
    at = scale[: len(skipped)][skipped[: len(scale)] > 0]
    known = at[np.isfinite(at) & (at > 0)]
    least = float(known.min()) if len(known) and bool((scale != 1).any()) else 0.0
    return Provenance(kind, run.config.precision, run.config.task == OWN_LOOP, sampled, least)


@np.errstate(all="ignore")
def spread(share: NDArray[np.float64], sampled: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
    """The uncertainty of shares (n,) of `count` (n,) elements: two standard deviations; 0 where all were measured.

    `sampled` (n, 2): the number of sampled elements, and the number that they stand for. Wilson's interval for
    as many trials as there were blocks: as if all elements of a block were alike, which is more than it will be.
    """
    trials = sampled[:, 0] / BLOCK
    inner = share * (1 - share) / trials + _Z**2 / (4 * trials**2)
    upper = (share + _Z**2 / (2 * trials) + _Z * np.sqrt(np.maximum(inner, 0))) / (1 + _Z**2 / trials)
    part = np.minimum(sampled[:, 1] / count, 1)
    return np.where(trials > 0, np.nan_to_num(np.abs(upper - share) * part), 0.0)


def share_text(share: float, off: float = 0.0) -> str:
    """A share of 1 with the digits that matter: 0, below 0.01 %, 3.2 %; with a spread `off`, 0 says below what."""
    if isnan(share):
        return NOTHING
    percent = 100 * share
    if percent == 0 and off > 0:
        return f"< {100 * off:.0f} %" if off >= 0.01 else f"< {max(100 * off, 0.01):.1g} %"
    if percent == 0:
        return "0 %"
    if percent < 0.01:
        return "< 0.01 %"
    if 99 < percent < 100:
        return f"{min(percent, 99.99):.2f} %"
    return f"{percent:.2f} %" if percent < 10 else f"{percent:.0f} %"


def spread_text(share: float, off: float) -> str:
    """The share with its spread."""
    text = share_text(share, off)
    plus_minus = f"{100 * off:.0f}" if off >= 0.01 else f"{100 * off:.1g}"
    return f"{text.removesuffix(' %')} ± {plus_minus} %" if off > 0 and share > 0 and text[0] != "<" else text


def scale_text(scale: float) -> str:
    """2^16, or the number itself where it is no power of two."""
    mantissa, exponent = np.frexp(scale)
    return f"2^{int(exponent) - 1}" if mantissa == 0.5 else f"{scale:.6g}"


def _is_narrow(name: str) -> bool:
    try:
        return range_of(name).zero_below > _FP32_ZERO_BELOW
    except ValueError:
        return True  # no format with exponents of its own: blocks, integers
