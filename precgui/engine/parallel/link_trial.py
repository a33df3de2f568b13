"""The rate of the link between ranks, by a small all-reduce: what `precgui plan --link` asks for."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from precgui.config import RunConfig
from precgui.engine.parallel.group import joined

_VALUES = 1 << 22  # FP32: 16 MiB
_TIMES = 7


@dataclass(frozen=True)
class LinkTrial:
    """Medians of some all-reduces: bytes a second that a rank sends in a large one, seconds of one of a few bytes.

    `back_end` is that of torch.distributed, `slowest_s` and `fastest_s` of the large one show how even it was.
    """

    ranks: int
    back_end: str
    rate: float
    small_s: float
    fastest_s: float
    slowest_s: float

    @property
    def link(self) -> str:
        """The rate as `--link` reads it."""
        return f"{8 * self.rate / 1e9:.3g}Gb/s"


def try_link() -> LinkTrial | None:
    """Measure as one rank of torchrun; None on all ranks but the first. Raises EngineError where they do not meet."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with joined(RunConfig(device=device)) as group:
        place = torch.device("cuda", group.local_rank) if device == "cuda" else torch.device("cpu")
        small = _times(torch.zeros(1, device=place))
        large = _times(torch.ones(_VALUES, device=place))
        sent = 2 * (group.world - 1) / group.world * _VALUES * 4
        rate = sent / statistics.median(large)
        back_end = "nccl" if device == "cuda" else "gloo"
        trial = LinkTrial(group.world, back_end, rate, statistics.median(small), min(large), max(large))
        return None if group.rank else trial


def _times(values: torch.Tensor) -> list[float]:
    """Seconds of each all-reduce after two that are not counted."""
    seconds = []
    for place in range(_TIMES + 2):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(values)
        if values.is_cuda:
            torch.cuda.synchronize()
        if place >= 2:
            seconds.append(time.perf_counter() - begin)
    return seconds
