"""The section of a config that says what is asked of the devices' power: an idle baseline, and a limit."""

from __future__ import annotations

from pydantic import Field

from precgui.config.sections import Section
from precgui.sentences import L_


class PowerConfig(Section):
    """Neither moves what is learned; a limit moves the time of a step and its energy."""

    idle_s: float = Field(
        0.0,
        ge=0,
        le=600,
        title=L_("Idle baseline"),
        description=L_("The power of the idle devices is read for so long before the run. 0: not at all."),
        json_schema_extra={"rare": True, "unit": "s"},
    )
    limit_w: float | None = Field(
        None,
        gt=0,
        le=100_000,
        title=L_("Power limit"),
        description=L_(
            "Of the GPU that trains: set for the run and set back after it. NVIDIA's driver lets an "
            "administrator alone do so. Empty: as it is."
        ),
        json_schema_extra={"rare": True, "unit": "W"},
    )
