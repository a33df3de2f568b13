"""Clipped objectives of policies with the wrong sign, and sound ones in all their forms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

_Objective = Callable[[Tensor, Tensor], Tensor]  # the loss of ratios and advantages


def _improve(opened: Open, loss_of: _Objective, *, maximise: bool = False, continuous: bool = False,
             costs: bool = False) -> None:  # fmt: skip
    """A bandit with a context: four updates of each batch of actions."""
    policy = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3, maximize=maximise)
    recorder, best = opened(policy, optimizer), torch.randn(6, 3)

    def log_of(x: Tensor, actions: Tensor) -> Tensor:
        out = policy(x)
        return Normal(out, 0.5).log_prob(actions).sum(1) if continuous else Categorical(logits=out).log_prob(actions)

    for step in range(40):
        if step % 4 == 0:
            with torch.no_grad():
                x = torch.randn(64, 6)
                out, wanted = policy(x), x @ best
                actions = Normal(out, 0.5).sample() if continuous else Categorical(logits=out).sample()
                old = log_of(x, actions)
                gain = -(actions - wanted).square().mean(1) if continuous else wanted.gather(1, actions[:, None])[:, 0]
                gain = (gain - gain.mean()) / gain.std()
        loss = loss_of((log_of(x, actions) - old).exp(), -gain if costs else gain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("clipped-objective", "wrong sign in the loss", "-torch.min(ratio * advantage")
def a_clipped_objective_without_its_minus(opened: Open) -> None:
    _improve(opened, lambda r, a: torch.min(r * a, r.clamp(0.8, 1.2) * a).mean())


@fault("clipped-objective", "wrong sign in the loss", "-torch.min(ratio * advantage")
def a_minus_too_many(opened: Open) -> None:
    """The objective of each number is a loss already, and its masked mean gets another minus."""

    def loss_of(r: Tensor, a: Tensor) -> Tensor:
        mask = (torch.arange(len(a)) % 4 > 0).float()
        each = -torch.minimum(a * r, a * torch.clamp(r, 0.8, 1.28))
        return -(each * mask).sum() / mask.sum() + 0.01 * (r - 1).square().mean()

    _improve(opened, loss_of, continuous=True)


@fault("clipped-objective", "wrong sign in the loss", "-torch.min(ratio * advantage")
def the_smaller_one_of_two_losses(opened: Open) -> None:
    """Both products have their minus already, where a loss takes the larger one."""
    _improve(opened, lambda r, a: torch.min(-a * r, -a * torch.clamp(r, 0.8, 1.2)).mean())


@fault("clipped-objective", "not the smaller one", "-torch.min(ratio * advantage")
def the_larger_one_of_two_gains(opened: Open) -> None:
    def loss_of(r: Tensor, a: Tensor) -> Tensor:
        loss = torch.zeros(())
        loss -= torch.max(r * a, r.clamp(0.8, 1.2) * a).mean()
        return loss

    _improve(opened, loss_of)


@healthy
def a_clipped_objective(opened: Open) -> None:
    _improve(opened, lambda r, a: -torch.min(r * a, r.clamp(0.8, 1.2) * a).mean())


@healthy
def the_larger_one_of_two_losses(opened: Open) -> None:
    _improve(opened, lambda r, a: torch.max(-a * r, -a * torch.clamp(r, 0.8, 1.2)).mean(), continuous=True)


@healthy
def the_larger_one_of_two_costs(opened: Open) -> None:
    _improve(opened, lambda r, a: torch.max(a * r, a * torch.clamp(r, 0.8, 1.2)).mean(), costs=True)


@healthy
def an_objective_that_the_optimizer_maximises(opened: Open) -> None:
    _improve(opened, lambda r, a: torch.min(r * a, r.clamp(0.8, 1.2) * a).mean(), maximise=True)


@healthy
def an_objective_that_gets_its_minus_in_place(opened: Open) -> None:
    def loss_of(r: Tensor, a: Tensor) -> Tensor:
        loss = torch.min(r * a, r.clamp(0.8, 1.2) * a).sum()
        loss *= -1 / len(a)
        return loss

    _improve(opened, loss_of)


@healthy
def an_objective_with_a_weight_below_zero(opened: Open) -> None:
    """The weight is a tensor."""
    weight = torch.tensor(-0.5)
    _improve(opened, lambda r, a: weight * torch.min(r * a, r.clamp(0.8, 1.2) * a).mean() + 0.1 * r.log().mean())


@healthy
def an_objective_that_is_subtracted_from_a_penalty(opened: Open) -> None:
    def loss_of(r: Tensor, a: Tensor) -> Tensor:
        gains = torch.stack([torch.min(r * a, r.clamp(0.8, 1.2) * a).mean(), -0.1 * (r - 1 - r.log()).mean()])
        return 0.01 * (r - 1).square().mean() - gains.sum()

    _improve(opened, loss_of)


@healthy
def an_objective_that_is_clipped_on_both_sides(opened: Open) -> None:
    def loss_of(r: Tensor, a: Tensor) -> Tensor:
        smaller = torch.min(r * a, r.clamp(0.8, 1.2) * a)
        return -torch.where(a < 0, torch.max(smaller, 3 * a), smaller).mean()

    _improve(opened, loss_of)


@healthy
def a_policy_gradient_without_a_clip(opened: Open) -> None:
    _improve(opened, lambda r, a: -(r * a).mean())


@healthy
def a_policy_gradient_of_costs(opened: Open) -> None:
    """The logarithm of the probability times a cost is minimised: this has a plus."""
    _improve(opened, lambda r, a: (r.log() * a).mean(), costs=True)


@healthy
def a_larger_error_of_clipped_values(opened: Open) -> None:
    """Both errors are weighed, and the larger one is minimised."""

    def loss_of(r: Tensor, a: Tensor) -> Tensor:
        weights = a.abs()
        errors = torch.max((r - 1).square() * weights, (r.clamp(0.5, 1.5) - 1).square() * weights)
        return F.relu(errors).mean() - torch.min(r * a, r.clamp(0.8, 1.2) * a).mean()

    _improve(opened, loss_of)


@healthy
def an_objective_that_is_logged_without_a_minus(opened: Open) -> None:
    logged: list[Tensor] = []

    def loss_of(r: Tensor, a: Tensor) -> Tensor:
        gains = torch.min(r * a, r.clamp(0.8, 1.2) * a).mean()
        logged.append(gains.detach())
        return -gains

    _improve(opened, loss_of)
