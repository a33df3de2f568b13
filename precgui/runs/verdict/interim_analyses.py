"""When a sweep is judged: at numbers of seeds that were fixed before its first run.

Whoever adds seeds until a difference is "significant" is wrong in 18 % of the cases instead of 5 % (measured with
looks at 3, 4 ... 12 seeds). So verdicts are made at fixed numbers of seeds, each at a smaller alpha (Pocock 1977).
"""

from __future__ import annotations

from dataclasses import dataclass

POCOCK = {1: 0.05, 2: 0.0294, 3: 0.0221}  # alpha of each look, so that all together err in 5 %
MOST_LOOKS = max(POCOCK)


@dataclass(frozen=True)
class InterimAnalyses:
    """The numbers of seeds at which verdicts are made, rising. Raises ValueError for a plan that cannot be."""

    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.seeds) <= MOST_LOOKS or min(self.seeds) < 3 or sorted(set(self.seeds)) != [*self.seeds]:
            text = ", ".join(str(n) for n in self.seeds)
            raise ValueError(f"looks at {text or 'no'} seeds: name one to {MOST_LOOKS} rising numbers, the least is 3")

    @property
    def alpha(self) -> float:
        """The level of each look."""
        return POCOCK[len(self.seeds)]

    def reached(self, n: int) -> int | None:
        """The number of seeds of the last look that n seeds have reached; None before the first."""
        return max((view for view in self.seeds if view <= n), default=None)

    def after(self, n: int) -> int | None:
        """The number of seeds of the next look; None after the last."""
        return min((view for view in self.seeds if view > n), default=None)


DEFAULT_LOOKS = InterimAnalyses((5, 10))


def planned_looks(seeds: int) -> InterimAnalyses:
    """The looks of a sweep that begins with so many seeds: at 5 and 10, else at that number and at its double."""
    return DEFAULT_LOOKS if seeds in (*range(1, 3), 5, 10) else InterimAnalyses((seeds, 2 * seeds))
