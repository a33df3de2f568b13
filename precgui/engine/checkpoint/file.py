"""Checkpoint files: safetensors with a line of JSON. Nothing in them is executed, so one of others is data, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.engine.snapshot.file import pack_tree, read_tensors, unpack_tree, write_tensors
from precgui.sentences import L_, Sentence, message_of

_LAYOUT = 1
KIND = L_("checkpoint")


@dataclass(frozen=True)
class RunCheckpoint:
    """The state of a run after a step. `origin` says what it belongs to; it is compared, never used.

    `epoch` counts from 1, `steps_in_epoch` are those made of it. `epoch_random` and `random` are the random states at
    its beginning and after the step.
    """

    step: int
    time_s: float
    epoch: int
    steps_in_epoch: int
    origin: Mapping[str, Any]
    training: Mapping[str, Any]
    epoch_random: Mapping[str, Any]
    random: Mapping[str, Any]

    def packed(self) -> tuple[dict[str, Tensor], str]:
        """Tensors and text for a file. Raises TypeError for what it cannot hold."""
        tensors: dict[str, Tensor] = {}
        tree = pack_tree(dict(vars(self)), tensors, "", L_("the state of the run has a {type}"))
        return tensors, json.dumps({KIND: _LAYOUT, "tree": tree})


def write_checkpoint(path: Path, checkpoint: RunCheckpoint) -> None:
    """Write a file in full or not at all. Raises OSError, and TypeError for what it cannot hold."""
    write_tensors(path, *checkpoint.packed())


def read_checkpoint(path: Path) -> RunCheckpoint:
    """Raises EngineError for a file that is none."""
    tensors, text = read_tensors(path, KIND)
    try:
        document = json.loads(text)
        if document[KIND] != _LAYOUT:
            raise ValueError(
                Sentence("it has the layout {layout}, known is {known}", layout=str(document[KIND]), known=_LAYOUT)
            )
        tree = unpack_tree(document["tree"], tensors)
        step, epoch, steps_in_epoch = (int(tree[name]) for name in ("step", "epoch", "steps_in_epoch"))
        if min(step, epoch - 1, steps_in_epoch) < 0:
            raise ValueError(L_("it counts below 0"))
        origin, training, epoch_random, random = (
            dict(tree[name]) for name in ("origin", "training", "epoch_random", "random")
        )
        return RunCheckpoint(step, float(tree["time_s"]), epoch, steps_in_epoch, origin, training, epoch_random, random)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EngineError(
            Sentence("{path} is no checkpoint of precgui, or is damaged: {error}", path=path, error=message_of(error))
        ) from None
