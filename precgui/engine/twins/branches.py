"""Branches of one FP32 run: other arms make the next steps from the same state on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import backend_flags, precisions
from precgui.engine.callback import CallbackList
from precgui.engine.errors import Stopped
from precgui.engine.extended_arithmetic import exact_sum
from precgui.engine.journal import Journal
from precgui.engine.precisions import Precision
from precgui.engine.setup import RunParts
from precgui.engine.snapshot.step import StepSnapshot, random_state, set_random_state
from precgui.engine.tasks import Batch
from precgui.engine.train import Training
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
        reference.run()
    if not reference.complete:
        raise Stopped
    return reference.record


class _Quiet(Training):
    """Training without callbacks that keeps the loss of each step, and whether it was skipped."""

    def __init__(self, config: RunConfig, stopped: Callable[[], bool]) -> None:
        self.done: list[StepDone] = []
        super().__init__(config, Journal(self._keep), stopped)
        self.callbacks = CallbackList([])

    def _keep(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.done.append(event)

    def make(self, start: int, groups: Groups, after_step: Callable[[int], None]) -> list[StepDone]:
        """The steps after `start`, on these batches; `after_step(place)` follows each."""
        self.done.clear()
        self.model.train()
        for place, batches in enumerate(groups):
            if self.stopped():
                raise Stopped
            self.step = start + place + 1
            Training._step(self, batches, 0.0)
            after_step(place)
        return list(self.done)


class _Branch(_Quiet):
    """An arm at one branch point: a copy of the reference, converted to the arm's precision."""

    def __init__(self, arm: TwinArm, branch: int, precision: Precision, reference: _Reference) -> None:
        self._arm, self._number, self._precision, self._reference = arm, branch, precision, reference
        super().__init__(precision.config, reference.stopped)

    def _build(self) -> RunParts:
        """Weights, buffers and optimizer state of the reference; the same task."""
        base, precision = self._reference.parts, self._precision
        precision.prepare()
        model = deepcopy(base.model)
        if self._arm.disturb is not None:
            self._arm.disturb(model, self._number)
        model = precision.convert(model)
        weights = precision.weights(model)
        optimizer = make_optimizer(self.config, weights)
        optimizer.load_state_dict(deepcopy(base.optimizer.state_dict()))
        return RunParts(base.device, base.task, precision, model, weights, optimizer, None, base.facts)


class _Reference(_Quiet):
    """The FP32 run. The batches of a branch are gathered first, then used by the arms, then by itself."""

    def __init__(
        self, config: RunConfig, arms: Sequence[TwinArm], plan: BranchPlan, stopped: Callable[[], bool],
        progress: Progress,
    ) -> None:  # fmt: skip
        self._plan, self._progress = plan, progress
        self.record = BranchRecord(arms={arm.name: ArmRecord() for arm in arms})
        super().__init__(arm_config(config, REFERENCE), lambda: self.complete or stopped())
        self.record.tensors = [name for name, _ in self.parts.trained()]
        self._points = set(branch_points(self.total_steps, plan))
        self._pending: Groups = []
        self._held_out = _first(self.task.validation_batches(), MOST_HELD_OUT)
        self.record.samples = sum(len(targets) for _, targets in self._held_out)
        self._probe = deepcopy(self.model).eval()
        self._arms = [(arm, precisions.make(arm_config(config, arm.precision), self.device)) for arm in arms]
        self._rehearsed = all(precision.scaling_mode != "dynamic" for _, precision in self._arms)
        if config.train.compile:
            self.record.notes.append("the branches are made without torch.compile")

    @property
    def complete(self) -> bool:
        """Whether all branches have been made."""
        return len(self.record.after) >= self._plan.count

    def _evaluate(self, epoch: int) -> None:
        """Branches are evaluated where they end, not at the ends of epochs."""

    def _finish(self) -> None:
        """Do nothing: a branch is neither converted nor saved."""

    def _step(self, batches: list[Batch], data_s: float) -> None:
        if not self._pending and self.step - 1 not in self._points:
            super()._step(batches, data_s)
            return
        self._pending.append(batches)
        if len(self._pending) == self._plan.steps:
            groups, self._pending = self._pending, []
            self._branch(self.step - len(groups), groups)

    def _branch(self, start: int, groups: Groups) -> None:
        """All arms from the present state, then the reference itself, and the distances between them."""
        random = StepSnapshot(start, 1.0, 0, [], {}, *random_state(self.device))
        if not self._rehearsed:
            self._rehearse(start, groups, random)
        before = self._held_out_loss(self)
        state = deepcopy(self.model.state_dict()), deepcopy(self.optimizer.state_dict())
        trail: list[list[Tensor]] = []
        exact = self.make(start, groups, lambda _: trail.append(_weights(self)))
        after = self._held_out_loss(self)
        ahead = deepcopy(self.model.state_dict()), deepcopy(self.optimizer.state_dict()), random_state(self.device)
        self._put_back(*state)
        norms = [[float(torch.linalg.vector_norm(w)) for w in weights] for weights in trail]
        for arm, precision in self._arms:
            set_random_state(random, self.device)
            self._one(arm, precision, start, groups, exact, trail, norms)
        self._put_back(*ahead[:2])
        set_random_state(StepSnapshot(start, 1.0, 0, [], {}, *ahead[2]), self.device)
        self.precision.prepare()
        self.step = start + len(groups)
        self.record.steps.append(start)
        self.record.before.append(before)
        self.record.after.append(after)
        self._progress(len(self.record.after), self._plan.count)

    def _put_back(self, weights: dict[str, Any], optimizer: dict[str, Any]) -> None:
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(optimizer)

    def _rehearse(self, start: int, groups: Groups, random: StepSnapshot) -> None:
        """Make the first branch once without counting it, so that dynamic loss scales are no part of the result."""
        for arm, precision in self._arms:
            if precision.scaling_mode == "dynamic":
                _Branch(arm, 0, precision, self).make(start, groups, lambda _: None)
        set_random_state(random, self.device)
        self.precision.prepare()
        self._rehearsed = True
        self.record.notes.append("the first branch with loss scaling was made once before, to find the scale")

    def _one(
        self, arm: TwinArm, precision: Precision, start: int, groups: Groups, exact: list[StepDone],
        trail: list[list[Tensor]], norms: list[list[float]],
    ) -> None:  # fmt: skip
        """One arm at one branch point."""
        branch = _Branch(arm, len(self.record.after), precision, self)
        record, distances = self.record.arms[arm.name], []

        def measure(place: int) -> None:
            pairs = zip(_weights(branch, copied=False), trail[place], norms[place], strict=True)
            distances.append([float(torch.linalg.vector_norm(a - b)) / (n or 1.0) for a, b, n in pairs])

        done = branch.make(start, groups, measure)
        record.loss_distances.append([abs(a.loss - b.loss) for a, b in zip(done, exact, strict=True)])
        record.tensor_distances.append(distances)
        record.skipped += sum(step.skipped for step in done)
        self.precision.prepare()
        record.held_out.append(self._held_out_loss(branch))

    @torch.no_grad()
    def _held_out_loss(self, training: Training) -> float:
        """The mean loss of the weights of an arm in FP32, so that only the training differs, not the evaluation."""
        for own, other in zip(_trained(self._probe), _trained(training.model), strict=True):
            own.copy_(other)
        others = dict(training.model.named_buffers())
        for name, buffer in self._probe.named_buffers():
            if name in others and others[name].shape == buffer.shape:
                buffer.copy_(others[name])
        losses, counts = [], []
        for inputs, targets in (self.precision.convert_input(*batch) for batch in self._held_out):
            outputs = self.precision.convert_output(self._probe(inputs))
            losses.append(float(self.task.loss(outputs, targets)) * len(targets))
            counts.append(len(targets))
        return exact_sum(losses) / sum(counts)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _weights(training: Training, *, copied: bool = True) -> list[Tensor]:
    """The weights of the model in FP32."""
    return [weight.detach().to(torch.float32, copy=copied) for weight in _trained(training.model)]


def _first(batches: Any, most: int) -> list[Batch]:
    """Batches of about so many samples."""
    kept: list[Batch] = []
    for batch in batches:
        kept.append(batch)
        if sum(len(targets) for _, targets in kept) >= most:
            break
    return kept
