"""Odd steps: a verdict on each, and for broken ones the line that is named first, which ends in `# broken`."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precgui

BF16 = torch.bfloat16
Loss = Callable[[], Tensor]


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Rounded(nn.Linear):
    """A linear layer of weights and inputs in 8 bits or fewer, by a rounding that is given."""

    def __init__(self, inputs: int, outputs: int, rounding: Callable[[Tensor], Tensor]) -> None:
        super().__init__(inputs, outputs)
        self.rounding = rounding

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(self.estimated(input), self.estimated(self.weight), self.bias)

    def estimated(self, tensor: Tensor) -> Tensor:
        return tensor + (self.rounding(tensor.detach()) - tensor).detach()


def in_range(tensor: Tensor) -> Tensor:
    scale = 448 / tensor.abs().max()
    return (tensor * scale).to(torch.float8_e4m3fn).float() / scale


def emulated_in_range(tensor: Tensor) -> Tensor:
    scale = 6 / tensor.abs().amax(-1, keepdim=True)
    return precgui.quantize(tensor * scale, "e2m1", saturate=True) / scale


def too_small(tensor: Tensor) -> Tensor:
    return precgui.quantize(tensor * 2e-3, "e4m3fn", saturate=True) / 2e-3  # broken


def too_small_for_a_cast(tensor: Tensor) -> Tensor:
    return (tensor * 2e-3).to(torch.float8_e4m3fn).float() / 2e-3  # broken


def too_large(tensor: Tensor) -> Tensor:
    return precgui.quantize(tensor * 900, "e4m3fn", saturate=True) / 900  # broken


def of_rounded_layers(rounding: Callable[[Tensor], Tensor]) -> tuple[Loss, nn.Module]:
    net = nn.Sequential(Rounded(16, 64, rounding), nn.GELU(), Rounded(64, 4, rounding))
    x, y = normal(64, 16), normal(64, 4, seed=2)
    return lambda: F.mse_loss(net(x), y), net


class Gradients(torch.autograd.Function):
    """Rounds the gradient on its way back, with a scale or without one."""

    scaled = True

    @staticmethod
    def forward(ctx: object, tensor: Tensor) -> Tensor:
        return tensor

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        scale = 448 / gradient.abs().max() if Gradients.scaled else 1.0
        return precgui.quantize(gradient * scale, "e4m3fn", saturate=True) / scale  # broken


def of_rounded_gradients(*, scaled: bool) -> tuple[Loss, nn.Module]:
    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    x, y = normal(64, 16), normal(64, 4, seed=2)

    def loss() -> Tensor:
        Gradients.scaled = scaled
        return F.mse_loss(net[2](Gradients.apply(net[1](net[0](x)))), y)

    return loss, net


class TwoMoments(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        mean = hidden.mean(0)
        variance = (hidden * hidden).mean(0) - mean * mean  # broken
        return (hidden - mean) / (variance.clamp(min=0) + 1e-5).sqrt()


class AbsoluteMoments(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        mean = hidden.mean(0)
        variance = ((hidden * hidden).mean(0) - mean * mean).abs()  # broken
        return (hidden - mean) / (variance + 1e-5).sqrt()


class Variance(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden.float()
        return (hidden - hidden.mean(0)) / (hidden.var(0) + 1e-5).sqrt()


def of_norm(norm: nn.Module, *, dtype: torch.dtype = BF16, mean: float = 12.0) -> tuple[Loss, nn.Module]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 24), norm, nn.Tanh(), nn.Linear(24, 1))
    with torch.no_grad():
        net[0].bias.fill_(mean)
    x, y = normal(128, 8), normal(128, 1, seed=2)

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16, enabled=dtype is BF16):
            out = net(x)
        return F.mse_loss(out.float(), y)

    return loss, net


def of_sum_of_exponentials() -> tuple[Loss, nn.Module]:
    net, x, labels = nn.Linear(16, 40), normal(128, 16), torch.arange(128) % 40

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            logits = net(x)
        logits = logits + 64  # broken
        total = (logits - 64).exp().sum(-1).log() + 64  # broken
        return (total.float() - logits.float().gather(1, labels[:, None])[:, 0]).mean()

    return loss, net


def of_clamped_difference() -> tuple[Loss, nn.Module]:
    net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    x, y = normal(64, 16), normal(64, 4, seed=2)

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            out = net(x)
        shifted = (out + 100) - 100  # broken
        return (shifted.clamp(-1, 1).float() - y).abs().clamp(max=3).mean()

    return loss, net


def of_running_mean(dtype: torch.dtype) -> tuple[Loss, nn.Module]:
    net, x, y = nn.Linear(8, 8), normal(40, 16, 8), normal(16, 8, seed=2)

    def loss() -> Tensor:
        hidden, mean = net(x) + 4, torch.zeros(16, 8, dtype=dtype)
        for count in range(40):
            mean = mean + (hidden[count].to(dtype) - mean) * (1 / (count + 1))  # broken
        return F.mse_loss(mean.float(), y)

    return loss, net


def of_sums_by_place(dtype: torch.dtype) -> tuple[Loss, nn.Module]:
    net, x, y = nn.Linear(8, 32), normal(2000, 8) + 10, normal(2, 32, seed=2)

    def loss() -> Tensor:
        hidden = net(x).to(dtype)
        sums = torch.zeros(2, 32, dtype=dtype).index_add(0, torch.arange(2000) % 2, hidden)
        return F.mse_loss(sums.float() / 1000, y)

    return loss, net


def of_phases(dtype: torch.dtype) -> tuple[Loss, nn.Module]:
    net, x, y = nn.Linear(16, 16), normal(64, 16), normal(64, 16, seed=2)

    def loss() -> Tensor:
        turned = torch.polar(torch.ones(64, 16), (net(x) * 50).to(dtype).float())  # broken
        return F.mse_loss(turned.real + turned.imag, y)

    return loss, net


def of_einsum() -> tuple[Loss, nn.Module]:
    net, x, y = nn.ModuleList(nn.Linear(32, 32) for _ in range(4)), normal(4, 16, 32), normal(4, 16, 32, seed=2)
    mask = torch.ones(16, 16, dtype=torch.bool).triu(1)

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            q, k, v = (layer(x).view(4, 16, 4, 8) for layer in net[:3])
            scores = (torch.einsum("bnhd,bmhd->bhnm", q, k) * 8**-0.5).masked_fill(mask, float("-inf"))
            out = net[3](torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v).reshape(4, 16, 32))
        return F.mse_loss(out.float(), y)

    return loss, net


def of_complex_filter() -> tuple[Loss, nn.Module]:
    net, x, y = nn.Linear(32, 32), normal(32, 32), normal(32, 32, seed=2)
    response = torch.view_as_complex(normal(17, 2, seed=3))

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            hidden = net(x)
        return F.mse_loss(torch.fft.irfft(torch.fft.rfft(hidden.float()) * response, n=32), y)

    return loss, net


def of_embedding_sums() -> tuple[Loss, nn.Module]:
    net = nn.Sequential(nn.EmbeddingBag(50, 32, mode="sum"), nn.Linear(32, 10))
    rows, labels = (torch.arange(640) * 7 % 50).view(64, 10), torch.arange(64) % 10

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            out = net(rows)
        return F.cross_entropy(out.float(), labels)

    return loss, net


def of_packed_sequences() -> tuple[Loss, nn.Module]:
    """torch fills the lengths of a padded sequence without an operation of its own."""
    gru, head = nn.GRU(8, 12, bidirectional=True, batch_first=True), nn.Linear(24, 3)
    x, labels = normal(6, 9, 8), torch.arange(6) % 3

    def loss() -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([9, 8, 7, 5, 3, 2]), batch_first=True)
        with torch.autocast("cpu", BF16):
            padded, lengths = nn.utils.rnn.pad_packed_sequence(gru(packed)[0], batch_first=True)
            return F.cross_entropy(head(padded.sum(1) / lengths[:, None]), labels)

    return loss, nn.ModuleList([gru, head])


def of_roots_of_units_that_are_off() -> tuple[Loss, nn.Module]:
    """The root of 0 has a gradient of Inf, which the unit takes to 0."""
    net, x, y = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), normal(32, 16), normal(32, 8, seed=2)

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            out = net(x).float()
        return F.mse_loss(out.relu().sqrt(), y)

    return loss, net


def of_pairs() -> tuple[Loss, nn.Module]:
    """A loss of 0.2 from scores of 14: each of its roundings is small beside the scores."""
    net = nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
    x = normal(32, 24)
    x = torch.cat([x, x + 0.3 * normal(32, 24, seed=3)])

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            unit = F.normalize(net(x), dim=-1)
            scores = unit @ unit.t() / 0.07
        scores = scores.float().masked_fill(torch.eye(64, dtype=torch.bool), -1e9)
        return F.cross_entropy(scores, torch.arange(64).roll(32))

    return loss, net


def raised(hidden: Tensor) -> Tensor:
    return hidden.to(BF16) + 100  # broken


def lowered(hidden: Tensor) -> Tensor:
    return hidden - 100  # broken


def of_a_shift_in_two_functions(dtype: torch.dtype) -> tuple[Loss, nn.Module]:
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    x, y = normal(64, 16), normal(64, 8, seed=2)

    def loss() -> Tensor:
        hidden = net(x)
        shifted = raised(hidden) if dtype is BF16 else hidden + 100
        return F.mse_loss(lowered(shifted).float(), y)

    return loss, net


def of_a_difference_quotient(step: float) -> tuple[Loss, nn.Module]:
    net, x = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1)), normal(64, 16)
    with torch.no_grad():
        net[2].bias.fill_(2.0)

    def loss() -> Tensor:
        with torch.autocast("cpu", BF16):
            moved, here = net(x + step), net(x)
        slope = (moved - here) / step  # broken
        return (slope.float() - 1).square().mean()

    return loss, net


def of_losses_added_one_by_one(dtype: torch.dtype) -> tuple[Loss, nn.Module]:
    net, x, y = nn.Linear(16, 1), normal(600, 16), normal(600, 1, seed=2)

    def loss() -> Tensor:
        total = torch.zeros((), dtype=dtype)
        for value in (net(x) - y).square().flatten().to(dtype):
            total = total + value  # broken
        return total.float() / 600

    return loss, net


def of_a_product_of_probabilities(*, count: int) -> tuple[Loss, nn.Module]:
    net, x = nn.Linear(16, 1), normal(count, 16)

    def loss() -> Tensor:
        return -torch.log(net(x).sigmoid().prod()) / count  # broken

    return loss, net


HEALTHY: dict[str, Callable[[], tuple[Loss, nn.Module]]] = {
    "casts to FP8 with a scale": lambda: of_rounded_layers(in_range),
    "FP4 with a scale for each row": lambda: of_rounded_layers(emulated_in_range),
    "gradients in FP8 with a scale": lambda: of_rounded_gradients(scaled=True),
    "variance in FP32": lambda: of_norm(Variance()),
    "two moments of small means": lambda: of_norm(TwoMoments(), dtype=torch.float32, mean=0.0),
    "running mean in FP32": lambda: of_running_mean(torch.float32),
    "sums by place in FP32": lambda: of_sums_by_place(torch.float32),
    "phases in FP32": lambda: of_phases(torch.float32),
    "attention by einsum, masked by -Inf": of_einsum,
    "complex filter": of_complex_filter,
    "embedding sums": of_embedding_sums,
    "packed sequences": of_packed_sequences,
    "roots of units that are off": of_roots_of_units_that_are_off,
    "a small loss of large scores": of_pairs,
    "a shift in FP32": lambda: of_a_shift_in_two_functions(torch.float32),
    "a difference quotient of a large step": lambda: of_a_difference_quotient(1.0),
    "losses added one by one in FP32": lambda: of_losses_added_one_by_one(torch.float32),
    "a product of few probabilities": lambda: of_a_product_of_probabilities(count=20),
}
BROKEN: dict[str, Callable[[], tuple[Loss, nn.Module]]] = {
    "emulated FP8 of numbers that are too small": lambda: of_rounded_layers(too_small),
    "casts to FP8 of numbers that are too small": lambda: of_rounded_layers(too_small_for_a_cast),
    "emulated FP8 of numbers that are too large": lambda: of_rounded_layers(too_large),
    "gradients in FP8 without a scale": lambda: of_rounded_gradients(scaled=False),
    "two moments in BF16": lambda: of_norm(TwoMoments()),
    "two moments in BF16, then abs": lambda: of_norm(AbsoluteMoments()),
    "two moments of large means in FP32": lambda: of_norm(TwoMoments(), dtype=torch.float32, mean=3000.0),
    "sum of exponentials around a large shift": of_sum_of_exponentials,
    "a difference behind abs and clamp": of_clamped_difference,
    "running mean in BF16": lambda: of_running_mean(BF16),
    "phases in BF16": lambda: of_phases(BF16),
    "a shift in two functions": lambda: of_a_shift_in_two_functions(BF16),
    "a difference quotient of a small step in BF16": lambda: of_a_difference_quotient(0.01),
    "losses added one by one in BF16": lambda: of_losses_added_one_by_one(BF16),
    "a product of many probabilities": lambda: of_a_product_of_probabilities(count=300),
}


def shadow_of(made: tuple[Loss, nn.Module]) -> precgui.engine.shadow.step.Shadow:
    torch.set_num_threads(1)
    loss, net = made

    def step() -> Tensor:
        value = loss()
        value.backward()
        return value

    return precgui.shadow(step, net)


@pytest.mark.parametrize("name", HEALTHY)
def test_that_an_odd_step_that_is_sound_is_healthy(name: str) -> None:
    torch.manual_seed(0)
    shadow = shadow_of(HEALTHY[name]())
    assert shadow.verdict == "healthy", shadow.message


@pytest.mark.parametrize("name", BROKEN)
def test_that_the_line_of_a_broken_step_is_named_first(name: str) -> None:
    torch.manual_seed(0)
    shadow = shadow_of(BROKEN[name]())
    assert shadow.verdict == "problems" and shadow.precision_is_to_blame, shadow.message
    line = int(shadow.blamed[0].rpartition(":")[2])
    assert linecache.getline(__file__, line).rstrip().endswith("# broken"), shadow.message
