"""RAPL through Linux's powercap: the energy counters of CPU packages and their memory.

Top-level `package` zones and their `dram` parts are read; `core` and `uncore` are inside a package, `psys` contains
the packages, and `intel-rapl-mmio` repeats them, so none of these is counted a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from precgui.hardware.readings import Missing, Reading
from precgui.sentences import Sentence

POWERCAP = Path("/sys/class/powercap")
_HIGHEST_BELIEVABLE_W = 5_000.0  # a step above this is a reset of the counter (suspend), not a wrap-around
_HIGHEST_MEAN_W = 1_000.0  # that one package can use for many seconds: a bound on how soon its counter may wrap twice
_SILENT_S = 2.0  # after a longer silence, a counter that stands lower may have wrapped or been reset


@dataclass(frozen=True, slots=True)
class Zone:
    """One counter: `folder` holds `energy_uj` (microjoules, wraps after `range_j`)."""

    device: str
    folder: Path
    range_j: float

    def read_j(self) -> Reading[float]:
        """The counter in joules, from an arbitrary zero."""
        try:
            return int((self.folder / "energy_uj").read_text()) * 1e-6
        except PermissionError:
            return Missing(
                Sentence(
                    "the energy counter of {device} is readable by root only; `sudo chmod a+r "
                    "{folder}/energy_uj` opens it until the next boot",
                    device=self.device,
                    folder=self.folder,
                )
            )
        except (OSError, ValueError) as error:
            return Missing(
                Sentence("the energy counter of {device} cannot be read: {error}", device=self.device, error=error),
                lost=True,
            )


def energy_between(before_j: float, after_j: float, range_j: float, interval_s: float) -> float | None:
    """Joules used between two readings, across at most one wrap-around.

    None when the counter was reset meanwhile, or when the readings lie so far apart that it is not known how often it
    wrapped: a counter of 65 kJ bridges a silence of 65 s, of 2 s where it stands lower than before.
    """
    used_j = after_j - before_j
    if interval_s * _HIGHEST_MEAN_W >= range_j:
        return None
    if used_j < 0:
        if interval_s > _SILENT_S:
            return None
        used_j += range_j
    believable = 0 <= used_j <= _HIGHEST_BELIEVABLE_W * max(interval_s, 1e-3)
    return used_j if believable else None


def zones() -> Reading[list[Zone]]:
    """The counters to read, packages before memory, or why there is none."""
    if not POWERCAP.is_dir():
        return Missing(Sentence("{powercap} does not exist", powercap=POWERCAP))
    results = [zone for folder in sorted(POWERCAP.glob("intel-rapl:*")) if (zone := _zone(folder))]
    if not results:
        return Missing(Sentence("{powercap} has no package counter", powercap=POWERCAP))
    return sorted(results, key=lambda zone: (zone.device.startswith("DRAM"), zone.device))


def _zone(folder: Path) -> Zone | None:
    """`package-N` and `dram` become devices named after their package; other zones are None."""
    name = _text(folder / "name")
    parent_name = _text(folder.parent / folder.name.rsplit(":", 1)[0] / "name")
    if name.startswith("package-"):
        device: str = Sentence("CPU package {number}", number=name.removeprefix("package-"))
    elif name == "dram":
        device = f"DRAM {parent_name.removeprefix('package-')}"
    else:
        return None
    top = _text(folder / "max_energy_range_uj")
    return Zone(device, folder, int(top) * 1e-6 if top.isdigit() else 2**32 * 1e-6)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
