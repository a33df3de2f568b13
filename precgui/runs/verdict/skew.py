"""Whether paired differences are seen to be skewed, so that their t interval is wrong more often than its level says.

The measure is the sample skewness sqrt(b1) = m3 / m2^1.5 with the moments about the mean. It is held against the points
that the skewness of normal values exceeds in 5 % (both sides): of 5 to 7 values by D'Agostino and Tietjen 1973
(Biometrika 60, 169), of more by the transformation of D'Agostino 1970 (Biometrika 57, 679).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from precgui.sentences import L_, filled

_OF_FEW = {5: 1.207, 6: 1.239, 7: 1.231}
_NORMAL_975 = 1.959964
FEWEST = min(_OF_FEW)
SKEWED = L_(
    "the differences are skewed (skewness {skewness:+.1f}; normal values stay within {limit:.1f} in 95 %): the "
    "t interval is wrong more often than its level says"
)


def skewness(values: Sequence[float]) -> float:
    """The sample skewness, m3 / m2^1.5; 0 where all values are equal."""
    deviations = np.asarray(values, np.float64) - np.mean(values)
    second = float(np.mean(deviations**2))
    return float(np.mean(deviations**3)) / second**1.5 if second > 0 else 0.0


def limit_of(n: int) -> float:
    """The size of the skewness that n normal values exceed in 5 %; infinite below five, of which none can be told."""
    if n < FEWEST:
        return math.inf
    if n in _OF_FEW:
        return _OF_FEW[n]
    kurtosis = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    w_squared = math.sqrt(2 * (kurtosis - 1)) - 1
    delta, alpha = 1 / math.sqrt(0.5 * math.log(w_squared)), math.sqrt(2 / (w_squared - 1))
    return alpha * math.sinh(_NORMAL_975 / delta) / math.sqrt((n + 1) * (n + 3) / (6 * (n - 2)))


def skew_caution(values: Sequence[float], grain: float = 0.0) -> str:
    """A clause on skewed differences; empty where no skew is seen.

    Values that spread by no more than the `grain` of the metric are two or three steps of it, whose skewness says
    nothing.
    """
    if len(values) < FEWEST or float(np.std(values, ddof=1)) <= grain:
        return ""
    own, limit = skewness(values), limit_of(len(values))
    return filled(SKEWED, skewness=own, limit=limit) if abs(own) > limit else ""
