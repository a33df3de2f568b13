"""The claims of guides and papers on what a precision saves and costs, as ranges that a study can test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from precgui.paths import resources
from precgui.sentences import Sentence

Quantity = Literal[
    "speedup", "time_saved", "memory_saved", "energy_saved", "points_lost", "skipped_share", "failed_share"
]  # fmt: skip


@dataclass(frozen=True)
class GuideClaim:
    """A claim as a range of a quantity, `low` to `high`, None for no bound; `conditions` name its device.

    `url` is the page that says it, `was_read` whether it was opened for the table; "no loss" is read as less than half
    a point.
    """

    id: str
    sentence: str
    source: str
    quantity: Quantity
    precisions: tuple[str, ...]
    low: float | None
    high: float | None
    was_read: bool
    conditions: Mapping[str, str] = field(default_factory=dict)
    url: str = ""

    @property
    def cited(self) -> str:
        """The source, with a word where its page was not opened."""
        if self.was_read:
            return self.source
        return Sentence("{source} (page not opened for this table)", source=self.source)


@lru_cache(maxsize=1)
def guide_claims() -> tuple[GuideClaim, ...]:
    """The claims of `resources/facts/guide_claims.json`."""
    tree = json.loads((resources() / "facts" / "guide_claims.json").read_text(encoding="utf-8"))
    return tuple(GuideClaim(**{**claim, "precisions": tuple(claim["precisions"])}) for claim in tree["claims"])


def claims_of(precision: str) -> list[GuideClaim]:
    """The claims about one precision, for the place where it is chosen."""
    return [claim for claim in guide_claims() if precision in claim.precisions]
