"""The load of the host: from the kernel's own text, and missing where there is none."""

import math
from pathlib import Path

from precgui.hardware.device_state import HostLoadReader


def _pressure(folder: Path, total_us: int) -> Path:
    path = folder / "cpu"
    path.write_text(f"some avg10=1.00 avg60=0.50 avg300=0.10 total={total_us}\nfull avg10=0.00 total=0\n")
    return path


def test_that_pressure_is_the_share_of_the_time_since_the_reading_before(tmp_path: Path) -> None:
    reader = HostLoadReader(10.0, _pressure(tmp_path, 1_000_000))
    _pressure(tmp_path, 1_500_000)
    first = reader.read(12.0)
    assert (first.time_s, first.cpu_pressure) == (12.0, 0.25)
    assert reader.read(13.0).cpu_pressure == 0.0
    assert math.isnan(reader.read(13.0).cpu_pressure)  # no time has passed


def test_that_a_system_without_pressure_gives_nan(tmp_path: Path) -> None:
    assert math.isnan(HostLoadReader(0.0, tmp_path / "none").read(1.0).cpu_pressure)
    (tmp_path / "odd").write_text("of another kernel")
    assert math.isnan(HostLoadReader(0.0, tmp_path / "odd").read(1.0).cpu_pressure)


def test_that_this_system_has_a_load_and_counts_preemptions() -> None:
    reading = HostLoadReader(0.0).read(1.0)
    assert math.isnan(reading.load) or reading.load >= 0
    assert math.isnan(reading.preemptions) or reading.preemptions >= 0
