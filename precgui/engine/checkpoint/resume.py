"""A run that goes on from a checkpoint: what must be as it was, and its place in the data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from precgui.engine.checkpoint.file import RunCheckpoint, read_checkpoint
from precgui.engine.checkpoint.random_state import set_random_states
from precgui.engine.checkpoint.state import frozen_digest, restore
from precgui.engine.errors import EngineError
from precgui.sentences import L_, Sentence, filled, message_of

if TYPE_CHECKING:
    from precgui.engine.hook import TrainingRun
    from precgui.engine.run_parts import RunParts

_MAY_CHANGE: Any = {  # of a config: no number of the training depends on it
    "title": True, "record": True, "threads": True, "train": {"save_to", "save_average", "checkpoint_every"},
    "qat": {"save_to"}, "adapter": {"save_to"},
}  # fmt: skip
_UNFIT = (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError, IndexError)


@dataclass(frozen=True)
class Resumption:
    """The checkpoint to go on from, and a sentence about the break for the record; `path` is its file."""

    checkpoint: RunCheckpoint
    sentence: str = ""
    path: Path | None = None

    @classmethod
    def read(cls, path: Path, sentence: str = "") -> Resumption:
        """Raises EngineError for a file that is no checkpoint."""
        return cls(read_checkpoint(path), sentence, path)

    def other_threads(self, run: TrainingRun) -> str:
        """A sentence where the run goes on with another number of CPU threads; empty where it does not."""
        before, now = self.checkpoint.origin.get("threads"), run.parts.facts["threads"]
        if before in (None, now):
            return ""
        return Sentence(
            "it goes on with {now} CPU threads, before the break it had {before}: sums may round in another "
            "order, so it is not to the last bit the run that was never cut",
            now=now,
            before=before,
        )

    @property
    def steps_in_epoch(self) -> int:
        return self.checkpoint.steps_in_epoch

    def begin(self, run: TrainingRun) -> None:
        """Put the state of the checkpoint into a run that has just been built. Raises EngineError where it differs."""
        kept = self.checkpoint
        if why := _other_origin(kept.origin, origin(run)):
            raise EngineError(Sentence("the run cannot go on: {why}", why=why))
        if not 0 < kept.step < run.total_steps:
            raise EngineError(
                Sentence(
                    "the run cannot go on: its checkpoint is of step {step} of {total_steps}",
                    step=kept.step,
                    total_steps=run.total_steps,
                )
            )
        try:
            restore(run, kept.training)
        except _UNFIT as error:
            raise EngineError(
                Sentence(
                    "the run cannot go on: its checkpoint does not fit the model ({error})", error=message_of(error)
                )
            ) from None
        run.step, run.epoch = kept.step, kept.epoch - 1

    def begin_epoch(self, run: TrainingRun) -> None:
        """Random numbers as at the beginning of the epoch, whose order of data they gave."""
        self._set_random(self.checkpoint.epoch_random, run.parts)

    def pass_by(self, run: TrainingRun, groups: Iterator[Any]) -> None:
        """Draw the batches of the steps that were made; random numbers are then those after the last of them."""
        requested = self.checkpoint.steps_in_epoch
        drawn = sum(1 for _ in itertools.islice(groups, requested))
        if drawn < requested:
            raise EngineError(
                Sentence(
                    "the run cannot go on: its task gives data for {drawn} steps of epoch {epoch}, of which "
                    "{requested} were made; are the data other ones?",
                    drawn=drawn,
                    epoch=self.checkpoint.epoch,
                    requested=requested,
                )
            )
        self._set_random(self.checkpoint.random, run.parts)

    def _set_random(self, states: Mapping[str, Any], parts: RunParts) -> None:
        try:
            set_random_states(states, parts.device, parts.task)
        except _UNFIT as error:
            raise EngineError(
                Sentence(
                    "the run cannot go on: its random numbers do not fit the task ({error})", error=message_of(error)
                )
            ) from None


def origin(run: TrainingRun) -> dict[str, Any]:
    """The run and the surroundings that a checkpoint belongs to, as plain values."""
    facts = run.parts.facts
    return {
        "run_id": run.journal.run_id,
        "config": run.config.model_dump_json(exclude=_MAY_CHANGE),
        "torch": str(torch.__version__),
        "device": run.parts.device.type,
        "threads": facts["threads"],  # never refused: see `other_threads`
        "ranks": run.group.world if run.group is not None else 1,
        "weights": facts["initial_weights_sha256"],
        "frozen": frozen_digest(run.parts.model),
        "data": json.dumps(facts["data"], sort_keys=True, default=str),
    }


def _other_origin(kept: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Why a run is not that of a checkpoint; empty where it is."""
    if kept.get("run_id") != now["run_id"]:
        return L_("its checkpoint is of another run, which had the same file name")
    kept = {"ranks": 1, **kept}
    sentences = {
        "ranks": L_("it was trained by {kept} processes, here are {now}; start as many"),
        "torch": L_("it was trained with torch {kept}, here is {now}; install that version, or run it again"),
        "device": L_("it was trained on {kept}, here on {now}"),
        "config": L_("its settings are others now, {keys}; the settings of a run that goes on cannot be changed"),
        "data": L_("its data are others now; put back those that it began with"),
        "weights": L_(
            "the weights that it would begin with are others now; have the files of its base or model changed?"
        ),
        "frozen": L_("the frozen weights of its base are others now; put back the file that it began with"),
    }
    for name, sentence in sentences.items():
        if kept.get(name) != now[name]:
            return filled(sentence, kept=kept.get(name), now=now[name], keys=_changed_keys(kept, now))
    return ""


def _changed_keys(kept: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    try:
        one, other = (json.loads(each["config"]) for each in (kept, now))
        names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    except (ValueError, KeyError, TypeError, AttributeError):
        return L_("as far as can be told")
    return ", ".join(names)
