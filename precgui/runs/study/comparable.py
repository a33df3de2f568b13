"""In which settings two runs of a study differ."""

from __future__ import annotations

from precgui.runs.study.figures import RunFigures


def difference_of_settings(run: RunFigures, baseline: RunFigures) -> dict[str, tuple[object, object]]:
    """Fields of the config that differ, each with both values; title, seed and precision aside."""
    keys = sorted({*run.settings, *baseline.settings})
    return {
        key: (run.settings.get(key), baseline.settings.get(key))
        for key in keys
        if run.settings.get(key) != baseline.settings.get(key)
    }
