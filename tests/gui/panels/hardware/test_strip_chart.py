"""Strips of the Live tab: lines with gaps and extremes, counters from the first look, and bands of states."""

from __future__ import annotations

import os
import time

import numpy as np
from PySide6.QtCore import QRectF, Qt

from precgui.gui.panels.hardware import strip_chart
from precgui.gui.panels.hardware.live_tab import DeviceStrips
from precgui.gui.panels.hardware.strip_chart import Strip, lines
from precgui.hardware.device_readings import CpuReader, DeviceReading, Process, ProcessLoad, ProcessLoads
from precgui.hardware.readings import Missing


def test_that_energy_counts_from_the_first_look_and_from_a_reset(qtbot):
    strips = DeviceStrips("GPU 0")
    qtbot.addWidget(strips)
    shown = []
    for time_s, counter in enumerate((5000.0, 5250.0, 100.0, 130.0)):
        reading = DeviceReading("GPU 0", {"energy_j": counter}, ("power cap",), ())
        strips.take(float(time_s), reading, full=True)
        shown.append(strips.strips["energy_j"].current())
    assert shown == ["0 J", "250 J", "0 J", "30 J"]
    assert strips.strips["energy_j"].title == "Energy counter, since the start"


def test_that_clocks_that_the_hardware_cuts_are_worse_than_a_power_limit(qtbot):
    strips = DeviceStrips("GPU 0")
    qtbot.addWidget(strips)
    for reasons in ((), ("idle",), ("power cap",), ("power cap", "thermal, hardware")):
        strips.take(0.0, DeviceReading("GPU 0", {}, reasons, ()), full=True)
    assert [level for _, _, level in strips.reasons.states] == ["ok", "ok", "warning", "error"]


def test_that_a_strip_keeps_extremes_and_leaves_gaps():
    times = np.arange(0.0, 300.0, 0.05)
    values = np.full(times.size, 100.0)
    values[3000] = 900.0  # one reading among thousands
    values[4000:4400] = np.nan
    first, second = lines(times, values, QRectF(0, 20, 400, 50), 1000.0)
    assert min(point.y() for point in first) == 70 - 0.9 * 50  # type: ignore[attr-defined]
    assert first.last().x() < second.first().x() - 20
    assert len(first) + len(second) < 2 * 400 + 2


def test_that_a_strip_forgets_what_is_older_than_its_history(qtbot):
    strip = Strip("Power", "W")
    qtbot.addWidget(strip)
    for index in range(strip_chart.KEPT + 2000):
        strip.add(index * 0.05, 1.0)
    assert len(strip.times_s) <= strip_chart.KEPT
    assert strip.times_s[-1] - strip.times_s[0] >= strip_chart.HISTORY_S
    assert not strip.grab().isNull()


def test_that_the_load_of_each_core_and_the_busiest_programs_are_shown(qtbot):
    strips = DeviceStrips("CPU")
    qtbot.addWidget(strips)
    strips.show()
    none = Missing("the system does not tell")
    assert strips.cores.isHidden()
    busiest = (ProcessLoad(7, "python", 187.0, 3 * 2**30, "python train.py"), ProcessLoad(9, "<b>x</b>", 3.0))
    strips.take(1.0, DeviceReading("CPU", {"utilisation": 50.0}, none, none, (100.0, 0.0), busiest), full=True)
    assert strips.cores.isVisible()
    assert strips.cores.accessibleDescription() == "core 0: 100 %, core 1: 0 %"
    assert strips.busiest.texts() == [
        ("python", "7", "187", "3.0 GiB", "python train.py"),
        ("<b>x</b>", "9", "3", "", ""),
    ]
    assert "<b>" not in strips.busiest.model().index(1, 0).data(Qt.ItemDataRole.ToolTipRole)


def test_that_the_programs_on_a_device_are_listed_where_it_names_them(qtbot):
    strips = DeviceStrips("GPU 0")
    qtbot.addWidget(strips)
    strips.show()
    none = Missing("the driver does not tell")
    strips.take(1.0, DeviceReading("GPU 0", {}, none, none), full=True)
    assert strips.processes.isHidden()
    programs = (Process(7, "python", 3 * 2**30), Process(9, "Xorg", none))
    strips.take(2.0, DeviceReading("GPU 0", {}, none, programs), full=True)
    assert [row[2] for row in strips.processes.texts()] == ["3.0 GiB", ""]
    assert strips.processes.isVisible()
    strips.take(3.0, DeviceReading("GPU 0", {}, none, ()), full=True)
    assert strips.processes.isHidden()


def test_that_the_memory_and_command_of_a_busy_program_are_read():
    loads = ProcessLoads()
    assert loads.busiest() == ()
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    own = next(each for each in loads.busiest(count=1000) if each.pid == os.getpid())
    assert own.memory_bytes > 2**20
    assert own.command


def test_that_the_host_tells_the_load_of_each_core_when_asked_in_detail():
    plain, detailed = CpuReader(), CpuReader(detailed=True)
    first, second = detailed.everything(), detailed.everything()
    assert plain.everything().core_loads == ()
    assert first.core_loads == ()
    assert len(second.core_loads) >= 1
    assert all(0 <= load <= 100 for load in second.core_loads)
    assert first.busiest == ()
    assert second.busiest is None
