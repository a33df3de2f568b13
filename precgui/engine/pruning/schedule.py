"""When weights are pruned and how many: the cubic schedule of Zhu & Gupta 2017, "To prune, or not to prune"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from precgui.config.refusals import outside_of_run
from precgui.engine.errors import EngineError
from precgui.sentences import Sentence

if TYPE_CHECKING:
    from precgui.config.sparsity import PruningConfig


@dataclass(frozen=True)
class PruningSchedule:
    """Masks are chosen after the update of step `start`, counted from 1, then every `every` steps, last at `end`."""

    start: int
    end: int
    every: int

    def is_due(self, step: int) -> bool:
        """Whether masks are chosen after the update of this step."""
        return step == self.end or (self.start <= step < self.end and (step - self.start) % self.every == 0)

    def progress(self, step: int) -> float:
        """The part of the final share that is reached after `step`: 1 - (1 - t)^3 with t from 0 to 1."""
        if step >= self.end:
            return 1.0
        past = max(0.0, (step - self.start) / (self.end - self.start))
        return float(1 - (1 - past) ** 3)


def pruning_schedule(config: PruningConfig, total_steps: int) -> PruningSchedule:
    """The schedule of a run of `total_steps`. Raises EngineError for one that does not lie inside the run."""
    start = max(1, _steps(config.start, total_steps, is_share=config.start < 1))
    last_moment = max(1, _steps(config.end, total_steps, is_share=config.end <= 1))
    end = start if config.method == "2:4" else last_moment
    last = "pruning.start" if config.method == "2:4" else "pruning.end"
    if end > total_steps:
        raise EngineError(outside_of_run(last, end, total_steps))
    if start > end:
        raise EngineError(
            Sentence(
                "pruning.start is step {start}, after pruning.end at step {end}; exchange the two", start=start, end=end
            )
        )
    return PruningSchedule(start, end, max(1, _steps(config.every, total_steps, is_share=config.every < 1)))


def _steps(moment: float, total_steps: int, *, is_share: bool) -> int:
    return round(moment * total_steps) if is_share else int(moment)
