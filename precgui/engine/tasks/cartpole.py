"""Reinforcement learning: balance a pole on a cart, with an environment of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.tasks.base import Batch, Ratio
from precgui.events import Metric
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.config import RunConfig

LONGEST = 200  # steps of an episode
_DISCOUNT = 0.99
_EPOCH_STEPS = 25
_VALIDATED = 32  # episodes
_WIDTH = {"small": 64, "medium": 256, "large": 1024}


class CartPoles:
    """Many carts at once: [carts, 4] of position, speed, angle and angular speed in FP64 (Barto et al. 1983).

    Constants and limits are those of Gymnasium's CartPole-v1: a pole of 1 m, 50 steps a second, a push of 10 N to
    the left (action 0) or right (1); an episode ends beyond 2.4 m or 12 degrees.
    """

    GRAVITY, CART_KG, POLE_KG, HALF_LENGTH_M, FORCE_N, STEP_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    FARTHEST_M, STEEPEST = 2.4, 12 * 2 * math.pi / 360

    def __init__(self, carts: int, draw: torch.Generator) -> None:
        self.state = torch.rand(carts, 4, generator=draw, dtype=torch.float64) * 0.1 - 0.05

    def step(self, actions: Tensor) -> Tensor:
        """Push each cart; returns which poles still stand."""
        x, speed, angle, turning = self.state.unbind(1)
        force = (actions.double() * 2 - 1) * self.FORCE_N
        sine, cosine = angle.sin(), angle.cos()
        total = self.CART_KG + self.POLE_KG
        pushed = (force + self.POLE_KG * self.HALF_LENGTH_M * turning.square() * sine) / total
        turn = (self.GRAVITY * sine - cosine * pushed) / (
            self.HALF_LENGTH_M * (4 / 3 - self.POLE_KG * cosine.square() / total)
        )
        push = pushed - self.POLE_KG * self.HALF_LENGTH_M * turn * cosine / total
        moved = (x + self.STEP_S * speed, speed + self.STEP_S * push)
        self.state = torch.stack((*moved, angle + self.STEP_S * turning, turning + self.STEP_S * turn), 1)
        return (self.state[:, 0].abs() <= self.FARTHEST_M) & (self.state[:, 2].abs() <= self.STEEPEST)


class CartPole(Ratio):
    """REINFORCE (Williams 1992) with the mean return as baseline.

    Each batch holds the steps of `data.batch_size` episodes, played by the model as it is: inputs are states
    [steps, 4], targets [steps, 2] the action and its advantage.
    """

    metric = Metric(
        "return",
        L_("Return"),
        Sentence("steps that the pole stands, {longest} at most, with the likelier action each time", longest=LONGEST),
        of_outputs=False,
        unit="steps",
    )

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.steps_per_epoch = config.data.epoch_steps or _EPOCH_STEPS
        self.facts: Mapping[str, Any] = {"longest_episode": LONGEST, "validation_episodes": _VALIDATED}
        self._draw = torch.Generator().manual_seed(config.seed + 1)
        self._player: nn.Module | None = None

    def model(self) -> nn.Module:
        width = _WIDTH[self.config.model.size]
        network = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
        self._player = self._player or network
        return network

    def train_batches(self) -> Iterable[Batch]:
        for _ in range(self.steps_per_epoch):
            states, actions, alive = self._play(self.config.data.batch_size, self._draw, greedy=False)
            returns = torch.zeros_like(alive, dtype=torch.float64)
            later = torch.zeros(alive.shape[1], dtype=torch.float64)
            for t in reversed(range(len(alive))):
                later = alive[t] * (1 + _DISCOUNT * later)
                returns[t] = later
            kept = returns[alive]
            advantage = (kept - kept.mean()) / kept.std().clamp_min(1e-6)
            yield states[alive].float(), torch.stack((actions[alive].double(), advantage), 1).float()

    def validation_batches(self) -> Iterable[Batch]:
        states, actions, alive = self._play(
            _VALIDATED, torch.Generator().manual_seed(self.config.seed + 2), greedy=True
        )
        yield states[alive].float(), torch.stack((actions[alive].double(), torch.ones(int(alive.sum()))), 1).float()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean of advantage times the negative log-likelihood of the action."""
        surprise = nn.functional.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
        return (surprise * targets[:, 1]).mean()

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Steps and episodes: `targets` hold one row for every step that a pole stood."""
        return targets.new_tensor([len(targets), _VALIDATED])

    @torch.no_grad()
    def _play(self, carts: int, draw: torch.Generator, *, greedy: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Episodes side by side: states [time, carts, 4], actions [time, carts], and which poles stood until then."""
        assert self._player is not None
        weight = next(self._player.parameters())
        poles, standing = CartPoles(carts, draw), torch.ones(carts, dtype=torch.bool)
        history: list[tuple[Tensor, Tensor, Tensor]] = []
        while len(history) < LONGEST and bool(standing.any()):
            logits = self._player(poles.state.to(weight.device, weight.dtype)).cpu().double()
            chances = logits.softmax(1)[:, 1]
            drawn = torch.rand(carts, generator=draw, dtype=torch.float64)
            actions = (chances > (0.5 if greedy else drawn)).long()
            history.append((poles.state, actions, standing))
            standing = standing & poles.step(actions)
        states, actions, alive = (torch.stack(part) for part in zip(*history, strict=True))
        return states, actions, alive
