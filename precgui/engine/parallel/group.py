"""The process group of a run: joining it, the slice of a batch, and the few numbers that ranks exchange at a step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.engine.parallel.agreement import identity, require_same
from precgui.engine.torch_private import process_group_store, tree_map
from precgui.sentence_keys import key_of, sentence_of
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.engine.tasks.base import Batch

MORE_TIME_S = 5.0  # a collective waits longer than the launcher, which knows who does not answer
_FAILURE = "failure"  # the key of the text of a rank that ends
BUILD_LIMIT_S = 3600.0  # for a download by the first rank


@dataclass(frozen=True)
class RankGroup:
    """One process of `world`. Numbers go over gloo on the CPU whatever the device."""

    rank: int
    world: int
    local_rank: int

    def exchange(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, in the order of ranks. Collective."""
        own = torch.tensor(numbers, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(rows, own)
        return [row.tolist() for row in rows]

    def leave_text(self, key: str, text: Any) -> None:
        """Keep built-in types for another rank, as JSON in the store of the group."""
        process_group_store("precgui").set(f"{key}/{self.rank}", json.dumps(text))

    def text_of(self, key: str, rank: int) -> Any:
        """The text that a rank has left before the last exchange."""
        return json.loads(process_group_store("precgui").get(f"{key}/{rank}"))

    def of_first(self, key: str, own: Any) -> Any:
        """The built-in types that the first rank gives. Collective."""
        self.leave_text(key, own)
        self.exchange([0.0])
        return self.text_of(key, 0)

    def leave_failure(self, sentence: str) -> None:
        """Tell the other ranks, whose next exchange with this one fails, why it ends."""
        with suppress(RuntimeError, ValueError):  # the store may be gone
            self.leave_text(_FAILURE, {"text": sentence, "key": key_of(sentence)})

    def failures(self) -> dict[int, str]:
        """Why other ranks have ended, by rank; those that were killed or stopped could not say."""
        found = {}
        with suppress(RuntimeError, ValueError):
            store = process_group_store("precgui")
            for rank in range(self.world):
                if rank != self.rank and store.check([f"{_FAILURE}/{rank}"]):
                    left = self.text_of(_FAILURE, rank)
                    found[rank] = sentence_of(left["text"], left["key"])
        return found

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """Inside, the first rank is alone until it has left: for downloads."""
        store = process_group_store("precgui")
        if self.rank:
            store.wait(["built"], timedelta(seconds=BUILD_LIMIT_S))
        yield
        if not self.rank:
            store.set("built", "1")


@contextmanager
def joined(config: RunConfig) -> Iterator[RankGroup]:
    """The group that the environment describes, left at the end. Raises EngineError where it does not come about."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    cuda = config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())
    if cuda and not dist.is_nccl_available():
        raise EngineError(
            L_("this torch has no NCCL, which ranks on GPUs need; set device = cpu or install a CUDA build")
        )
    if cuda:
        torch.cuda.set_device(local_rank)  # before anything opens a context: else each rank has one on GPU 0, too
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            timeout=timedelta(seconds=config.parallel.time_limit_s + MORE_TIME_S),
            device_id=torch.device("cuda", local_rank) if cuda else None,
        )
    except (RuntimeError, ValueError) as error:
        raise EngineError(_no_group(rank, world, str(error))) from error
    group = RankGroup(rank, world, local_rank)
    try:
        require_same(group, "identity", identity(config))
        yield group
    finally:
        dist.destroy_process_group()


def _no_group(rank: int, world: int, words: str) -> str:
    """The sentence for a group that did not come about; `words` are those of torch."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if "EADDRINUSE" in words:
        return Sentence(
            "rank {rank} of {world} cannot use port {port}, which another program has; set MASTER_PORT to a free one",
            rank=rank,
            world=world,
            port=port,
        )
    return Sentence(
        "rank {rank} of {world} found no way to the others at {address}:{port}; start all ranks, look whether "
        "one of them was stopped, and whether the address can be reached ({why})",
        rank=rank,
        world=world,
        address=address,
        port=port,
        why=words.splitlines()[0].rstrip("."),
    )


def slice_of(batch: Batch, rank: int, world: int) -> tuple[Batch, float]:
    """The part of a batch for one rank, and its share of the samples; neighbours differ by one sample at most.

    Every tensor whose first dimension is the number of samples is cut. A rank without a sample gets one with share 0.
    """
    inputs, targets = batch
    samples = len(targets)
    start, stop = rank * samples // world, (rank + 1) * samples // world
    share = (stop - start) / samples
    if start == stop:
        start = min(start, samples - 1)
        stop = start + 1

    def cut(value: Any) -> Any:
        is_cut = isinstance(value, Tensor) and value.dim() > 0 and len(value) == samples
        return value[start:stop] if is_cut else value

    return (tree_map(cut, inputs), cut(targets)), share
