"""Starts a run on several processes: as one of torchrun's, or by starting them."""

from __future__ import annotations

from collections.abc import Callable

from precgui.config import RunConfig
from precgui.engine.parallel.allocation import in_allocation
from precgui.engine.parallel.rank_run import train_rank
from precgui.engine.parallel.requirements import check_machine
from precgui.events import Emit


def train_on_ranks(config: RunConfig, emit: Emit, stopped: Callable[[], bool]) -> None:
    """Train as `config.parallel` says, in processes of this machine or as one of an allocation of torchrun.

    Emits and raises as `precgui.engine.train.train`. No process is left when it returns or raises.
    """
    if in_allocation():
        train_rank(config, emit, stopped)
        return
    check_machine(config)
    from precgui.engine.parallel.launch import launch  # torchrun takes a second to import

    launch(config, emit, stopped)
