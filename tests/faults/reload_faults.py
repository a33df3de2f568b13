"""States of models that are loaded and change nothing, and sound loops that keep, edit and load states."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches

State = dict[str, Tensor]
_KEPT = "were kept without a copy", "copy.deepcopy(model.state_dict())"
_OWN = "its own weights again and again", "target.load_state_dict(online.state_dict())"


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 6))


def _fitted(opened: Open, each: Callable[[nn.Module, int], None], steps: int = 60) -> None:
    """Adam; `each` is called after every recorded step with its number."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(steps), 1):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        each(model, step)


def _best(opened: Open, keep: Callable[[nn.Module], Any], restore: Callable[[nn.Module, Any], None]) -> None:
    """The weights of the best validation of six are kept, and put back after the last one."""
    x, y = batches(1)[0]
    best: list[Any] = []
    losses: list[float] = []

    def each(model: nn.Module, step: int) -> None:
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                losses.append(float(F.cross_entropy(model(x), y)))
            model.train()
            if step <= 40 and losses[-1] <= min(losses):
                best[:] = [keep(model)]
        if step == 60:
            restore(model, best[0])

    _fitted(opened, each)


def _load(model: nn.Module, state: State) -> None:
    model.load_state_dict(state)


@fault("loaded-onto-itself", *_KEPT)
def best_weights_by_reference(opened: Open) -> None:
    _best(opened, lambda model: model.state_dict(), _load)


@fault("loaded-onto-itself", *_KEPT)
def best_weights_on_the_cpu_where_they_are_already(opened: Open) -> None:
    _best(opened, lambda model: {name: each.cpu() for name, each in model.state_dict().items()}, _load)


@fault("loaded-onto-itself", *_KEPT)
def best_weights_of_a_part(opened: Open) -> None:
    def keep(model: nn.Module) -> State:
        own: State = model[0].state_dict()
        return own

    def restore(model: nn.Module, state: State) -> None:
        model[0].load_state_dict(state)

    _best(opened, keep, restore)


@fault("loaded-onto-itself", *_KEPT)
def set_back_to_a_checkpoint_by_reference_when_the_loss_rises(opened: Open) -> None:
    good: list[State] = []

    def each(model: nn.Module, step: int) -> None:
        if step % 10 == 0:
            good[:] = [dict(model.state_dict())]
        if step % 20 == 5 and good:
            model.load_state_dict(good[0])

    _fitted(opened, each)


@healthy
def best_weights_by_deepcopy(opened: Open) -> None:
    _best(opened, lambda model: copy.deepcopy(model.state_dict()), _load)


@healthy
def best_weights_cloned(opened: Open) -> None:
    _best(opened, lambda model: {name: each.clone() for name, each in model.state_dict().items()}, _load)


@healthy
def best_weights_in_a_file(opened: Open) -> None:
    def keep(model: nn.Module) -> bytes:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        return file.getvalue()

    _best(opened, keep, lambda model, saved: _load(model, torch.load(io.BytesIO(saved))))


@healthy
def best_model_as_a_copy(opened: Open) -> None:
    _best(opened, copy.deepcopy, lambda model, best: _load(model, best.state_dict()))


@healthy
def state_that_is_edited_in_place_and_loaded(opened: Open) -> None:
    """As a checkpoint that is read into the tensors of a state, and a decay of weights by hand."""
    held: list[State] = []

    def each(model: nn.Module, step: int) -> None:
        held[:] = held or [model.state_dict()]
        if step % 5 == 0:
            for value in held[0].values():
                value.mul_(0.999)
            model.load_state_dict(held[0])

    _fitted(opened, each)


@healthy
def state_of_the_moment_is_loaded_as_a_check(opened: Open) -> None:
    def each(model: nn.Module, step: int) -> None:
        if step % 5 == 0:
            model.load_state_dict(model.state_dict(), strict=True)

    _fitted(opened, each)


@healthy
def averages_swapped_in_for_validations(opened: Open) -> None:
    average: State = {}

    def each(model: nn.Module, step: int) -> None:
        own = {name: value.clone() for name, value in model.state_dict().items()}
        for name, value in own.items():
            average[name] = average.get(name, value).lerp(value, 0.1)
        if step % 10 == 0:
            model.load_state_dict(average)
            model.load_state_dict(own)

    _fitted(opened, each)


@healthy
def interpolated_with_the_weights_of_a_task(opened: Open) -> None:
    """Reptile: a step towards the weights after some steps."""
    before: list[State] = [{}]

    def each(model: nn.Module, step: int) -> None:
        if step % 10 == 0 and before[0]:
            after = model.state_dict()
            model.load_state_dict({name: value + 0.5 * (after[name] - value) for name, value in before[0].items()})
        if step % 10 == 0 or step == 1:
            before[0] = copy.deepcopy(model.state_dict())

    _fitted(opened, each)


def _values(opened: Open, renew: Callable[[nn.Module, nn.Module], None], every: int = 10, steps: int = 120) -> None:
    """Values of a chain of states by a target network, both of which the recorder gets."""
    online, target = (nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)) for _ in range(2))
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), 2e-3)
    recorder = opened(nn.ModuleDict({"online": online, "target": target}), optimizer)
    for step in range(1, steps + 1):
        state, action = torch.randn(64, 4), torch.randint(2, (64,))
        following = 0.9 * state + 0.1 * (2 * action[:, None] - 1)
        reward = state[:, 0] * (2 * action - 1)
        with torch.no_grad():
            goal = reward + 0.8 * target(following).amax(1)
        loss = F.smooth_l1_loss(online(state).gather(1, action[:, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        if step % every == 0:
            renew(online, target)


@fault("loaded-onto-itself", *_OWN)
def target_that_loads_its_own_weights(opened: Open) -> None:
    _values(opened, lambda online, target: _load(target, target.state_dict()))


@healthy
def target_that_loads_the_online_weights(opened: Open) -> None:
    _values(opened, lambda online, target: _load(target, online.state_dict()))


@healthy
def target_whose_state_is_averaged_in_place_and_loaded(opened: Open) -> None:
    def renew(online: nn.Module, target: nn.Module) -> None:
        own, other = target.state_dict(), online.state_dict()
        for name, value in own.items():
            value.mul_(0.9).add_(0.1 * other[name])
        target.load_state_dict(own)

    _values(opened, renew, every=1)


@healthy
def target_averaged_past_the_counts_of_torch(opened: Open) -> None:
    def renew(online: nn.Module, target: nn.Module) -> None:
        for own, other in zip(target.parameters(), online.parameters(), strict=True):
            own.data.copy_(0.9 * own.data + 0.1 * other.data)
        target.load_state_dict(target.state_dict())

    _values(opened, renew, every=1)


@healthy
def target_whose_state_gets_new_tensors(opened: Open) -> None:
    def renew(online: nn.Module, target: nn.Module) -> None:
        own, other = target.state_dict(), online.state_dict()
        for name in own:
            own[name] = 0.9 * own[name] + 0.1 * other[name]
        target.load_state_dict(own)

    _values(opened, renew, every=1)


@healthy
def frozen_reference_that_is_loaded_once(opened: Open) -> None:
    done: list[bool] = []

    def renew(online: nn.Module, target: nn.Module) -> None:
        if not done:
            target.load_state_dict(target.state_dict())
        done.append(True)

    _values(opened, renew)
