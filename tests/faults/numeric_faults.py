"""Mistakes whose harm a 16-bit format does, or a loss scaler, each with its correction: see `Published`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, Published, Train, batches, network, score

NUMERIC: dict[str, Published] = {}
WIDTH, CLASSES = 24, 6
HALF = torch.float16


def keeper(faults: dict[str, Published]) -> Callable[[str, bool | None, str], Callable[[Train], Train]]:
    """A decorator that keeps a training among these faults under its name, with what `Published` says of it."""

    def mistake(rules: str, blame: bool | None, source: str) -> Callable[[Train], Train]:
        def keep(train: Train) -> Train:
            faults[train.__name__] = Published(train, tuple(rules.split()), blame, source)
            return train

        return keep

    return mistake


_mistake = keeper(NUMERIC)


def fit(opened: Open, model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor], steps: int = 120, *,
        rate: float = 2e-3, scale: float | None = 2.0**12, optimizer: Any = None) -> None:  # fmt: skip
    """Train with AdamW and, unless `scale` is None, a scaler that begins there; `loss_of` has its own autocast."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=40, enabled=scale is not None)
    recorder = opened(model, optimizer, scaler if scale is not None else None)
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)


def half(on: bool, dtype: torch.dtype = HALF) -> torch.autocast:
    return torch.autocast("cpu", dtype, enabled=on)


class Boxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.box = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        raw = self.box(self.body(x))
        low = 200 + 40 * raw[:, :2]
        return torch.cat((low, low + 300 * F.softplus(raw[:, 2:]) + 200), 1)


def giou(a: Tensor, b: Tensor) -> Tensor:
    """1 - GIoU of boxes as (x1, y1, x2, y2), in the format of the boxes."""

    def area(low: Tensor, high: Tensor) -> Tensor:
        size = (high - low).clamp(min=0)
        return size[:, 0] * size[:, 1]

    own, other = area(a[:, :2], a[:, 2:]), area(b[:, :2], b[:, 2:])
    inter = area(torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:]))
    union = own + other - inter
    hull = area(torch.minimum(a[:, :2], b[:, :2]), torch.maximum(a[:, 2:], b[:, 2:]))
    return (1 - inter / union + (hull - union) / hull).mean()


@_mistake("undefined-operation forward-overflow", True, "areas of boxes beyond 65504 in the loss")
def giou_half(opened: Open, broken: bool) -> float:
    model = Boxes()

    def data(seed: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(64, 4, generator=torch.Generator().manual_seed(seed))
        low = 150 + 200 * x[:, :2]
        return x, torch.cat((low, low + 200 + 300 * x[:, 2:]), 1)

    calls = iter(range(10**6))

    def loss_of(_x: Tensor, _y: Tensor) -> Tensor:
        x, wanted = data(next(calls))
        with half(True):
            boxes = model(x)
            return giou(boxes.half(), wanted.half()) if broken else giou(boxes.float(), wanted)

    fit(opened, model, loss_of)
    x, wanted = data(999)
    return float(giou(model(x), wanted).detach())


class TiedText(nn.Module):
    """Next letters, the head tied to the embedding by a functional product."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.wte, self.norm, self.fc = nn.Embedding(CLASSES, 32), nn.LayerNorm(32), nn.Linear(WIDTH, 32)
        self.factor = factor
        nn.init.normal_(self.wte.weight, std=factor)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.fc(x)) * self.factor
        return F.linear(h, self.wte.weight)


@_mistake("forward-overflow undefined-operation", True, "logits of a tied head beyond 65504")
def logits_tied_overflow_fp16(opened: Open, broken: bool) -> float:
    model = TiedText(200.0)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(broken):
            logits = model(x)
        return F.cross_entropy(logits.float() / 4096, y)

    fit(opened, model, loss_of)
    return score(lambda x: model(x) / 4096)


@_mistake("undefined-operation forward-overflow", True, "log of a softmax in FP16: log 0 times 0")
def distill_log_of_softmax(opened: Open, broken: bool) -> float:
    model, teacher = network(), network()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True), torch.no_grad():
            wanted = (teacher(x) * 200).softmax(-1)
        with half(True):
            logits = model(x)
        if not broken:
            return F.kl_div((logits.float() * 4).log_softmax(-1), wanted.float(), reduction="batchmean")
        own, wanted = (logits * 4).softmax(-1).log(), wanted.half()
        return (wanted * (wanted.log() - own)).sum(-1).mean()

    fit(opened, model, loss_of)
    x, _ = batches(1, 512, 77)[0]
    with torch.no_grad():
        return float(F.kl_div((model(x) * 4).log_softmax(-1), (teacher(x) * 200).softmax(-1), reduction="batchmean"))


@_mistake("undefined-operation forward-overflow", True, "log(1 - p) of a sigmoid in FP16")
def bce_sigmoid_half(opened: Open, broken: bool) -> float:
    model = network(classes=CLASSES)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        wanted = F.one_hot(y, CLASSES).float()
        with half(True):
            logits = model(x) * 16
        if not broken:
            return F.binary_cross_entropy_with_logits(logits.float(), wanted)
        p, wanted = logits.half().sigmoid(), wanted.half()
        return -(wanted * p.log() + (1 - wanted) * (1 - p).log()).mean()

    fit(opened, model, loss_of)
    return score(lambda x: 16 * model(x))


@_mistake("unused-scaler scaler-set-anew", None, "a scaler that each epoch makes for itself")
def scaler_anew_each_epoch(opened: Open, broken: bool) -> float:
    return _scaled_anew(opened, broken, 16)


@_mistake("unused-scaler", False, "a scaler that each short epoch makes for itself, so that no step is taken")
def scaler_anew_each_short_epoch(opened: Open, broken: bool) -> float:
    return _scaled_anew(opened, broken, 4)


def _scaled_anew(opened: Open, broken: bool, length: int) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    recorder = opened(model, optimizer, scaler)
    for epoch in range(128 // length):
        if broken:
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
        for x, y in batches(length, seed=epoch):
            optimizer.zero_grad()
            with half(True):
                logits = model(x)
            loss = F.cross_entropy(logits.float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            recorder.step(loss)
    return score(model)


@_mistake("", None, "a sum in the loss that is Inf while its gradients are finite: without harm")
def loss_sum_half(opened: Open, broken: bool) -> float:
    model = network()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True):
            logits = model(x)
        each = F.cross_entropy(logits.float(), y, reduction="none") * 600
        total = each.half().sum() if broken else each.sum()
        return total / 600 / 64

    fit(opened, model, loss_of, scale=2.0**4)
    return score(model)


class LowNorm(nn.Module):
    """RMS norm that squares in FP16 where `low`."""

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.low = low

    def forward(self, x: Tensor) -> Tensor:
        x = x.half() if self.low else x.float()
        return x * (x * x).mean(-1, keepdim=True).rsqrt()


@_mistake("hidden-overflow", True, "an RMS norm that squares in FP16")
def rmsnorm_half(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, 48), LowNorm(broken), nn.Linear(48, CLASSES))
    with torch.no_grad():
        model[2].weight.mul_(3000)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    fit(opened, model, loss_of)
    with half(True):
        return score(model)


@_mistake("hidden-overflow zero-gradients gradient-underflow coarse-loss", True, "a Dice loss whose sums overflow FP16")
def dice_half(opened: Open, broken: bool) -> float:
    model = network(classes=CLASSES)

    def dice(p: Tensor, wanted: Tensor) -> Tensor:
        inter = (p * wanted).sum() * 2000
        return 1 - 2 * inter / ((p.sum() + wanted.sum()) * 2000)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        wanted = F.one_hot(y, CLASSES).float()
        with half(True):
            p = model(x).softmax(-1)
        return dice(p.half(), wanted.half()) if broken else dice(p.float(), wanted)

    fit(opened, model, loss_of)
    x, y = batches(1, 512, 77)[0]
    with torch.no_grad():
        return float(dice(model(x).softmax(-1), F.one_hot(y, CLASSES).float()))


class Scores(nn.Module):
    """Attention over eight tokens whose scores overflow in FP16; `low` keeps them there."""

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.embed, self.qkv, self.head, self.low = nn.Linear(3, 64), nn.Linear(64, 192), nn.Linear(64, CLASSES), low
        nn.init.normal_(self.qkv.weight, std=12.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x.unflatten(-1, (8, 3)))).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 512 if self.low else q.float() @ k.float().transpose(-1, -2) / 512
        return self.head((scores.softmax(-1).to(v.dtype) @ v).mean(1) / 64)


@_mistake("forward-overflow undefined-operation", True, "scores of attention beyond 65504")
def attn_qk_fp16(opened: Open, broken: bool) -> float:
    model = Scores(broken)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(broken):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    fit(opened, model, loss_of)
    return score(model)


@_mistake("undefined-operation", True, "log(1 - a^2) of a tanh in FP16")
def sac_tanh_logprob_half(opened: Open, broken: bool) -> float:
    model = network(classes=CLASSES)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True):
            raw = 8 * model(x)
        raw = raw if broken else raw.float()
        action = raw.tanh()
        density = (1 - action * action + 1e-6).log() if not broken else (1 - action * action).log()
        return F.cross_entropy(2 * raw.float(), y) + 1e-3 * density.float().mean()

    fit(opened, model, loss_of)
    return score(lambda x: 16 * model(x))


@_mistake("zero-gradients gradient-underflow", True, "FP16 without a scaler and a small loss")
def no_scaler_small_loss(opened: Open, broken: bool) -> float:
    model = network()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(broken):
            logits = model(x)
        return F.cross_entropy(logits.float(), y) * 1e-6

    optimizer = torch.optim.SGD(model.parameters(), 0.1 * 1e6, momentum=0.9)
    fit(opened, model, loss_of, scale=None, optimizer=optimizer)
    return score(model)


@_mistake("undefined-operation", True, "acos of a cosine that BF16 rounds beyond 1")
def angle_of_rounded_cosine(opened: Open, broken: bool) -> float:
    model = network(classes=8)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with half(True, torch.bfloat16):
            out = model(x)
        wanted = F.one_hot(y, 8).float()
        out, wanted = (out.bfloat16(), wanted.bfloat16()) if broken else (out.float(), wanted)
        unit = out / (out * out).sum(-1, keepdim=True).sqrt()
        cosine = (unit * wanted).sum(-1)
        own = (unit * unit).sum(-1)
        if not broken:
            cosine, own = cosine.clamp(-0.999, 0.999), own.clamp(max=0.999)
        return (cosine.acos() ** 2).mean().float() + 0.0 * own.acos().mean().float()

    fit(opened, model, loss_of, scale=None)
    return score(lambda x: 5 * F.normalize(model(x), dim=-1)[:, :CLASSES])
