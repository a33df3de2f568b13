"""The run of one rank, and a sentence where another rank has ended it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from precgui.checkpoint_files import part_of_rank
from precgui.config import RunConfig
from precgui.engine import backend_flags
from precgui.engine import device as devices
from precgui.engine.checkpoint.resume import Resumption
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.parallel.agreement import require_same
from precgui.engine.parallel.group import RankGroup, joined
from precgui.engine.parallel.replicated import Replicated
from precgui.engine.train import make_loop
from precgui.events import Emit

_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused", "Socket closed")
_LATE = ("Timed out waiting", "timed out", "Timeout")


class LostRank(EngineError):
    """Another rank is gone or does not answer; who, is known to those who started it."""


def train_rank(
    config: RunConfig, emit: Emit, stopped: Callable[[], bool], start_s: float | None = None, run_id: str = "",
    run_file: Path | None = None, resumed: Resumption | None = None,
) -> None:  # fmt: skip
    """Train as the rank that the environment names; the first one emits the events of the run.

    `start_s` of `time.perf_counter` is the time zero of events, `run_id` that of the run file, whose path the first
    rank knows. `resumed` goes on from a checkpoint, given to each rank as the first one's. Raises LostRank where
    another rank is gone.
    """
    with backend_flags.restored(), joined(config) as group:
        try:
            strategy = _strategy(config, group, stopped)
            run_id, file = group.of_first("run", [run_id, str(run_file or "")])
            journal = strategy.journal(emit, start_s, run_id, Path(file) if file else None)
            require_same(group, "resumed", {"step": str(resumed.checkpoint.step if resumed is not None else 0)})
            if resumed is not None and group.rank and resumed.path is not None:
                resumed = Resumption.read(part_of_rank(resumed.path, group.rank), resumed.sentence)
            make_loop(strategy.config, journal, strategy.stopped, strategy, resumed=resumed).train()
            sys.stdout.flush()
        except Stopped:
            return
        except RuntimeError as error:
            if devices.is_out_of_memory(error):
                raise MemoryError(devices.out_of_memory_text(error)) from error
            if sentence := _lost(str(error), config.parallel.time_limit_s):
                raise LostRank(f"rank {group.rank}: {sentence}") from error
            raise


def _strategy(config: RunConfig, group: RankGroup, stopped: Callable[[], bool]) -> Replicated:
    if config.parallel.strategy == "ddp":
        return Replicated(config, group, stopped)
    from precgui.engine.parallel.sharded import Sharded

    return Sharded(config, group, stopped)


def _lost(words: str, limit_s: float) -> str:
    """One sentence for an error of a collective that another rank caused, or ''."""
    if any(word in words for word in _LATE):
        return (
            f"a rank did not answer within {limit_s:g} s (parallel.time_limit_s); it may be stopped, or its machine or "
            "network is overloaded"
        )
    return "the connection to another rank was lost; its own output says why" if any(w in words for w in _LOST) else ""
