"""Choices among scores that rounding has made equal, data that a cast to FP16 makes Inf; and sound cousins of both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

B16 = torch.bfloat16
Cast = Callable[[Tensor], Tensor]
_EQUAL = "among scores that rounding has made equal"


def _learn(opened: Open, model: nn.Module, loss_of: Callable[[], Tensor], steps: int, rate: float = 3e-3) -> None:
    optimizer = torch.optim.Adam(model.parameters(), rate)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.detach())


def _codes(opened: Open, cast: Cast, offset: float, spread: float = 0.1) -> None:
    """Vector quantisation: the nearest code by |a|^2 + |b|^2 - 2ab of casted numbers around an offset."""
    encoder, decoder, code = nn.Linear(8, 8), nn.Linear(8, 8), nn.Embedding(64, 8)
    with torch.no_grad():
        encoder.weight.copy_(spread * torch.eye(8))
        encoder.bias.fill_(offset)
        code.weight.mul_(spread).add_(offset)

    def loss_of() -> Tensor:
        x = torch.randn(64, 8)
        z = encoder(x)
        a, b = cast(z), cast(code.weight)
        distance = a.pow(2).sum(1, keepdim=True) + b.pow(2).sum(1) - 2 * a @ b.T
        nearest = code(distance.argmin(1))
        rebuilt = decoder(z + (nearest - z).detach())
        return F.mse_loss(rebuilt, x) + F.mse_loss(nearest, z.detach()) + 0.25 * F.mse_loss(z, nearest.detach())

    _learn(opened, nn.ModuleList([encoder, decoder, code]), loss_of, 130)


@fault("tied-choices", _EQUAL, "in FP32", True)
def nearest_codes_in_bf16(opened: Open) -> None:
    _codes(opened, lambda x: x.to(B16), 5.0)


@healthy
def nearest_codes_in_fp32(opened: Open) -> None:
    _codes(opened, lambda x: x, 5.0)


@healthy
def nearest_codes_of_centred_numbers_in_bf16(opened: Open) -> None:
    _codes(opened, lambda x: x.to(B16), 0.0, 1.0)


def _neighbours(opened: Open, cast: Cast, place: float) -> None:
    """The mean over the four nearest atoms, in a place far from the origin; distances are widened before the choice."""
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss_of() -> Tensor:
        atoms = torch.randn(8, 24, 3) * 8
        charge = atoms[..., :1].div(8).sin()
        distance = torch.cdist(atoms, atoms)
        right = charge.squeeze(-1)[:, None].expand(-1, 24, -1).gather(2, distance.topk(4, largest=False)[1]).mean(-1)
        far = cast(atoms + place)
        own = (far[:, :, None] - far[:, None]).float().square().sum(-1)
        near = own.topk(4, dim=-1, largest=False)[1]
        mean = charge.squeeze(-1)[:, None].expand(-1, 24, -1).gather(2, near).mean(-1)
        return F.mse_loss(model(torch.stack((mean, charge.squeeze(-1)), -1)).squeeze(-1), right)

    _learn(opened, model, loss_of, 60)


@healthy
def neighbours_by_coordinates_in_fp32(opened: Open) -> None:
    _neighbours(opened, lambda x: x, 300.0)


@healthy
def neighbours_by_centred_coordinates_in_bf16(opened: Open) -> None:
    _neighbours(opened, lambda x: x.to(B16), 0.0)


def _negatives(opened: Open, offset: float, *, in_16_bits: bool) -> None:
    """The hardest of 64 negatives by cosines of features that have much in common."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    features = offset + torch.randn(512, 16)

    def loss_of() -> Tensor:
        anchors, bank = features[torch.randint(512, (32,))], features[torch.randint(512, (64,))]
        a, b = (F.normalize(each, dim=-1) for each in (anchors, bank))
        with torch.autocast("cpu", B16, enabled=in_16_bits):
            hardest = bank[(a @ b.T).max(1)[1]]
        anchor, positive, negative = (model(each - offset) for each in (anchors, anchors + 0.1, hardest))
        return F.triplet_margin_loss(anchor, positive, negative, 2.0)

    _learn(opened, model, loss_of, 40)


@fault("tied-choices", _EQUAL, "in FP32", True)
def hardest_negatives_by_cosines_in_bf16(opened: Open) -> None:
    _negatives(opened, 30.0, in_16_bits=True)


@healthy
def hardest_negatives_by_cosines_in_fp32(opened: Open) -> None:
    _negatives(opened, 30.0, in_16_bits=False)


@healthy
def hardest_negatives_of_centred_features_in_bf16(opened: Open) -> None:
    _negatives(opened, 0.0, in_16_bits=True)


def _experts(opened: Open, cast: Cast, bias: float, scale: float = 0.3) -> None:
    """One expert of eight for each sample, by a sigmoid of scores."""
    router, experts = nn.Linear(8, 8), nn.Parameter(torch.randn(8, 8, 4) / 3)
    model = nn.Module()
    model.router, model.experts = router, experts
    with torch.no_grad():
        router.weight.mul_(scale)
        router.bias.fill_(bias)

    def loss_of() -> Tensor:
        x = torch.randn(64, 8)
        weight, index = torch.sigmoid(cast(router(x))).topk(1, dim=-1)
        scores = torch.einsum("bi,bio->bo", x, experts[index.squeeze(1)]) * weight.float()
        return F.cross_entropy(scores, x[:, :4].argmax(1))

    _learn(opened, model, loss_of, 60)


@fault("tied-choices", _EQUAL, "before a softmax or sigmoid", True)
def experts_by_saturated_sigmoid_in_bf16(opened: Open) -> None:
    _experts(opened, lambda x: x.to(B16), 5.0)


@healthy
def experts_by_sigmoid_in_bf16(opened: Open) -> None:
    _experts(opened, lambda x: x.to(B16), 0.0, 3.0)


@healthy
def experts_whose_scores_begin_as_zeros(opened: Open) -> None:
    """All scores are equal in any format, until the router has learnt."""
    _experts(opened, lambda x: x.to(B16), 0.0, 0.0)


@healthy
def labels_of_its_own_by_scores_in_bf16(opened: Open) -> None:
    """Of 2000 classes: equal largest scores are frequent, and either is as good."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2000))

    def loss_of() -> Tensor:
        x = torch.randn(64, 8)
        with torch.autocast("cpu", B16):
            scores = model(x)
        return F.cross_entropy(scores.float(), scores.detach().argmax(-1))

    _learn(opened, model, loss_of, 40, 1e-3)


@healthy
def largest_of_saturated_features_in_bf16(opened: Open) -> None:
    """The largest of each feature over points, which equal ones share: the index counts for nothing."""
    first, last = nn.Linear(3, 32), nn.Linear(32, 2)

    def loss_of() -> Tensor:
        points = torch.randn(16, 64, 3) * (1 + torch.rand(16, 1, 1))
        label = (points.square().mean((1, 2)) > 2.3).long()
        with torch.autocast("cpu", B16):
            features = torch.tanh(2 * first(points)).max(1)[0]
        return F.cross_entropy(last(features.float()), label)

    _learn(opened, nn.ModuleList([first, last]), loss_of, 60)


@healthy
def most_votes_of_whole_numbers(opened: Open) -> None:
    """Counts are equal in any format."""
    model = nn.Linear(8, 5)

    def loss_of() -> Tensor:
        x = torch.randn(64, 8)
        votes = F.one_hot((x[:, :3].sigmoid() * 5).long().clamp(max=4), 5).sum(1).to(B16)
        return F.cross_entropy(model(x), votes.argmax(-1))

    _learn(opened, model, loss_of, 40)


def _readings(opened: Open, cast: Cast) -> None:
    """Readings over many octaves, whose logarithm the model gets."""
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss_of() -> Tensor:
        x = (1.5 * torch.randn(64, 4)).exp() * 20000
        return F.mse_loss(model(torch.log1p(cast(x).float()))[:, 0], x[:, 3].log())

    _learn(opened, model, loss_of, 40)


@fault("overflowing-cast", "cast of data to FP16 makes Inf", "BF16", True)
def readings_beyond_fp16(opened: Open) -> None:
    _readings(opened, lambda x: x.half())


@healthy
def readings_in_range_of_bf16(opened: Open) -> None:
    _readings(opened, lambda x: x.to(B16))


@healthy
def distances_beyond_fp16_that_weigh_nothing(opened: Open) -> None:
    """Inf for pairs without an edge, whose exponential is 0 in any format."""
    model = nn.Linear(8, 2)

    def loss_of() -> Tensor:
        x = torch.randn(16, 8)
        distance = torch.where(torch.rand(16, 16) < 0.5, 1e6, torch.cdist(x, x))
        weight = torch.exp(-distance.half().float())
        return F.cross_entropy(model(weight @ x / (weight.sum(1, keepdim=True) + 1)), (x[:, 0] > 0).long())

    _learn(opened, model, loss_of, 40)


def _half_model(opened: Open, cast: Cast, spoilt: bool = False) -> None:
    """Readings that go into a model under autocast; `spoilt`: the data themselves hold Inf, too."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss_of() -> Tensor:
        x = (1.5 * torch.randn(64, 4)).exp() * 20000
        x = torch.where(torch.rand(64, 4) < 0.02, torch.inf, x) if spoilt else x
        with torch.autocast("cpu", B16):
            out = model(cast(x))
        return F.mse_loss(out.float()[:, 0], x[:, 3].clamp(max=1e6).log())

    _learn(opened, model, loss_of, 40)


@fault("overflowing-cast", "cast of data to FP16 makes Inf", "BF16", True)
def readings_beyond_fp16_under_autocast(opened: Open) -> None:
    _half_model(opened, lambda x: x.half())


@fault("data-not-finite", "hold NaN or Inf", "Look at", None)
def readings_that_hold_infinity_before_the_cast(opened: Open) -> None:
    _half_model(opened, lambda x: x.half(), spoilt=True)


def _late_peak(opened: Open, cast: Cast, first: int, again: bool = False, spoilt: bool = False) -> None:
    """Readings of which the first one beyond FP16 comes in a step between the watched ones; `again`: one in each step
    from then on, too, `spoilt`: Inf that no cast has made."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    steps = iter(range(1, 99))

    def loss_of() -> Tensor:
        step, own = next(steps), torch.randn(64, 4)
        x = (0.5 * own).exp() * 1000
        if step == first or (again and step > first):
            x[3, 1] = torch.inf if spoilt else 1e6
        return F.mse_loss(model(torch.log1p(cast(x).float()) - 7)[:, 0], own[:, 3])

    _learn(opened, model, loss_of, 30)


@fault("data-not-finite", "inputs of step 5 hold NaN or Inf", "FP16 makes Inf of finite numbers beyond 65504", None)
def a_peak_beyond_fp16_in_step_5(opened: Open) -> None:
    _late_peak(opened, lambda x: x.half(), 5)


@fault("data-not-finite", "inputs of step 11 hold NaN or Inf", "FP16 makes Inf of finite numbers beyond 65504", None)
def a_peak_beyond_fp16_of_numpy_in_step_11(opened: Open) -> None:
    def stored(x: Tensor) -> Tensor:
        with np.errstate(over="ignore"):
            return torch.from_numpy(x.numpy().astype(np.float16))

    _late_peak(opened, stored, 11)


@fault("overflowing-cast", "cast of data to FP16 makes Inf", "BF16", True)
def peaks_beyond_fp16_from_step_11_on(opened: Open) -> None:
    _late_peak(opened, lambda x: x.half(), 11, again=True)


@fault("data-not-finite", "inputs of step 11 hold NaN or Inf", "Clean the data", False)
def a_reading_of_infinity_in_step_11(opened: Open) -> None:
    _late_peak(opened, lambda x: x, 11, spoilt=True)


@healthy
def a_peak_in_range_of_fp32_in_step_5(opened: Open) -> None:
    _late_peak(opened, lambda x: x, 5)


@healthy
def peaks_in_range_of_bf16_from_step_11_on(opened: Open) -> None:
    _late_peak(opened, lambda x: x.to(B16), 11, again=True)
