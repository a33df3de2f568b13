"""Losses of indices, comparisons, roundings and detached copies of outputs, and sound loops that use these, too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches

_FEATURES, _CLASSES = 24, 6
_Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of outputs, classes and inputs


def _learn(opened: Open, loss_of: _Loss, model: nn.Module | None = None, steps: int = 40, rate: float = 3e-3) -> None:
    if model is None:
        model = nn.Sequential(nn.Linear(_FEATURES, 48), nn.ReLU(), nn.Linear(48, _CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), rate)
    recorder = opened(model, optimizer)
    for x, y in batches(steps):
        loss = loss_of(model(x), y, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("term-without-gradient", "argmax keeps it from the weights", "in place of argmax")
def a_distance_of_the_most_likely_grade(opened: Open) -> None:
    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return F.mse_loss(out.argmax(1).float(), y.float()) + 1e-3 * out.square().mean()

    _learn(opened, loss_of)


@fault("term-without-gradient", "> keeps it from the weights", "a sigmoid in place of a threshold")
def an_overlap_of_thresholded_answers(opened: Open) -> None:
    """Dice of masks, beside a cross entropy that has a gradient and a small weight."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        target = F.one_hot(y, _CLASSES).float()
        mask = (out.sigmoid() > 0.5).float()
        dice = 1 - (2 * (mask * target).sum() + 1) / (mask.sum() + target.sum() + 1)
        return 0.05 * F.binary_cross_entropy_with_logits(out, target) + dice

    _learn(opened, loss_of)


@fault("term-without-gradient", "argmax keeps it from the weights", "in place of argmax")
def a_distance_of_the_most_likely_grade_behind_many_gates(opened: Open) -> None:
    """Autograd detaches the result of each of the 80 sigmoids for itself."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(_FEATURES, 16), nn.Linear(16, _CLASSES)
            self.gates = nn.ModuleList(nn.Linear(16, 16) for _ in range(80))

        def forward(self, x: Tensor) -> Tensor:
            x = self.up(x)
            for gate in self.gates:
                x = x + 0.05 * gate(x).sigmoid()
            return self.down(x)

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return F.mse_loss(out.argmax(1).float(), y.float()) + 1e-3 * out.square().mean()

    _learn(opened, loss_of, Gated())


@fault("term-without-gradient", "round keeps it from the weights", "the number in place of its rounding")
def rounded_answers_and_nothing_else(opened: Open) -> None:
    """torch gives a rounding a gradient of zero, and does not complain."""
    _learn(opened, lambda out, y, x: F.l1_loss(out[:, 0].round(), y.float()))


@fault("term-without-gradient", "max keeps it from the weights", "in place of argmax")
def errors_of_each_sample_by_the_index_of_a_maximum(opened: Open) -> None:
    """Terms of each sample are added up before their mean is taken, and the loss is scaled."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        chosen = torch.max(out, 1)[1]
        wrong = (chosen != y).float()
        return ((wrong + 0.01 * out.square().mean(1)) * 8).mean() / 4

    _learn(opened, loss_of)


@fault("term-without-gradient", "detach keeps it from the weights", "leave out the detach()")
def a_fit_of_detached_outputs(opened: Open) -> None:
    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        target = F.one_hot(y, _CLASSES).float()
        loss = torch.zeros(())
        loss = loss + F.mse_loss(out.detach(), target)
        loss += 1e-3 * out.abs().mean()
        return loss

    _learn(opened, loss_of)


@fault("term-without-gradient", "argmax keeps it from the weights", "in place of argmax")
def a_distance_that_was_told_to_have_a_gradient(opened: Open) -> None:
    """The advice for "element 0 of tensors does not require grad"."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return (out.argmax(1) - y).abs().float().mean().requires_grad_()

    _learn(opened, loss_of)


@healthy
def the_expected_grade(opened: Open) -> None:
    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        grade = (out.softmax(1) * torch.arange(_CLASSES)).sum(1)
        return F.mse_loss(grade, y.float()) + 1e-3 * out.square().mean()

    _learn(opened, loss_of)


@healthy
def accuracy_beside_the_loss(opened: Open) -> None:
    """It is kept in a sum of its own, and logged."""
    logged = torch.zeros(())

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        loss = F.cross_entropy(out, y)
        wrong = (out.argmax(1) != y).float().mean()
        logged.add_((loss + wrong).detach())
        return loss

    _learn(opened, loss_of)


@healthy
def pseudo_labels(opened: Open) -> None:
    """FixMatch: sure answers to one view are the classes of another one."""
    model = nn.Sequential(nn.Linear(_FEATURES, 48), nn.ReLU(), nn.Linear(48, _CLASSES))

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        sure, classes = out.detach().softmax(1).max(1)
        other = model(x + 0.1 * torch.randn_like(x))
        unlabelled = F.cross_entropy(other, classes, reduction="none") * (sure > 0.9)
        return F.cross_entropy(out[:16], y[:16]) + unlabelled.mean()

    _learn(opened, loss_of, model)


@healthy
def a_straight_through_rounding_that_is_fitted(opened: Open) -> None:
    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        whole = out[:, 0] + (out[:, 0].round() - out[:, 0]).detach()
        return F.l1_loss(whole, y.float()) + 1e-3 * out.square().mean()

    _learn(opened, loss_of)


@healthy
def a_straight_through_accuracy(opened: Open) -> None:
    """The error has the value of the hard one and the gradient of the soft one, all of it linear."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        soft = 1 - out.softmax(1).gather(1, y[:, None])[:, 0]
        hard = (out.argmax(1) != y).float()
        return (hard - soft.detach() + soft).mean()

    _learn(opened, loss_of)


@healthy
def a_straight_through_choice(opened: Open) -> None:
    """Gumbel softmax, whose choice is compared with the true one."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        chosen = F.gumbel_softmax(out, hard=True)
        return F.mse_loss(chosen, F.one_hot(y, _CLASSES).float()) + F.cross_entropy(out, y)

    _learn(opened, loss_of)


class _Sign(torch.autograd.Function):
    """A sign whose gradient is that of the number."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


@healthy
def signs_with_a_gradient_of_their_own(opened: Open) -> None:
    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        signs: Tensor = _Sign.apply(out)
        return (signs - (2.0 * F.one_hot(y, _CLASSES) - 1)).abs().mean() + 0.1 * F.cross_entropy(out, y)

    _learn(opened, loss_of)


class _Codebook(nn.Module):
    """VQ-VAE."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(_FEATURES, 8), nn.Linear(8, _FEATURES)
        self.codes = nn.Embedding(32, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        chosen = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
        commitment = F.mse_loss(chosen, z.detach()) + 0.25 * F.mse_loss(z, chosen.detach())
        return self.decoder(z + (chosen - z).detach()), commitment


@healthy
def codes_by_their_index(opened: Open) -> None:
    model = _Codebook()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, _ in batches(40):
        out, commitment = model(x)
        loss = F.mse_loss(out, x) + commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def rewards_of_drawn_classes_with_their_cost_in_the_loss(opened: Open) -> None:
    """The surrogate of a stochastic graph: a cost, and the logarithm of the probability that is weighed with it."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        p = out.softmax(1)
        drawn = (p.cumsum(1) < torch.rand(len(y), 1)).sum(1).clamp(max=_CLASSES - 1)
        cost = (drawn != y).float()
        return (cost + p.log().gather(1, drawn[:, None])[:, 0] * (cost - cost.mean())).mean()

    _learn(opened, loss_of)


@healthy
def a_policy_with_a_baseline(opened: Open) -> None:
    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        policy = Categorical(logits=out)
        action = policy.sample()
        greedy = (out.argmax(1) == y).float()  # self-critical
        gain = (action == y).float() - greedy
        return -(policy.log_prob(action) * gain).mean() - 0.01 * policy.entropy().mean()

    _learn(opened, loss_of)


@healthy
def the_values_of_greedy_actions(opened: Open) -> None:
    """Double Q-learning: another network values the action that this one would choose."""
    model = nn.Sequential(nn.Linear(_FEATURES, 48), nn.ReLU(), nn.Linear(48, _CLASSES))
    target = nn.Sequential(nn.Linear(_FEATURES, 48), nn.ReLU(), nn.Linear(48, _CLASSES))
    target.load_state_dict(model.state_dict())

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        taken = torch.randint(_CLASSES, (len(y),))
        reward = (taken == y).float()
        after = x.roll(1, 0)
        greedy = model(after).argmax(1, keepdim=True)
        value = reward + 0.5 * target(after).detach().gather(1, greedy)[:, 0]
        return F.smooth_l1_loss(out.gather(1, taken[:, None])[:, 0], value)

    _learn(opened, loss_of, model)


@healthy
def steps_of_thinking_that_are_counted(opened: Open) -> None:
    """Adaptive computation: the cost is a count of steps, which has no gradient, and a remainder, which has one."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        halting = out.sigmoid().cumsum(1)
        running = (halting < 2.5).float()
        remainder = 2.5 - (out.sigmoid() * running).sum(1)
        return F.cross_entropy(out, y) + 0.01 * (running.sum(1) + remainder).mean()

    _learn(opened, loss_of)


@healthy
def hard_negatives_and_a_mined_share(opened: Open) -> None:
    """The worst half of the samples, and a mask of the wrong ones."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        errors = F.cross_entropy(out, y, reduction="none")
        worst = errors[errors.topk(len(y) // 2).indices]
        wrong = (out.argmax(1) != y).float()
        return worst.mean() + (errors * (0.5 + wrong)).mean()

    _learn(opened, loss_of)


@healthy
def sets_that_are_matched(opened: Open) -> None:
    """Each target takes the nearest of the outputs, as in losses of sets."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        points, targets = out.reshape(-1, 3, 2), x[:, :4].reshape(-1, 2, 2)
        distances = torch.cdist(targets, points)
        nearest = distances.argmin(2)
        matched = points.gather(1, nearest[..., None].expand(-1, -1, 2))
        return F.l1_loss(matched, targets)

    _learn(opened, loss_of)


@healthy
def routed_experts_with_a_balance(opened: Open) -> None:
    """The share of samples of each expert has no gradient; its probability has."""
    gate, experts = nn.Linear(_FEATURES, 4), nn.Linear(_FEATURES, 4 * _CLASSES)

    class _Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = gate, experts

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            p = self.gate(x).softmax(1)
            best, index = p.max(1)
            out = self.experts(x).reshape(-1, 4, _CLASSES)[torch.arange(len(x)), index] * best[:, None]
            share = F.one_hot(index, 4).float().mean(0)
            return out, 4 * (share * p.mean(0)).sum()

    model = _Routed()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        out, balance = model(x)
        loss = F.cross_entropy(out, y) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def a_teacher_of_hard_labels(opened: Open) -> None:
    teacher = nn.Linear(_FEATURES, _CLASSES)

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return F.cross_entropy(out, y) + F.cross_entropy(out, teacher(x).argmax(1))

    _learn(opened, loss_of)


@healthy
def a_deviation_in_closed_form(opened: Open) -> None:
    """The likelihood of a normal distribution whose deviation is that of the errors of now."""

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        target = F.one_hot(y, _CLASSES).float()
        variance = (out.detach() - target).square().mean()
        return (out - target).square().mean() / (2 * variance) + 0.5 * variance.log()

    _learn(opened, loss_of)


@healthy
def a_part_that_waits_for_its_turn(opened: Open) -> None:
    """A term is only logged at first: the loop detaches it as a whole."""
    seen = [0]

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        seen[0] += 1
        penalty = (out.exp().mean() - 1).square()
        return F.cross_entropy(out, y) + 0.01 * (penalty if seen[0] > 60 else penalty.detach())

    _learn(opened, loss_of)


@healthy
def critics_with_losses_that_are_linear(opened: Open) -> None:
    """Wasserstein: differences of means, one of them of a detached copy."""
    critic = nn.Sequential(nn.Linear(_FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))
    critic.requires_grad_(False)
    maker = nn.Sequential(nn.Linear(_FEATURES, 32), nn.ReLU(), nn.Linear(32, _FEATURES))

    def loss_of(out: Tensor, y: Tensor, x: Tensor) -> Tensor:
        gap = critic(x).mean() - critic(out).mean()
        return gap + 0.1 * F.mse_loss(out, x) - 0.1 * critic(out.detach() * 0.5).mean()

    _learn(opened, loss_of, maker)
