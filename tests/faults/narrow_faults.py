"""Loops with masks, sums, epsilons, indices, probabilities and roundings that FP16, BF16 or few integers break, each
with its correction, and healthy loops of the same kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, Train, batches, network, score
from tests.faults.watched_faults import _descend


@dataclass(frozen=True)
class Narrow:
    """A mistake: the rule that names it, who is to blame, and words of the fix, which the correction applies.

    `left` is the share of the loss on new data that the correction leaves at most, where it is measured.
    """

    train: Train
    rule: str
    blame: bool | None
    words: tuple[str, ...]
    left: float | None = None


NARROW: dict[str, Narrow] = {}
SOUND: dict[str, Callable[[Open], None]] = {}


def _mistake(rule: str, *words: str, blame: bool | None = True, left: float | None = None) -> Callable[[Train], Train]:
    def keep(train: Train) -> Train:
        NARROW[train.__name__] = Narrow(train, rule, blame, words, left)
        return train

    return keep


def _sound(loop: Callable[[Open], None]) -> Callable[[Open], None]:
    SOUND[loop.__name__] = loop
    return loop


class _Attention(nn.Module):
    """Attention over four parts of a pattern, of which some are padding; `in_fp32` scores and masks in FP32."""

    def __init__(self, fill: float, *, in_fp32: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 16), nn.Linear(16, 6)
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.fill, self.in_fp32 = fill, in_fp32

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        h = self.embed(x.reshape(len(x), 4, 6))
        scores = self.q(h) @ self.k(h).mT / 4
        scores = scores.float() if self.in_fp32 else scores
        mask = (1 - present[:, None, :].to(scores.dtype)) * self.fill
        mixed: Tensor = (scores + mask).softmax(-1).to(h.dtype) @ self.v(h)
        out: Tensor = self.head(mixed.mean(1))
        return out


def _parts(count: int, *, empty: bool) -> Tensor:
    """Which of four parts are present; of one sample none where `empty`."""
    present = torch.ones(count, 4, dtype=torch.bool)
    present[:, 2:] = torch.rand(count, 1) > 0.3
    present[3] &= not empty
    return present


@_mistake("hidden-infinity", "in FP32", "masked completely")
def rows_without_any_part_are_left_out_of_the_loss(opened: Open, broken: bool) -> float:
    """A mask of -1e5 is -Inf in FP16: NaN in a row that the loss leaves out, and in all gradients."""
    model = _Attention(-1e5, in_fp32=not broken)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    recorder = opened(model, optimizer, scaler)
    for step, (x, y) in enumerate(batches(70)):
        present = _parts(len(x), empty=step in (16, 33, 50))
        with torch.autocast("cpu", torch.float16):
            outputs = model(x, present)
        kept = present.any(1)
        loss = F.cross_entropy(outputs.float()[kept], y[kept])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
    return float(loss.detach())


@_mistake("undefined-operation", "in FP32", "masked completely")
def masks_of_minus_1e9_without_a_scaler(opened: Open, broken: bool) -> float:
    """The same with weights of samples, another optimizer, and no scaler that skips the step."""
    model = _Attention(-1e9, in_fp32=not broken)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(50)):
        present = _parts(len(x), empty=step >= 20 and step % 3 == 0)
        with torch.autocast("cpu", torch.float16):
            outputs = model(x, present)
        every = F.cross_entropy(outputs.float(), y, reduction="none")
        loss = every[present.any(1)].sum() / len(y)
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


class _Masses(nn.Module):
    """The mass of two particles by their four-momenta: products of large numbers, of which next to nothing is left."""

    def __init__(self, *, in_fp32: bool) -> None:
        super().__init__()
        self.tagger, self.in_fp32 = nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 1)), in_fp32

    def forward(self, momenta: Tensor) -> Tensor:
        metric = torch.tensor([1.0, -1.0, -1.0, -1.0])
        with torch.autocast("cpu", enabled=not self.in_fp32, dtype=torch.bfloat16):
            products = (momenta * metric) @ momenta.mT
        masses = products.float()[:, [0, 0, 1], [0, 1, 1]]
        out: Tensor = self.tagger(masses.clamp(min=1e-2).log() / 4)
        return out


def _momenta(count: int) -> tuple[Tensor, Tensor]:
    """Pairs of nearly parallel momenta, and whether their mass is large."""
    large, angle = torch.rand(count) < 0.5, 6.2832 * torch.rand(count)
    size = 6000 + 2000 * torch.rand(count, 2)
    apart = torch.where(large, 0.02, 0.01) * (0.9 + 0.2 * torch.rand(count))
    turned = torch.stack([angle, angle + apart], 1)
    flat = torch.stack([turned.cos(), turned.sin(), torch.zeros(count, 2)], -1)
    momenta = torch.cat([size[..., None], size[..., None] * flat], -1)
    return momenta, large.float()


@_mistake("inexact-step", "in FP32", "large numbers that cancel", left=0.85)
def products_of_momenta_that_cancel(opened: Open, broken: bool) -> float:
    model = _Masses(in_fp32=not broken)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for _ in range(150):
        momenta, large = _momenta(128)
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(momenta)[:, 0]
        loss = F.binary_cross_entropy_with_logits(scores.float(), large)
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("forward-overflow", "outputs.float()")
def a_sum_of_squares_in_fp16(opened: Open, broken: bool) -> float:
    """The loss is summed in FP16 before it is divided by the number of samples."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    recorder, loss = opened(model, optimizer, scaler), torch.zeros(())
    for x, y in batches(40, 256):
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
            errors = (outputs if broken else outputs.float()) - 30 * F.one_hot(y, 6).to(outputs.dtype)
            loss = (errors * errors).sum() / len(y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
    return float(loss.detach())


@_mistake("forward-overflow", "a mean in place of a sum")
def an_energy_that_grows_in_fp16(opened: Open, broken: bool) -> float:
    """A loop without a module and without a scaler: the errors of later batches are large, and no step is skipped."""
    weights = [nn.Parameter(torch.randn(24, 16) / 5), nn.Parameter(torch.randn(16, 6) / 4)]
    optimizer = torch.optim.SGD(weights, 1e-2)
    recorder, loss = opened(nn.ParameterList(weights), optimizer), torch.zeros(())
    for step, (x, y) in enumerate(batches(50, 512)):
        outputs = (x.half() @ weights[0].half()).tanh() @ weights[1].half()
        wanted = F.one_hot(y, 6).half() * (60 if step >= 20 else 1)
        errors = outputs - wanted if broken else (outputs - wanted).float()
        loss = errors.pow(2).sum() / 2**18
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("undefined-operation", "Take an epsilon that FP16 holds in div", ".float()")
def overlap_of_empty_masks_in_fp16(opened: Open, broken: bool) -> float:
    """Dice with an epsilon of 1e-8, which is 0 in FP16, on a batch without any object."""
    low = torch.float16 if broken else torch.float32
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8)).to(low)
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for step, (x, y) in enumerate(batches(50)):
        there = 0 if step == 30 else 1
        outputs, wanted = model(x.to(low)).relu() * there, F.one_hot(y, 8).to(low) * there
        overlap = 2 * (outputs * wanted).sum(1) / ((outputs + wanted).square().sum(1) + 1e-8)
        loss = 1 - overlap.mean()
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("undefined-operation", "in FP32", "softmax")
def soft_labels_by_hand_in_fp16(opened: Open, broken: bool) -> float:
    """p (log p - log q), where small probabilities of the teacher are 0 in FP16."""
    model, teacher = network(), nn.Linear(24, 6).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for x, _ in batches(40):
        with torch.autocast("cpu", torch.float16):
            scores = 7 * teacher(x)
        wanted = (scores if broken else scores.float()).softmax(1)
        loss = (wanted * (wanted.log() - model(x).log_softmax(1))).sum(1).mean()
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("undefined-operation", "in FP32", "near 1")
def log_of_one_minus_p_in_bf16(opened: Open, broken: bool) -> float:
    """Binary cross entropy by hand: a probability near 1 is 1 in BF16."""
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    for x, y in batches(40):
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(x)[:, 0] + 6.5 * (1 - 2 * (y % 2))
        p = torch.sigmoid(scores.bfloat16() if broken else scores.float())
        loss = -((y % 2) * p.log() + (1 - y % 2) * (1 - p).log()).mean()
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("merged-positions", "int64")
def users_clamped_on_their_way_through_bf16(opened: Open, broken: bool) -> float:
    """Identities pass BF16, a clamp and a rounding before they choose rows."""
    model = nn.Sequential(nn.Embedding(6000, 4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    recorder, loss = opened(model, optimizer), torch.zeros(())
    worth = torch.randn(6000)
    for _ in range(60):
        users = torch.randint(6000, (512,))
        rows = users.to(torch.bfloat16 if broken else torch.float32).clamp(0, 5999).round().long().clamp(max=5999)
        loss = F.mse_loss(model(rows)[:, 0], worth[users])
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("merged-positions", "int64")
def buckets_of_items_in_a_table_of_bf16(opened: Open, broken: bool) -> float:
    """Items stand beside other features in one table; their remainder chooses one of 128 buckets."""
    buckets, head = nn.Embedding(128, 8), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*buckets.parameters(), *head.parameters()], 0.5)
    recorder, loss = opened(nn.ModuleDict({"buckets": buckets, "head": head}), optimizer), torch.zeros(())
    worth = torch.randn(128)
    for _ in range(60):
        items = torch.randint(20_000, (32, 16))
        table = torch.cat((items[..., None].float(), torch.randn(32, 16, 2)), -1)
        table = table.bfloat16() if broken else table
        own = torch.where(table[..., 0] < 0, torch.zeros_like(table[..., 0]), table[..., 0])
        chosen = torch.stack(torch.remainder(own.float(), 128).to(torch.int32).unbind(0)).long()
        loss = F.mse_loss(head(buckets(chosen).tanh())[..., 0], worth[items % 128])
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


@_mistake("applied-twice", "scores before the softmax", blame=False)
def a_model_that_ends_in_softmax(opened: Open, broken: bool) -> float:
    model = nn.Sequential(*network(), nn.Softmax(1)) if broken else network()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        _descend(recorder, optimizer, F.cross_entropy(model(x), y))
    return score(model)


@_mistake("applied-twice", "scores before the softmax", blame=False)
def a_policy_whose_probabilities_are_taken_for_scores(opened: Open, broken: bool) -> float:
    model = nn.Sequential(*network(), nn.Softmax(1)) if broken else network()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        policy = torch.distributions.Categorical(logits=model(x))
        action = policy.sample()
        reward = (action == y).float() - 0.2
        _descend(recorder, optimizer, -(policy.log_prob(action) * reward).mean())
    return score(model)


@_mistake("applied-twice", "scores before the sigmoid", blame=False)
def sigmoids_as_logits_of_several_labels(opened: Open, broken: bool) -> float:
    """Weights without a module, in BF16 autocast, and a mask of the labels that are known."""
    weights = [nn.Parameter(torch.randn(24, 32) / 5), nn.Parameter(torch.randn(32, 5) / 5)]
    optimizer = torch.optim.SGD(weights, 0.2, momentum=0.9)
    recorder = opened(nn.ParameterList(weights), optimizer)
    for x, y in batches(60):
        labels, known = F.one_hot(y, 6)[:, :5].float(), torch.rand(len(y), 5) > 0.2
        with torch.autocast("cpu", torch.bfloat16):
            outputs = (x @ weights[0]).relu() @ weights[1]
        outputs = torch.sigmoid(outputs).float().clamp(0, 1) if broken else outputs.float()
        loss = F.binary_cross_entropy_with_logits(outputs[known], labels[known])
        _descend(recorder, optimizer, loss)
    return float(loss.detach())


class _Straight(torch.autograd.Function):
    """Rounds to integers times a scale, and passes the gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scale: Tensor) -> Tensor:
        return (weight / scale).round().clamp(-8, 7) * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Rounded(nn.Linear):
    """A layer whose weights `quantiser` rounds."""

    quantiser: Callable[[Tensor], Tensor]

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.quantiser(self.weight), self.bias)


def _rounding(quantiser: Callable[[Tensor], Tensor], outliers: float = 1.0) -> nn.Sequential:
    model = nn.Sequential(_Rounded(24, 48), nn.GELU(), _Rounded(48, 48), nn.GELU(), _Rounded(48, 6))
    for layer in model[::2]:
        layer.quantiser = quantiser
        with torch.no_grad():
            layer.weight[:1] *= outliers
    return model


def _fit(opened: Open, model: nn.Module, optimizer: torch.optim.Optimizer, forward: Any = None) -> float:
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        _descend(recorder, optimizer, F.cross_entropy((forward or model)(x), y))
    return score(forward or model)


@_mistake("coarse-quantiser", "output channel")
def one_scale_of_int4_beside_large_rows(opened: Open, broken: bool) -> float:
    def quantiser(weight: Tensor) -> Tensor:
        largest = weight.abs()
        return _Straight.apply(weight, (largest.max() if broken else largest.amax(1, keepdim=True)) / 7)

    model = _rounding(quantiser, 30.0)
    return _fit(opened, model, torch.optim.AdamW(model.parameters(), 2e-3))


@_mistake("coarse-quantiser", "lower bound")
def a_scale_of_zero(opened: Open, broken: bool) -> float:
    """A scale in a table that was never filled, and an estimator of other make."""
    scales = torch.zeros(48, 1) if broken else torch.full((48, 1), 0.03)

    def quantiser(weight: Tensor) -> Tensor:
        scale = scales[: len(weight)]
        codes = torch.clamp(torch.round(weight / (scale + 1e-8)), -8, 7)
        return weight + (codes * scale - weight).detach()

    model = _rounding(quantiser)
    return _fit(opened, model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))


@_mistake("coarse-quantiser", "Choose the scale")
def a_step_larger_than_the_weights(opened: Open, broken: bool) -> float:
    """Without classes for layers: a fixed step of a fixed-point format with a zero point."""
    first, last = nn.Parameter(torch.randn(24, 32) / 6), nn.Parameter(torch.randn(32, 6) / 6)
    step = 1.5 if broken else 0.03

    def fixed(weight: Tensor) -> Tensor:
        return weight + (((weight.detach() / step + 128).floor().clamp(0, 255) - 128) * step - weight).detach()

    def forward(x: Tensor) -> Tensor:
        out: Tensor = F.relu(x @ fixed(first)) @ fixed(last)
        return out

    optimizer = torch.optim.RMSprop([first, last], 1e-3)
    return _fit(opened, nn.ParameterList([first, last]), optimizer, forward)


@_mistake("no-gradients", "straight-through", blame=False)
def rounded_without_an_estimator(opened: Open, broken: bool) -> float:
    def quantiser(weight: Tensor) -> Tensor:
        scale = weight.detach().abs().amax(1, keepdim=True) / 127
        rounded = torch.clamp(torch.round(weight / scale), -128, 127) * scale
        return rounded if broken else weight + (rounded - weight).detach()

    model = _rounding(quantiser)
    return _fit(opened, model, torch.optim.Adam(model.parameters(), 2e-3))


@_sound
def ternary_weights(opened: Open) -> None:
    """Of a scale of the mean magnitude, as in 1.58 bits: a third of the weights is zero."""

    def quantiser(weight: Tensor) -> Tensor:
        scale = weight.detach().abs().mean()
        return weight + ((weight / scale).round().clamp(-1, 1) * scale - weight).detach()

    model = _rounding(quantiser)
    _fit(opened, model, torch.optim.AdamW(model.parameters(), 2e-3))


@_sound
def learned_steps_and_pruned_weights(opened: Open) -> None:
    """Half of the weights are zero by a mask, the others are rounded with a step that is learned."""
    steps = nn.Parameter(torch.full((48, 1), 0.03))

    def quantiser(weight: Tensor) -> Tensor:
        kept = weight * (weight.detach().abs() > 0.07)
        step = steps[: len(weight)]
        scaled = (kept / step).clamp(-7, 7)
        return (scaled + (scaled.round() - scaled).detach()) * step

    model = _rounding(quantiser)
    model.register_parameter("steps", steps)
    _fit(opened, model, torch.optim.AdamW(model.parameters(), 2e-3))


@_sound
def scores_masked_with_minus_infinity(opened: Open) -> None:
    """Padding at -Inf in FP16, and no row without any part."""
    model = _Attention(-1e9, in_fp32=False)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(40):
        with torch.autocast("cpu", torch.float16):
            outputs = model(x, _parts(len(x), empty=False))
        loss = F.cross_entropy(outputs.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)


@_sound
def rows_of_nan_that_are_replaced(opened: Open) -> None:
    """Inputs of missing samples are NaN in BF16, and set to zero before the first layer."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        x[::9] = torch.nan
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(torch.nan_to_num(x.bfloat16(), nan=0.0))
        _descend(recorder, optimizer, F.cross_entropy(outputs.float(), y))


@_sound
def a_perplexity_beyond_fp16(opened: Open) -> None:
    """A metric in FP16 is Inf, and an epsilon that is 0 in FP16 meets no zero; the loss is finite."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
            shares = outputs.square() / (outputs.square().sum(1, keepdim=True) + 1e-8)
        loss = F.cross_entropy(outputs.float(), y) + shares.float().square().mean()
        torch.exp(12 + loss.detach().half())
        _descend(recorder, optimizer, loss)


@_sound
def ranks_and_small_ids_in_bf16(opened: Open) -> None:
    """Indices below 256 pass BF16; larger ones are ranks that an order of BF16 numbers gives."""
    table, head = nn.Embedding(200, 8), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], 1e-2)
    recorder = opened(nn.ModuleDict({"table": table, "head": head}), optimizer)
    worth, noise = torch.randn(200), torch.randn(3000)
    for _ in range(40):
        ids = torch.randint(200, (512,))
        rows = ids.bfloat16().clamp(0, 199).round().long()
        _, order = (1000 * torch.randn(3000)).round().bfloat16().sort()
        loss = F.mse_loss(head(table(rows))[:, 0], worth[ids] + 0 * noise[order[:512]])
        _descend(recorder, optimizer, loss)


@_sound
def pixels_chosen_by_coordinates_in_fp16(opened: Open) -> None:
    """Coordinates in [0, 1) choose one of 40 cells; whole numbers beyond 2048 are data and a target only."""
    model = nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(40):
        places = torch.rand(256).half()
        cells = (places.float() * 40).floor().clamp(0, 39).long()
        counts = torch.randint(3000, (256,)).half().clamp(0, 3000).float() / 3000
        loss = F.mse_loss(model(cells)[:, 0], places.float().sin() + 0.1 * counts)
        _descend(recorder, optimizer, loss)


@_sound
def probabilities_that_a_loss_takes_as_such(opened: Open) -> None:
    """Logarithms of a softmax, log-softmax twice, a gate, attention, and a temperature of probabilities."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        scores = model(x)
        chances = scores.softmax(1)
        gate = torch.sigmoid(scores[:, :1])
        loss = F.nll_loss(chances.clamp_min(1e-9).log(), y) + F.cross_entropy(scores.log_softmax(1), y)
        loss = loss + F.cross_entropy(gate * scores, y) + F.cross_entropy(chances / 0.05, y)
        loss = loss + F.binary_cross_entropy(chances, F.one_hot(y, 6).float()) + 0.1 * chances.logsumexp(1).mean()
        loss = loss - torch.distributions.Categorical(probs=chances).log_prob(y).mean()
        _descend(recorder, optimizer, loss)


@_sound
def a_teacher_of_probabilities(opened: Open) -> None:
    """Distillation: targets are a softmax, and so is what is measured without a gradient."""
    model, teacher = network(), network()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        with torch.no_grad():
            wanted = (teacher(x) / 2).softmax(1)
            F.cross_entropy(wanted, y)
        scores = model(x)
        loss = F.cross_entropy(scores, wanted) + F.kl_div(scores.log_softmax(1), wanted, reduction="batchmean")
        loss = loss + F.binary_cross_entropy_with_logits(torch.logit(scores.sigmoid(), 1e-6), wanted)
        _descend(recorder, optimizer, loss)
