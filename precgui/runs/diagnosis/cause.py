"""The cause of a step that is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from precgui.runs.diagnosis.findings import Certainty, Evidence


@dataclass(frozen=True)
class Cause:
    """`rule` is the name of the finding, `short` a clause for titles, `blame` whether precision is the cause."""

    rule: str
    short: str
    blame: bool | None
    fix: str
    evidence: tuple[Evidence, ...] = ()
    module: str = ""
    config_change: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
    confidence: float = 0.8
    certainty: Certainty = "exact"
    tensors: tuple[str, ...] = ()
