"""Recording a user's own training loop by hooks on its model and optimizers."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from precgui.backward_order import first_nonfinite_gradient
from precgui.config import RecordConfig
from precgui.engine.module_calls import plain_name
from precgui.engine.telemetry.backends import device_norms, fetched
from precgui.engine.telemetry.guard import Guard, guarded
from precgui.engine.telemetry.held import Copies, copies_in
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.nonfinite import BadOutput
from precgui.engine.telemetry.parameters import parameters_of, updated_by
from precgui.engine.telemetry.readable import are_plain, readable, unseen
from precgui.engine.telemetry.recorder import Telemetry, Weight
from precgui.engine.torch_private import disable_dynamo, is_compiled, tracing_state, transform_level
from precgui.events import Emit
from precgui.record.first_step import FirstStep
from precgui.record.later_numbers import LaterNumbers, Number
from precgui.record.later_steps import LaterSteps
from precgui.record.loop_order import LoopOrder
from precgui.record.manual import ManualUpdates
from precgui.record.master_weights import MasterCopies
from precgui.record.passes import BackwardCount
from precgui.record.precision import of_first_step
from precgui.record.reloaded_weights import ReloadedWeights
from precgui.record.schedules import Schedules

_NOTHING = {name: 0 for name in RecordConfig.model_fields if name.endswith("_every")}


@dataclass(frozen=True)
class StepMeasurements:
    """Measurements of the hooks in one step. `first_forward_s` is when its first forward pass began, 0 without one.

    `skipped` says that not all optimizers updated their weights, `partly` that some did. Without gradients to measure,
    `has_gradients` is false and the norm NaN. `lr` is NaN in a step in which the loop updated the weights by itself.
    """

    skipped: bool
    partly: bool
    has_gradients: bool
    lr: float
    grad_norm: float
    first_forward_s: float
    backward_passes: float
    optimizer_steps: int
    weights_changed: bool | None  # in a step without an optimizer step; None when not checked


class LoopWatch:
    """Hooks that read: gradients and learning rate when an optimizer steps, outputs when the model runs.

    `begin` opens a step, `step_measurements` and `end` close it. A watch that is not `active` only detects NaN and Inf.
    """

    def __init__(
        self,
        config: RecordConfig,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        emit: Emit,
        guard: Guard,
        *,
        active: bool = True,
        copies: Copies | None = None,
        total_steps: int = 0,
        scaler: Any = None,
    ) -> None:
        """`copies` gives the copies of weights that the training keeps outside the model, by name."""
        self._model, self._emit, self.guard, self._outside = model, emit, guard, copies
        self._optimizers: list[Optimizer] = []
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those of other models
        self._handles: list[RemovableHandle] = []
        self._weights = weights_of(model, optimizers)
        if not active:
            config = config.model_copy(update=_NOTHING)
        compiled = _is_compiled(model)
        self._telemetry = self._telemetry_of(config, compiled, total_steps) if config.tensors else None
        self._later = LaterNumbers()
        self._scaler, self._schedules = scaler, Schedules()
        self._order_of_loop = self._watch_of_order(active=active, compiled=compiled)
        self._later_steps = LaterSteps(model, guard, self._later, active=active and not compiled)
        self._first_step = self._watch_of_first_step(compiled) if active else None
        self._passes, self._manual = BackwardCount(guard), ManualUpdates()
        self._reloaded = ReloadedWeights(model, guard, active=active and not compiled)
        self._order: dict[str, int] = {}  # of the parameters in the backward pass of the first step
        if not isinstance(model, torch.jit.ScriptModule):  # takes no hooks
            hook = _PassHook(self)
            self._handles += [each.register_forward_pre_hook(hook, with_kwargs=True) for each in _entrances(model)]
        for optimizer in optimizers:
            self._adopt(optimizer)
        self._handles.append(register_optimizer_step_post_hook(self._after_any_step))
        self._passes.watch(self._optimizers)
        self._order_of_loop.watch(self._optimizers)
        self._clear()

    def _telemetry_of(self, config: RecordConfig, compiled: bool, total_steps: int) -> Telemetry:
        return Telemetry(
            config, self._model, self._weights, self._emit,
            modules=not compiled, copies=self._copies, total_steps=total_steps, guard=self.guard,
        )  # fmt: skip

    def _watch_of_order(self, *, active: bool, compiled: bool) -> LoopOrder:
        masters = MasterCopies(self._model, self._weights, self._later) if active else None
        device, seen = _device(self._model), active and not compiled
        return LoopOrder(self._scaler, self._model, device, self.guard, self._later, active=seen, masters=masters)

    def _watch_of_first_step(self, compiled: bool) -> FirstStep:
        observers = [*self._order_of_loop.observers, self._later_steps.watchers.first_step]
        watch = FirstStep(self._model, _device(self._model), self.guard, compiled=compiled, observers=observers)
        self._later_steps.watchers.where = watch.module
        return watch

    def _copies(self) -> list[tuple[str, Tensor]]:
        outside = self._outside() if self._outside is not None else []
        return [*copies_in(self._model, self._weights), *outside]

    def _adopt(self, optimizer: Optimizer) -> None:
        self._optimizers.append(optimizer)
        self._reloaded.watch(optimizer)
        self._handles.append(optimizer.register_step_pre_hook(self._before_step))
        self._handles.append(optimizer.register_step_post_hook(self._after_step))

    def _clear(self) -> None:
        self._stepped: set[int] = set()  # by id
        self._steps = 0
        self._first_forward_s, self._lr = 0.0, self._rate()
        self._known: list[float] = []  # norms that telemetry knew
        self._norms: dict[tuple[str, ...], Tensor] = {}  # of the gradients of these names, still on their device
        self._read_norms: list[tuple[str, float]] = []
        self._bad: list[str] = []  # whose norm is not finite

    def _rate(self) -> Number:
        """The present learning rate of the first optimizer."""
        return _rate_of(self._optimizers[0]) if self._optimizers else math.nan

    def begin(self, step: int, scale: float | Callable[[], float]) -> None:
        """A step begins; `scale` is that of its loss, or a function that returns it during the backward pass."""
        self._clear()
        self._begin_scale = scale, _version_of_scale(self._scaler)
        self._passes.begin()
        held = sum(len(group["params"]) for each in self._optimizers for group in each.param_groups)
        if self._optimizers and held != len(self._weights):
            self._weights = weights_of(self._model, self._optimizers)
            if self._telemetry is not None:
                self._telemetry.watch(self._weights)
            self._passes.watch(self._optimizers)
        self._manual.begin(self._weights)
        if self._first_step is not None and self._first_step.is_over:
            self._first_step.leave()
        self._later_steps.begin(step, self._weights)
        self._reloaded.begin(step)
        if self._telemetry is not None:
            self._telemetry.begin(step, scale)
            if self._manual.is_in_use:
                self._telemetry.before_update()

    def read(self, numbers: Sequence[Number], is_lowered: Callable[[], bool]) -> list[float]:
        """Read these numbers, and all that the step has left on its device, in one transfer.

        Gradients that no optimizer has used are measured before, if they still exist and the step was skipped, or the
        scaler has lowered its scale, because they were not finite.
        """
        self.leave_step()
        left_out: list[Optimizer | None] = [*self._left_out()] if self._optimizers else [None]
        if left_out and (not self._stepped or is_lowered()):
            for optimizer in left_out:
                self._measure_gradients(optimizer, 1.0)
        with unseen():
            changed = self._later_steps.probe()
        if changed is not None:
            self._later.ask([changed], self._later_steps.changed)
        wanted: list[Number] = [*numbers, self._lr]
        norms, later = list(self._norms.values()), self._later.tensors()
        tensors = [*norms, *later, *(number for number in wanted if isinstance(number, Tensor))]
        with unseen():
            arrays = self._telemetry.collect(tensors) if self._telemetry is not None else fetched(tensors)
        names = [name for names in self._norms for name in names]
        values = [value for array in arrays[: len(norms)] for value in array.tolist()]
        self._read_norms = list(zip(names, values, strict=True))
        rest = [array.item() for array in arrays[len(norms) :]]
        self._later.take(rest[: len(later)])
        left = iter(rest[len(later) :])
        *results, self._lr = [next(left) if isinstance(number, Tensor) else float(number) for number in wanted]
        return results

    def _left_out(self) -> list[Optimizer]:
        return [each for each in self._optimizers if id(each) not in self._stepped]

    def step_measurements(self, *, lowered: bool) -> StepMeasurements:
        """The measurements of the step after `read`; `lowered`: the scaler has lowered its scale because of gradients
        that are not finite."""
        left_out = self._left_out()
        every = [*self._known, *(norm for _, norm in self._read_norms)]
        norm = math.hypot(*every) if every else math.nan
        if not math.isfinite(norm):
            self._bad = [name for name, own in self._read_norms if not math.isfinite(own)]
        changed = None if self._stepped or lowered else self._manual.changed(self._weights)
        if changed and self._telemetry is not None:
            self._telemetry.after_update(self._optimizers)
        skipped = lowered or not (self._stepped or changed)
        self._schedules.stepped(float(self._lr))
        return StepMeasurements(
            skipped,
            skipped and bool(self._stepped and left_out),
            bool(every),
            math.nan if changed else float(self._lr),
            norm,
            self._first_forward_s,
            self._passes.count(gradients=bool(every)),
            0 if lowered and not left_out else self._steps,
            changed,
        )

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has stepped since the step began."""
        return bool(self._stepped)

    def end_first_step(self, time_s: float) -> dict[str, Any]:
        """Facts about the first step, once, after it; {} later. The model is then described."""
        first = self._first_step
        if first is None or first.is_over:
            return {}
        first.end()
        self._order_of_loop.first_step_over()
        self._emit(first.described([id(w.own) for w in self._weights], self._copies, time_s))
        trained = [weight.own for weight in self._weights]
        result = of_first_step(trained, first.census(), first.autocast(), first.fp32_products)
        places = {w.name: first.order.backward.get(id(w.own)) for w in self._weights}
        self._order = {name: place for name, place in places.items() if place is not None}
        facts = {**first.facts(), "precision": result}
        if not first.is_entered:
            self._first_step = None
        return facts

    def news_of_loop(self) -> dict[str, Any]:
        """The facts `loop` (see `LoopOrder.news`) and those of single steps where they have changed, else {}."""
        news = self._order_of_loop.news()
        return ({"loop": news} if news else {}) | self._later_steps.news() | self._reloaded.news()

    def last_facts(self) -> dict[str, Any]:
        """Facts when the recording ends: `schedules`, which are looked for once, and those of the last steps."""
        rows = self._schedules.facts(self._optimizers)
        schedules = {"schedules": {"all": rows}} if rows else {}
        return schedules | self._later_steps.news(last=True) | self._reloaded.news()

    def end(self, time_s: float, step_s: float, *, alarm: bool, loss_is_finite: bool = True) -> None:
        """A step is over; `alarm`: its loss or its gradients were not finite."""
        if not loss_is_finite:
            self._later_steps.alarm()
        elif alarm:
            self._later_steps.batches.alarm(loss_is_finite=True)
            self._later_steps.look_at_ranges()
        if self._telemetry is not None:
            if not loss_is_finite:
                self._telemetry.await_outputs()
            self._telemetry.end(time_s, step_s, self._optimizers, alarm=alarm)

    @guarded
    def evaluated(self) -> None:
        """The loop reports an evaluation."""
        self._order_of_loop.evaluated()

    def look_at_batch(self) -> None:
        """The loss of this step is not finite: look for the reason in its batch, and in what went into exponentials."""
        self._later_steps.batches.alarm(loss_is_finite=False)
        self._later_steps.look_at_ranges()

    def first_output(self) -> BadOutput:
        """The first output of this step that was not finite."""
        return self._telemetry.nonfinite_output() if self._telemetry is not None else BadOutput()

    def first_gradient(self) -> str:
        """The first parameter whose gradient was not finite when measured, or ''; known after `step_measurements`."""
        name = self._telemetry.first_nonfinite_gradient(self._order) if self._telemetry is not None else ""
        return name or first_nonfinite_gradient(self._bad, self._order)

    def leave_step(self) -> None:
        """Tell of no more operations of this step; harmless at any moment, also in a garbage collection."""
        if self._first_step is not None:
            self._first_step.leave()
        self._later_steps.leave()

    def abandon_step(self, why: str) -> None:
        """The same where this thread runs the operations of the step; nothing is told of it."""
        if self._first_step is not None:
            self._first_step.abandon(why)
        self._later_steps.abandon(why)

    def close(self) -> None:
        """Remove all hooks, also where the removal of some fails."""
        with contextlib.ExitStack() as parts:
            if self._telemetry is not None:
                parts.callback(self._telemetry.close)
            if self._first_step is not None:
                parts.callback(self._first_step.end)
            for close in (
                self._later_steps.leave,
                self._later_steps.close_ranges,
                self._order_of_loop.close,
                self._reloaded.close,
                self._passes.close,
                *(each.remove for each in self._handles),
            ):
                parts.callback(close)
            self._handles = []

    def pass_begins(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the start of a forward pass; called before each call of the model, or of a part of a container."""
        if torch.is_grad_enabled():
            self._order_of_loop.pass_with_gradients(training=module.training)
        elif tracing_state() is None and transform_level() is None:
            self._order_of_loop.pass_without_gradients()
            self._later_steps.batches.evaluated(args, kwargs)
        if not self._model.training or not torch.is_grad_enabled() or tracing_state() is not None:
            return
        self._lr = self._rate()  # a scheduler may have stepped since the step began
        transformed = transform_level() is not None
        if not self._first_forward_s:
            self._first_forward_s = time.perf_counter()
            if self._telemetry is not None and not transformed:
                self._telemetry.start()
        if not transformed:
            self._order_of_loop.pass_begins()
            self._later_steps.batches.given(args, kwargs)
        if self._first_step is not None and not self._first_step.is_over and not transformed:
            was_entered = self._first_step.is_entered
            self._first_step.called()
            if self._first_step.is_entered and not was_entered:
                self._later_steps.exact.begin(1, self._weights, self._first_step.module)
                self._first_step.follow(self._later_steps.exact.tape)

    @disable_dynamo
    @guarded
    def _before_step(self, optimizer: Optimizer, args: Any = (), kwargs: Any = None) -> None:
        if not self._stepped:
            self._lr = _rate_of(optimizer)
            self._manual.stepped()
        self._stepped.add(id(optimizer))
        self._steps += 1
        closure = _has_closure(args, kwargs)
        self._order_of_loop.steps(optimizer, closure=closure)
        self._later_steps.optimizer_begins(optimizer, closure=closure)
        if not closure:
            self._measure_before_step(optimizer)
        if self._telemetry is not None:
            self._telemetry.before_update(optimizer)
        if not closure:
            self._optimizer_runs(inside=True)

    def _optimizer_runs(self, *, inside: bool) -> None:
        """An optimizer begins to step, or has stepped: operations in between are its own."""
        self._later_steps.watchers.in_optimizer = inside
        if self._first_step is not None:
            self._first_step.optimizer_steps(inside=inside)

    def _measure_before_step(self, optimizer: Optimizer) -> None:
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer unscales by itself
        known, version = self._begin_scale
        if scale is None:
            self._measure_gradients(optimizer, 1.0)
        elif isinstance(known, float) and version == _version_of_scale(self._scaler):  # as it was read
            self._measure_gradients(optimizer, known)
        else:
            self._measure_gradients(optimizer, float(scale))

    @disable_dynamo
    @guarded
    def _after_step(self, optimizer: Optimizer, args: Any = (), kwargs: Any = None) -> None:
        self._optimizer_runs(inside=False)
        self._later_steps.optimizer_ends(optimizer)
        if _has_closure(args, kwargs):  # which has made the gradients inside the step
            self._measure_gradients(optimizer, 1.0)
        self._order_of_loop.stepped()
        self._reloaded.stepped(optimizer)
        if self._telemetry is not None:
            self._telemetry.after_update([optimizer])

    @disable_dynamo
    @guarded
    def _after_any_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Record another optimizer from now on that has taken the place of the known ones for the same weights.

        Where one of these has stepped, it is a wrapper around them.
        """
        self._later_steps.watchers.discarded.stepped()
        if self._stepped or optimizer in self._strangers:
            return
        if updated_by(self._weights, optimizer):
            self._adopt(optimizer)
            self._passes.watch(self._optimizers)
            self._order_of_loop.watch(self._optimizers)
            self._before_step(optimizer)
        else:
            self._strangers.add(optimizer)

    def _measure_gradients(self, optimizer: Optimizer | None, scale: float) -> None:
        visited = self._telemetry.gradients(optimizer, scale) if self._telemetry is not None else None
        if visited is not None:
            self._known.append(visited)
            return
        with unseen():
            weights = updated_by(self._weights, optimizer)
            own = {weight.name: gradient for weight in weights if (gradient := weight.own.grad) is not None}
            if not are_plain([*own.values()]):
                found = ((name, readable(gradient)) for name, gradient in own.items())
                own = {name: gradient for name, gradient in found if gradient is not None}
            if own:
                results = list(own.values())
                norms = device_norms(results) if self._telemetry is None else self._telemetry.norms(results)
                self._norms[tuple(own)] = norms if scale == 1 else norms / scale


class _PassHook(Hook):
    """Called by the model before each pass."""

    __slots__ = ("_watch",)

    def __init__(self, watch: LoopWatch) -> None:
        super().__init__(watch.guard)
        self._watch = watch

    def __call__(self, module: nn.Module, *given: Any) -> None:
        if not torch.compiler.is_compiling():
            args, kwargs = given
            self._watch.pass_begins(module, args, kwargs)


def _rate_of(optimizer: Optimizer) -> Number:
    """The learning rate of its first group of parameters; NaN while it has no group, or for groups without a rate.

    A tensor stays one, since reading it may wait for a GPU.
    """
    rate = next(iter(optimizer.param_groups), {}).get("lr", math.nan)
    return rate.detach().clone() if type(rate) is Tensor else float(rate)


def _version_of_scale(scaler: Any) -> tuple[int, int]:
    """A pair that changes whenever the scale of a scaler is written to."""
    scale = getattr(scaler, "_scale", None)
    return (id(scale), scale._version) if isinstance(scale, Tensor) else (0, 0)


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Whether an optimizer's step, called with these (itself first), evaluates the model by itself."""
    return (len(args) > 1 and callable(args[1])) or callable((kwargs or {}).get("closure"))


def _entrances(model: nn.Module) -> list[nn.Module]:
    """The modules whose calls are passes of a model: itself, or the parts of a container, which is never called."""
    if getattr(model.forward, "__func__", None) is not nn.Module.forward:  # of a compiled one it is its own
        return [model]
    return [entrance for child in model.children() for entrance in _entrances(child)]


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _is_compiled(model: nn.Module) -> bool:
    """Whether a model is compiled, so that its modules cannot be hooked."""
    return isinstance(model, torch.jit.ScriptModule) or is_compiled(model)


def weights_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Weight]:
    """The parameters of the optimizers, under the model's names; parameters that are not the model's by number.

    Without an optimizer those of the model that have gradients, or all of them where none has.
    """
    if not optimizers:
        every = list(model.named_parameters())
        learning = [(name, own) for name, own in every if own.requires_grad] or every
        return [Weight(plain_name(name), own, own) for name, own in learning]
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    results = [parameter for each in optimizers for parameter in parameters_of(each)]
    return [
        Weight(names.get(id(parameter), f"(parameter {place})"), parameter, parameter)
        for place, parameter in enumerate(results)
    ]
