"""Why a plot of what devices tell is empty, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from precgui.gui.plots.signals import Signal

if TYPE_CHECKING:
    from precgui.gui.state import OpenRun


def device_sentences(runs: Sequence[OpenRun], signal: Signal) -> str:
    """Why no device of these runs told this signal."""
    if any(opened.run.status == "running" and not opened.run.state_devices() for opened in runs):
        return "Waiting for the first value."
    if not any(opened.run.state_devices() for opened in runs):
        return "What the devices did was not recorded in these runs."
    lines: list[str] = []
    for opened in runs:
        for sensor in opened.run.environment.get("power_sensors") or ():
            name, untold = sensor.get("name", "GPU"), sensor.get("untold")
            if isinstance(untold, dict) and signal.series[0] in untold:
                lines.append(f"{name}: not available: {untold[signal.series[0]]}.")
            elif name == "NVML" and not sensor.get("found"):
                lines.append(f"NVML: {sensor.get('reason')}")
    return "\n".join(dict.fromkeys([f"{signal.title}: not measured in these runs.", *lines]))


def power_sentences(runs: Sequence[OpenRun]) -> str:
    """Which power sensors were looked for in these runs, and why there is none."""
    lines: list[str] = []
    for opened in runs:
        for sensor in opened.run.environment.get("power_sensors") or ():
            line = f"{sensor.get('name', 'sensor')}: {sensor.get('reason') or 'no reading yet'}"
            if line not in lines:
                lines.append(line)
    if not lines:
        running = any(opened.run.status == "running" for opened in runs)
        return "Looking for power sensors." if running else "The file does not say which power sensors were looked for."
    return "\n".join(["No power was measured. These sensors were looked for:", *lines])
