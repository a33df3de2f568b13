"""Branches of one FP32 run: other arms make the next steps from the same state on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import backend_flags, precisions
from precgui.engine.errors import Stopped
from precgui.engine.extended_arithmetic import exact_sum
from precgui.engine.journal import Journal
from precgui.engine.loop import Loop
from precgui.engine.precisions.base import Precision
from precgui.engine.run_parts import RunParts
from precgui.engine.snapshot.step import StepSnapshot, random_state, set_random_state
from precgui.engine.tasks.base import Batch
from precgui.engine.train import make_loop
from precgui.engine.twins.arms import (
    REFERENCE,
    ArmRecord,
    BranchPlan,
    BranchRecord,
    TwinArm,
    arm_config,
    branch_points,
    check_branches,
)
from precgui.engine.update import make_optimizer
from precgui.events import Event, StepDone
from precgui.sentences import L_

MOST_HELD_OUT = 2048  # samples on which the branches are compared
Groups = list[list[Batch]]  # batches of successive steps
Progress = Callable[[int, int], None]  # branch points that are done, of how many
_SILENT: Callable[[int, int], None] = lambda done, count: None  # noqa: E731


def run_branches(
    config: RunConfig, arms: Sequence[TwinArm], plan: BranchPlan, stopped: Callable[[], bool] = lambda: False,
    progress: Progress = _SILENT,
) -> BranchRecord:  # fmt: skip
    """Train `config` in FP32 and branch from it at each branch point; each arm gets a record under its name.

    Raises EngineError where the config cannot be branched or has too few steps, Stopped when `stopped()` became true.
    """
    for arm in arms:
        check_branches(config, arm.precision)
    with backend_flags.restored():
        reference = _Reference(config, arms, plan, stopped, progress)
        reference.train()
    if not reference.complete:
        raise Stopped
    return reference.record


class _Reference:
    """The FP32 run. The batches of a branch are gathered first, then used by the arms, then by itself."""

    def __init__(
        self, config: RunConfig, arms: Sequence[TwinArm], plan: BranchPlan, stopped: Callable[[], bool],
        progress: Progress,
    ) -> None:  # fmt: skip
        self._plan, self._progress, self._asked_to_stop = plan, progress, stopped
        self.record = BranchRecord(arms={arm.name: ArmRecord() for arm in arms})
        self._loop = make_loop(arm_config(config, REFERENCE), Journal(_forget), self.stopped, hooks=())
        self.record.tensors = [name for name, _ in self._loop.run.parts.trained()]
        self._points = set(branch_points(self._loop.run.total_steps, plan))
        self._held_out = _first(self._loop.task.validation_batches(), MOST_HELD_OUT)
        self.record.samples = sum(len(targets) for _, targets in self._held_out)
        self._probe = deepcopy(self._loop.model).eval()
        self._arms = [(arm, precisions.make(arm_config(config, arm.precision), self._loop.device)) for arm in arms]
        self._rehearsed = all(precision.scaling_mode != "dynamic" for _, precision in self._arms)
        if config.train.compile:
            self.record.notes.append(L_("the branches are made without torch.compile"))

    @property
    def complete(self) -> bool:
        """Whether all branches have been made."""
        return len(self.record.after) >= self._plan.count

    def stopped(self) -> bool:
        return self.complete or self._asked_to_stop()

    def train(self) -> None:
        """Make the run and its branches, which are evaluated where they end, until all have been made."""
        pending: Groups = []
        for batches, data_s in self._loop.batches(evaluate=False):
            step = self._loop.run.step
            if not pending and step - 1 not in self._points:
                self._loop.make_step(batches, data_s)
                continue
            pending.append(batches)
            if len(pending) == self._plan.steps:
                groups, pending = pending, []
                self._branch(step - len(groups), groups)

    def _branch(self, start: int, groups: Groups) -> None:
        """All arms from the present state, then the reference itself, and the distances between them."""
        random = StepSnapshot(start, 1.0, 0, [], {}, *random_state(self._loop.device))
        if not self._rehearsed:
            self._rehearse(start, groups, random)
        before = self._held_out_loss(self._loop.model)
        state = self._state()
        trail: list[list[Tensor]] = []
        exact = _make_steps(self._loop, start, groups, lambda _: trail.append(_weights(self._loop)))
        after = self._held_out_loss(self._loop.model)
        ahead, ahead_random = self._state(), random_state(self._loop.device)
        self._put_back(*state)
        norms = [[float(torch.linalg.vector_norm(w)) for w in weights] for weights in trail]
        for arm, precision in self._arms:
            set_random_state(random, self._loop.device)
            self._one(arm, precision, start, groups, exact, trail, norms)
        self._put_back(*ahead)
        set_random_state(StepSnapshot(start, 1.0, 0, [], {}, *ahead_random), self._loop.device)
        self._loop.run.parts.precision.prepare()
        self.record.steps.append(start)
        self.record.before.append(before)
        self.record.after.append(after)
        self._progress(len(self.record.after), self._plan.count)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Copies of the state of model and optimizer."""
        return deepcopy(self._loop.model.state_dict()), deepcopy(self._loop.optimizer.state_dict())

    def _put_back(self, weights: dict[str, Any], optimizer: dict[str, Any]) -> None:
        self._loop.model.load_state_dict(weights)
        self._loop.optimizer.load_state_dict(optimizer)

    def _rehearse(self, start: int, groups: Groups, random: StepSnapshot) -> None:
        """Make the first branch once without counting it, so that dynamic loss scales are no part of the result."""
        for arm, precision in self._arms:
            if precision.scaling_mode == "dynamic":
                _make_steps(self._branch_loop(arm, 0, precision), start, groups, lambda _: None)
        set_random_state(random, self._loop.device)
        self._loop.run.parts.precision.prepare()
        self._rehearsed = True
        self.record.notes.append(L_("the first branch with loss scaling was made once before, to find the scale"))

    def _one(
        self, arm: TwinArm, precision: Precision, start: int, groups: Groups, exact: list[StepDone],
        trail: list[list[Tensor]], norms: list[list[float]],
    ) -> None:  # fmt: skip
        """One arm at one branch point."""
        branch = self._branch_loop(arm, len(self.record.after), precision)
        record, distances = self.record.arms[arm.name], []

        def measure(place: int) -> None:
            pairs = zip(_weights(branch, copied=False), trail[place], norms[place], strict=True)
            distances.append([float(torch.linalg.vector_norm(a - b)) / (n or 1.0) for a, b, n in pairs])

        done = _make_steps(branch, start, groups, measure)
        record.loss_distances.append([abs(a.loss - b.loss) for a, b in zip(done, exact, strict=True)])
        record.tensor_distances.append(distances)
        record.skipped += sum(step.skipped for step in done)
        self._loop.run.parts.precision.prepare()
        record.held_out.append(self._held_out_loss(branch.model))

    def _branch_loop(self, arm: TwinArm, branch: int, precision: Precision) -> Loop:
        """An arm at one branch point: weights, buffers and optimizer state of the reference, in its precision."""
        base = self._loop.run.parts
        precision.prepare()
        model = deepcopy(base.model)
        if arm.disturb is not None:
            arm.disturb(model, branch)
        model = precision.convert(model)
        weights = precision.weights(model)
        optimizer = make_optimizer(precision.config, weights)
        optimizer.load_state_dict(deepcopy(base.optimizer.state_dict()))
        parts = RunParts(base.device, base.task, precision, model, weights, optimizer, None, base.facts)
        return Loop(precision.config, parts, Journal(_forget), self.stopped)

    @torch.no_grad()
    def _held_out_loss(self, model: nn.Module) -> float:
        """The mean loss of the weights of an arm in FP32, so that only the training differs, not the evaluation."""
        for own, other in zip(_trained(self._probe), _trained(model), strict=True):
            own.copy_(other)
        others = dict(model.named_buffers())
        for name, buffer in self._probe.named_buffers():
            if name in others and others[name].shape == buffer.shape:
                buffer.copy_(others[name])
        precision, task = self._loop.run.parts.precision, self._loop.task
        losses, counts = [], []
        for inputs, targets in (precision.convert_input(*batch) for batch in self._held_out):
            outputs = precision.convert_output(self._probe(inputs))
            losses.append(float(task.loss(outputs, targets)) * len(targets))
            counts.append(len(targets))
        return exact_sum(losses) / sum(counts)


def _make_steps(loop: Loop, start: int, groups: Groups, after_step: Callable[[int], None]) -> list[StepDone]:
    """The steps after `start`, on these batches; `after_step(place)` follows each. Raises Stopped."""
    steps = []
    loop.model.train()
    for place, batches in enumerate(groups):
        if loop.stopped():
            raise Stopped
        loop.run.step = start + place + 1
        steps.append(loop.make_step(batches))
        after_step(place)
    return steps


def _forget(event: Event) -> None:
    """No event of a branch is kept."""


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _weights(loop: Loop, *, copied: bool = True) -> list[Tensor]:
    """The weights of the model in FP32."""
    return [weight.detach().to(torch.float32, copy=copied) for weight in _trained(loop.model)]


def _first(batches: Any, most: int) -> list[Batch]:
    """Batches of about so many samples."""
    kept: list[Batch] = []
    for batch in batches:
        kept.append(batch)
        if sum(len(targets) for _, targets in kept) >= most:
            break
    return kept
