"""Training loops with mistakes that people have published, each with its correction: written from their reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui

Open = Callable[..., precgui.Recorder]  # (model, optimizer, scaler=None, ema=None)
Train = Callable[[Open, bool], float]  # with the mistake or without; returns the loss on new data afterwards


@dataclass(frozen=True)
class Published:
    """A mistake: the rules that name it, and whether precision is to blame (None where both answers are right)."""

    train: Train
    rules: tuple[str, ...]
    blame: bool | None
    source: str


FAULTS: dict[str, Published] = {}


def _published(rules: str, blame: bool | None, source: str) -> Callable[[Train], Train]:
    def keep(train: Train) -> Train:
        FAULTS[train.__name__] = Published(train, tuple(rules.split()), blame, source)
        return train

    return keep


def blobs(count: int = 512, classes: int = 6, width: int = 24, seed: int = 5) -> tuple[Tensor, Tensor]:
    """Noisy clusters of the same centres for each seed of the noise."""
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(77))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    return centres[labels] + 0.9 * torch.randn(count, width, generator=generator), labels


def network(width: int = 24, classes: int = 6, hidden: int = 48) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, classes)
    )


def batches(steps: int, size: int = 64, seed: int = 5) -> list[tuple[Tensor, Tensor]]:
    return [blobs(size, seed=seed * 1000 + step) for step in range(steps)]


@torch.no_grad()
def score(model: Callable[[Tensor], Tensor]) -> float:
    x, y = blobs(1024, seed=9)
    return float(F.cross_entropy(model(x).float(), y))


@_published(
    "zero-gradients no-gradients weights-unchanged no-step-taken", False, "engineersofai.com, PyTorch training loop"
)
def cleared_between_backward_and_step(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(120):
        loss = F.cross_entropy(model(x), y)
        if not broken:
            optimizer.zero_grad()
        loss.backward()
        if broken:
            optimizer.zero_grad()
        optimizer.step()
        recorder.step(loss)
    return score(model)


@_published("gradients-not-unscaled divergence nonfinite-update", False, "openai/guided-diffusion#44")
def only_vectors_are_divided_by_the_scale(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(120):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        for p in model.parameters():
            if p.grad is not None and (p.ndim < 2 or not broken):
                p.grad.mul_(1 / scaler.get_scale())
        optimizer.step()
        recorder.step(loss)
    return score(model)


@_published(
    "undefined-operation weights-not-finite nonfinite-update", False, "pytorch, gradient of sqrt at 0; contrastive loss"
)
def distance_of_a_pair_to_itself(opened: Open, broken: bool) -> float:
    """A siamese network: a batch in which both of a pair are the same picture has a distance of 0."""
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)

    def contrast(x: Tensor, y: Tensor, order: Tensor) -> Tensor:
        squares = (model(x) - model(x[order])).square().sum(1)
        distance = squares.sqrt() if broken else (squares + 1e-8).sqrt()
        same = y == y[order]
        return torch.where(same, distance.square(), F.relu(2 - distance).square()).mean()

    for step, (x, y) in enumerate(batches(120)):
        order = torch.randperm(64)
        if step == 35:
            order[3] = 3
        loss = contrast(x, y, order)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    x, y = blobs(512, seed=9)
    with torch.no_grad():
        return float(contrast(x, y, torch.arange(512).roll(1)))


class _Coder(nn.Module):
    """A variational autoencoder whose head of variances begins with large weights."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.encoder, self.mean, self.log_variance = nn.Linear(24, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.deviation, self.decoder = _Exponential(wide), nn.Linear(4, 24)
        nn.init.normal_(self.log_variance.weight, std=6.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.encoder(x))
        mean, variance = self.mean(h), self.deviation(self.log_variance(h))
        return self.decoder((mean + variance.sqrt() * torch.randn_like(mean)).to(x.dtype)), mean, variance


class _Exponential(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        return x.float().exp() if self.wide else torch.exp(x.half())


@_published(
    "forward-overflow scale-collapse undefined-operation", True, "exp of the log variance in FP16; transformers#9295"
)
def variance_of_a_coder_in_fp16(opened: Open, broken: bool) -> float:
    model = _Coder(not broken)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    recorder = opened(model, optimizer, scaler)
    x, _ = blobs(64, seed=3)
    value = math.nan
    for _ in range(120):
        with torch.autocast("cpu", torch.float16):
            out, mean, variance = model(x)
        divergence = 0.5 * (mean.float().square() + variance.float() - variance.float().clamp_min(1e-8).log() - 1)
        loss = F.mse_loss(out.float(), x) + 1e-6 * divergence.sum(1).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
        value = float(loss.detach())
    return value


class _Masked(nn.Module):
    """Self-attention with an additive mask for the padding, written in the way of early BERT code."""

    def __init__(self, broken: bool) -> None:
        super().__init__()
        self.embed, self.qkv, self.head, self.broken = (
            nn.Embedding(16, 24),
            nn.Linear(24, 72),
            nn.Linear(24, 16),
            broken,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(tokens)).chunk(3, -1)
        padding = (tokens == 0).float()[:, None]
        if self.broken:
            low = padding * torch.finfo(torch.float32).min
            weights = ((q @ k.transpose(1, 2) / 5).half() + low.half()).softmax(-1)  # -65504 is not in reach: -inf
        else:
            weights = (q @ k.transpose(1, 2) / 5).float().add(-1e4 * padding).softmax(-1)
        return self.head(weights.to(v.dtype) @ v)


@_published("undefined-operation forward-overflow", None, "transformers#17306: finfo.min of another type as a mask")
def empty_sentence_in_a_masked_batch(opened: Open, broken: bool) -> float:
    model = _Masked(broken)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    value = math.nan
    for step in range(100):
        tokens = torch.randint(1, 16, (16, 8)).sort(1)[0]
        if step == 40:
            tokens[5] = 0  # a sentence of padding only
        out = model(tokens)[:, :-1].flatten(0, 1).float()
        loss = F.cross_entropy(out, tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value


class T5LayerNorm(nn.Module):
    """Root mean square norm as in the first T5 code, without the cast to FP32."""

    def __init__(self, width: int, wide: bool) -> None:
        super().__init__()
        self.weight, self.wide = nn.Parameter(torch.ones(width)), wide

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if self.wide else x
        return (self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)).to(x.dtype)


@_published("hidden-overflow forward-overflow dead-units zero-gradients", True, "transformers#25938, ConvNeXt#80")
def frozen_encoder_in_half_precision(opened: Open, broken: bool) -> float:
    encoder = nn.Sequential(nn.Linear(24, 64), T5LayerNorm(64, not broken)).half().requires_grad_(False)
    with torch.no_grad():
        encoder[0].weight.mul_(600)
    model = nn.Sequential(encoder, nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6))
    head = model[1:]
    optimizer = torch.optim.AdamW(head.parameters(), 2e-3)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = encoder, head

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x.half()).float())

    whole = Whole()
    recorder = opened(whole, optimizer)
    for x, y in batches(150):
        loss = F.cross_entropy(whole(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(whole)


@_published(
    "undefined-operation scale-collapse forward-overflow", None, "log(softmax) in half precision, pytorch forum"
)
def logarithm_of_a_softmax_in_fp16(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(150):
        with torch.autocast("cpu", torch.float16):
            logits = 4 * model(x)
        rows = torch.arange(len(y))
        low = -(logits.half().softmax(1)[rows, y]).log().float().mean()
        loss = low if broken else F.cross_entropy(logits.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(lambda x: 4 * model(x))


@_published("stagnation weights-unchanged no-progress", True, "NVIDIA-NeMo/Automodel#3444, transformers#21312")
def fine_tuning_in_bf16_at_a_small_rate(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.GELU(), nn.Flatten(), nn.Linear(16 * 24, 6))
    if broken:
        model.bfloat16()
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    recorder = opened(model, optimizer)
    for x, y in batches(250):
        loss = F.cross_entropy(model(x[:, None].to(dtype)).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(lambda x: model(x[:, None].to(dtype)))


@_published("divergence no-progress dead-units", False, "recurrent network without clipping")
def recurrent_network_without_a_clip(opened: Open, broken: bool) -> float:
    model = nn.ModuleDict({"cell": nn.RNN(4, 48, nonlinearity="relu", batch_first=True), "head": nn.Linear(48, 4)})
    nn.init.normal_(model["cell"].weight_hh_l0, std=1.3 / math.sqrt(48))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    recorder = opened(model, optimizer)
    value = math.nan
    for _ in range(120):
        x = torch.randn(32, 24, 4)
        loss = F.mse_loss(model["head"](model["cell"](x)[0]), x.cumsum(1) / 5)
        optimizer.zero_grad()
        loss.backward()
        if not broken:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value


@_published("forward-overflow undefined-operation scale-collapse nonfinite-update", True, "sum reduction in FP16")
def loss_summed_in_fp16(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 24))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    recorder = opened(model, optimizer, scaler)
    x = 12 * torch.randn(128, 24)
    value = math.nan
    for _ in range(120):
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        loss = (out.half() - x.half()).square().sum() if broken else (out.float() - x).square().sum()
        optimizer.zero_grad()
        scaler.scale(loss / x.numel()).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss / x.numel())
        value = float(F.mse_loss(model(x), x).detach())
    return value


@_published("failed", False, "scaler.update() forgotten: step() has already been called since the last update()")
def update_of_the_scaler_is_forgotten(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu")
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        try:
            scaler.step(optimizer)
        except RuntimeError as error:
            recorder.fail(error)
            return math.inf
        if not broken:
            scaler.update()
        recorder.step(loss)
    return score(model)
