"""Bytes that a network interface has sent, as Linux counts them."""

from __future__ import annotations

import math
import os
from pathlib import Path

_COUNTERS = Path("/proc/self/net/dev")
_SENT = 8  # the ninth number of a line (proc_pid_net(5)); the first one is of bytes received


def interface_name() -> str:
    """The interface that gloo was told to use; '' where it chooses by itself."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]


def bytes_sent(interface: str) -> float:
    """Bytes sent by all processes through the interface since the system started; NaN where that cannot be read."""
    try:
        lines = _COUNTERS.read_text(encoding="ascii").splitlines()
    except OSError:
        return math.nan
    for line in lines:
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            return float(numbers.split()[_SENT])
    return math.nan
