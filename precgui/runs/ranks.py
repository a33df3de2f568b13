"""Times, memory and bytes of each process of a run on several, as the run file has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.runs.run import Run
from precgui.sentences import L_, Sentence

WARM_UP = 5  # steps that the medians leave out where there are more: buffers are made in them
_ALIKE = 0.1  # of a step, between the ranks that wait most and least


@dataclass(frozen=True, slots=True)
class RankFigures:
    """One process of a run. Medians of its steps without the first ones, the highest memory; NaN where not measured."""

    rank: int
    step_s: float
    wait_s: float
    cpu_s: float
    memory_bytes: float
    sent_bytes: float
    interface_bytes: float

    def as_json(self) -> dict[str, Any]:
        """The fields; None for NaN."""
        return {name: None if value != value else value for name in self.__slots__ for value in [getattr(self, name)]}


@dataclass(frozen=True)
class RankWaits:
    """The share of each step in which a rank only waited: `share` (ranks, steps) from 0 to 1, NaN where it was not
    measured; `names` (ranks,), `steps` (steps,)."""

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    share: NDArray[np.float64]


def rank_count(run: Run) -> int:
    """Processes that recorded steps; 0 for a run on one."""
    count = 0
    while len(run.series(f"rank_step_s:{count}")[1]):
        count += 1
    return count


def rank_figures(run: Run) -> list[RankFigures]:
    """One row for each process, [] for a run on one."""
    return [_figures(run, rank) for rank in range(rank_count(run))]


def _figures(run: Run, rank: int) -> RankFigures:
    def values(name: str) -> NDArray[np.float64]:
        own = run.series(f"{name}:{rank}")[1]
        return own[WARM_UP:] if len(own) > WARM_UP else own

    memory = values("rank_memory_bytes")
    return RankFigures(
        rank,
        step_s=_median(values("rank_step_s")),
        wait_s=_median(values("rank_wait_s")),
        cpu_s=_median(values("rank_cpu_s")),
        memory_bytes=float(np.nanmax(memory)) if np.isfinite(memory).any() else float("nan"),
        sent_bytes=_median(values("sent_bytes")),
        interface_bytes=_median(values("interface_bytes")),
    )


def _median(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def rank_waits(run: Run) -> RankWaits | None:
    """The picture of ranks and steps; None for a run on one process."""
    count = rank_count(run)
    if not count:
        return None
    columns = [
        (run.series(f"rank_step_s:{rank}"), run.series(f"rank_wait_s:{rank}")[1]) for rank in range(count)
    ]  # fmt: skip
    steps = np.unique(np.concatenate([of_steps for (of_steps, _), _ in columns])).astype(np.int64)
    share = np.full((count, len(steps)), np.nan)
    for rank, ((of_steps, step_s), wait_s) in enumerate(columns):
        rows = min(len(step_s), len(wait_s))
        with np.errstate(all="ignore"):
            own = np.clip(wait_s[:rows] / step_s[:rows], 0, 1)
        share[rank, np.searchsorted(steps, of_steps[:rows].astype(np.int64))] = own
    return RankWaits(tuple(f"rank {rank}" for rank in range(count)), steps, share)


def one_rank_step_s(figures: list[RankFigures], *, shared_batch: bool = True) -> float | None:
    """Seconds that one rank would compute for the whole batch: what a rank computes beside waiting, times the ranks
    that share the batch. An estimate, since a smaller slice of a batch is less efficient. None where not measured."""
    computed_s = _median(np.array([row.step_s - row.wait_s for row in figures]))
    if not figures or computed_s != computed_s or computed_s <= 0:
        return None
    return computed_s * (len(figures) if shared_batch else 1)


def memory_sentence(run: Run) -> str:
    """Which memory the figures of the ranks are."""
    if run.device.startswith("cpu"):
        return L_(
            "Memory is that of each whole process, with Python and all libraries: on a CPU it cannot be compared with "
            "the tensors of a plan."
        )
    return L_("Memory is the peak of the tensors of each rank.")


def waiting_sentence(figures: list[RankFigures]) -> str:
    """Who waits, in one sentence; it names the one that waits least without saying why."""
    measured = [row for row in figures if row.wait_s == row.wait_s and row.step_s > 0]
    if not measured:
        return L_("The time of waiting was not measured: on CUDA a collective returns before it has ended.")
    shares = [row.wait_s / row.step_s for row in measured]
    least = min(measured, key=lambda row: row.wait_s / row.step_s)
    if max(shares) - min(shares) < _ALIKE:
        return Sentence(
            "All ranks wait alike, {least:.0%} to {most:.0%} of a step (medians): for the link, the collective, or "
            "ranks that are slow in turn; no rank is slow throughout.",
            least=min(shares),
            most=max(shares),
        )
    return Sentence(
        "Ranks wait {least:.0%} to {most:.0%} of a step (medians), rank {rank} least: the others wait for it, or it "
        "has the work of the collective.",
        least=min(shares),
        most=max(shares),
        rank=least.rank,
    )
