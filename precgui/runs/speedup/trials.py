"""A suggested change as it was measured in pairs: a gain, none, or not decided."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precgui.runs.verdict.paired import paired_difference
from precgui.sentences import L_, Sentence, kept_text, without_stop

TRIAL_S = 10.0  # the most for one change
_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """Samples a second with a change over those without it: the median of the rounds and its 95 % interval.

    `fault` says why there are none; then both are None.
    """

    gain: float | None
    interval: tuple[float, float] | None
    fault: str = ""

    @property
    def is_gain(self) -> bool:
        """Whether the change is faster for certain."""
        return self.interval is not None and self.interval[0] > 1

    @property
    def in_words(self) -> str:
        """The result as a sentence."""
        if self.gain is None or self.interval is None:
            return Sentence("It could not be tried here: {reason}.", reason=without_stop(self.fault))
        low, high = self.interval
        told = Sentence(
            "Tried here in pairs: {gain:.2f} [{low:.2f}, {high:.2f}] times as many samples a second",
            gain=self.gain, low=low, high=high,
        )  # fmt: skip
        if low > 1:
            return Sentence("{result}.", result=told)
        if high < 1:
            return Sentence("{result}, so it is no gain here.", result=told)
        return Sentence("{result}, so a gain is not certain.", result=told)


def trial_of(profile: Mapping[str, Any], settings: Mapping[str, str]) -> Trial | None:
    """The trial of these settings; None where none was made, as in older profiles."""
    for row in profile.get("trials") or ():
        if row["settings"] == dict(settings):
            return _trial(row["gains"], kept_text(row["fault"]))
    return None


def _trial(gains: Sequence[float], fault: str) -> Trial:
    values = [float(gain) for gain in gains]
    if len(values) < _LEAST_ROUNDS or min(values) <= 0:
        return Trial(None, None, fault or L_("it was stopped before there were enough pairs"))
    low, high = paired_difference([math.log(value) for value in values]).interval(0.95)
    gain = statistics.median(values)
    return Trial(gain, (min(math.exp(low), gain), max(math.exp(high), gain)))
