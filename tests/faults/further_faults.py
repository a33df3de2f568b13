"""Further mistakes in training loops, each with its correction: see `Published`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, Published, Train, batches, network, score

FURTHER: dict[str, Published] = {}
WIDTH, CLASSES = 24, 6


def _mistake(rules: str, blame: bool | None, source: str) -> Callable[[Train], Train]:
    def keep(train: Train) -> Train:
        FURTHER[train.__name__] = Published(train, tuple(rules.split()), blame, source)
        return train

    return keep


class _Attention(nn.Module):
    """One head over eight tokens of three numbers; `scaled` divides the scores by the root of their width."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Linear(3, 64), nn.Linear(64, 192)
        self.head, self.scaled = nn.Linear(64, CLASSES), scaled

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.unflatten(-1, (8, 3)))
        q, k, v = self.qkv(8 * tokens).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        if self.scaled:
            scores = scores.float() / 4096
        out: Tensor = self.head((scores.softmax(-1).to(v.dtype) @ v).mean(1))
        return out


@_mistake("forward-overflow", True, "scores of attention that are not divided, in FP16")
def scores_that_are_not_divided(opened: Open, broken: bool) -> float:
    model = _Attention(scaled=True)
    nn.init.normal_(model.qkv.weight, std=4.0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(150):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16 if broken else torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
    with torch.autocast("cpu", torch.float16 if broken else torch.bfloat16):
        return score(model)


@_mistake("stagnation", True, "fine-tuning of BF16 weights at a small rate")
def fine_tuned_in_bf16(opened: Open, broken: bool) -> float:
    """Trained in FP32 on the same data with other labels, then on these with BF16 weights."""
    model = network()
    first = torch.optim.AdamW(model.parameters(), 3e-3)
    for x, y in batches(80, seed=11):
        first.zero_grad()
        F.cross_entropy(model(x), (y + 1) % CLASSES).backward()
        first.step()
    dtype = torch.bfloat16 if broken else torch.float32
    model = model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-5, weight_decay=0.01)
    recorder = opened(model, optimizer)
    for x, y in batches(300):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(dtype)).float(), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(lambda x: model(x.to(dtype)))


@_mistake("gradients-not-unscaled divergence gradient-underflow", False, "a scale of one's own, undone too often")
def divided_after_each_micro_batch(opened: Open, broken: bool) -> float:
    """Loss scale by hand over eight micro-batches: the sum so far is divided again after each of them."""
    model, scale = network(), 2.0**10
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    recorder = opened(model, optimizer)
    for x, y in batches(100):
        optimizer.zero_grad()
        total = 0.0
        for part, (inputs, targets) in enumerate(zip(x.chunk(8), y.chunk(8), strict=True)):
            with torch.autocast("cpu", torch.float16):
                logits = model(inputs)
            loss = F.cross_entropy(logits.float(), targets) / 8
            (loss * scale).backward()
            total += float(loss.detach())
            if broken or part == 7:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad /= scale
        optimizer.step()
        recorder.step(total)
    return score(model)


@_mistake("frozen-average frozen-statistics", True, "running statistics in BF16 with a small momentum")
def running_statistics_in_bf16(opened: Open, broken: bool) -> float:
    """BatchNorm in BF16 with a momentum of 0.002: its running statistics hardly move; evaluated, it is wrong."""
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(48, momentum=0.002)
    model = nn.Sequential(nn.Linear(WIDTH, 48), norm, nn.ReLU(), nn.Linear(48, CLASSES))
    with torch.no_grad():
        model[0].bias.add_(6.0)
    if broken:
        norm.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for x, y in batches(600):
        optimizer.zero_grad()
        hidden = norm(model[0](x).to(norm.weight.dtype)).float()
        loss = F.cross_entropy(model[3](model[2](hidden)), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    model.float().eval()
    return score(model)


@_mistake("forward-overflow undefined-operation coarse-loss", True, "log of a softmax by hand, in FP16")
def log_of_a_softmax_in_fp16(opened: Open, broken: bool) -> float:
    """A probability below 6e-8 is zero in FP16, its logarithm -Inf."""
    model = network()
    with torch.no_grad():
        model[4].weight.mul_(40.0)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    value = math.nan
    for x, y in batches(150):
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        chances = (logits if broken else logits.float()).softmax(-1)
        loss = -(chances.log().gather(1, y[:, None])).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value if not math.isfinite(value) else score(model)


@_mistake("coarse-inputs", True, "a time stamp that is stored in BF16 before it is normalised")
def time_stamps_in_bf16(opened: Open, broken: bool) -> float:
    """The minute of a year predicts the time of day, so all of the digits that BF16 drops."""
    model = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    total = 0.0
    for step in range(300):
        generator = torch.Generator().manual_seed(step)
        minutes = torch.randint(525_600, (128,), generator=generator).float()
        stored = (minutes.bfloat16() if broken else minutes).float()
        day = 2 * math.pi * stored / 1440
        year = 2 * math.pi * stored / 525_600
        inputs = torch.stack((day.sin(), day.cos(), year.sin(), year.cos()), 1)
        loss = F.cross_entropy(model(inputs), (minutes % 1440 // 360).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        total = 0.9 * total + 0.1 * float(loss.detach())
    return total


class _RowScaled(nn.Linear):
    """A product in E4M3 with a scale for each row of the input, as written by hand; `least` bounds its divisor."""

    least = 0.0

    def forward(self, x: Tensor) -> Tensor:
        scale = 448 / x.abs().amax(-1, keepdim=True).clamp(min=self.least)
        rounded = (x * scale).to(torch.float8_e4m3fn).float() / scale
        return F.linear(x + (rounded - x).detach(), self.weight, self.bias)


@_mistake("zero-row", True, "the scale of a row of zeros in FP8, catalogue A11")
def row_of_zeros_in_fp8(opened: Open, broken: bool) -> float:
    """A ReLU whose output is zero for a padded sample, multiplied in E4M3 with a scale for each row."""
    model = nn.Sequential(nn.Linear(WIDTH, 48, bias=False), nn.ReLU(), _RowScaled(48, CLASSES))
    model[2].least = 0.0 if broken else 1e-12
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer)
    value = math.nan
    for step, (x, y) in enumerate(batches(60)):
        if step == 30:
            x[:4] = 0.0
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value if not math.isfinite(value) else score(model)


class Positions(nn.Module):
    """Sines of positions times frequencies, computed in `dtype`, and two layers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("rates", 2 * math.pi / torch.tensor([2.0, 3, 4, 6, 8, 12, 16, 24]))
        self.inner = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))

    def forward(self, positions: Tensor) -> Tensor:
        angles = positions.to(self.dtype)[:, None] * self.rates.to(self.dtype)
        out: Tensor = self.inner(torch.cat((angles.sin(), angles.cos()), 1).float())
        return out


@_mistake("coarse-angles", True, "gpt-neox#1003, transformers#29285: positions in BF16, inside the model")
def rotary_positions_in_bf16(opened: Open, broken: bool) -> float:
    model = Positions(torch.bfloat16 if broken else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    value = math.nan
    for step in range(150):
        generator = torch.Generator().manual_seed(step)
        positions = torch.randint(2048, (256,), generator=generator)
        loss = F.cross_entropy(model(positions), positions % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value
