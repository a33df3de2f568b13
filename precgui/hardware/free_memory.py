"""Main memory that this process may still take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Of a control group: the limit, what is in use, and by which name `memory.stat` counts files that can be let go of.
_SECOND = "memory.max", "memory.current", "inactive_file"
_FIRST = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def free_memory_bytes() -> int:
    """The least of what the system has left, what the control groups of the process leave (of a container, of a job
    of a scheduler), and what its own limit of addresses leaves."""
    return max(min(int(psutil.virtual_memory().available), *_left_by_groups(), *_left_by_limit()), 0)


def _left_by_groups() -> Iterator[int]:
    yield 1 << 62
    with contextlib.suppress(OSError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left_in(_GROUPS, path, _SECOND)
            elif "memory" in controllers.split(","):
                yield from _left_in(_GROUPS / "memory", path, _FIRST)


def _left_in(root: Path, path: str, files: tuple[str, str, str]) -> Iterator[int]:
    """The bytes that a group and those around it leave; a container sees its own group as the root."""
    group = root / path.strip("/")
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((folder / name).read_text()) for name in files[:2])  # "max" is no number
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield limit - used + int(counts.get(files[2], 0))
        if folder == root:
            return


def _left_by_limit() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield soft - int(psutil.Process().memory_info().vms)
