"""Mistakes that look numeric and for which no format is to blame, each with its correction; see `Published`.

Two healthy loops with gradients that are exactly zero stand at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.faults.numeric_faults import CLASSES, WIDTH, fit, half, keeper
from tests.faults.published_faults import Open, Published, Train, batches, network, score

LOOKALIKES: dict[str, Published] = {}
HEALTHY_ZEROS: dict[str, Train] = {}


def _mistake(rules: str, source: str) -> Callable[[Train], Train]:
    return keeper(LOOKALIKES)(rules, False, source)


@_mistake("no-gradients", "an encoder whose output is detached")
def detached_encoder(opened: Open, broken: bool) -> float:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, 4))
            self.head = nn.Sequential(nn.Linear(4, 48), nn.GELU(), nn.Linear(48, CLASSES))

        def forward(self, x: Tensor) -> Tensor:
            code = self.encoder(x)
            return self.head(code.detach() if broken else code)

    model = Model()
    fit(opened, model, lambda x, y: F.cross_entropy(model(x), y), scale=None)
    return score(model)


class Lora(nn.Module):
    """A frozen linear layer and two small matrices; `zero` of them begin at zero."""

    def __init__(self, width: int, zero: int = 1) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.a, self.b = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)
        for each in (self.b, self.a)[:zero]:
            nn.init.zeros_(each.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.base(x) + self.b(self.a(x)))


class Adapted(nn.Module):
    def __init__(self, reentrant: bool = False, zero: int = 1) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, 48).requires_grad_(False)
        self.blocks = nn.ModuleList([Lora(48, zero) for _ in range(4)])
        self.head, self.reentrant = nn.Linear(48, CLASSES), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


@_mistake("no-gradients", "reentrant checkpoints behind a frozen stem")
def checkpoint_lora_no_grad(opened: Open, broken: bool) -> float:
    model = Adapted(reentrant=broken)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-2)
    fit(opened, model, lambda x, y: F.cross_entropy(model(x), y), 60, scale=None, optimizer=optimizer)
    return score(model)


@_mistake("zero-gradients", "both matrices of an adapter begin at zero")
def lora_two_zero_matrices(opened: Open, broken: bool) -> float:
    model = Adapted(zero=2 if broken else 1)
    model.head.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-2)
    fit(opened, model, lambda x, y: F.cross_entropy(model(x), y), scale=None, optimizer=optimizer)
    return score(model)


@_mistake("batch-norm-gap", "batch norm over two samples")
def bn_batch_two(opened: Open, broken: bool) -> float:
    size, model = 2 if broken else 32, nn.Sequential(
        nn.Linear(WIDTH, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(),
        nn.Linear(48, CLASSES))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(400, size)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss, samples=size)
        if step % 50 == 49:
            recorder.evaluated(score(model.eval()))
            model.train()
    return score(model.eval())


@_mistake("weights-shrink", "a weight decay of 1 at a rate of 0.05")
def weight_decay_huge(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1.0 if broken else 1e-4)
    fit(opened, model, lambda x, y: F.cross_entropy(model(x), y), scale=None, optimizer=optimizer)
    return score(model)


@_mistake("weights-shrink", "a weight decay of Adam that outweighs the gradients")
def weight_decay_inside_adam(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=0.5 if broken else 1e-4)
    fit(opened, model, lambda x, y: F.cross_entropy(model(x), y), scale=None, optimizer=optimizer)
    return score(model)


@_mistake("saturated-units", "a tanh whose inputs are hundreds")
def tanh_saturated_init(opened: Open, broken: bool) -> float:
    model = nn.Sequential(
        nn.Linear(WIDTH, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4)
    )
    if broken:
        for layer in (model[0], model[2], model[4]):
            nn.init.normal_(layer.weight, std=40.0)
    wanted = torch.randn(WIDTH, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    fit(opened, model, lambda x, y: F.mse_loss(model(x), x @ wanted / 5), 200, scale=None, optimizer=optimizer)
    x, _ = batches(1, 512, 77)[0]
    return float(F.mse_loss(model(x), x @ wanted / 5).detach())


@_mistake("no-progress clipped-away", "gradients clipped to a norm of 1e-6")
def clip_tiny(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    for x, y in batches(150):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-6 if broken else 1.0)
        optimizer.step()
        recorder.step(loss)
    return score(model)


@_mistake("parameters-left-out foreign-parameters", "the last layer replaced after the optimizer was made")
def optimizer_of_old_layer(opened: Open, broken: bool) -> float:
    body = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU()).requires_grad_(False)
    model = nn.Sequential()
    model.body, model.fc = body, nn.Linear(48, 10)
    if not broken:
        model.fc = nn.Linear(48, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if broken:
        model.fc = nn.Linear(48, CLASSES)
    fit(opened, model, lambda x, y: F.cross_entropy(model(x), y), scale=None, optimizer=optimizer)
    return score(model)


@_mistake("gradients-not-cleared", "zero_grad is missing")
def forgot_zero_grad(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    recorder = opened(model, optimizer)
    for x, y in batches(150):
        if not broken:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(model)


@_mistake("undefined-operation", "a target that is longer than its inputs, for CTC")
def ctc_impossible_target(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(120, 40), 1):
        optimizer.zero_grad()
        logits = model(x).reshape(10, 4, CLASSES).log_softmax(-1)
        length = 12 if step == 58 and broken else 4
        targets = (y[: 4 * 4].reshape(4, 4) % (CLASSES - 1) + 1).repeat(1, 3)[:, :length]
        loss = F.ctc_loss(logits, targets, torch.full((4,), 10), torch.full((4,), length))
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return float(sum(each.detach().abs().sum() for each in model.parameters()) / 1000)


@_mistake("dead-units", "a bias that no input outweighs")
def dead_relu(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, CLASSES))
    if broken:
        nn.init.constant_(model[2].bias, -60.0)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    fit(opened, model, loss_of, scale=2.0**16)
    return score(model)


@_mistake("divergence", "a rate a thousand times too high")
def sgd_rate_thousandfold(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 30.0 if broken else 0.1, momentum=0.9)
    fit(opened, model, lambda x, y: F.cross_entropy(model(x), y), scale=None, optimizer=optimizer)
    return score(model)


@_mistake("undefined-operation", "a row of a mask without a single token, from one batch on")
def masked_row(opened: Open, broken: bool) -> float:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.score, self.head = nn.Linear(3, 32), nn.Linear(32, 1), nn.Linear(32, CLASSES)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = self.embed(x.unflatten(-1, (8, 3)))
            weights = self.score(h).squeeze(-1).masked_fill(mask, -math.inf).softmax(-1)
            return self.head(F.gelu((weights.unsqueeze(-1) * h).sum(1)))

    model = Pool()
    step = iter(range(10**6))

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        mask = torch.zeros(len(x), 8, dtype=torch.bool)
        if next(step) == 41:
            mask[0, : 8 if broken else 7] = True
        with half(True, torch.bfloat16):
            logits = model(x, mask)
        return F.cross_entropy(logits.float(), y)

    fit(opened, model, loss_of, scale=None)
    none = torch.zeros(1024, 8, dtype=torch.bool)
    return score(lambda x: model(x, none))


def _without_harm(train: Train) -> Train:
    HEALTHY_ZEROS[train.__name__] = train
    return train


@_without_harm
def loss_of_weight_zero(opened: Open, broken: bool) -> float:
    """A second loss whose weight is 0, in FP16: the gradients of its head are exactly zero."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.aux = network(WIDTH, 32), nn.Linear(32, CLASSES), nn.Linear(32, 400)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.body(x)
            return self.head(h), self.aux(h)

    model = Two()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(not broken):
            own, other = model(x)
        return F.cross_entropy(own.float(), y) + 0.0 * other.float().square().mean()

    fit(opened, model, loss_of, scale=2.0**16)
    return score(lambda x: model(x)[0])


@_without_harm
def gate_of_zero(opened: Open, broken: bool) -> float:
    """Experts of which one is closed by a factor of 0, in FP16."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([network(WIDTH, 32, 96) for _ in range(3)])
            self.head, self.gates = nn.Linear(32, CLASSES), (1.0, 0.5, 0.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(sum(gate * each(x) for gate, each in zip(self.gates, self.experts, strict=True)))

    model = Gated()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(not broken):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    fit(opened, model, loss_of, scale=2.0**16)
    return score(model)
