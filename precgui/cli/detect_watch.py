"""`precgui detect --watch`: present readings of every device, twice a second, until Ctrl+C or for some seconds."""

from __future__ import annotations

import argparse
import json
import math
import queue

from precgui.cli.terminal import say
from precgui.hardware.clock_reasons import CLOCK_REASONS
from precgui.hardware.device_readings import QUANTITIES, DeviceReading
from precgui.hardware.live import HardwareSnapshot, LivePoller
from precgui.hardware.readings import Missing, gibibytes, known
from precgui.words import _, translated

UNTIL_STOPPED = math.inf
_WAIT_S = 5.0  # for a snapshot; a driver that does not answer must not hide Ctrl+C
_WARNS = {word for word, _, warns in CLOCK_REASONS.values() if warns}


def seconds(text: str) -> float:
    """A number of seconds above 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            _("{text!r} is no number of seconds above 0; leave it out to watch until Ctrl+C").format(text=text)
        )
    return value


def watch(duration_s: float, *, as_json: bool) -> int:
    """Print a line for each device and moment, with `as_json` one JSON document a line. Returns 0, after Ctrl+C too."""
    snapshots: queue.SimpleQueue[HardwareSnapshot] = queue.SimpleQueue()
    poller, told = LivePoller(snapshots.put), set[str]()
    poller.start()
    try:
        while True:
            try:
                snapshot = snapshots.get(timeout=_WAIT_S)
            except queue.Empty:
                continue
            if snapshot.full:
                _print(snapshot, told, as_json=as_json)
            if snapshot.time_s >= duration_s:
                return 0
    except KeyboardInterrupt:
        return 0
    finally:
        poller.stop()


def _print(snapshot: HardwareSnapshot, told: set[str], *, as_json: bool) -> None:
    if as_json:
        devices = [_document(reading) for reading in snapshot.devices]
        say(json.dumps({"time_s": snapshot.time_s, "devices": devices}, allow_nan=False), flush=True)
        return
    for reading in snapshot.devices:
        say(f"{snapshot.time_s:7.1f} s  {reading.device}: {_sentence(reading)}", flush=True)
        if reading.device not in told:
            told.add(reading.device)
            _say_missing(reading)


def _document(reading: DeviceReading) -> dict[str, object]:
    values = {name: known(value) for name, value in reading.values.items()}
    finite = {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
    reasons = known(reading.reasons)
    return {"device": reading.device, **finite, "clock_reasons": None if reasons is None else list(reasons)}


def _sentence(reading: DeviceReading) -> str:
    parts = []
    for name, value in reading.values.items():
        title, unit = QUANTITIES[name]
        title = translated(title)
        if isinstance(value, Missing) or not math.isfinite(value):
            continue
        parts.append(f"{title.lower() if title[1:2].islower() else title} {_text(value, unit)}")
    held = [word for word in known(reading.reasons) or () if word in _WARNS]
    if held:
        parts.append(_("clocks held by {held}").format(held=", ".join(map(translated, held))))
    return ", ".join(parts) or _("no readings")


def _text(value: float, unit: str) -> str:
    return gibibytes(int(value)) if unit == "B" else f"{value:.0f} {unit}"


def _say_missing(reading: DeviceReading) -> None:
    lasting = {name: value for name, value in reading.values.items() if isinstance(value, Missing) and value.lasting}
    if lasting:
        missing = "; ".join(
            f"{translated(QUANTITIES[name][0])}: {translated(value.reason)}" for name, value in lasting.items()
        )
        say("           " + _("not available: {reason}").format(reason=missing))
