"""Messages of the processes of one distributed training to the first one, which writes the record."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from precgui.engine.torch_private import process_group_store
from precgui.sentence_keys import restored, with_keys

READ_S = 0.2  # between two reads of the store, each of which may go over the network
LATE_S = 5.0  # that others may close their recorders after the first one


@dataclass(frozen=True)
class NonFiniteReport:
    """NaN or Inf in one process, and the first module or parameter that had it; '' when not known."""

    rank: int
    step: int
    loss: bool
    gradients: bool
    skipped: bool
    module: str = ""
    parameter: str = ""
    why_not: str = ""  # all modules were checked
    operation: str = ""  # that made it of finite numbers
    line: str = ""


def world() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    return torch.distributed.get_rank() if world() > 1 else 0


class RankReports:
    """Reports of NaN and Inf from other processes to the first one, through the store of the process group.

    No operation is collective: no process waits for another one in a step, so a process without a recorder, or one that
    has failed, blocks none. A store that is gone means that the first process is, too; then nothing is sent.
    """

    def __init__(self, name: str) -> None:
        """`name` is the same in all processes, and only for one recorder of each."""
        self._read, self._next_s = 0, 0.0
        self._first = rank() == 0
        self._store: Any = None
        if world() > 1:
            self._store = process_group_store(f"precgui/{name}")
            self._ask("add", "members", int(not self._first))

    def tell(self, trouble: NonFiniteReport) -> None:
        """Send a report to the first process."""
        place = self._ask("add", "sent", 1)
        self._ask("set", str(place), json.dumps(with_keys(asdict(trouble))))

    def received(self) -> list[NonFiniteReport]:
        """In the first process: the reports since the last call; reads the store every READ_S seconds at most."""
        if self._store is None or not self._first or time.monotonic() < self._next_s:
            return []
        self._next_s = time.monotonic() + READ_S
        results = []
        for place in range(self._read + 1, self._count("sent") + 1):
            if not self._ask("check", [str(place)]):  # on its way
                break
            if (text := self._ask("get", str(place))) is not None:
                results.append(NonFiniteReport(**restored(json.loads(text))))
            self._read = place
        return results

    def close(self, wait_s: float = LATE_S) -> list[NonFiniteReport]:
        """End the exchange and return the last reports; the first process waits up to `wait_s` seconds for others."""
        if not self._first:
            self._ask("add", "closed", 1)
            return []
        until = time.monotonic() + wait_s
        while self._count("closed") < self._count("members") and time.monotonic() < until:
            time.sleep(0.01)
        self._next_s = 0.0
        return self.received()

    def _count(self, name: str) -> int:
        return int(self._ask("add", name, 0) or 0)

    def _ask(self, operation: str, *given: Any) -> Any:
        """An operation of the store; None when there is no store, or none any more."""
        try:
            return getattr(self._store, operation)(*given) if self._store is not None else None
        except RuntimeError:
            self._store = None
            return None
