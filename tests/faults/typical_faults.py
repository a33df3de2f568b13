"""Mistakes of loops that people ask about: terms of a loss, ends of episodes, schedules, modes; and sound loops."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches, blobs, network

PIXELS, LATENT = 36, 3
Terms = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]  # outputs, targets, mean, logvar, step to the loss


class _Vae(nn.Module):
    def __init__(self, of_pixels: bool) -> None:
        super().__init__()
        self.encoder, self.both = nn.Sequential(nn.Linear(PIXELS, 32), nn.ReLU()), nn.Linear(32, 2 * LATENT)
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, PIXELS))
        self.of_pixels = of_pixels

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.both(self.encoder(x)).chunk(2, -1)
        out = self.decoder(mean + torch.randn_like(mean) * (logvar / 2).exp())
        return out.sigmoid() if self.of_pixels else out, mean, logvar


def _encode(opened: Open, terms: Terms, *, of_pixels: bool = False, steps: int = 150) -> None:
    model = _Vae(of_pixels)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder, basis = opened(model, optimizer), torch.randn(LATENT, PIXELS)
    for step in range(steps):
        x = torch.tanh(torch.randn(64, LATENT) @ basis)
        x = (x > 0).float() if of_pixels else x
        out, mean, logvar = model(x)
        loss = terms(out, x, mean, logvar, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss, samples=64)


def _divergence(mean: Tensor, logvar: Tensor) -> Tensor:
    return -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())


@fault("uneven-terms", "outweighs the fit", "len(x)")
def a_mean_over_pixels_beside_a_sum(opened: Open) -> None:
    _encode(
        opened, lambda out, x, mean, logvar, _: F.binary_cross_entropy(out, x) + _divergence(mean, logvar),
        of_pixels=True,
    )  # fmt: skip


@fault("uneven-terms", "outweighs the fit", "len(x)")
def a_mean_over_pixels_beside_a_sum_over_a_sample(opened: Open) -> None:
    """Both are means over the batch, and the divergence counts 18 times as much as the error of a pixel."""

    def terms(out: Tensor, x: Tensor, mean: Tensor, logvar: Tensor, _: int) -> Tensor:
        own = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1)
        return ((out - x) ** 2).mean() + 4 * own.mean()

    _encode(opened, terms)


@healthy
def both_terms_summed(opened: Open) -> None:
    _encode(
        opened,
        lambda out, x, mean, logvar, _: (F.mse_loss(out, x, reduction="sum") + _divergence(mean, logvar)) / len(x),
    )


@healthy
def both_terms_summed_over_a_sample(opened: Open) -> None:
    def terms(out: Tensor, x: Tensor, mean: Tensor, logvar: Tensor, _: int) -> Tensor:
        own = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1)
        return (F.mse_loss(out, x, reduction="none").sum(1) + own).mean()

    _encode(opened, terms)


@healthy
def a_mean_beside_a_sum_with_its_weight(opened: Open) -> None:
    """The factor of the divergence makes up for the mean."""
    _encode(opened, lambda out, x, mean, logvar, _: F.mse_loss(out, x) + _divergence(mean, logvar) / len(x) / PIXELS)


@healthy
def a_divergence_that_is_ramped_up(opened: Open) -> None:
    def terms(out: Tensor, x: Tensor, mean: Tensor, logvar: Tensor, step: int) -> Tensor:
        beta = min(1.0, step / 100)
        return F.mse_loss(out, x, reduction="sum") / len(x) + beta * _divergence(mean, logvar) / len(x)

    _encode(opened, terms)


@healthy
def a_sparse_penalty_beside_a_mean(opened: Open) -> None:
    """The sum of sizes of many hidden numbers, with a small factor."""
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU())
    head = nn.Linear(48, 6)
    both = nn.Sequential(model, head)
    optimizer = torch.optim.Adam(both.parameters(), 3e-3)
    recorder = opened(both, optimizer)
    for x, y in batches(130):
        hidden = model(x)
        loss = F.mse_loss(head(hidden), F.one_hot(y, 6).float()) + 1e-5 * hidden.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


CELLS, GAMMA = 9, 0.97
Target = Callable[[Tensor, Tensor, Tensor], Tensor]  # rewards, values of the next states, ends to targets


def _walk(opened: Open, target_of: Target, *, reward_at_ends: float = 1.0, limit_only: bool = False) -> None:
    """Q-learning of a walk from a replay, whose both ends end an episode."""
    model = nn.Sequential(nn.Linear(CELLS, 32), nn.ReLU(), nn.Linear(32, 2))
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    state = torch.randint(1, CELLS - 1, (4000,))
    action = torch.randint(2, (4000,))
    following = state + 2 * action - 1
    end = (following == 0) | (following == CELLS - 1)
    reward = torch.where(end, reward_at_ends, 0.1) + 0.01 * torch.randn(4000)
    replay = [each.numpy() for each in (state, action, reward, following, end)]
    if limit_only:  # an episode is cut off after some steps
        replay[4] = (torch.rand(4000) < 0.05).numpy()
    recorder = opened(model, optimizer)
    for step in range(40):
        chosen = torch.randint(4000, (64,)).numpy()
        s, a, r, n, d = (torch.as_tensor(each[chosen]) for each in replay)
        d = d.float()
        with torch.no_grad():
            target = target_of(r, slow(F.one_hot(n, CELLS).float()).max(1)[0], d)
        q = model(F.one_hot(s, CELLS).float()).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = F.mse_loss(q, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            slow.load_state_dict(model.state_dict())
        recorder.step(loss, samples=64)


@fault("targets-without-end", "behind the end of an episode", "1 - done")
def values_behind_the_end(opened: Open) -> None:
    _walk(opened, lambda r, best, d: r + GAMMA * best)


@fault("targets-without-end", "behind the end of an episode", "1 - done")
def values_behind_the_end_added_with_a_factor(opened: Open) -> None:
    _walk(opened, lambda r, best, d: torch.add(r, best, alpha=GAMMA), reward_at_ends=-1.0)


@healthy
def values_up_to_the_end(opened: Open) -> None:
    _walk(opened, lambda r, best, d: r + GAMMA * (1 - d) * best)


@healthy
def values_chosen_where_no_end_is(opened: Open) -> None:
    _walk(opened, lambda r, best, d: torch.where(d.bool(), r, r + GAMMA * best))


@healthy
def values_set_to_zero_at_the_end(opened: Open) -> None:
    def target_of(r: Tensor, best: Tensor, d: Tensor) -> Tensor:
        best = best.clone()
        best[d > 0] = 0.0
        return r + GAMMA * best

    _walk(opened, target_of)


@healthy
def values_masked_before_the_discount(opened: Open) -> None:
    _walk(opened, lambda r, best, d: r + GAMMA * (best * (d == 0)))


@healthy
def values_with_a_discount_for_each(opened: Open) -> None:
    _walk(opened, lambda r, best, d: r + (GAMMA * (1 - d)) * best)


@healthy
def episodes_that_only_a_time_limit_ends(opened: Open) -> None:
    """The flags are kept in the replay, and rewards at them are as everywhere: an info."""
    _walk(opened, lambda r, best, d: r + GAMMA * best, reward_at_ends=0.1, limit_only=True)


def _schedule(opened: Open, mode: str, value_of: Callable[[float, float, list[float]], float], *, steps: int = 200,
              factor: float = 0.5) -> None:  # fmt: skip
    """Cross entropy, evaluated each ten steps; `value_of` validation loss, score and losses of these steps."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, patience=2, factor=factor)
    recorder = opened(model, optimizer)
    xs, ys = blobs(400, seed=9)
    losses: list[float] = []
    for step, (x, y) in enumerate(batches(steps)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        losses.append(loss.item())
        if step % 10 == 9:
            with torch.no_grad():
                scores = model(xs)
            value, score = F.cross_entropy(scores, ys).item(), (scores.argmax(1) == ys).float().mean().item()
            recorder.evaluated(value, score)
            schedule.step(value_of(value, score, losses[-10:]))
    recorder.close()


@fault("plateau-mode", "waits for a rising loss", "mode='min'")
def a_plateau_of_losses_that_shall_rise(opened: Open) -> None:
    _schedule(opened, "max", lambda value, score, losses: value)


@fault("plateau-mode", "waits for a rising loss", "mode='min'")
def a_plateau_of_mean_losses_that_shall_rise(opened: Open) -> None:
    _schedule(opened, "max", lambda value, score, losses: sum(losses) / len(losses))


@fault("plateau-mode", "waits for a falling score", "mode='max'")
def a_plateau_of_scores_that_shall_fall(opened: Open) -> None:
    _schedule(opened, "min", lambda value, score, losses: score)


@fault("plateau-mode", "waits for a falling score", "mode='max'")
def a_plateau_of_percentages_that_shall_fall(opened: Open) -> None:
    _schedule(opened, "min", lambda value, score, losses: 100 * score)


@healthy
def a_plateau_of_losses(opened: Open) -> None:
    _schedule(opened, "min", lambda value, score, losses: value)


@healthy
def a_plateau_of_scores(opened: Open) -> None:
    _schedule(opened, "max", lambda value, score, losses: score)


@healthy
def a_plateau_of_negative_losses(opened: Open) -> None:
    _schedule(opened, "max", lambda value, score, losses: -value)


@healthy
def a_rate_that_is_halved_as_the_loss_falls(opened: Open) -> None:
    """A schedule by steps looks the same from its rates."""
    _rated(opened, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.5))


def _rated(
    opened: Open, schedule_of: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler], *,
    is_stepped: bool = True, steps: int = 130, rate: float = 0.05,
) -> None:  # fmt: skip
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    schedule, recorder = schedule_of(optimizer), opened(model, optimizer)
    for x, y in batches(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        if is_stepped:
            schedule.step()
    recorder.close()


@fault("schedule-not-stepped", "never stepped", "scheduler.step()")
def a_warm_up_that_never_goes_on(opened: Open) -> None:
    _rated(opened, lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.01, total_iters=20), is_stepped=False)


@fault("schedule-not-stepped", "never stepped", "scheduler.step()")
def a_cycle_that_never_goes_on(opened: Open) -> None:
    _rated(
        opened, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 50)), is_stepped=False
    )


@fault("rate-as-factor", "returns a rate", "a factor")
def a_warm_up_to_the_rate_times_itself(opened: Open) -> None:
    _rated(opened, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.05 * min(1.0, (step + 1) / 20)))


@fault("rate-as-factor", "returns a rate", "a factor")
def a_rate_that_is_multiplied_by_itself(opened: Open) -> None:
    _rated(opened, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.05))


@fault("rate-as-factor", "returns a rate", "a factor")
def a_cosine_of_the_rate_times_itself(opened: Open) -> None:
    _rated(
        opened,
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.025 * (1 + math.cos(math.pi * step / 130))),
    )


@healthy
def a_function_that_returns_rates_for_a_rate_of_one(opened: Open) -> None:
    _rated(
        opened, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.05 * min(1.0, (step + 1) / 20)), rate=1.0
    )


@healthy
def a_factor_that_falls_from_one(opened: Open) -> None:
    _rated(opened, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.05 ** (step / 130)))


@healthy
def a_factor_of_a_tenth_in_all_steps(opened: Open) -> None:
    """A tenth of a tenth: the square by chance, of a rate that is not too small to be meant."""
    _rated(opened, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.1), rate=0.1)


@healthy
def a_warm_up(opened: Open) -> None:
    _rated(opened, lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.01, total_iters=20))


@healthy
def a_constant_rate_by_a_schedule(opened: Open) -> None:
    _rated(opened, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1.0))


@healthy
def a_schedule_for_epochs_in_one_epoch(opened: Open) -> None:
    """It is stepped at the end of an epoch, which this recording does not see: an info."""
    _rated(opened, lambda o: torch.optim.lr_scheduler.StepLR(o, 30, 0.1), is_stepped=False)


def _validate(opened: Open, model: nn.Module, evaluate: Callable[[nn.Module, Tensor], Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    recorder = opened(model, optimizer)
    xs, ys = blobs(400, seed=9)
    for step, (x, y) in enumerate(batches(60)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        if step % 20 == 19:
            with torch.no_grad():
                recorder.evaluated(F.cross_entropy(evaluate(model, xs), ys).item())


def _dropping() -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 6))


def _normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 6))


def _in_evaluation(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    out: Tensor = model(x)
    model.train()
    return out


@fault("validated-in-training-mode", "runs in training mode", "model.eval()")
def validated_with_dropout(opened: Open) -> None:
    _validate(opened, _dropping(), lambda model, x: model(x))


@fault("validated-in-training-mode", "runs in training mode", "model.eval()")
def validated_by_the_statistics_of_its_own_batches(opened: Open) -> None:
    _validate(opened, _normed(), lambda model, x: torch.cat([model(part) for part in x.split(100)]))


@healthy
def validated_in_evaluation_mode(opened: Open) -> None:
    _validate(opened, _dropping(), _in_evaluation)


@healthy
def validated_without_a_mode(opened: Open) -> None:
    _validate(opened, network(), lambda model, x: model(x))


@healthy
def validated_by_a_copy(opened: Open) -> None:
    _validate(opened, _dropping(), lambda model, x: copy.deepcopy(model).eval()(x))


@healthy
def validated_with_dropout_that_is_kept_on_purpose(opened: Open) -> None:
    """Samples of the answers: all of the model but its batch norm in training mode, and a plain pass."""

    def evaluate(model: nn.Module, x: Tensor) -> Tensor:
        samples = torch.stack([model(x) for _ in range(4)]).mean(0)
        return (samples + _in_evaluation(model, x)) / 2

    _validate(opened, _dropping(), evaluate)


@healthy
def a_teacher_in_training_mode(opened: Open) -> None:
    """Passes without gradients come before each step, and the loop reports its own losses."""
    model = _dropping()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(60)):
        with torch.no_grad():
            soft = model(x).softmax(1)
        scores = model(x)
        loss = F.cross_entropy(scores, y) + 0.1 * F.kl_div(scores.log_softmax(1), soft, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        if step % 20 == 19:
            recorder.evaluated(loss.item())
