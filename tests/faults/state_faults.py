"""Optimizers whose second moments become zero where they are stored, and sound ones with zeros or few bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches, network

Pack = Callable[[Tensor], tuple[Tensor, Tensor]]  # numbers to codes and their scale


class _Adam(Optimizer):
    """Adam whose second moments are codes times a scale; `power` of the number is the moment."""

    def __init__(self, parameters: Iterable[Tensor], pack: Pack, power: int = 1, eps: float = 1e-8) -> None:
        super().__init__(parameters, {"lr": 3e-3, "betas": (0.9, 0.99), "eps": eps})
        self.pack, self.power, self.eps = pack, power, eps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state |= {"t": 0, "m": torch.zeros_like(p)}
                state["codes"], state["scale"] = self.pack(torch.zeros_like(p))
            state["t"] += 1
            state["m"].lerp_(p.grad, 0.1)
            v = _numbers(state, p) ** self.power * 0.99 + 0.01 * p.grad**2
            state["codes"], state["scale"] = self.pack(v ** (1 / self.power))
            v = _numbers(state, p) ** self.power
            root = (v / (1 - 0.99 ** state["t"])).sqrt() + self.eps
            p.sub_(self.param_groups[0]["lr"] * state["m"] / (1 - 0.9 ** state["t"]) / root)


def _numbers(state: dict[str, Any], p: Tensor) -> Tensor:
    """The numbers of codes, of which two may lie in a byte."""
    codes = state["codes"]
    if codes.shape != p.shape:
        codes = torch.stack((codes & 15, codes >> 4), 1).reshape(-1)[: p.numel()].reshape(p.shape)
    numbers: Tensor = codes.float() * state["scale"]
    return numbers


class _Packed(Optimizer):
    """Adam with both moments as tuples of codes and scales, in the way of `pack`, which gives back numbers, too."""

    def __init__(
        self, parameters: Iterable[Tensor], pack: Callable[[Tensor], tuple[Any, Tensor]], least: float
    ) -> None:
        super().__init__(parameters, {"lr": 3e-3, "betas": (0.9, 0.99), "eps": 1e-8})
        self.pack, self.least = pack, least

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            m, v = (state["m"][1], state["v"][1]) if state else (torch.zeros_like(p), torch.zeros_like(p))
            state["t"] = state.get("t", 0) + 1
            codes, m = self.pack(0.9 * m + 0.1 * p.grad)
            state["m"] = [codes, m]
            codes, v = self.pack(0.99 * v + 0.01 * p.grad**2)
            state["v"] = [codes, v]
            root = (v / (1 - 0.99 ** state["t"])).sqrt().clamp(min=self.least) + 1e-8
            p.sub_(self.param_groups[0]["lr"] * m / (1 - 0.9 ** state["t"]) / root)


def _of_16_bit_codes(x: Tensor) -> tuple[Any, Tensor]:
    scale = x.abs().max().clamp(min=1e-30) / 255
    codes = (x / scale).round().to(torch.int16)
    return (codes, scale), codes.float() * scale


def _in_blocks(x: Tensor) -> tuple[Any, Tensor]:
    """Linear codes with a scale for each 64 elements, the last block filled up."""
    blocks = F.pad(x.reshape(-1), (0, -x.numel() % 64)).reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    codes = (blocks / scale).round().to(torch.int8)
    return {"codes": codes, "scale": scale}, (codes.float() * scale).reshape(-1)[: x.numel()].reshape(x.shape)


def _of_table(x: Tensor) -> tuple[Any, Tensor]:
    """Codes of a table with a level for each half octave, of 60, as dynamic codes have; zero is one of them."""
    table = torch.cat([torch.zeros(1), 2.0 ** (torch.arange(-119, 1) / 2)])
    scale = x.abs().max().clamp(min=1e-30)
    codes = torch.bucketize(x.abs() / scale, (table[1:] + table[:-1]) / 2).to(torch.uint8)
    return (codes, x.sign(), scale), table[codes.int()] * x.sign() * scale


def _in_e4m3(x: Tensor) -> tuple[Any, Tensor]:
    codes = x.to(torch.float8_e4m3fn)
    return codes, codes.float()


class _ListedRms(Optimizer):
    """RMSprop with its state in a list beside `state`, held in FP32 and rounded to equal levels."""

    def __init__(self, parameters: Iterable[Tensor], levels: int) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.levels, self.squares = levels, [torch.zeros_like(p) for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for place, p in enumerate(self.param_groups[0]["params"]):
            v = self.squares[place].mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
            grid = v.max() / self.levels
            self.squares[place] = (v / grid).round() * grid if self.levels else v
            p.sub_(1e-3 * p.grad / (self.squares[place].sqrt() + 1e-8))


class _Pruned(Optimizer):
    """SGD that makes small weights zero by a mask, which is state, in the second step."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for p in self.param_groups[0]["params"]:
            keep = self.state[p].setdefault("mask", torch.ones_like(p, dtype=torch.uint8))
            if self.steps == 2:
                keep.copy_(p.abs() > 0.05)
            p.sub_(self.param_groups[0]["lr"] * p.grad).mul_(keep)


class _Momentum(Optimizer):
    """SGD whose momentum is held in 8 bits with one scale: where it is zero nothing moves."""

    def __init__(self, parameters: Iterable[Tensor], rate: float = 0.05) -> None:
        super().__init__(parameters, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            before = state["codes"].float() * state["scale"] if state else 0.0
            now = 0.9 * before + p.grad
            state["scale"] = now.abs().max() / 127
            state["codes"] = (now / state["scale"]).round().to(torch.int8)
            p.sub_(self.param_groups[0]["lr"] * state["codes"].float() * state["scale"])


def _learn(
    opened: Open, optimizer: Callable[[Iterable[Tensor]], Optimizer], steps: int = 36, size: float = 1.0
) -> None:
    model = network()
    own = optimizer(model.parameters())
    recorder = opened(model, own)
    for x, y in batches(steps):
        loss = size * F.cross_entropy(model(x), y)
        own.zero_grad()
        loss.backward()
        own.step()
        recorder.step(loss)


def _equal_levels(v: Tensor) -> tuple[Tensor, Tensor]:
    scale = v.max().clamp(min=1e-30) / 255
    return (v / scale).round().to(torch.uint8), scale


def _rounded_up(v: Tensor) -> tuple[Tensor, Tensor]:
    scale = v.max().clamp(min=1e-30) / 255
    return (v / scale).ceil().clamp(max=255).to(torch.uint8), scale


def _e4m3(v: Tensor) -> tuple[Tensor, Tensor]:
    scale = v.max().clamp(min=1e-30) / 448
    return (v / scale).to(torch.float8_e4m3fn), scale


def _halves_of_bytes(v: Tensor) -> tuple[Tensor, Tensor]:
    scale = v.max().clamp(min=1e-30) / 15
    codes = F.pad((v / scale).round().to(torch.uint8).reshape(-1), (0, v.numel() % 2))
    return codes[::2] | (codes[1::2] << 4), scale


_SAYS = "divided by the epsilon alone", "round small ones up"


@fault("moments-underflow", *_SAYS, True)
def second_moments_in_255_equal_levels(opened: Open) -> None:
    _learn(opened, lambda own: _Adam(own, _equal_levels))


@fault("moments-underflow", *_SAYS, True)
def second_moments_in_e4m3_with_one_scale(opened: Open) -> None:
    _learn(opened, lambda own: _Adam(own, _e4m3))


@fault("moments-underflow", _SAYS[0], "how second moments are stored", None)
def second_moments_in_halves_of_bytes(opened: Open) -> None:
    """Whose elements nobody knows: only how large the updates are is seen."""
    _learn(opened, lambda own: _Adam(own, _halves_of_bytes))


@fault("moments-underflow", *_SAYS, True)
def squares_on_a_grid_in_a_list_of_fp32(opened: Open) -> None:
    _learn(opened, lambda own: _ListedRms(own, 255))


@fault("moments-underflow", *_SAYS, True)
def both_moments_in_tuples_of_codes(opened: Open) -> None:
    _learn(opened, lambda own: _Packed(own, _of_16_bit_codes, 0.0))


@fault("moments-underflow", *_SAYS, True)
def both_moments_in_linear_blocks(opened: Open) -> None:
    _learn(opened, lambda own: _Packed(own, _in_blocks, 0.0))


@fault("moments-underflow", *_SAYS, True)
def second_moments_cast_to_e4m3_without_a_scale(opened: Open) -> None:
    """All of them are below its smallest number."""

    def pack(x: Tensor) -> tuple[Any, Tensor]:
        return _in_e4m3(x) if bool((x >= 0).all()) else (x, x)

    _learn(opened, lambda own: _Packed(own, pack, 0.0), size=0.1)


@healthy
def both_moments_in_linear_blocks_with_a_floor(opened: Open) -> None:
    _learn(opened, lambda own: _Packed(own, _in_blocks, 1e-3))


@healthy
def both_moments_in_codes_of_a_table(opened: Open) -> None:
    _learn(opened, lambda own: _Packed(own, _of_table, 0.0))


@healthy
def both_moments_in_codes_of_a_table_of_sparse_gradients(opened: Open) -> None:
    """Most rows of the embedding, and the frozen layer, have no gradient."""
    model = torch.nn.Sequential(torch.nn.Embedding(200, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 6))
    model[1].requires_grad_(False)
    own = _Packed([p for p in model.parameters() if p.requires_grad], _of_table, 0.0)
    recorder = opened(model, own)
    for _ in range(36):
        rows = torch.randint(200, (24,))
        loss = F.cross_entropy(model(rows), rows % 6)
        own.zero_grad()
        loss.backward()
        own.step()
        recorder.step(loss)


@fault("divergence", "updates are too large", "keep the state in FP32", None)
def diverged_with_a_momentum_in_8_bits(opened: Open) -> None:
    """By its rate; but nobody knows what the rounding has to do with it."""
    _learn(opened, lambda own: _Momentum(own, 20.0))


@healthy
def squares_in_a_list_of_fp32(opened: Open) -> None:
    _learn(opened, lambda own: _ListedRms(own, 0))


@healthy
def second_moments_rounded_up(opened: Open) -> None:
    _learn(opened, lambda own: _Adam(own, _rounded_up))


@healthy
def roots_of_second_moments_rounded_up(opened: Open) -> None:
    _learn(opened, lambda own: _Adam(own, _rounded_up, power=2))


@healthy
def equal_levels_beside_a_large_epsilon(opened: Open) -> None:
    _learn(opened, lambda own: _Adam(own, _equal_levels, eps=1e-3))


@healthy
def momentum_in_8_bits(opened: Open) -> None:
    _learn(opened, _Momentum)


@healthy
def weights_pruned_by_a_mask_in_the_state(opened: Open) -> None:
    _learn(opened, _Pruned)
