"""Functions of outputs that 16 bits put exactly where they have no derivative, at a finite loss; and sound loops."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault, _healthy
from tests.faults.published_faults import Open

BF, HALF = torch.bfloat16, torch.float16
_LIMIT = 1 - 1e-6


class _Scores(nn.Module):
    """A score of each of eight instances, which is sure of itself from the beginning on."""

    def __init__(self, sure: float) -> None:
        super().__init__()
        self.body, self.sure = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)), sure

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.sure * x).squeeze(-1)
        return out


def _bags(
    opened: Open, probability: Callable[[Tensor], Tensor], dtype: torch.dtype | None, *, later: float = 4.0,
    aside: Callable[[Tensor], Tensor] | None = None,
) -> None:  # fmt: skip
    """A bag is positive where one of its instances is; inputs grow to `later` times their size."""
    model = _Scores(1.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for step in range(60):
        hot = (torch.rand(24, 8) < 0.1).float()
        x = torch.randn(24, 8, 12) * (1 + (later - 1) * step / 60)
        x[..., 0] = x[..., 0] * 0.3 + 6 * hot - 1
        with torch.autocast("cpu", dtype or BF, enabled=dtype is not None):
            scores = model(x)
            found = probability(scores).float().clamp(1e-4, 1 - 1e-4)
            if aside is not None:
                aside(scores)
            loss = F.binary_cross_entropy(found, hot.amax(1)) if dtype is None else _entropy(found, hot.amax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _entropy(found: Tensor, label: Tensor) -> Tensor:
    return -(label * found.log() + (1 - label) * (1 - found).log()).mean()


def _noisy_or(limit: float, dtype: torch.dtype | None = None) -> Callable[[Tensor], Tensor]:
    def probability(scores: Tensor) -> Tensor:
        scores = scores if dtype is None else scores.to(dtype)
        return -torch.expm1(torch.log1p(-torch.sigmoid(scores) * limit).float().sum(-1))

    return probability


def _by_roots(least: float) -> Callable[[Tensor], Tensor]:
    """The root of what is left of each instance, with a term for its derivative."""
    return lambda scores: 1 - torch.sqrt(1 - torch.sigmoid(scores) + least).float().prod(-1)


def _by_angles(limit: float) -> Callable[[Tensor], Tensor]:
    """The mean angle of a cosine that is to stay below 1."""
    return lambda scores: 1 - torch.acos(torch.tanh(scores) * limit).float().mean(-1) / 3.1416


@_fault("undefined-operation", "exactly -1 in BF16", "outputs.float()", True)
def noisy_or_in_bf16(opened: Open) -> None:
    _bags(opened, _noisy_or(_LIMIT), BF)


@_fault("undefined-operation", "exactly 0 in BF16", "outputs.float()", True)
def roots_of_what_is_left_in_bf16(opened: Open) -> None:
    _bags(opened, _by_roots(0.0), BF)


@_fault("undefined-operation", "acos", "outputs.float()", True)
def angles_of_a_cosine_near_1_in_bf16(opened: Open) -> None:
    _bags(opened, _by_angles(_LIMIT), BF, later=30.0)


@_healthy
def noisy_or_in_fp32_of_scores_in_bf16(opened: Open) -> None:
    _bags(opened, _noisy_or(_LIMIT, torch.float32), BF)


@_healthy
def noisy_or_in_fp32(opened: Open) -> None:
    _bags(opened, _noisy_or(_LIMIT), None)


@_healthy
def noisy_or_with_a_limit_that_bf16_has(opened: Open) -> None:
    _bags(opened, _noisy_or(1 - 2.0**-7), BF)


@_healthy
def roots_with_a_term_that_bf16_has(opened: Open) -> None:
    _bags(opened, _by_roots(0.02), BF)


@_healthy
def angles_of_a_cosine_with_a_limit_of_bf16(opened: Open) -> None:
    _bags(opened, _by_angles(1 - 2.0**-7), BF, later=30.0)


@_healthy
def a_logarithm_at_its_end_that_no_loss_uses(opened: Open) -> None:
    _bags(opened, _noisy_or(1 - 2.0**-7), BF, aside=lambda scores: torch.log1p(-torch.sigmoid(scores) * _LIMIT))
