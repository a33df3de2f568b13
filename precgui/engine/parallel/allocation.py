"""Whether torchrun, or something that sets the same variables, has started this process. Loads no torch."""

from __future__ import annotations

import os

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def in_allocation() -> bool:
    """Whether this process is one of several that were started to train together."""
    return all(name in os.environ for name in _VARIABLES) and allocated_ranks() > 1


def allocated_rank() -> int:
    """The rank of this process inside an allocation, 0 outside of one."""
    return int(os.environ["RANK"]) if in_allocation() else 0


def allocated_ranks() -> int:
    """The number of processes of the allocation, 1 outside of one."""
    return int(os.environ.get("WORLD_SIZE", "1") or 1)
