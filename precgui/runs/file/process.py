"""Which process writes a file, and whether it still lives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import psutil

_CLOCK_SLACK_S = 10.0  # the start time of a process moves a little when the system clock is set


def this_process() -> dict[str, Any]:
    """Identifies this process: host, pid, and start time, since pids are used again."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process_started": psutil.Process().create_time()}


def is_gone(writer: Mapping[str, Any]) -> bool | None:
    """Whether the process has ended; None when that cannot be told from here (another host, no record)."""
    pid, started = writer.get("pid"), writer.get("process_started")
    if writer.get("host") != socket.gethostname() or not isinstance(pid, int) or not isinstance(started, (int, float)):
        return None
    try:
        process = psutil.Process(pid)
        same = abs(float(process.create_time()) - started) <= _CLOCK_SLACK_S
        return not same or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return False
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return True
