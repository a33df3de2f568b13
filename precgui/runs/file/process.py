"""Which process writes a file, and whether it is still running."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

_PROC = Path("/proc")
_CLOCK_SLACK_S = 10.0  # the start time of a process moves when the system clock is set
_BOOT_SLACK_S = 60.0  # clocks of two machines differ, and a machine is down for a while before it begins anew
_START_TICKS = 19  # of /proc/PID/stat, counted after the name: field 22, in clock ticks since boot (man 5 proc)
_DEAD_STATES = ("Z", "X", "x")


def this_process() -> dict[str, Any]:
    """Values that identify this process for all time: pids are reused, and clocks are set.

    `boot_id` and `start_ticks` (since boot) do not depend on the clock, but Linux alone has them; elsewhere they are
    left out, and `process_started` is compared.
    """
    reported: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    try:
        reported["process_started"] = psutil.Process().create_time()
    except (psutil.Error, OSError):  # nothing to read it from
        reported["process_started"] = None
    own = _state_and_ticks(os.getpid())
    if own is not None and (boot_id := _boot_id()):
        reported |= {"boot_id": boot_id, "start_ticks": own[1], "pid_namespace": _pid_namespace()}
    return reported


def is_gone(writer: Mapping[str, Any]) -> bool | None:
    """Whether the process has ended; None when that is not known here (another host, no record).

    `writer` are the values of `this_process`, or a beat, which has them, too, with the `time` at which it was written.
    """
    pid = writer.get("pid")
    if writer.get("host") != socket.gethostname() or not isinstance(pid, int) or not 0 < pid < 1 << 31:
        return None
    boot_id, ticks = writer.get("boot_id"), writer.get("start_ticks")
    if isinstance(boot_id, str) and isinstance(ticks, int) and (own_boot_id := _boot_id()):
        if boot_id != own_boot_id:
            return None if _has_lived_since_boot(writer) else True
        return _is_gone_since_boot(pid, ticks, writer.get("pid_namespace"))
    return _is_gone_by_clock(pid, writer.get("process_started"))


def _has_lived_since_boot(writer: Mapping[str, Any]) -> bool:
    """Whether a process of another boot began or beat since this machine was booted: then it is of another machine.

    Machines that were made of one image may have one host name.
    """
    try:
        began = psutil.boot_time()
        beat = datetime.fromisoformat(str(writer.get("time"))).timestamp()
    except ValueError:
        beat = 0.0
    except (psutil.Error, OSError, OverflowError):
        return False
    started = writer.get("process_started")
    signs = (beat, float(started) if isinstance(started, (int, float)) else 0.0)
    return bool(max(signs) > began + _BOOT_SLACK_S)


def _is_gone_since_boot(pid: int, ticks: int, namespace: object) -> bool | None:
    if namespace and namespace != _pid_namespace():
        return None  # a container of the same host name: its pids are not ours
    now = _state_and_ticks(pid)
    if now is not None:
        return now[0] in _DEAD_STATES or now[1] != ticks
    try:
        os.kill(pid, 0)  # sends nothing; /proc may hide processes of others
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return None


def _is_gone_by_clock(pid: int, started: object) -> bool | None:
    """Whether a process has ended, by its start time: for systems without boot ids and older files."""
    if not isinstance(started, (int, float)):
        return None
    try:
        process = psutil.Process(pid)
        same = abs(float(process.create_time()) - started) <= _CLOCK_SLACK_S
        return not same or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return False
    except OSError:  # psutil has nothing to read
        return None
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return True


def _state_and_ticks(pid: int) -> tuple[str, int] | None:
    """The state of a process and when it started, in clock ticks since boot; None where the system has neither."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[_START_TICKS])
    except (OSError, ValueError, IndexError):
        return None


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _pid_namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""
