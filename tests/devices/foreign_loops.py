"""Training loops of other people on a CUDA device, each with and without a recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD, AdamW, Optimizer

import precgui
from precgui.config.sections import RecordConfig

BATCH = 8  # samples
Loop = Iterator[Tensor]  # of the losses, one for each step, on their device


class Parts:
    """A model, its optimizers and a scaler, which a recorder may watch."""

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], scaler: torch.amp.GradScaler | None = None
    ) -> None:
        self.model, self.optimizers, self.scaler = model, list(optimizers), scaler


def batches(device: str, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(5)
    for _ in range(steps):
        images, labels = torch.rand(BATCH, 1, 8, 8, generator=draws), torch.randint(4, (BATCH,), generator=draws)
        yield images.pin_memory().to(device, non_blocking=True), labels.pin_memory().to(device, non_blocking=True)


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(144, 4)
    )


def plain(device: str, steps: int) -> tuple[Parts, Callable[[], Loop]]:
    model = _network().to(device)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loop() -> Loop:
        for images, labels in batches(device, steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            yield loss.detach()

    return Parts(model, [optimizer]), loop


def _in_fp16(
    model: nn.Module, optimizer: Optimizer, scaler: torch.amp.GradScaler, device: str, steps: int
) -> tuple[Parts, Callable[[], Loop]]:
    def loop() -> Loop:
        for images, labels in batches(device, steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss.detach()

    return Parts(model, [optimizer], scaler), loop


def scaled(device: str, steps: int) -> tuple[Parts, Callable[[], Loop]]:
    """FP16 autocast with a GradScaler, whose first scales are too high: the optimizer steps in the third step."""
    model = _network().to(device)
    optimizer, scaler = AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cuda", init_scale=2.0**19)
    return _in_fp16(model, optimizer, scaler, device, steps)


def fused(device: str, steps: int) -> tuple[Parts, Callable[[], Loop]]:
    """An optimizer that unscales its gradients by itself, and whose learning rate is a tensor."""
    model = _network().to(device)
    rate = torch.tensor(1e-2, device=device)
    optimizer, scaler = AdamW(model.parameters(), lr=rate, fused=True), torch.amp.GradScaler("cuda", init_scale=256.0)
    return _in_fp16(model, optimizer, scaler, device, steps)


class _Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(11, 6), nn.LSTM(6, 8), nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


def recurrent(device: str, steps: int) -> tuple[Parts, Callable[[], Loop]]:
    model = _Reader().to(device)
    optimizer = AdamW(model.parameters(), lr=1e-2)

    def loop() -> Loop:
        for step in range(steps):
            tokens = torch.randint(11, (6, BATCH), generator=torch.Generator().manual_seed(step)).to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            yield loss.detach()

    return Parts(model, [optimizer]), loop


class _Attends(nn.Module):
    """Attention by a kernel that has no FP64 form."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(11, 16), nn.Linear(16, 48), nn.Linear(16, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.qkv(self.embedding(tokens)).chunk(3, -1))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(out.transpose(1, 2).flatten(2))


def attending(device: str, steps: int) -> tuple[Parts, Callable[[], Loop]]:
    model = _Attends().to(device)
    optimizer = AdamW(model.parameters(), lr=1e-2)

    def loop() -> Loop:
        for step in range(steps):
            tokens = torch.randint(11, (BATCH, 6), generator=torch.Generator().manual_seed(step))
            tokens = tokens.pin_memory().to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                out = model(tokens)
            loss = nn.functional.cross_entropy(out.float().flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            yield loss.detach()

    return Parts(model, [optimizer]), loop


def accumulated(device: str, steps: int) -> tuple[Parts, Callable[[], Loop]]:
    """Three micro-steps of each step, in BF16 autocast."""
    model = _network().to(device)
    optimizer = SGD(model.parameters(), lr=0.1)

    def loop() -> Loop:
        micro_batches = batches(device, 3 * steps)
        for _ in range(steps):
            total = torch.zeros((), device=device)
            for _ in range(3):
                images, labels = next(micro_batches)
                with torch.autocast("cuda", torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(images), labels) / 3
                loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            yield total

    return Parts(model, [optimizer]), loop


class _Pair(nn.Module):
    """The two networks of an adversarial loop."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 64))
        self.judge = nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(), nn.Linear(16, 1))


def adversarial(device: str, steps: int) -> tuple[Parts, Callable[[], Loop]]:
    """Two optimizers, each of which steps once in a step."""
    pair = _Pair().to(device)
    of_judge, of_maker = AdamW(pair.judge.parameters(), lr=1e-3), AdamW(pair.maker.parameters(), lr=1e-3)
    loss_of = nn.BCEWithLogitsLoss()

    def loop() -> Loop:
        for images, _ in batches(device, steps):
            noise = torch.randn(BATCH, 4, device=device)
            made = pair.maker(noise)
            true, false = torch.ones(BATCH, 1, device=device), torch.zeros(BATCH, 1, device=device)
            of_judge.zero_grad()
            loss = loss_of(pair.judge(images.flatten(1)), true) + loss_of(pair.judge(made.detach()), false)
            loss.backward()
            of_judge.step()
            of_maker.zero_grad()
            loss_of(pair.judge(made), true).backward()
            of_maker.step()
            yield loss.detach()

    return Parts(pair, [of_judge, of_maker]), loop


class _Spread(nn.Module):
    """A model whose halves are on two devices, and whose input comes to the first."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).to(first)
        self.second, self.to = nn.Linear(144, 4).to(second), second

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images).to(self.to))


def spread(device: str, steps: int, second: str = "cuda:1") -> tuple[Parts, Callable[[], Loop]]:
    """A model on two devices, with a loss on the second one."""
    model = _Spread(device, second)
    optimizer = AdamW(model.parameters(), lr=1e-2)

    def loop() -> Loop:
        for images, labels in batches(device, steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels.to(second))
            loss.backward()
            optimizer.step()
            yield loss.detach()

    return Parts(model, [optimizer]), loop


def graph(device: str, steps: int) -> tuple[Parts, Callable[[], Loop]]:
    """Forward and backward pass are captured in the third step, after which a CUDA graph is replayed."""
    model = _network().to(device)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def gradients(images: Tensor, labels: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        return loss.detach()

    def loop() -> Loop:
        captured, held = torch.cuda.CUDAGraph(), []
        for step, batch in enumerate(batches(device, steps)):
            if step < 2:
                optimizer.zero_grad(set_to_none=True)
                loss = gradients(*batch)
            elif step == 2:
                optimizer.zero_grad(set_to_none=True)
                held = [tensor.clone() for tensor in batch]
                with torch.cuda.graph(captured):
                    loss = gradients(*held)
            if step >= 2:
                for own, tensor in zip(held, batch, strict=True):
                    own.copy_(tensor)
                captured.replay()
            optimizer.step()
            yield loss.clone()

    return Parts(model, [optimizer]), loop


LOOPS = {
    "plain": plain, "scaled": scaled, "fused": fused, "recurrent": recurrent, "accumulated": accumulated,
    "adversarial": adversarial, "spread": spread, "graph": graph, "attending": attending,
}  # fmt: skip
# How often each of them makes the host wait in a step by itself: FP16 for the gradients that are not finite,
# the recurrent one for a batch from pageable memory.
OWN_WAITS = {
    "plain": 0,
    "scaled": 1,
    "fused": 0,
    "recurrent": 1,
    "accumulated": 0,
    "adversarial": 0,
    "spread": 0,
    "graph": 0,
    "attending": 0,
}
# All operations of these steps are watched, and they are made again in FP64, for which the step before looks through
# the weights.
WATCHED = (1, 2, 8)


def run_loop(
    name: str, device: str, steps: int, file: Path | None, after_step: Callable[[], None] = lambda: None
) -> tuple[list[float], list[float]]:
    """The losses, and a sum over each of the weights; recorded into `file` where there is one.

    `after_step` is called when a step is made and recorded. The budget is so large that which tensors are measured in
    a step does not depend on the time that the others took.
    """
    torch.manual_seed(7)
    parts, loop = LOOPS[name](device, steps)
    recorder = None
    if file is not None:
        record = RecordConfig(budget=100, weights_every=2, activations_every=2)
        recorder = precgui.Recorder(file, parts.model, parts.optimizers, parts.scaler, record=record)
    losses = []
    for loss in loop():
        losses.append(loss)
        if recorder is not None:
            recorder.step(loss)
        after_step()
    if recorder is not None:
        recorder.close()
    weights = [float(p.detach().cpu().double().sum()) for p in parts.model.parameters()]
    return [float(loss) for loss in losses], weights
