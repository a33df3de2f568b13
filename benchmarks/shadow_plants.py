"""Faults that people make in low precision, each a piece of a network, for benchmarks/shadow.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def shift(constant: float) -> Callable[[Tensor], Tensor]:
    """A large constant comes and goes."""

    def piece(x: Tensor) -> Tensor:
        return F.gelu((x + constant) - constant)

    return piece


def mixed(factor: float) -> Callable[[Tensor], Tensor]:
    """Extrapolation: the difference of two large multiples."""

    def piece(x: Tensor) -> Tensor:
        return F.gelu((1 + factor) * x - factor * x)

    return piece


def tanh_by_exp(x: Tensor) -> Tensor:
    x = x * 6
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def tanh_by_exp_far(x: Tensor) -> Tensor:
    x = x * 40
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def softplus_by_hand(factor: float) -> Callable[[Tensor], Tensor]:
    def piece(x: Tensor) -> Tensor:
        return torch.log(1 + torch.exp(factor * x))

    return piece


def one_minus_cos(x: Tensor) -> Tensor:
    return (1 - torch.cos(x * 0.05)) * 400


def log_one_minus(x: Tensor) -> Tensor:
    return -torch.log(1 - torch.sigmoid(x - 4)) * 20


def difference_of_cumsum(x: Tensor) -> Tensor:
    total = torch.cumsum(x + 2, -1)
    return F.gelu(torch.diff(total, dim=-1, prepend=torch.zeros_like(total[..., :1])) - 2)


def square_overflow(x: Tensor) -> Tensor:
    return F.gelu(x) * torch.rsqrt((x * 300 * (x * 300)).mean(-1, keepdim=True) + 1)


def coarse_cast(x: Tensor) -> Tensor:
    return F.gelu(x.to(torch.float8_e5m2).to(x.dtype))


def sum_one_by_one(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[..., 0])
    for part in (x + 3).unbind(-1):
        total = total + part
    return F.gelu(x + (total - 3 * x.shape[-1]).unsqueeze(-1) * 0.2)


def cubic_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x * x * x)))


def softmax_bf16_sum(scores: Tensor) -> Tensor:
    shares = (scores - scores.amax(-1, keepdim=True)).exp()
    return shares / shares.sum(-1, keepdim=True)


def moments(x: Tensor) -> Tensor:
    """Normalisation by E[x^2] - E[x]^2 of values far from zero."""
    x = x + 8
    mean, square = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((square - mean * mean).clamp_min(0) + 0.05)


def norm_by_hand(x: Tensor) -> Tensor:
    """A sum of squares that FP16 cannot hold; the result is finite."""
    x = x * 200
    return x / (1 + (x * x).sum(-1, keepdim=True).sqrt()) * 5.6


def norm_small_eps(x: Tensor) -> Tensor:
    centred = (x - x.mean(-1, keepdim=True)) * (torch.arange(x.shape[-2]) > 0).unsqueeze(-1).to(x.dtype)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-8).sqrt()


def distances(x: Tensor) -> Tensor:
    """|a - b|^2 to the first position as a^2 + b^2 - 2ab, both far from zero."""
    x = x + 6
    first = x[..., :1, :]
    return x - 6 + (x * x + first * first - 2 * x * first) * 0.3


def rotate(dtype: torch.dtype, offset: int) -> Callable[[Tensor], Tensor]:
    """Rotary positions with a table in low precision."""

    def piece(q: Tensor) -> Tensor:
        position = torch.arange(offset, offset + q.shape[-2]).to(dtype)
        angle = position.unsqueeze(-1) * (0.9 ** torch.arange(q.shape[-1] // 2)).to(dtype)
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        a, b = q.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    return piece


def softmax_no_max(factor: float) -> Callable[[Tensor], Tensor]:
    def piece(scores: Tensor) -> Tensor:
        shares = (scores * factor).exp()
        return shares / shares.sum(-1, keepdim=True)

    return piece


def scores_shifted(scores: Tensor) -> Tensor:
    return (scores + 100) - 100


def mask_largest(scores: Tensor) -> Tensor:
    """The whole first row is masked by the largest number of FP32, which is infinite in 16 bits."""
    hidden = torch.zeros(scores.shape[-2:])
    hidden[0] = torch.finfo(torch.float32).min
    return scores + hidden.to(scores.dtype)


def head_normalised(x: Tensor) -> Tensor:
    return x / (x.pow(8).sum(-1, keepdim=True) + 1e-4).pow(0.125)


def head_offset(x: Tensor) -> Tensor:
    x = x.to(torch.bfloat16) + 64
    return x - 64


def root_of_zero(x: Tensor) -> Tensor:
    """Innocent: the derivative of the root is infinite at zero in any precision."""
    return x + (x * 0).sqrt()


def zero_log_zero(x: Tensor) -> Tensor:
    """Innocent: 0 * log 0."""
    gone = x * 0
    return x + gone * gone.log()


def bce_by_hand(o: Tensor, y: Tensor) -> Tensor:
    p = torch.sigmoid(o * 12)
    t = F.one_hot(y, o.shape[-1])
    return -(t * torch.log(p) + (1 - t) * torch.log(1 - p)).float().mean()


def loss_summed(o: Tensor, y: Tensor) -> Tensor:
    """The sum over the batch before the mean: too large for FP16."""
    lost = (torch.logsumexp(o * 60, -1) - o.gather(-1, y[:, None])[:, 0] * 60) * 40
    return lost.to(o.dtype).cumsum(0)[-1].float() / len(y) / 100


# Written after all thresholds were set, and run once: see HELD_OUT in benchmarks/shadow.py.


def exp_minus_one(x: Tensor) -> Tensor:
    return (torch.exp(x * 0.01) - 1) * 100


def root_minus_one(x: Tensor) -> Tensor:
    return (torch.sqrt(1 + 0.02 * x) - 1) * 100


def through_logit(x: Tensor) -> Tensor:
    p = torch.sigmoid(x * 2 + 3)
    return torch.log(p / (1 - p)) - 3


def slow_average(x: Tensor) -> Tensor:
    """A moving average over features whose steps are below half a unit in the last place."""
    level = torch.full_like(x[..., 0], 4.0)
    kept = []
    for part in x.unbind(-1):
        level = 0.999 * level + 0.001 * part
        kept.append(level)
    return F.gelu(x) + (torch.stack(kept, -1) - 4) * 40


def hypotenuse(x: Tensor) -> Tensor:
    """sqrt(a^2 + b^2) - b for a much larger b."""
    return (torch.sqrt(x * x + 400) - 20) * 30


def angle_difference(x: Tensor) -> Tensor:
    """sin(a + d) - sin(a) for a small d."""
    return (torch.sin(x + 0.01) - torch.sin(x)) * 100


HELD_OUT = {
    "exp - 1": exp_minus_one, "sqrt(1 + x) - 1": root_minus_one, "logit of sigmoid": through_logit,
    "slow average": slow_average, "hypotenuse": hypotenuse, "sin difference": angle_difference,
}  # fmt: skip
