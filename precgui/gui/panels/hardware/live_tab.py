"""The Live tab: what the sensors read now and read in the last minutes. Polls only while it is visible."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from PySide6.QtCore import QRectF, QTimer
from PySide6.QtGui import QColor, QHideEvent, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.kit.table import TextTable
from precgui.gui.panels.hardware.cards import label, scrolled
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.gui.panels.hardware.strip_chart import TEXT_PX, Band, Severity, Strip
from precgui.gui.theme import themes
from precgui.hardware.clock_reasons import CLOCK_REASONS
from precgui.hardware.device_readings import QUANTITIES, DeviceReading, Process
from precgui.hardware.live import HardwareSnapshot, LivePoller
from precgui.hardware.readings import Missing, Reading, gibibytes
from precgui.words import _, paragraph, translated

DRAW_MS = 500
GIB = 2.0**30
COLUMNS = 3
# Quantities that are lines in other strips.
_LIMITS = {"power_limit_w": ("power_instant_w", "power_average_w"), "memory_total_bytes": ("memory_used_bytes",)}
_WARNS = {word for word, _, warns in CLOCK_REASONS.values() if warns}
_BY_HARDWARE = {CLOCK_REASONS[bit][0] for bit in (0x8, 0x40, 0x80)}  # halves the clocks or worse
_COUNTERS = ("energy_j", "energy_integrated_j")  # counters, displayed relative to their first reading
_BAR_PX, _GAP_PX = 40, 2
_BUSY = 90.0  # percent from which a core is drawn in the colour of a warning


class DeviceStrips(QWidget):
    """All strips of one device. Readings that it does not support are one line of text, not empty strips."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.strips: dict[str, Strip] = {}
        self.reasons = Band(_("Clocks held by"))
        self.cores = CoreBars()
        self.busiest = ProgramTable((_("Busiest programs"), "PID", _("% of one core"), _("Memory"), _("Command")))
        self.processes = ProgramTable((_("Programs on this device"), "PID", _("Memory")))
        self.missing = label("", "muted")
        self._absent: dict[str, str] = {}
        self._first: dict[str, float] = {}
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(24)
        self._grid.setVerticalSpacing(12)
        for column_index in range(COLUMNS):
            self._grid.setColumnStretch(column_index, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 12)
        column.addWidget(label(device, "heading"))
        column.addLayout(self._grid)
        for widget in (self.cores, self.busiest, self.reasons, self.processes, self.missing):
            column.addWidget(widget)
            widget.hide()

    def take(self, time_s: float, reading: DeviceReading, full: bool) -> None:
        for name, value in reading.values.items():
            self._take_value(time_s, name, value)
        if reading.core_loads:
            self.cores.show_loads(reading.core_loads)
            self.cores.show()
        if reading.busiest:
            self.busiest.show_rows(
                [
                    (each.name, str(each.pid), f"{each.cpu_percent:.0f}", _gib(each.memory_bytes), each.command)
                    for each in reading.busiest
                ]
            )
            self.busiest.show()
        if full:
            self._take_reasons(time_s, reading.reasons)
            self._take_processes(reading.processes)
            names = [f"{translated(QUANTITIES[name][0])}: {translated(why)}" for name, why in self._absent.items()]
            listed = _("Not available. {names}.").format(names="; ".join(names))
            self.missing.setText(listed if names else "")
            self.missing.setVisible(bool(names))

    def _take_value(self, time_s: float, name: str, value: Reading[float]) -> None:
        if isinstance(value, Missing):
            if name in self.strips:
                self.strips[name].add(time_s, math.nan, translated(value.reason))
            elif value.lasting:
                self._absent[name] = value.reason
            return
        value = value / GIB if name.endswith("_bytes") else value
        if name in _LIMITS:
            for limited in _LIMITS[name]:
                if limited in self.strips:
                    self.strips[limited].limit = value
        elif not math.isnan(value):
            if name not in self.strips:
                self._add_strip(name)
            self.strips[name].add(time_s, self._since_start(name, value) if name in _COUNTERS else value)

    def _since_start(self, name: str, value: float) -> float:
        """Increase of a counter since it was first read, or since it was reset."""
        if value < self._first.setdefault(name, value):
            self._first[name] = value
        return value - self._first[name]

    def _add_strip(self, name: str) -> None:
        title, unit = QUANTITIES[name]
        title = translated(title)
        if name in _COUNTERS:
            title = _("{title}, since the start").format(title=title)
        percent = unit == "%"
        strip = Strip(title, "GiB" if unit == "B" else unit, 100.0 if percent else None)
        self.strips[name] = strip
        for place, known in enumerate(sorted(self.strips, key=list(QUANTITIES).index)):
            self._grid.addWidget(self.strips[known], place // COLUMNS, place % COLUMNS)

    def _take_reasons(self, time_s: float, reasons: Reading[tuple[str, ...]]) -> None:
        if isinstance(reasons, Missing):
            return
        self.reasons.show()
        level: Severity = "error" if _BY_HARDWARE & set(reasons) else "warning" if _WARNS & set(reasons) else "ok"
        self.reasons.add(time_s, ", ".join(map(translated, reasons)) or _("nothing"), level)

    def _take_processes(self, processes: Reading[tuple[Process, ...]]) -> None:
        if isinstance(processes, Missing):
            return
        self.processes.show_rows([(each.name, str(each.pid), _gib(each.memory_bytes)) for each in processes])
        self.processes.setVisible(bool(processes))

    def draw(self) -> None:
        for strip in self.strips.values():
            strip.update()
        self.reasons.update()


class LiveTab(QWidget):
    """Strips by device. The poller's thread fills a queue, a timer empties it."""

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self._queue: deque[HardwareSnapshot] = deque(maxlen=2000)
        self._poller = LivePoller(self._queue.append)
        self._base_s = self._last_s = 0.0
        self.devices: dict[str, DeviceStrips] = {}
        self.pause = QPushButton(_("Pause"))
        self.pause.setCheckable(True)
        self.pause.setToolTip(_("Polling keeps a sleeping laptop GPU awake"))
        self.pause.toggled.connect(self._switch)
        self.caption = label("", "muted")
        self._timer = QTimer(self, interval=DRAW_MS)
        self._timer.setObjectName("draw")
        self._timer.timeout.connect(self._drain)
        self._lay_out()
        model.machine_changed.connect(self._tell)
        self._model = model
        self._tell()
        self.destroyed.connect(self._poller.stop)

    def _lay_out(self) -> None:
        top = QHBoxLayout()
        top.addWidget(self.caption, 1)
        top.addWidget(self.pause)
        page = QWidget()
        self._column = QVBoxLayout(page)
        self._column.setContentsMargins(4, 8, 12, 8)
        self._column.addStretch(1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(4, 12, 4, 4)
        outer.addLayout(top)
        outer.addWidget(scrolled(page), 1)

    def _tell(self) -> None:
        machine = self._model.machine
        if self._model.place is not None:
            name = self._model.place_name
            text = _(
                "These are readings of this machine; `precgui detect --watch 60 --place {place}` prints those there."
            )
            self.caption.setText(text.format(place=name))
            return
        sensors = machine.sensors if machine else ()
        sentences = [_("Power 20 times a second.")] if any(sensor.available for sensor in sensors) else []
        sentences.append(_("The last 5 minutes."))
        sentences += [translated(sensor.message) for sensor in sensors if not sensor.available]
        self.caption.setText(paragraph(*sentences))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._switch(self.pause.isChecked())

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._switch(True)

    def _switch(self, paused: bool) -> None:
        if paused:
            self._timer.stop()
            self._poller.stop()
        elif not self._timer.isActive():
            self._drain()
            self._base_s = self._last_s
            self._poller.start()
            self._timer.start()

    def _drain(self) -> None:
        while self._queue:
            snapshot = self._queue.popleft()
            self._last_s = self._base_s + snapshot.time_s
            for reading in snapshot.devices:
                self._strips(reading.device).take(self._last_s, reading, snapshot.full)
        for strips in self.devices.values():
            strips.draw()

    def _strips(self, device: str) -> DeviceStrips:
        if device not in self.devices:
            self.devices[device] = DeviceStrips(device)
            self._column.insertWidget(self._column.count() - 1, self.devices[device])
        return self.devices[device]


def _gib(count: Reading[int]) -> str:
    return "" if isinstance(count, Missing) else gibibytes(count)


class ProgramTable(TextTable):
    """As high as its rows need; the first column names what is listed."""

    def __init__(self, columns: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(columns, columns[0], parent)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Show these programs in the place of those before."""
        self.fill(rows)
        self.horizontalHeader().ensurePolished()  # else its height is that of another style
        self.setFixedHeight(self.height_px(len(rows)))


class CoreBars(QWidget):
    """One bar for each logical core, as high as the share of the last half second in which it worked."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: tuple[float, ...] = ()
        self.setFixedHeight(TEXT_PX + _BAR_PX + 4)
        self.setMinimumWidth(200)
        self.setAccessibleName(_("Load of each core"))

    def show_loads(self, loads: Sequence[float]) -> None:
        """Draw these loads, in percent."""
        self.loads = tuple(loads)
        words = ", ".join(
            _("core {core}: {load:.0f} %").format(core=core, load=load) for core, load in enumerate(self.loads)
        )
        self.setAccessibleDescription(words)
        self.setToolTip(plain_tip(words))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = themes().theme
        painter = QPainter(self)
        painter.setPen(QColor(theme.muted))
        busy = sum(load >= _BUSY for load in self.loads)
        painter.drawText(
            0, TEXT_PX - 5, _("Load of each core: {busy} of {count} busy").format(busy=busy, count=len(self.loads))
        )
        width = min(24.0, (self.width() + _GAP_PX) / max(len(self.loads), 1) - _GAP_PX)
        for place, load in enumerate(self.loads):
            left, high = place * (width + _GAP_PX), _BAR_PX * min(load, 100.0) / 100
            painter.fillRect(QRectF(left, TEXT_PX, width, _BAR_PX), QColor(theme.line))
            colour = theme.warning if load >= _BUSY else theme.accent
            painter.fillRect(QRectF(left, TEXT_PX + _BAR_PX - high, width, high), QColor(colour))
        painter.end()
