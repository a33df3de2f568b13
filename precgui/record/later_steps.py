"""Some later steps of a recorded loop, seen operation by operation, from the batch to the step of the optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.engine.bootstrapped_targets import BootstrappedTargets
from precgui.engine.bounded_logits import BoundedLogits
from precgui.engine.broadcast_losses import BroadcastLosses
from precgui.engine.cancellation import Cancellations
from precgui.engine.clipped_objectives import ClippedObjectives
from precgui.engine.coarse_integers import CoarseIntegers
from precgui.engine.coarse_roundings import CoarseRoundings
from precgui.engine.compared_scores import ComparedScores
from precgui.engine.constant_answers import ConstantAnswers
from precgui.engine.cut_samples import CutSamples
from precgui.engine.discarded_passes import DiscardedPasses
from precgui.engine.early_divisions import EarlyDivisions
from precgui.engine.exponent_sources import ExponentSources
from precgui.engine.finite_in_fp32 import FiniteInFp32
from precgui.engine.first_products import FirstProducts
from precgui.engine.flat_units import FlatUnits
from precgui.engine.foreign_samples import ForeignSamples
from precgui.engine.hand_quantisers import HandQuantisers
from precgui.engine.heavy_dropouts import HeavyDropouts
from precgui.engine.hidden_parameters import HiddenParameters
from precgui.engine.kept_statistics import KeptStatistics
from precgui.engine.loss_arguments import LossArguments
from precgui.engine.loss_operations import LossOperations
from precgui.engine.loss_terms import LossTerms
from precgui.engine.lost_channels import LostChannels
from precgui.engine.lost_digits import LostDigits
from precgui.engine.lost_values import LostValues
from precgui.engine.masked_rows import MaskedRows
from precgui.engine.mixed_axes import MixedAxes
from precgui.engine.module_calls import ModuleStack
from precgui.engine.policy_ratios import PolicyRatios
from precgui.engine.quantised_values import QuantisedValues, RoundingSteps
from precgui.engine.repeated_activations import RepeatedActivations
from precgui.engine.rounded_differences import RoundedDifferences
from precgui.engine.rounded_ratios import RoundedRatios
from precgui.engine.sequence_axes import SequenceAxes
from precgui.engine.shadow.loop_tape import LoopTape
from precgui.engine.shifted_targets import ShiftedTargets
from precgui.engine.short_data import ShortData
from precgui.engine.singular_sources import SingularSources
from precgui.engine.softmax_axes import SoftmaxAxes
from precgui.engine.stored_updates import After, StoredUpdates
from precgui.engine.target_ranges import TargetRanges
from precgui.engine.telemetry.guard import Guard, guarded
from precgui.engine.telemetry.readable import address_of, unseen
from precgui.engine.telemetry.recorder import Weight
from precgui.engine.terms_without_gradient import TermsWithoutGradient
from precgui.engine.torch_private import (
    TorchDispatchMode,
    dispatch_mode_at,
    dispatch_modes,
    graph_task,
    is_anything_compiled,
    is_dispatch_mode_here,
    operation_name,
)
from precgui.engine.unit_decays import UnitDecays
from precgui.engine.unleft_states import UnleftStates
from precgui.engine.unscaled_again import UnscaledAgain
from precgui.engine.unshifted_targets import UnshiftedTargets
from precgui.engine.unused_terms import UnusedTerms
from precgui.engine.watcher import Facts, OperationCall, Watcher
from precgui.engine.write_times import WriteTimes
from precgui.record.batches import Batches
from precgui.record.emptied_moments import EmptiedMoments
from precgui.record.exact_steps import ExactSteps
from precgui.record.gradient_edits import GradientEdits
from precgui.record.later_numbers import LaterNumbers
from precgui.record.rewritten_weights import RewrittenWeights
from precgui.record.source_ranges import SourceRanges
from precgui.record.zero_state import ZeroState
from precgui.sentences import L_

_AFTER_ALARMS = 6  # steps that are watched since the loss of the step before was not finite
_STEPS = frozenset(2 * 4**power for power in range(12))  # 2, 8, 32 ...: these see the whole step, the first does not
_NEWS_IN_EACH, _NEWS_EVERY = 64, 16  # steps: to put all facts together takes as long as many small operations
_ROUND = torch.ops.aten.round.default
_BETWEEN = frozenset(4**power for power in range(3, 13))  # 64, 256 ...: where a number in 16 bits is written each step


class Watchers:
    """All that is told of the operations of a step.

    A new one is a subclass of `Watcher`, and a part of `_alone` or, where others ask it, of `_all`.
    """

    def __init__(self, model: nn.Module, guard: Guard) -> None:
        self._model, self._weights = weakref.ref(model), frozenset[int]()
        self.writes = WriteTimes(model)
        self.stored = StoredUpdates(model, self.writes)
        self._sums, self._additions = LostDigits(), list[dict[str, Any]]()
        self._finite, self._only_finite = FiniteInFp32(), False
        self._cancellations, self.hidden = Cancellations(), HiddenParameters(model)
        constants, ranges = ConstantAnswers(), TargetRanges()
        constants.compared = ranges.compared
        self._lost_values = LostValues(model)
        targets = BootstrappedTargets(constants.is_made)
        products, axes, quantised = FirstProducts(), SoftmaxAxes(), QuantisedValues()
        self.rounding = RoundingSteps()
        self._masked, self.terms, self.sequences = MaskedRows(), UnusedTerms(model), SequenceAxes()
        self.objectives, self.discarded = ClippedObjectives(), DiscardedPasses(model, guard)
        self.exponents, arguments = ExponentSources(model), LossArguments()
        self.singular, losses, self.unscaled = SingularSources(), LossOperations(), UnscaledAgain()
        self._all: list[Watcher] = [
            self._cancellations, self._lost_values, quantised, self._finite, constants, products, ranges, axes,
            self.hidden, self.exponents, self.singular, arguments, self._masked, UnitDecays(self.stored.created_memory),
            UnleftStates(constants.is_made, targets.target), targets, self.terms, self.sequences, self.objectives,
            self.discarded, losses, self.unscaled, *_alone(model),
        ]  # fmt: skip
        self._of_optimizers: list[Watcher] = [quantised, self.rounding]  # these are told of their operations, too
        self._of_first_step: list[Watcher] = [
            self._cancellations,
            self.exponents,
            self.singular,
            arguments,
            losses,
            self.unscaled,
        ]
        self._inside: list[Watcher] = [self.hidden, products, axes]  # of those of the forward pass alone
        self._outside = [each for each in self._all if each not in (self._finite, *self._inside)]
        self._failed: list[Watcher] = []  # in this step: these are told nothing more of it
        self.where: Callable[[], str | None] = lambda: None
        self.is_inside: Callable[[], bool] = lambda: False  # the forward pass of the model
        self.in_optimizer = False
        self.rounded: Callable[[Tensor, Tensor], None] = lambda operand, result: None  # to integers, by the loop

    def begin(self, step: int, where: Callable[[], str | None], *, only_finite: bool = False) -> None:
        """A step begins; `where` returns the module whose forward pass is running, None outside of the model.

        `only_finite`: it is watched for what is not finite alone, since the step before was not.
        """
        self.where, self._only_finite = where, only_finite
        if only_finite:
            for watcher in (self._finite, self._masked, self._lost_values):
                watcher.begin(step)
            return
        self._sums, self._failed = LostDigits(), []
        model = self._model()
        self._weights = frozenset(map(address_of, model.parameters())) - {0} if model is not None else frozenset()
        self.writes.begin(step)
        self.stored.begin(step)
        for each in (*self._all, self.rounding):
            each.begin(step)

    def before(self, func: Any, args: Any, kwargs: Any) -> list[After]:
        """An operation is about to run; to be called with its result is what this returns."""
        if self._only_finite:
            return []
        module, in_optimizer = self.where(), self.in_optimizer
        if not in_optimizer and graph_task() == -1:
            self.writes.met(args, self.stored.created_memory)
        told = [self.stored.before(func, args, kwargs, module, in_optimizer=in_optimizer)]
        if module is None and not in_optimizer and not self._is_update(func, args):
            told.append(self._sums.before(func, args, kwargs, module, in_optimizer=False))
        return [each for each in told if each is not None]

    def _is_update(self, func: Any, args: Any) -> bool:
        """Whether an operation writes to a weight: `StoredUpdates` tells of its digits, and whether they are missed."""
        written = args[0] if args and func._schema.is_mutable else None
        return isinstance(written, Tensor) and address_of(written) in self._weights

    def after(self, told: list[After], func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operation has run."""
        call = self._call(func, args, kwargs, out)
        if not call.in_optimizer:
            self._finite.observe(call)
        if self._only_finite:
            if args and not call.in_optimizer and graph_task() == -1:
                self._masked.observe(call)
                self._lost_values.overflow(call)
            return
        self.stored.after(func, args, out, call.module)  # first: new memory tells how a result is found again
        for each in told:
            each(out)
        if call.module is None and func is _ROUND and not call.in_optimizer:
            self.rounded(args[0], out)
        if not args or graph_task() != -1:
            return
        told_too = self._inside if not call.in_optimizer and self.is_inside() else ()
        for watcher in (*(self._of_optimizers if call.in_optimizer else self._outside), *told_too):
            self._tell(watcher, watcher.observe, call)

    def _tell(self, watcher: Watcher, act: Callable[..., None], *told: OperationCall) -> None:
        """Tell a watcher something, unless it has failed in this step."""
        if watcher in self._failed:
            return
        try:
            act(*told)
        except Exception:  # noqa: BLE001 - whatever a tensor of somebody's class raises; the others go on
            self._failed.append(watcher)

    def returned(self, name: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """A module has returned."""
        if not self._only_finite:
            self.sequences.returned(name, module, inputs, outputs)

    def _call(self, func: Any, args: Any, kwargs: Any, out: Any) -> OperationCall:
        return OperationCall(func, operation_name(func), args, kwargs, out, self.where(), self.in_optimizer)

    def end(self) -> None:
        """The step is over."""
        if self._only_finite:
            self._finite.end()
            self._masked.end()
            return
        self.stored.end()
        for each in self._all:
            self._tell(each, each.end)
        sums = self._sums.facts()
        rows = [*self._additions, *(row for name in ("additions", "scattered") for row in sums.get(name, {}).values())]
        kinds = [[row for row in rows if ("operation" in row) is scattered] for scattered in (False, True)]
        self._additions = [max(own, key=lambda row: float(row["swallowed"])) for own in kinds if own]

    def first_step(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operation of the first step, which the census sees, has run."""
        call = self._call(func, args, kwargs, out)
        if call.in_optimizer:
            return
        for each in self._of_first_step if args and graph_task() == -1 else ():
            each.observe(call)
        self._finite.observe(call)

    def facts(self) -> Facts:
        every = self.stored.facts()
        for each in self._all:
            for name, rows in each.facts().items():
                every[name] = [*every.get(name, []), *rows]
        return every | {"loop_additions": self._additions}


def _alone(model: nn.Module) -> list[Watcher]:
    """Those that are told of operations and of nothing else."""
    return [
        BoundedLogits(), BroadcastLosses(), CoarseIntegers(model), CoarseRoundings(model), ComparedScores(model),
        CutSamples(), EarlyDivisions(model), FlatUnits(), ForeignSamples(), HandQuantisers(model), HeavyDropouts(),
        KeptStatistics(), LossTerms(), LostChannels(), MixedAxes(), PolicyRatios(), RepeatedActivations(),
        RoundedDifferences(), RoundedRatios(), ShiftedTargets(), ShortData(model), TermsWithoutGradient(),
        UnshiftedTargets(),
    ]  # fmt: skip


class LaterSteps:
    """Enters a mode that tells of each operation at the beginning of a later step, and leaves it at its end.

    These are steps of fixed numbers, and some in which a tensor in 16 bits that is rarely written may be written again.

    An exception of the loop in an operation or a module ends it, too: at once where a module raises, else with the
    next call of a module.
    """

    def __init__(self, model: nn.Module, guard: Guard, later: LaterNumbers, *, active: bool) -> None:
        self.watchers, self.edits, self.exact = Watchers(model, guard), GradientEdits(guard), ExactSteps()
        self.watchers.rounded = self.edits.rounded
        self._rewritten, self._emptied, self._step = RewrittenWeights(later), EmptiedMoments(later), 0
        self._zero_state = ZeroState(later)
        self.batches = Batches(later)
        self._ranges = {name: SourceRanges(model, guard) for name in ("exponents", "singular_points")}
        self._model, self._guard, self._active = model, guard, active
        self._mode: _Mode | None = None
        self._reported: dict[str, int] = {}
        self._again, self._left, self._next = False, _AFTER_ALARMS, 0
        self._watched = 0  # the last step that was watched for all
        self._is_seen = False  # operations of this step are watched

    def probe(self) -> Tensor | None:
        """A number for `changed`; see `WriteTimes.probe`."""
        return self.watchers.writes.probe() if self._active else None

    def changed(self, numbers: list[float]) -> None:
        self.watchers.writes.changed(numbers[0])

    def begin(self, step: int, trained: Sequence[Weight]) -> None:
        """A step begins, which will update the weights `trained`."""
        self.leave()
        again, self._again = self._again and step >= self._next and self._left > 0, False
        if not self._active:
            return
        self._step, self._is_seen = step, False
        self._ranges["exponents"].follow(self.watchers.exponents.found)
        self._ranges["singular_points"].follow(self.watchers.singular.found)
        for each in self._ranges.values():
            each.begin(step)
        self.batches.begin(step, in_full=step == 1 or step in _STEPS)
        self._rewritten.begin(step, trained)
        writes, watched = self.watchers.writes, self._watched == step - 1
        writes.end(step - 1, watched=watched)
        if step == 1 or watched:
            writes.follow(weight.own for weight in trained)
        in_full = self._is_watched(step)
        if self._mode is not None or not (in_full or again) or dispatch_modes() or is_anything_compiled():
            return
        self._mode, self._is_seen = _Mode(self._model, self._guard, self.watchers), True
        if again:
            self._left, self._next = self._left - 1, 2 * step
        if in_full:
            self._watched = step
            self.edits.begin(step, trained)
            self.watchers.hidden.follow(weight.own for weight in trained)
        self.exact.begin(step, trained, self._mode.module, alarm=again)
        self._mode.tape = self.exact.tape
        self.watchers.is_inside = self._mode.is_inside
        self.watchers.begin(step, self._mode.module, only_finite=not in_full)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def optimizer_begins(self, optimizer: Optimizer, *, closure: bool) -> None:
        """An optimizer is about to step; with a `closure` it evaluates the model by itself."""
        self.watchers.discarded.stepping(optimizer, closure=closure)
        if closure:
            self.exact.drop(L_("the optimizer evaluates the model by itself"))
            return
        self.edits.stepped(optimizer)
        self.watchers.terms.stepping(optimizer)
        self.watchers.objectives.stepping(optimizer)
        self.watchers.unscaled.stepping()
        if self._active:
            self._rewritten.stepping(optimizer)
            self._emptied.stepping(self._step, optimizer)
            self._zero_state.stepping(self._step, optimizer)
        if self.exact.tape is not None:
            with unseen():
                self.exact.tape.optimizer_begins(optimizer)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """It has stepped."""
        self._rewritten.stepped(optimizer)
        self._emptied.stepped(optimizer)
        self._zero_state.stepped(optimizer)
        if self.exact.tape is not None:
            with unseen():
                self.exact.tape.optimizer_ends()

    def alarm(self) -> None:
        """The loss of a step was not finite: the next step is watched, some times in a run."""
        self._again = True

    def look_at_ranges(self) -> None:
        """The loss or the gradients of a step were not finite: what the functions were taken of may tell why."""
        for each in self._ranges.values():
            each.alarm()

    def close_ranges(self) -> None:
        """Measure no ranges any more."""
        for each in self._ranges.values():
            each.close()

    def _is_watched(self, step: int) -> bool:
        is_between = step in _BETWEEN and self.watchers.stored.are_continual()
        is_expected = self.watchers.writes.is_expected(step) or self.watchers.stored.is_expected(step)
        return step in _STEPS or is_expected or is_between

    def leave(self) -> None:
        """Take the mode out of torch's stack of modes, unless another one has been put on top of it meanwhile."""
        self.edits.end()
        self.watchers.discarded.release()
        if self._mode is None:
            return
        if self._mode.has_failed:
            self.exact.drop(L_("the step raised an error"))
        self._mode.stop()
        if self._mode.leave():
            self._mode = None

    def abandon(self, why: str) -> None:
        """Leave the step, of which no more is told, where its operations are watched in this thread."""
        if self._mode is not None and is_dispatch_mode_here(self._mode):
            self.exact.drop(why)
            self.leave()

    def news(self, *, last: bool = False) -> dict[str, Any]:
        """The facts of `Watchers.facts` that have changed, each as {"all": rows}.

        They are put together in steps in which operations were watched, in the first steps, and then in one of
        _NEWS_EVERY; `last`: no step is under way any more that could end.
        """
        if not last:
            self.exact.end()
            if not self._is_seen and self._step > _NEWS_IN_EACH and self._step % _NEWS_EVERY:
                return {}
        edits = {"gradient_edits": self.edits.facts(), "late_edits": self.edits.late()}
        edits |= {"cleared_gradients": self.edits.cleared(), "rewritten_weights": self._rewritten.facts()}
        edits |= {"emptied_moments": self._emptied.facts(), "zero_state": self._zero_state.facts()}
        edits["narrow_state"] = [*self._zero_state.narrow(), *self.watchers.rounding.facts()["narrow_state"]]
        facts = self.watchers.facts() | edits | self.batches.facts() | {"exact_steps": self.exact.facts()}
        facts |= {name: each.facts() for name, each in self._ranges.items()}
        told = {name: hash(str(rows)) for name, rows in facts.items() if rows}
        news = {name: {"all": facts[name]} for name, each in told.items() if each != self._reported.get(name)}
        self._reported = told
        return news


class _Mode(TorchDispatchMode):
    """Tells the watchers of each operation, until its first fault."""

    def __init__(self, model: nn.Module, guard: Guard, watchers: Watchers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.guard, self._watchers = guard, watchers
        self._stopped = self.has_failed = self._has_left = False
        self.tape: LoopTape | None = None
        self._modules: ModuleStack | None = ModuleStack(
            model, self._called, guard, on_error=self._fail, on_return=self._returned
        )
        self._modules.follow()

    def module(self) -> str | None:
        """The module whose forward pass is running; None outside of the model."""
        return self._modules.innermost if self._modules is not None else None

    def is_inside(self) -> bool:
        """Whether the forward pass of the model is running."""
        return self._modules is not None and self._modules.is_inside

    def leave(self) -> bool:
        """Whether this has left torch's stack of modes, now or before; not from below another mode.

        Nor in a backward pass, whose end puts the stack of its beginning back.
        """
        if graph_task() != -1:
            return self._has_left
        depth = dispatch_modes()
        if not self._has_left and depth and dispatch_mode_at(depth - 1) is self:
            self.__exit__(None, None, None)
            self._has_left = True
        return self._has_left

    def _fail(self) -> None:
        """The loop has raised: no step to tell of. The hooks stay, since torch goes through them now.

        In a backward pass torch itself raises, where a checkpointed segment has computed again all that is needed.
        """
        if graph_task() != -1:
            return
        self.has_failed = self._stopped = True
        self.leave()

    def _called(self, _: nn.Module) -> None:
        if self.has_failed:
            self.leave()

    def _returned(self, name: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._stopped or graph_task() != -1:
            return
        try:
            self._watchers.returned(name, module, inputs, outputs)
        except Exception:  # noqa: BLE001 - as in `__torch_dispatch__`
            self._stopped = True

    def stop(self) -> None:
        """Tell nothing any more, though it may still be entered, and let go of the model."""
        was_stopped, self._stopped = self._stopped, True  # the operations of the watchers themselves are not told
        self.tape = None
        if not was_stopped:
            self._end()
        if self._modules is not None:
            self._modules.close()
            self._modules = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        told: list[After] = []
        begun = None
        if not (self._stopped or self.guard.is_shut):
            try:  # here and below without a call more, since a step has thousands of operations
                told = self._watchers.before(func, args, kwargs)
            except Exception:  # noqa: BLE001 - whatever a tensor of somebody's class raises; the training goes on
                self._stopped = True
        if self.tape is not None:
            begun = self.tape.before(func, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except Exception:
            self.has_failed = self._stopped = True
            raise
        if begun is not None and self.tape is not None:
            self.tape.after(begun, out)
        if not (self._stopped or self.guard.is_shut):
            try:
                self._watchers.after(told, func, args, kwargs, out)
            except Exception:  # noqa: BLE001 - as above
                self._stopped = True
        return out

    @guarded
    def _end(self) -> None:
        try:
            self._watchers.end()
        except Exception:  # noqa: BLE001 - as above
            self._stopped = True
