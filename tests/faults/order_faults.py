"""Loops in mixed precision in a wrong order, each with its correction, and odd ones in a right order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, Published, Train, batches, network, score

ORDER: dict[str, Published] = {}
RIGHT: dict[str, Callable[[Open], None]] = {}


def _mistake(rule: str, blame: bool | None) -> Callable[[Train], Train]:
    def keep(train: Train) -> Train:
        ORDER[train.__name__] = Published(train, (rule,), blame, "")
        return train

    return keep


@_mistake("stale-casts", None)
def one_autocast_around_the_loop(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer)

    def region(wanted: bool) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if wanted else contextlib.nullcontext()

    with region(broken):
        for x, y in batches(100):
            with region(not broken):
                loss = F.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    return score(model)


def _scaler(scale: float = 2.0**10) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=40)


@_mistake("unscaled-twice", False)
def divided_by_hand_and_by_the_scaler(opened: Open, broken: bool) -> float:
    model, scaler = network(), _scaler()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(100):
        optimizer.zero_grad()
        for inputs, targets in zip(x.chunk(2), y.chunk(2), strict=True):
            with torch.autocast("cpu", torch.float16):
                outputs = model(inputs)
            loss = F.cross_entropy(outputs.float(), targets) / 2
            scaler.scale(loss).backward()
        for parameter in model.parameters() if broken else ():
            assert parameter.grad is not None
            parameter.grad.div_(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        recorder.step(2 * loss)
    return score(model)


@_mistake("loss-not-scaled", False)
def one_of_two_losses_is_scaled(opened: Open, broken: bool) -> float:
    model, scaler = network(), _scaler()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(100):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs, shifted = model(x), model(x + 0.1)
        own, other = 0.1 * outputs.float().square().mean(), F.cross_entropy(shifted.float(), y)
        scaler.scale(own).backward()
        (other if broken else scaler.scale(other)).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(own + other)
    return score(model)


def _right(loop: Callable[[Open], None]) -> Callable[[Open], None]:
    RIGHT[loop.__name__] = loop
    return loop


@_right
def step_inside_a_region_of_each_step(opened: Open) -> None:
    """The whole step is inside autocast, which is left after each."""
    model, scaler = network(), _scaler()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(80):
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()
            recorder.step(loss)


@_right
def one_region_without_a_cache(opened: Open) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        for x, y in batches(80):
            loss = F.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)


@_right
def several_passes_in_one_region(opened: Open) -> None:
    """Micro-batches share casts of the weights, as they should."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            parts = [F.cross_entropy(model(a).float(), b) / 4 for a, b in zip(x.chunk(4), y.chunk(4), strict=True)]
        total = torch.stack(parts).sum()
        total.backward()
        optimizer.step()
        recorder.step(total)


@_right
def penalty_after_unscaling(opened: Open) -> None:
    """A second loss in FP32 adds its gradients to those that the scaler has divided already."""
    model, scaler = network(), _scaler()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
        loss = F.cross_entropy(outputs.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        penalty = 1e-4 * torch.stack([p.square().sum() for p in model.parameters()]).sum()
        penalty.backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss.detach() + penalty.detach())


@_right
def adversary_without_a_scaler(opened: Open) -> None:
    """Two optimizers: the loss of one is scaled, that of the other in FP32 is not, and its step is its own."""
    model, critic, scaler = network(), nn.Linear(6, 1), _scaler()
    both = nn.ModuleList([model, critic])
    first, second = torch.optim.AdamW(model.parameters(), 2e-3), torch.optim.SGD(critic.parameters(), 0.01)
    recorder = opened(both, [first, second], scaler)
    both.forward = lambda x: model(x)
    for x, y in batches(60):
        first.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = both(x)
        loss = F.cross_entropy(outputs.float(), y)
        scaler.scale(loss).backward()
        second.zero_grad()
        judged: Tensor = F.softplus(critic(outputs.detach().float())).mean()
        judged.backward()
        second.step()
        scaler.step(first)
        scaler.update()
        recorder.step(loss)


@_right
def scaled_by_a_number(opened: Open) -> None:
    """Losses scaled by the scaler and by its number, two to one."""
    model, scaler = network(), _scaler()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
        loss = F.cross_entropy(outputs.float(), y)
        first, second = scaler.scale([loss / 2, loss / 4])
        first.backward(retain_graph=True)
        (second / 1).backward(retain_graph=True)
        (scaler.get_scale() * loss / 4).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
