"""Runs that are cut at a step and go on from a checkpoint, beside the same run without a cut."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import torch

from precgui import config
from precgui.checkpoint_files import checkpoint_files
from precgui.config import RunConfig
from precgui.engine import backend_flags
from precgui.engine.checkpoint.resume import Resumption
from precgui.engine.checkpoint.state import learned
from precgui.engine.journal import Journal
from precgui.engine.train import make_loop
from precgui.events import Evaluated, Event, StepDone

RUN_ID = "r1"


class Killed(Exception):
    """The process is thought to end here."""


class CutRun:
    """A run or a part of one. `cut`: stops after this step, or with `killed` dies inside the next one."""

    def __init__(
        self, chosen: RunConfig, file: Path, *, cut: int = 0, killed: bool = False, resumed: Resumption | None = None
    ) -> None:
        self.events: list[Event] = []
        self._cut, self._killed, self.step = cut, killed, 0
        with backend_flags.restored():
            journal = Journal(self._take, run_id=RUN_ID, run_file=file)
            loop = make_loop(chosen, journal, self._stopped, resumed=resumed)
            with contextlib.suppress(Killed):
                loop.train()
            self.weights = {name: tensor.clone() for name, tensor in learned(loop.model)}
            average = loop.run.parts.average
            self.weights |= {f"ema {n}": v.clone() for n, v in enumerate(average.values if average else ())}

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, StepDone):
            self.step = event.step
            if self._killed and self._cut and self.step > self._cut:
                raise Killed

    def _stopped(self) -> bool:
        return bool(self._cut) and not self._killed and self.step >= self._cut

    @property
    def losses(self) -> dict[int, tuple[float, float, float]]:
        """Loss, norm of the gradients and loss scale by step."""
        return {e.step: (e.loss, e.grad_norm, e.scale) for e in self.events if isinstance(e, StepDone)}

    @property
    def evaluations(self) -> dict[int, tuple[float, float]]:
        return {e.step: (e.loss, e.accuracy) for e in self.events if isinstance(e, Evaluated)}


def differences(whole: CutRun, resumed: CutRun, first: int) -> list[str]:
    """What differs from the run that was never cut, from step `first` on; [] where all is equal to the last bit."""
    found = [
        f"step {step}: {resumed.losses.get(step)}, not {whole.losses[step]}"
        for step in whole.losses
        if step >= first and not _same(whole.losses[step], resumed.losses.get(step))
    ][:1]
    found += [
        f"validation at step {step}"
        for step in whole.evaluations
        if step >= first and not _same(whole.evaluations[step], resumed.evaluations.get(step))
    ][:1]
    return (
        found
        + [
            name
            for name, tensor in whole.weights.items()
            if not torch.equal(
                tensor.reshape(-1).view(torch.uint8), resumed.weights[name].reshape(-1).view(torch.uint8)
            )
        ][:1]
    )


def _same(one: Sequence[float], other: Sequence[float] | None) -> bool:
    return other is not None and torch.equal(
        torch.tensor(one, dtype=torch.float64).view(torch.int64),
        torch.tensor(other, dtype=torch.float64).view(torch.int64),
    )


def after_a_cut(chosen: RunConfig, folder: Path, cut: int, whole: CutRun, *, killed: bool = False) -> list[str]:
    """Cut the run, go on from its newest checkpoint, and say what then differs from the whole run."""
    folder.mkdir()
    file = folder / "run.h5"
    CutRun(chosen, file, cut=cut, killed=killed)
    step, path = next(iter(checkpoint_files(file).items()))
    resumed = CutRun(chosen, file, resumed=Resumption.read(path))
    return differences(whole, resumed, step + 1)


def loaded(recipe: str, *settings: str) -> RunConfig:
    return config.load(recipe, ["device=cpu", "threads=1", *settings])
