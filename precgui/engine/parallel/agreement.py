"""Compares, before the first step, versions, config and data of all ranks by hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from precgui import __version__
from precgui.engine.errors import EngineError
from precgui.engine.torch_private import tree_map
from precgui.sentences import Sentence

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.engine.tasks.base import Batch

_OF_ONE_RANK: Mapping[str, Any] = {
    "title": True, "device": True, "threads": True, "record": True, "train": {"save_to"}, "adapter": {"save_to"},
}  # fmt: skip
PLACES = ("folder", "source", "file")  # of the facts about data: a host may keep them elsewhere


class Exchanges(Protocol):
    """The part of a group of ranks that a comparison needs."""

    @property
    def world(self) -> int: ...

    def exchange(self, numbers: Sequence[float]) -> list[list[float]]: ...

    def leave_text(self, key: str, text: Any) -> None: ...

    def text_of(self, key: str, rank: int) -> Any: ...


def require_same(group: Exchanges, key: str, own: Mapping[str, str]) -> None:
    """Raises EngineError on every rank where one of them differs from the first. Collective."""
    group.leave_text(key, dict(own))
    group.exchange([0.0])  # all have left theirs
    if sentence := disagreement([group.text_of(key, rank) for rank in range(group.world)]):
        raise EngineError(sentence)


def identity(config: RunConfig) -> dict[str, str]:
    """Versions and config. Devices and threads may differ, and the files, which one rank writes."""
    own = json.dumps(config.model_dump(mode="json", exclude=_OF_ONE_RANK), sort_keys=True)
    digest = hashlib.sha256(own.encode()).hexdigest()
    return {"torch": str(torch.__version__), "precgui": __version__, "config": digest}


def data_identity(facts: Mapping[str, Any]) -> dict[str, str]:
    """The facts of a task about its data, such as sizes and SHA-256, without the place where they are kept."""
    return {f"data.{name}": json.dumps(facts[name], default=str) for name in sorted(facts.keys() - {*PLACES})}


def batches_digest(batches: Sequence[Batch]) -> str:
    """SHA-256 of the tensors of some batches, in their types and shapes."""
    digest = hashlib.sha256()

    def take(value: Any) -> Any:
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{list(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return value

    for batch in batches:
        tree_map(take, tuple(batch))
    return digest.hexdigest()


def disagreement(identities: Sequence[Mapping[str, str]]) -> str:
    """A sentence on the first rank whose identity is not that of rank 0, or ''."""
    first = identities[0]
    for rank, own in enumerate(identities):
        for name in sorted({*first, *own}, key=lambda name: name == "config"):
            if own.get(name) == first.get(name):
                continue
            if name in ("torch", "precgui"):
                return Sentence(
                    "rank {rank} has {name} {own}, rank 0 has {first}; install the same version on every host",
                    rank=rank,
                    name=name,
                    own=own.get(name),
                    first=first.get(name),
                )
            if name == "config":
                return Sentence(
                    "rank {rank} was started with another config than rank 0; give every host the same file and "
                    "settings",
                    rank=rank,
                )
            if name == "step":
                return Sentence(
                    "rank {rank} goes on from step {own}, rank 0 from step {first}; give every host the same "
                    "checkpoints",
                    rank=rank,
                    own=own.get(name),
                    first=first.get(name),
                )
            if fact := name.partition(".")[2]:
                return Sentence(
                    "rank {rank} has other data than rank 0 ({fact}); give every host the same files, for the built-in "
                    "texts the same version of Python",
                    rank=rank,
                    fact=fact,
                )
            return Sentence(
                "rank {rank} has other data than rank 0; give every host the same files, for the built-in texts the "
                "same version of Python",
                rank=rank,
            )
    return ""
