"""Healthy trainings: what looks like trouble and is none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from tests.faults.plants import swap
from tests.faults.training import Setting


class Experts(nn.Module):
    """A mixture of which only the first `used` experts are ever chosen."""

    def __init__(self, width: int, used: int = 2, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, used)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(experts)])

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        parts = [expert(x) for expert in list(self.experts)[: weights.shape[-1]]]
        return sum((w.unsqueeze(-1) * part for w, part in zip(weights.unbind(-1), parts, strict=True)), torch.zeros(()))


class LoRA(nn.Module):
    """A frozen layer and a low-rank product that begins at zero."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner, self.a = inner, nn.Linear(inner.in_features, rank, bias=False)
        self.b = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.b.weight)
        inner.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + self.b(self.a(x))
        return out


def _freeze(*words: str):
    def edit(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if any(word in name for word in words):
                parameter.requires_grad_(False)

    return edit


def _noisy(step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    wrong = torch.rand(targets.shape, generator=generator) < 0.4
    return inputs, torch.where(wrong, torch.randint(10, targets.shape, generator=generator), targets)


def _spiky(step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return (inputs * 12 if step in (12, 33) and inputs.is_floating_point() else inputs), targets


def healthy() -> list[tuple[str, Setting]]:
    """All of them by name, in a fixed order."""
    return list(_all())


def _all() -> Iterator[tuple[str, Setting]]:
    pairs = itertools.product(("mlp", "gpt"), ("adamw", "sgd"))
    for model, optimizer in pairs:
        for precision in ("fp32", "bf16-amp", "fp16-amp", "fp16-pure"):
            yield f"{model} {optimizer} {precision}", Setting(model=model, optimizer=optimizer, precision=precision)
        low = 1e-2 if optimizer == "adamw" else 0.1
        yield f"{model} {optimizer} BF16 storage that learns", Setting(
            model=model, optimizer=optimizer, precision="bf16-pure", lr=low)  # fmt: skip
    for model in ("mlp", "gpt"):
        fp16 = Setting(model=model, precision="fp16-amp")
        yield f"{model} warm-up from 2^24", replace(fp16, init_scale=2.0**24)
        yield f"{model} warm-up from 2^32", replace(fp16, init_scale=2.0**32)
        yield f"{model} growth every 5 steps", replace(fp16, growth_interval=5, init_scale=2.0**18)
        yield f"{model} fp16 clipped", replace(fp16, clip=1.0, optimizer="sgd")
        yield f"{model} fp16 clipped hard", replace(fp16, clip=0.1, optimizer="adamw")
        yield f"{model} fp16 cosine after skips", replace(fp16, init_scale=2.0**20, schedule="cosine", optimizer="sgd")
        yield f"{model} fp16 accumulated", replace(fp16, accumulation=4)
        yield f"{model} fp16 long and converged", replace(fp16, steps=250, schedule="cosine")
        yield f"{model} fp16 noise in the targets", replace(fp16, data=_noisy if model == "mlp" else None, batch=4)
        yield f"{model} scale that is no power of two", replace(fp16, init_scale=3000.0)
        fp32 = Setting(model=model)
        yield f"{model} dropout", replace(fp32, options={"dropout": 0.6})
        yield f"{model} deep", replace(fp32, options={"depth": 8}, steps=60)
        yield f"{model} experts never used", replace(fp32, edit=swap("blocks.1.up", lambda inner: _experts(inner)))
        yield f"{model} frozen layers", replace(fp32, edit=_freeze("blocks.0", "embed"))
        yield f"{model} LoRA", replace(fp32, edit=swap("blocks.0.up", lambda inner: LoRA(inner)))
        yield f"{model} converged", replace(fp32, steps=250, schedule="cosine")
        yield f"{model} high but sane rate", replace(fp32, optimizer="sgd", lr=0.3, momentum=0.0)
        yield f"{model} AdamW high but sane", replace(fp32, lr=2e-2, schedule="warmup")
        yield f"{model} weight decay", replace(fp32, weight_decay=0.1)
        yield f"{model} rate warmed up from zero", replace(fp32, lr=3e-3, schedule="warmup")
        yield f"{model} early spikes", replace(fp32, data=_spiky, optimizer="sgd", clip=1.0)
        yield f"{model} noise in the targets", replace(fp32, data=_noisy if model == "mlp" else None, batch=4)
        yield f"{model} low rate, FP32", replace(fp32, lr=1e-4)
        yield f"{model} BF16 weights cosine", replace(fp32, precision="bf16-pure", lr=1e-2, schedule="cosine")
        yield f"{model} default budget", replace(fp32, record_all=False)
        yield f"{model} default budget fp16", replace(fp16, record_all=False)
        yield f"{model} bf16 clipped", replace(fp32, precision="bf16-amp", clip=1.0)
        yield f"{model} steps in rates", replace(fp32, lr_at=lambda step: 0.1 ** (step // 40))
        yield f"{model} ends at a rate of zero", replace(fp32, lr_at=lambda step: max(0.0, 1 - step / 70))
        yield f"{model} fine-tuned", replace(fp32, lr=1e-3, seed=3, edit=_trained)
    yield "gpt tied weights", Setting(model="gpt", options={"tied": True})
    yield "gpt tied weights fp16", Setting(model="gpt", options={"tied": True}, precision="fp16-amp")


def _experts(inner: nn.Module) -> nn.Module:
    assert isinstance(inner, nn.Linear)
    return nn.Sequential(Experts(inner.in_features), nn.Linear(inner.in_features, inner.out_features))


def _trained(model: nn.Module) -> None:
    """Weights near the end of a training: the loss begins low and hardly falls."""
    from tests.faults.training import batches, cross_entropy

    setting = Setting(model="gpt" if hasattr(model, "embed") else "mlp")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for inputs, targets in batches(setting, 5, 80):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
