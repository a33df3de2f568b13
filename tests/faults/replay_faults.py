"""Targets of values that go on behind the end of an episode, in steps without its flags, and sound loops like them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

CELLS, GAMMA = 9, 0.95
_Transition = tuple[int, int, float, int, bool]


def _one_hot(states: list[int]) -> Tensor:
    return F.one_hot(torch.tensor(states), CELLS).float()


@dataclass
class _Walk:
    """A corridor; both ends end an episode, the right one with a reward."""

    goal: float = 1.0
    hole: float = 0.0
    ends: bool = True
    limit: int = 0  # steps of an episode, where nothing else ends one

    def episodes(self, count: int) -> list[_Transition]:
        found: list[_Transition] = []
        at, age = random.randint(1, CELLS - 2), 0
        while len(found) < count:
            action = random.randint(0, 1)
            following = min(max(at + 2 * action - 1, 0), CELLS - 1)
            is_end = self.ends and following in (0, CELLS - 1)
            reward = self.goal if following == CELLS - 1 else self.hole if following == 0 else -0.02
            found.append((at, action, reward, following, is_end))
            age += 1
            is_cut = bool(self.limit) and age >= self.limit
            at, age = (random.randint(1, CELLS - 2), 0) if is_end or is_cut else (following, age)
        return found


Best = Callable[[nn.Module, list[int], list[bool]], Tensor]  # network, next states, ends to values


def _unmasked(network: nn.Module, following: list[int], _: list[bool]) -> Tensor:
    best: Tensor = network(_one_hot(following)).max(1).values
    return best


def _learn(opened: Open, walk: _Walk, best: Best = _unmasked, *, model: nn.Module | None = None, steps: int = 140,
           encode: Callable[[list[int]], Tensor] = _one_hot) -> None:  # fmt: skip
    random.seed(int(torch.randint(1 << 30, ())))
    model = model or nn.Sequential(nn.Linear(CELLS, 32), nn.ReLU(), nn.Linear(32, 2))
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    memory = walk.episodes(2000)
    recorder = opened(model, optimizer)
    for step in range(steps):
        begun, actions, rewards, following, ends = (list(each) for each in zip(*random.sample(memory, 64), strict=True))
        with torch.no_grad():
            target = torch.tensor(rewards) + GAMMA * best(slow, following, ends)
        value = model(encode(begun)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            slow.load_state_dict(model.state_dict())
        recorder.step(loss)


@fault("targets-without-end", "never left", "1 - done")
def flags_that_stay_in_the_replay(opened: Open) -> None:
    _learn(opened, _Walk())


class _Table(nn.Module):
    """A row of values for each state."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Embedding(CELLS, 2)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.values(states)
        return out


@fault("targets-without-end", "never left", "1 - done")
def a_table_of_values(opened: Open) -> None:
    def best(network: nn.Module, following: list[int], _: list[bool]) -> Tensor:
        values: Tensor = network(torch.tensor(following)).amax(1)
        return values

    _learn(opened, _Walk(goal=-1.0, hole=-2.0), best, model=_Table(), encode=torch.tensor)


class _Dueling(nn.Module):
    """Value and advantages, each of the state itself."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Sequential(nn.Linear(CELLS, 16), nn.ReLU(), nn.Linear(16, 1))
        self.advantage = nn.Sequential(nn.Linear(CELLS, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, states: Tensor) -> Tensor:
        advantage: Tensor = self.advantage(states)
        out: Tensor = self.value(states) + advantage - advantage.mean(1, keepdim=True)
        return out


@fault("targets-without-end", "never left", "1 - done")
def values_and_advantages(opened: Open) -> None:
    _learn(opened, _Walk(goal=5.0), model=_Dueling())


@healthy
def ends_without_a_value(opened: Open) -> None:
    def best(network: nn.Module, following: list[int], ends: list[bool]) -> Tensor:
        values: Tensor = network(_one_hot(following)).max(1).values
        return values * (1 - torch.tensor(ends).float())

    _learn(opened, _Walk(), best)


@healthy
def values_of_the_states_that_go_on(opened: Open) -> None:
    """Only these are computed, as in torch's own tutorial."""

    def best(network: nn.Module, following: list[int], ends: list[bool]) -> Tensor:
        values, going = torch.zeros(len(ends)), ~torch.tensor(ends)
        values[going] = network(_one_hot(following)[going]).max(1).values
        return values

    _learn(opened, _Walk(), best)


@healthy
def a_world_without_an_end(opened: Open) -> None:
    """Walls at both ends."""
    _learn(opened, _Walk(ends=False))


@healthy
def a_world_that_a_time_limit_cuts(opened: Open) -> None:
    _learn(opened, _Walk(ends=False, limit=12))


@healthy
def ends_that_lead_to_themselves(opened: Open) -> None:
    """They are kept as transitions, too: their value is learnt."""
    walk = _Walk()
    episodes = walk.episodes

    def with_ends(count: int) -> list[_Transition]:
        return [*episodes(count), *((end, random.randint(0, 1), 0.0, end, True) for end in (0, CELLS - 1)
                                    for _ in range(count // 8))]  # fmt: skip

    walk.episodes = with_ends
    _learn(opened, walk)


@healthy
def ends_that_are_no_state(opened: Open) -> None:
    """A vector of zeros stands for them, and its value is 0 without biases."""

    def best(network: nn.Module, following: list[int], ends: list[bool]) -> Tensor:
        states = _one_hot(following)
        states[torch.tensor(ends)] = 0.0
        values: Tensor = network(states).max(1).values
        return values

    model = nn.Sequential(nn.Linear(CELLS, 32, bias=False), nn.ReLU(), nn.Linear(32, 2, bias=False))
    _learn(opened, _Walk(), best, model=model)


@healthy
def states_of_numbers_that_never_come_again(opened: Open) -> None:
    """Without an end, cut by a time limit."""
    noise = torch.Generator().manual_seed(3)

    def encode(states: list[int]) -> Tensor:
        return _one_hot(states) + 0.01 * torch.randn(len(states), CELLS, generator=noise)

    def best(network: nn.Module, following: list[int], _: list[bool]) -> Tensor:
        values: Tensor = network(encode(following)).max(1).values
        return values

    _learn(opened, _Walk(ends=False, limit=12), best, encode=encode)


@healthy
def a_short_memory_of_cut_episodes(opened: Open) -> None:
    """Each of few transitions comes many times, and the last states of the episodes begin none."""
    walk = _Walk(ends=False, limit=10)
    short = walk.episodes(60)
    walk.episodes = lambda count: short * 2
    _learn(opened, walk)


@healthy
def rewards_that_ends_share_with_others(opened: Open) -> None:
    """Ends that have the rewards of other states say nothing of themselves."""
    _learn(opened, _Walk(goal=-0.02, hole=-0.02))
