"""Loops that throw away the gradients of most batches, and sound ones that make many passes for one step."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches

_DISCARDED = "batches are thrown away", "inside the loop over batches"
_PASSES = 6
Model = nn.Sequential


def _net() -> Model:
    return nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 6))


Passes = Callable[[Model, torch.optim.Optimizer, list[tuple[Tensor, Tensor]]], Tensor]


def _rounds(opened: Open, passes: Passes, rounds: int = 40, rate: float = 3e-3) -> None:
    """One step for each round of batches; `passes` makes the gradients of a round and returns its loss."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    recorder = opened(model, optimizer)
    every = batches(rounds * _PASSES, 32)
    for start in range(0, len(every), _PASSES):
        loss = passes(model, optimizer, every[start : start + _PASSES])
        optimizer.step()
        recorder.step(loss.detach())


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _clearing(to_none: bool) -> Passes:
    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        loss = torch.zeros(())
        for x, y in each:
            optimizer.zero_grad(set_to_none=to_none)
            loss = _loss(model, x, y)
            loss.backward()
        return loss

    return passes


@fault("passes-discarded", *_DISCARDED)
def step_behind_the_loop_over_batches(opened: Open) -> None:
    _rounds(opened, _clearing(to_none=True))


@fault("passes-discarded", *_DISCARDED)
def step_behind_the_loop_with_gradients_set_to_zero(opened: Open) -> None:
    _rounds(opened, _clearing(to_none=False))


@fault("passes-discarded", *_DISCARDED)
def few_epochs_with_a_step_each(opened: Open) -> None:
    _rounds(opened, _clearing(to_none=True), rounds=6)


@fault("passes-discarded", *_DISCARDED)
def micro_batches_that_each_clear_and_clip(opened: Open) -> None:
    """Accumulation with zero_grad in the wrong place; the loss of each part is divided, and the sum is clipped."""

    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        total = torch.zeros(())
        for x, y in each:
            model.zero_grad()
            loss = _loss(model, x, y) / len(each)
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return total

    _rounds(opened, passes)


@healthy
def gradients_added_up_over_batches(opened: Open) -> None:
    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in each:
            loss = _loss(model, x, y) / len(each)
            loss.backward()
            total = total + loss.detach()
        return total

    _rounds(opened, passes)


@healthy
def inputs_changed_by_an_attack_before_the_step(opened: Open) -> None:
    """Passes for the gradients of the inputs; those of the weights are cleared each time."""

    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        x, y = each[0]
        moved = x.clone()
        for _ in range(5):
            moved = moved.detach().requires_grad_()
            optimizer.zero_grad()
            _loss(model, moved, y).backward()
            assert moved.grad is not None
            moved = moved + 0.02 * moved.grad.sign()
        optimizer.zero_grad()
        loss = _loss(model, moved.detach(), y)
        loss.backward()
        return loss

    _rounds(opened, passes)


@healthy
def gradient_of_each_part_clipped_and_added_up_apart(opened: Open) -> None:
    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        sums = [torch.zeros_like(weight) for weight in model.parameters()]
        total = torch.zeros(())
        for x, y in each:
            optimizer.zero_grad()
            loss = _loss(model, x, y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for own, weight in zip(sums, model.parameters(), strict=True):
                assert weight.grad is not None
                own.add_(weight.grad)
            total = total + loss.detach() / len(each)
        for own, weight in zip(sums, model.parameters(), strict=True):
            weight.grad = own / len(each)
        return total

    _rounds(opened, passes)


@healthy
def gradients_kept_in_a_list_and_averaged(opened: Open) -> None:
    """As `.data`, of which torch tells nobody, and put into the gradients of the last batch."""

    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        kept: list[list[Tensor]] = []
        total = torch.zeros(())
        for x, y in each:
            optimizer.zero_grad()
            loss = _loss(model, x, y)
            loss.backward()
            kept.append([weight.grad.data for weight in model.parameters() if weight.grad is not None])
            total = total + loss.detach() / len(each)
        for weight, *own in zip(model.parameters(), *kept, strict=True):
            assert weight.grad is not None
            weight.grad.copy_(torch.stack(own).mean(0))
        return total

    _rounds(opened, passes)


@healthy
def norms_of_the_gradients_of_parts_before_the_step(opened: Open) -> None:
    """The noise of gradients, from their norms in parts, and then a pass of all for the step."""
    noise: list[float] = []

    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        for x, y in each:
            optimizer.zero_grad()
            _loss(model, x, y).backward()
            norms = [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
            noise.append(float(torch.stack(norms).norm()))
        optimizer.zero_grad()
        loss = _loss(model, torch.cat([x for x, _ in each]), torch.cat([y for _, y in each]))
        loss.backward()
        return loss

    _rounds(opened, passes)


@healthy
def main_gradients_by_hooks(opened: Open) -> None:
    """A hook of each weight adds its gradient to a buffer and frees it; the optimizer gets the buffers."""
    buffers: dict[Tensor, Tensor] = {}

    def hook(weight: Tensor) -> None:
        assert weight.grad is not None
        buffers[weight] = buffers.get(weight, torch.zeros_like(weight)) + weight.grad
        weight.grad = None

    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        if not buffers:
            for weight in model.parameters():
                weight.register_post_accumulate_grad_hook(hook)
        total = torch.zeros(())
        for x, y in each:
            loss = _loss(model, x, y) / len(each)
            loss.backward()
            total = total + loss.detach()
        for weight in model.parameters():
            weight.grad = buffers.pop(weight)
        buffers[torch.zeros(())] = torch.zeros(())
        return total

    _rounds(opened, passes)


@healthy
def generator_through_a_discriminator_that_steps_rarely(opened: Open) -> None:
    """Five passes through the discriminator for the generator, whose gradients are cleared, and one of its own."""
    maker, judge = nn.Linear(8, 2), nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    model = nn.ModuleDict({"maker": maker, "judge": judge})
    of_maker = torch.optim.Adam(maker.parameters(), 1e-3, (0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, (0.5, 0.9))
    recorder = opened(model, [of_maker, of_judge])
    for _ in range(40):
        loss = torch.zeros(())
        for _ in range(5):
            of_maker.zero_grad()
            of_judge.zero_grad()
            loss = F.softplus(-judge(maker(torch.randn(64, 8)))).mean()
            loss.backward()
            of_maker.step()
        of_judge.zero_grad()
        real, made = torch.randn(64, 2) + 1, maker(torch.randn(64, 8)).detach()
        (F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()).backward()
        of_judge.step()
        recorder.step(loss.detach())


@healthy
def learners_of_tasks_that_are_copies(opened: Open) -> None:
    """First-order meta-learning: copies take steps of their own, and their gradients become those of the model."""

    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in each:
            learner = copy.deepcopy(model)
            inner = torch.optim.SGD(learner.parameters(), 0.05)
            _loss(learner, x, y).backward()
            inner.step()
            inner.zero_grad()
            loss = _loss(learner, x, y) / len(each)
            loss.backward()
            for own, other in zip(model.parameters(), learner.parameters(), strict=True):
                assert other.grad is not None
                own.grad = other.grad if own.grad is None else own.grad + other.grad
            total = total + loss.detach()
        return total

    _rounds(opened, passes)


@healthy
def batches_of_large_gradients_are_passed_over(opened: Open) -> None:
    """Most batches are thrown away by the norm of their gradients, on purpose."""

    def passes(model: Model, optimizer: torch.optim.Optimizer, each: list[tuple[Tensor, Tensor]]) -> Tensor:
        loss = torch.zeros(())
        norms: list[Tensor] = []
        for x, y in each:
            optimizer.zero_grad()
            loss = _loss(model, x, y)
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 10.0))
        return loss

    _rounds(opened, passes)


@healthy
def one_optimizer_for_each_weight_inside_of_the_pass(opened: Open) -> None:
    """Each weight steps as soon as its gradient is complete, and frees it."""
    model = _net()
    optimizers = {weight: torch.optim.Adam([weight], 3e-3) for weight in model.parameters()}
    recorder = opened(model, list(optimizers.values()))

    def hook(weight: Tensor) -> None:
        optimizers[weight].step()
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(hook)
    for x, y in batches(60):
        loss = _loss(model, x, y)
        loss.backward()
        recorder.step(loss)
