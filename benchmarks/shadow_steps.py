"""Whole steps of twenty-two usual kinds, with a piece that can be replaced, for benchmarks/shadow_gate.py."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

Piece = Callable[[Tensor], Tensor]
Loss = Callable[[], Tensor]
Build = Callable[[torch.dtype, Piece], tuple[nn.Module, Loss]]


def draw(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape).to(dtype)


class Perceptron(nn.Module):
    """GELU and LayerNorm; `piece` acts on the first hidden layer."""

    def __init__(self, piece: Piece, inputs: int, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(inputs, width), nn.Linear(width, width)
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, outputs)
        self.piece = piece

    def forward(self, x: Tensor) -> Tensor:
        h = self.piece(F.gelu(self.first(x)))
        h = self.norm(h + F.gelu(self.middle(h)))
        return self.last(h)


def classifier_in_one_line(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = Perceptron(piece, 32, 10), draw(dtype, 64, 32), torch.randint(10, (64,))
    return net, lambda: F.cross_entropy(net(x), y)


def plain_classifier(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    """Torch modules only: all of the forward pass stands in one line of the user's."""
    first = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU())
    net = nn.ModuleList([first, nn.Linear(64, 10)])
    x, y = draw(dtype, 64, 32), torch.randint(10, (64,))

    def loss() -> Tensor:
        return F.cross_entropy(net[1](piece(net[0](x))), y)

    return net, loss


def diffusion(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net = Perceptron(piece, 16 + 32, 16)
    clean, noise, time = draw(dtype, 64, 16), draw(dtype, 64, 16), torch.rand(64, 1)

    def loss() -> Tensor:
        waves = torch.cat([f(time * 10 ** (-i / 8)) for i in range(16) for f in (torch.sin, torch.cos)], -1)
        level = torch.cos(time * math.pi / 2).to(dtype)
        noisy = level * clean + (1 - level * level).sqrt() * noise
        return F.mse_loss(net(torch.cat([noisy, waves.to(dtype)], -1)).float(), noise.float())

    return net, loss


def ppo(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, action = Perceptron(piece, 12, 5), draw(dtype, 64, 12), torch.randint(4, (64,))
    old, advantage, returns = torch.randn(64) * 0.1 - 1.4, torch.randn(64), torch.randn(64)

    def loss() -> Tensor:
        outputs = net(x).float()
        log_p = outputs[:, :4].log_softmax(-1)
        ratio = (log_p.gather(1, action[:, None])[:, 0] - old).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        return F.mse_loss(outputs[:, 4], returns) * 0.5 - gain - 0.01 * entropy

    return net, loss


def info_nce(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x = Perceptron(piece, 24, 32), draw(dtype, 64, 24)
    other = x + 0.1 * draw(dtype, 64, 24)

    def loss() -> Tensor:
        a, b = F.normalize(net(x), dim=-1), F.normalize(net(other), dim=-1)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(64))

    return net, loss


class Experts(nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))
        self.piece = piece

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros(x.shape[0], 16, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out.index_add_(0, rows, (self.piece(expert(x[rows])) * weights[rows, place, None]).to(x.dtype))
        return out


def mixture(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = Experts(piece), draw(dtype, 64, 16), torch.randn(64, 16)
    return net, lambda: F.mse_loss(net(x).float(), y)


class Graph(nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.embed, self.score, self.out = nn.Linear(8, 32), nn.Linear(64, 1), nn.Linear(32, 3)
        self.piece = piece

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.piece(F.silu(self.embed(x)))
        score = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)))[:, 0].float()
        weight = (score - score.max()).exp()
        total = torch.zeros(x.shape[0]).scatter_add_(0, target, weight)
        weight = weight / total[target]
        return self.out(torch.zeros(x.shape[0], 32).index_add_(0, target, weight[:, None] * h[source]).to(h.dtype))


def graph(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = Graph(piece), draw(dtype, 40, 8), torch.randint(3, (40,))
    source, target = torch.randint(40, (200,)), torch.cat([torch.arange(40), torch.randint(40, (160,))])
    return net, lambda: F.cross_entropy(net(x, source, target).float(), y)


def boxes(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    """Detection with matched boxes: generalised intersection over union and L1."""
    net, x = Perceptron(piece, 16, 4), draw(dtype, 32, 16)
    wanted = torch.rand(8, 4) * 0.4 + 0.2

    def corners(box: Tensor) -> tuple[Tensor, Tensor]:
        return box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2

    def loss() -> Tensor:
        box = net(x).float().sigmoid()
        chosen = torch.cdist(wanted, box.detach(), p=1).argmin(-1)
        low, high = corners(box[chosen])
        low_y, high_y = corners(wanted)
        inner = (torch.min(high, high_y) - torch.max(low, low_y)).clamp(min=0).prod(-1)
        area = (high - low).prod(-1) + (high_y - low_y).prod(-1) - inner
        hull = (torch.max(high, high_y) - torch.min(low, low_y)).prod(-1)
        score = inner / area - (hull - area) / hull
        return (1 - score).mean() + 5 * F.l1_loss(box[chosen], wanted)

    return net, loss


def ensemble(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    """Four networks by torch.func.vmap."""
    nets = nn.ModuleList(Perceptron(piece, 16, 1) for _ in range(4))
    x, y = draw(dtype, 64, 16), torch.randn(64)

    def loss() -> Tensor:
        weights = {
            n: torch.stack([dict(net.named_parameters())[n] for net in nets]) for n, _ in nets[0].named_parameters()
        }
        out = torch.func.vmap(lambda w: torch.func.functional_call(nets[0], w, (x,)))(weights)
        return (out[..., 0].float() - y).square().mean()

    return nets, loss


class InPlace(nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.piece = piece

    def forward(self, x: Tensor) -> Tensor:
        h = self.piece(F.relu_(self.first(x)))
        out = torch.empty(x.shape[0], 64, dtype=h.dtype)
        out[:, :32] = h
        out[:, 32:] = self.second(h).mul_(0.5).tanh_()
        return self.last(out[:, :32] + out[:, 32:])


def in_place(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = InPlace(piece), draw(dtype, 64, 16), torch.randint(8, (64,))
    return net, lambda: F.cross_entropy(net(x), y)


class Couplings(nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Perceptron(piece if i == 1 else lambda h: h, 4, 8, 32) for i in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = torch.zeros(x.shape[0])
        for part in self.parts:
            a, b = x.chunk(2, -1)
            scale, shift = part(a).chunk(2, -1)
            scale = torch.tanh(scale)
            x = torch.cat([b * scale.exp() + shift, a], -1)
            log_det = log_det + scale.float().sum(-1)
        return x, log_det


def flow(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x = Couplings(piece), draw(dtype, 64, 8)

    def loss() -> Tensor:
        z, log_det = net(x)
        return (0.5 * z.float().square().sum(-1) - log_det).mean()

    return net, loss


def weight_normed(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net = Perceptron(piece, 16, 4)
    net.first, net.middle = weight_norm(net.first), weight_norm(net.middle)
    x, y = draw(dtype, 64, 16), torch.randn(64, 4)
    return net, lambda: F.smooth_l1_loss(net(x).float(), y)


def variational(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    encoder, decoder = Perceptron(piece, 20, 16), Perceptron(lambda h: h, 8, 20)
    x, noise = draw(dtype, 64, 20), torch.randn(64, 8)

    def loss() -> Tensor:
        mean, log_var = encoder(x).float().chunk(2, -1)
        z = (mean + noise * (0.5 * log_var).exp()).to(dtype)
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
        return F.mse_loss(decoder(z).float(), x.float(), reduction="sum") / 64 + divergence

    return nn.ModuleList([encoder, decoder]), loss


class Scan(nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.gate, self.value, self.out = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)
        self.piece = piece

    def forward(self, x: Tensor) -> Tensor:
        decay, value = torch.sigmoid(self.gate(x)), self.piece(self.value(x))
        state = torch.zeros(x.shape[0], 16, dtype=value.dtype)
        for t in range(x.shape[1]):
            state = decay[:, t] * state + (1 - decay[:, t]) * value[:, t]
        return self.out(state)


def scan(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = Scan(piece), draw(dtype, 32, 12, 8), torch.randint(4, (32,))
    return net, lambda: F.cross_entropy(net(x).float(), y)


class Spectral(nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.lift, self.out, self.piece = nn.Linear(2, 16), nn.Linear(16, 1), piece
        self.weight = nn.Parameter(torch.randn(16, 9) * 0.3)
        self.phase = nn.Parameter(torch.randn(16, 9))

    def forward(self, x: Tensor) -> Tensor:
        h = self.piece(self.lift(x)).transpose(1, 2).float()
        spectrum = torch.fft.rfft(h) * torch.polar(self.weight.float(), self.phase.float())
        return self.out((h + torch.fft.irfft(spectrum, n=16)).transpose(1, 2).to(self.out.weight.dtype))


def spectral(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = Spectral(piece), draw(dtype, 32, 16, 2), torch.randn(32, 16, 1)
    return net, lambda: F.mse_loss(net(x).float(), y)


class Sine(nn.Module):
    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.first, self.second, self.last, self.piece = nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 1), piece

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(self.piece(torch.tanh(self.first(x))))))


def equation(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    """Residual of u'' + u = 0: derivatives of derivatives."""
    net, points = Sine(piece), torch.linspace(0, 3, 40)[:, None].to(dtype)

    def loss() -> Tensor:
        x = points.clone().requires_grad_(True)
        u = net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (bend + u).float().square().mean() + (u[0] - 1).float().square().sum()

    return net, loss


def penalty(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    """Critic with gradient penalty."""
    net, real, made = Perceptron(piece, 8, 1), draw(dtype, 64, 8), draw(dtype, 64, 8) * 2

    def loss() -> Tensor:
        x = (real + made).div(2).requires_grad_(True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return (net(made) - net(real)).float().mean() + 10 * (slope.float().norm(dim=-1) - 1).square().mean()

    return net, loss


def checkpointed(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = Perceptron(piece, 16, 4), draw(dtype, 64, 16), torch.randint(4, (64,))
    stem = nn.Linear(16, 16)

    def loss() -> Tensor:
        return F.cross_entropy(checkpoint(net, stem(x), use_reentrant=False).float(), y)

    return nn.ModuleList([stem, net]), loss


def reentrant(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = Perceptron(piece, 16, 4), draw(dtype, 64, 16), torch.randint(4, (64,))
    stem = nn.Linear(16, 16)

    def loss() -> Tensor:
        return F.cross_entropy(checkpoint(net, stem(x), use_reentrant=True).float(), y)

    return nn.ModuleList([stem, net]), loss


def two_losses(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    net, x, y = Perceptron(piece, 16, 8), draw(dtype, 64, 16), torch.randint(4, (64,))

    def loss() -> Tensor:
        outputs = net(x).float()
        return F.cross_entropy(outputs[:, :4], y) + 0.3 * outputs[:, 4:].square().mean()

    return net, loss


def equation_of_motion(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    """A neural ODE in ten steps of the midpoint rule."""
    net, x, y = Sine(piece), draw(dtype, 32, 1), torch.randn(32, 1)

    def loss() -> Tensor:
        state = x
        for _ in range(10):
            state = state + 0.1 * net(state + 0.05 * net(state))
        return F.mse_loss(state.float(), y)

    return net, loss


def meta(dtype: torch.dtype, piece: Piece) -> tuple[nn.Module, Loss]:
    """One inner step by torch.func.grad."""
    net, x, y = Perceptron(piece, 8, 1, 16), draw(dtype, 32, 8), torch.randn(32, 1)

    def of(weights: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(torch.func.functional_call(net, weights, (x,)).float(), y)

    def loss() -> Tensor:
        weights: dict[str, Tensor] = dict(net.named_parameters())
        slopes = torch.func.grad(of)(weights)
        return of({name: weight - 0.1 * slopes[name] for name, weight in weights.items()})

    return net, loss


STEPS: dict[str, Build] = {
    build.__name__: build
    for build in (classifier_in_one_line, plain_classifier, diffusion, ppo, info_nce, mixture, graph, boxes, ensemble,
                  in_place, flow, weight_normed, variational, scan, spectral, equation, penalty, checkpointed,
                  reentrant, two_losses, equation_of_motion, meta)
}  # fmt: skip
