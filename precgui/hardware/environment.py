"""The environment of a run, as far as it is known without torch: the `/environment` of its file."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

from precgui import __version__
from precgui.hardware.power import SensorReport
from precgui.hardware.summary import versions

PLACE_VARIABLE = "PRECGUI_PLACE"
SENT_CODE_VARIABLE = (
    "PRECGUI_SENT_CODE"  # in a job at a place: the names of the files that were sent; no other code runs
)
_LIBRARIES = ("torch", "torchvision", "torchao", "numpy", "h5py", "nvidia-ml-py")


def environment(sensors: Sequence[SensorReport], libraries: Sequence[str] = ()) -> dict[str, Any]:
    """Versions, and which power sensors there are or why not; `libraries` are distributions named beside the usual.

    `place` is there for a run that another machine has asked for: the name that it has for this one.
    """
    place = os.environ.get(PLACE_VARIABLE)
    return {
        **({"place": place} if place else {}),
        "precgui": __version__,
        "python": platform.python_version(),
        "libraries": {name: version for name, version in versions((*_LIBRARIES, *libraries)).items() if version},
        "power_sensors": [
            {
                "name": sensor.device or sensor.source,
                "found": sensor.available,
                "reason": sensor.reason,
                "unavailable": dict(sensor.unavailable),
            }
            for sensor in sensors
        ],
    }
