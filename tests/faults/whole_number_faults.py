"""Whole numbers beyond those that their float format tells apart, and loops that look like them and are sound."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault, _healthy
from tests.faults.published_faults import Open, batches


class _Delayed(nn.Linear):
    """A layer that rounds its weights to three values once it has been called `delay` times in training."""

    def __init__(self, inputs: int, outputs: int, delay: int, term: int = 1) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros(()))
        self.delay, self.term = delay, term

    def forward(self, x: Tensor) -> Tensor:
        calls = self.get_buffer("calls")
        if self.training:
            calls += self.term
        if calls <= self.delay:
            return super().forward(x)
        scale = self.weight.abs().amax(1, keepdim=True)
        coarse = (self.weight / scale).round() * scale
        return F.linear(x, self.weight + (coarse - self.weight).detach(), self.bias)


def _count(opened: Open, dtype: torch.dtype, steps: int, term: int = 1, each_epoch: int = 0) -> None:
    layer = _Delayed(24, 24, 270 * term, term)
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(24, 6))
    layer.calls = layer.get_buffer("calls").to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(steps)):
        if each_epoch and step % each_epoch == 0:
            layer.get_buffer("calls").zero_()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("lost-updates", "0.calls", "Keep it in FP32 while it is added to", blame=True)
def calls_counted_in_a_bf16_buffer(opened: Open) -> None:
    _count(opened, torch.bfloat16, 300)


@_fault("lost-updates", "0.calls", "Keep it in FP32 while it is added to", blame=True)
def samples_counted_in_a_bf16_buffer(opened: Open) -> None:
    """A count of 48 samples a step stands still at 2^8 times the next power of two."""
    _count(opened, torch.bfloat16, 360, 48)


@_healthy
def calls_counted_in_an_fp32_buffer(opened: Open) -> None:
    _count(opened, torch.float32, 300)


@_healthy
def calls_of_an_epoch_counted_in_a_bf16_buffer(opened: Open) -> None:
    _count(opened, torch.bfloat16, 300, each_epoch=50)


@_healthy
def few_calls_counted_in_a_bf16_buffer(opened: Open) -> None:
    _count(opened, torch.bfloat16, 200)


def _clicks(opened: Open, through: torch.dtype, apart: int = 1, by_day: bool = False) -> None:
    """Items, or days of the week, choose one of some rows; their numbers stand in a table beside prices."""
    rows = 7 if by_day else 4096
    table = nn.Embedding(rows, 8)
    model = nn.ModuleDict({"table": table, "net": nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1))})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    recorder = opened(model, optimizer)
    numbers, worth = 1_700_000_000 + apart * torch.randperm(8000)[:400], torch.randn(400)
    for _ in range(80):
        item = torch.randint(400, (256,))
        about = torch.rand(256, 2)
        both = torch.cat((about.to(through), numbers[item].to(through)[:, None]), 1)
        number = both[:, 2]
        chosen = ((number / 86400).long() if by_day else number.long()) % rows
        out = model["net"](torch.cat((table(chosen), both[:, :2].float()), 1))[:, 0]
        truth = numbers[item] // 86400 % 7 / 3.5 - 1 if by_day else worth[item]
        loss = F.mse_loss(out, truth + about[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("merged-positions", "merged in FP32, which holds whole numbers up to 16777216", "in int64", blame=True)
def numbers_of_items_in_a_table_of_fp32(opened: Open) -> None:
    _clicks(opened, torch.float32)


@_healthy
def numbers_of_items_in_a_table_of_fp64(opened: Open) -> None:
    _clicks(opened, torch.float64)


@_healthy
def numbers_of_items_far_apart_in_fp32(opened: Open) -> None:
    """Neighbours differ by more than an ulp: FP32 keeps them apart."""
    _clicks(opened, torch.float32, apart=1280)


@_healthy
def days_of_time_stamps_in_fp32(opened: Open) -> None:
    """Time stamps merge to 128 s, of which a day has many."""
    _clicks(opened, torch.float32, by_day=True)
