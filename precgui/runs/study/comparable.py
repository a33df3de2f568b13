"""In which settings two runs of a study differ."""

from __future__ import annotations

from precgui.runs.known_settings import NOT_KNOWN
from precgui.runs.study.figures import RunFigures


def difference_of_settings(run: RunFigures, baseline: RunFigures) -> dict[str, tuple[object, object]]:
    """Settings that differ, each with both values; title, seed and precision aside, and those that are not known."""
    keys = sorted({*run.settings, *baseline.settings})
    values = {key: (run.settings.get(key, NOT_KNOWN), baseline.settings.get(key, NOT_KNOWN)) for key in keys}
    return {key: pair for key, pair in values.items() if pair[0] != pair[1] and NOT_KNOWN not in pair}
