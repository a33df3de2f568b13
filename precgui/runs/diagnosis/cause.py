"""The cause of a step that is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from precgui.runs.diagnosis.findings import UNDECIDED, Blame, Certainty, Evidence


@dataclass(frozen=True)
class Cause:
    """`rule` is the name of the finding, `short` a clause for titles."""

    rule: str
    short: str
    fix: str
    evidence: tuple[Evidence, ...] = ()
    module: str = ""
    config_change: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 0.8
    certainty: Certainty = "exact"
    tensors: tuple[str, ...] = ()
    blame: Blame = UNDECIDED
