"""The proof of a finding, on its way from Diagnose to the plots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precgui.runs.diagnosis.findings import Evidence, Finding


@dataclass(frozen=True)
class Proof:
    """A finding of the open run `key`; `more` leads to the tab of Inspect that is about it, if there is one."""

    key: str
    finding: Finding
    more: Callable[[], object] | None = None

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The evidence that can be drawn: recorded numbers over steps."""
        return tuple(each for each in self.finding.evidence if len(each.series) > 1)
