"""Whether times, memory and energy of two runs may be compared, and in which settings two runs differ."""

from __future__ import annotations

from precgui.runs.study.figures import RunFigures


def why_no_time(run: RunFigures, baseline: RunFigures) -> str:
    """The reason for which times, memory and energy may not be compared; empty when there is none."""
    if run.emulated or baseline.emulated:
        return "emulated here"
    if (run.host, run.device) != (baseline.host, baseline.device):
        here, there = f"{run.device or 'a device'} on {run.host}", f"{baseline.device or 'a device'} on {baseline.host}"
        return f"another machine ({here}, the baseline {there})"
    if run.threads != baseline.threads:
        return f"another number of threads ({run.threads}, the baseline {baseline.threads})"
    return ""


def difference_of_settings(run: RunFigures, baseline: RunFigures) -> dict[str, tuple[object, object]]:
    """Fields of the config that differ, each with both values; title, seed and precision aside."""
    keys = sorted({*run.settings, *baseline.settings})
    return {
        key: (run.settings.get(key), baseline.settings.get(key))
        for key in keys
        if run.settings.get(key) != baseline.settings.get(key)
    }
