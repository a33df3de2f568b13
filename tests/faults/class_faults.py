"""Mistakes of loops and models, each with its healthy twin and odd loops that look like it and are sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import Open, batches

Loop = Callable[[Open], None]
FAULTS: dict[str, Fault] = {}
HEALTHY: dict[str, Loop] = {}


@dataclass(frozen=True)
class Fault:
    """A loop, the rule that names its mistake, words of the title and the fix, and the blame."""

    loop: Loop
    rule: str
    says: str
    cures: str
    blame: bool | None


def _fault(rule: str, says: str, cures: str, blame: bool | None = False) -> Callable[[Loop], Loop]:
    def keep(loop: Loop) -> Loop:
        FAULTS[loop.__name__] = Fault(loop, rule, says, cures, blame)
        return loop

    return keep


def _healthy(loop: Loop) -> Loop:
    HEALTHY[loop.__name__] = loop
    return loop


class _Body(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(24, 32), nn.ReLU())
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


def _learn(opened: Open, model: nn.Module, optimizer: torch.optim.Optimizer, other: torch.optim.Optimizer | None = None,
           steps: int = 40) -> None:  # fmt: skip
    recorder = opened(model, optimizer)
    for x, y in batches(steps):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        for each in (optimizer, other):
            if each is not None:
                each.step()
        recorder.step(loss)


@_fault("parameters-left-out", "made before a part of the model was replaced", "after the last change of the model")
def head_replaced_after_the_optimizer(opened: Open) -> None:
    model = _Body(2)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    model.head = nn.Linear(32, 6)
    _learn(opened, model, optimizer)


@_healthy
def head_replaced_before_the_optimizer(opened: Open) -> None:
    model = _Body(2)
    model.head = nn.Linear(32, 6)
    _learn(opened, model, torch.optim.Adam(model.parameters(), 3e-3))


@_healthy
def the_new_head_has_an_optimizer_of_its_own(opened: Open) -> None:
    """The recorder was not told of the second one; the first one still holds the old head."""
    model = _Body(2)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    model.head = nn.Linear(32, 6)
    _learn(opened, model, optimizer, torch.optim.SGD(model.head.parameters(), 0.1))


@_healthy
def head_kept_as_it_began_beside_a_later_critic(opened: Open) -> None:
    """A fixed random head, without gradients, and a part of another model that this optimizer trains later."""
    model, critic = _Body(6), nn.Linear(6, 6)
    model.head.requires_grad_(False)
    _learn(opened, model, torch.optim.Adam([*model.features.parameters(), *critic.parameters()], 3e-3))


def _normed(**options: float | None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48, **options), nn.ReLU(), nn.Linear(48, 6))


@_fault("left-in-evaluation", "batch norm never saw a batch", "before the first step")
def evaluated_before_the_first_step(opened: Open) -> None:
    model = _normed()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model.eval()
    _learn(opened, model, optimizer)


@_fault("statistics-kept-out", "never see a batch", "share of the new batch")
def a_momentum_of_zero(opened: Open) -> None:
    model = _normed(momentum=0.0)
    _learn(opened, model, torch.optim.SGD(model.parameters(), 0.05))


@_healthy
def statistics_of_data_kept_by_a_momentum_of_zero(opened: Open) -> None:
    model = _normed()
    for x, _ in batches(20):
        model(x)
    for each in model.modules():
        if isinstance(each, nn.BatchNorm1d):
            each.momentum = 0.0
    _learn(opened, model, torch.optim.SGD(model.parameters(), 0.05))


@_healthy
def statistics_averaged_over_all_batches(opened: Open) -> None:
    model = _normed(momentum=None)
    _learn(opened, model, torch.optim.SGD(model.parameters(), 0.05))


@_healthy
def a_momentum_of_zero_without_statistics(opened: Open) -> None:
    model = _normed(momentum=0.0, track_running_stats=False)
    _learn(opened, model, torch.optim.SGD(model.parameters(), 0.05))


@_healthy
def batch_norm_frozen_in_a_model_in_training_mode(opened: Open) -> None:
    model = _normed(momentum=0.0)
    model[1].eval().requires_grad_(False)
    _learn(opened, model, torch.optim.SGD(model.parameters(), 0.05))


@_healthy
def evaluated_and_set_back(opened: Open) -> None:
    model = _normed()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    model.eval().train()
    _learn(opened, model, optimizer)


@_healthy
def fine_tuned_with_kept_statistics(opened: Open) -> None:
    model = _normed()
    for x, _ in batches(20):
        model(x)
    _learn(opened, model.eval(), torch.optim.SGD(model.parameters(), 0.05))


@_healthy
def batch_norm_without_statistics(opened: Open) -> None:
    model = _normed(track_running_stats=False)
    _learn(opened, model.eval(), torch.optim.SGD(model.parameters(), 0.05))


class _Graph(nn.Module):
    """Means over neighbours, counted in a format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.own, self.other, self.dtype = nn.Linear(8, 6), nn.Linear(8, 6), dtype

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        total = torch.zeros(len(x), 6).index_add_(0, target, self.other(x)[source])
        one = torch.ones(len(target), dtype=self.dtype)
        degree = torch.zeros(len(x), dtype=self.dtype).index_add_(0, target, one)
        out: Tensor = self.own(x) + total / degree.clamp(min=1)[:, None]
        return out


def _on_a_graph(opened: Open, dtype: torch.dtype, hubs: int) -> None:
    """Node 0 has `hubs` neighbours, the others three."""
    source = torch.randint(0, 200, (hubs + 600,))
    target = torch.cat([torch.zeros(hubs, dtype=torch.long), torch.arange(200).repeat_interleave(3)])
    model, x, y = _Graph(dtype), torch.randn(200, 8), torch.randint(6, (200,))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(20):
        loss = F.cross_entropy(model(x, source, target), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("swallowed-additions", "adds up in BF16 is lost", "float()", True)
def neighbours_counted_in_bf16(opened: Open) -> None:
    _on_a_graph(opened, torch.bfloat16, 1500)


@_healthy
def neighbours_counted_in_fp32(opened: Open) -> None:
    _on_a_graph(opened, torch.float32, 1500)


@_healthy
def few_neighbours_counted_in_bf16(opened: Open) -> None:
    _on_a_graph(opened, torch.bfloat16, 200)


@_healthy
def many_neighbours_counted_in_fp16(opened: Open) -> None:
    """FP16 counts up to 2048."""
    _on_a_graph(opened, torch.float16, 1500)


@_healthy
def pictures_of_blurred_strokes_under_autocast(opened: Open) -> None:
    """Most pixels are far from a stroke: they are below FP16, and nothing beside those of the stroke."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for _ in range(40):
        pictures = torch.exp(-(torch.arange(64.0) - 64 * torch.rand(32, 1)).square() / 1.5)
        with torch.autocast("cpu", torch.float16):
            outputs = model(pictures)
        loss = F.mse_loss(outputs.float(), pictures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_healthy
def updates_of_fp16_weights_by_hand_that_come_to_their_end(opened: Open) -> None:
    """A rate that ends at zero: the last steps are below the last digit of the weights."""
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6)).half()
    recorder = opened(model, None)
    ((x, y),) = batches(1)
    for step in range(140):
        rate = 0.3 * 0.95**step
        loss = F.cross_entropy(model(x.half()).float(), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                assert weight.grad is not None
                weight -= (rate * weight.grad.float()).to(weight.dtype)
        recorder.step(loss)


class _PackedAdam(torch.optim.Optimizer):
    """Adam that keeps second moments in 256 levels of a tensor's largest one, `least` of them at least."""

    def __init__(self, model: nn.Module, packed: bool, least: int, trusted: bool = False) -> None:
        self.packed, self.least, self.trusted = packed, least, trusted
        super().__init__(model.parameters(), {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for p in self.param_groups[0]["params"]:
            if not self.state[p]:
                self.state[p] |= {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p), "scale": 0.0}
            state = self.state[p]
            state["t"] += 1
            state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
            v = state["v"].float() * state["scale"] * 0.999 + 0.001 * p.grad**2
            state["scale"] = v.max() / 255 + 1e-30
            state["v"] = v / state["scale"]
            if self.packed:
                state["v"] = state["v"].round().clamp(min=self.least).to(torch.uint8)
            v = state["v"].float() * state["scale"] / (1 - 0.999 ** state["t"])
            change = state["m"] / (1 - 0.9 ** state["t"]) / (v.sqrt() + 1e-8)
            p.sub_(1e-3 * change * (p.norm() / change.norm() if self.trusted else 1))


@_fault("moments-underflow", "divided by the epsilon alone", "round small ones up", True)
def second_moments_in_8_bits(opened: Open) -> None:
    model = _Body(6)
    _learn(opened, model, _PackedAdam(model, packed=True, least=0))


@_healthy
def second_moments_in_fp32(opened: Open) -> None:
    model = _Body(6)
    _learn(opened, model, _PackedAdam(model, packed=False, least=0))


@_healthy
def second_moments_in_8_bits_rounded_up(opened: Open) -> None:
    model = _Body(6)
    _learn(opened, model, _PackedAdam(model, packed=True, least=1))


@_healthy
def steps_as_large_as_the_weights_say(opened: Open) -> None:
    """The rate times the norm of the weights, as LAMB does."""
    model = _Body(6)
    _learn(opened, model, _PackedAdam(model, packed=False, least=0, trusted=True))


def _hyperbolic(opened: Open, dtype: torch.dtype, spread: float) -> None:
    """Distances in hyperbolic space, of points that are near each other or not."""
    model = nn.Embedding(40, 4)
    nn.init.uniform_(model.weight, -spread, spread)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    recorder = opened(model, optimizer)
    for _ in range(20):
        rows = torch.randint(0, 39, (32,))
        u, v = model(rows).to(dtype), model(rows + 1).to(dtype)
        inside = (1 - (u * u).sum(-1)) * (1 - (v * v).sum(-1))
        loss = torch.acosh(1 + 2 * ((u - v) ** 2).sum(-1) / inside).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("undefined-operation", "The derivative of", "acosh", True)
def near_points_of_hyperbolic_space_in_bf16(opened: Open) -> None:
    _hyperbolic(opened, torch.bfloat16, 0.02)


@_healthy
def near_points_of_hyperbolic_space_in_fp32(opened: Open) -> None:
    _hyperbolic(opened, torch.float32, 0.02)


@_healthy
def far_points_of_hyperbolic_space_in_bf16(opened: Open) -> None:
    _hyperbolic(opened, torch.bfloat16, 0.4)


def _codes_of(v: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """Rounded to integers times a scale; the gradient passes."""
    codes = torch.clamp(torch.round(v / scale), low, high) * scale
    return v + (codes - v).detach()


class _Quantised(nn.Module):
    """Layers whose inputs are rounded by a function that the loop brings."""

    def __init__(self, rounding: Callable[[Tensor], Tensor], activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(24, 48), nn.Linear(48, 48), nn.Linear(48, 6)
        self.rounding, self.activation = rounding, activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.first(self.rounding(x)))
        x = self.activation(self.second(self.rounding(x)))
        out: Tensor = self.last(self.rounding(x))
        return out


def _train_quantised(opened: Open, rounding: Callable[[Tensor], Tensor], activation: Callable[[Tensor], Tensor],
                     rate: float = 3e-3) -> None:  # fmt: skip
    model = _Quantised(rounding, activation)
    _learn(opened, model, torch.optim.Adam(model.parameters(), rate))


@_fault("clipped-in-quantisation", "negative ones become zero", "zero point", True)
def signed_activations_in_an_unsigned_range(opened: Open) -> None:
    _train_quantised(opened, lambda v: _codes_of(v, v.detach().abs().max() / 255, 0, 255), torch.tanh)


@_healthy
def signed_activations_in_a_signed_range(opened: Open) -> None:
    _train_quantised(opened, lambda v: _codes_of(v, v.detach().abs().max() / 127, -127, 127), torch.tanh)


@_healthy
def activations_of_relu_in_an_unsigned_range(opened: Open) -> None:
    """The inputs are signed, and so is their range."""

    def rounding(v: Tensor) -> Tensor:
        signed = bool((v < 0).any())
        top = 127 if signed else 255
        return _codes_of(v, v.detach().abs().max() / top, -top if signed else 0, top)

    _train_quantised(opened, rounding, torch.relu)


@_healthy
def activations_of_gelu_whose_small_negative_ones_are_cut(opened: Open) -> None:
    def rounding(v: Tensor) -> Tensor:
        return v if v.shape[1] == 24 else _codes_of(v, v.detach().abs().max() / 255, 0, 255)

    _train_quantised(opened, rounding, F.gelu)


@_healthy
def sums_clipped_to_four_levels(opened: Open) -> None:
    """The clamp is the activation function, as in DoReFa-Net."""

    def activation(v: Tensor) -> Tensor:
        return _codes_of(v.clamp(0, 1), torch.tensor(1 / 3), 0, 3)

    _train_quantised(opened, lambda v: v, activation)


@_healthy
def a_few_outliers_are_clipped(opened: Open) -> None:
    """Four standard deviations."""
    _train_quantised(opened, lambda v: _codes_of(v, 4 * v.detach().std() / 127, -127, 127), torch.tanh)


def _in_fp8(opened: Open, *, once: bool) -> None:
    """The inputs grow from step to step; a scale is taken from the first ones or from those that are present."""

    class Fp8(nn.Linear):
        scale: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.scale is None or not once:
                self.scale = 448 / x.detach().abs().max()
            codes = (x * self.scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() / self.scale
            return super().forward(x + (codes - x).detach())

    model = nn.Sequential(Fp8(24, 48), nn.GELU(), Fp8(48, 48), nn.GELU(), Fp8(48, 6))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(40)):
        loss = F.cross_entropy(model(x * (1 + step)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("clipped-in-quantisation", "its range is too small", "448 / x.abs().max()", True)
def fp8_with_the_scale_of_the_first_batch(opened: Open) -> None:
    _in_fp8(opened, once=True)


@_healthy
def fp8_with_the_scale_of_each_batch(opened: Open) -> None:
    _in_fp8(opened, once=False)


@_fault("divergence", "The training diverged", "learning rate", None)
def diverged_beside_activations_of_8_bits(opened: Open) -> None:
    """Nothing proves that the format has no part in it."""
    _train_quantised(opened, lambda v: _codes_of(v, v.detach().abs().max() / 127, -127, 127), F.gelu, rate=3.0)


def _actor_and_critic(opened: Open, *, shared: bool) -> None:
    """The reward is how near an action comes to a fixed map of the state."""
    actor, critic = (
        nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
        nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)),
    )
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    held = [*actor.parameters(), *(critic.parameters() if shared else ())]
    of_actor, goal = torch.optim.Adam(held, 3e-2), 0.3 * torch.randn(2, 4)
    recorder = opened(nn.ModuleList([actor, critic]), [of_critic, of_actor])
    for _ in range(80):
        state = torch.randn(64, 4)
        action = (actor(state) + 0.3 * torch.randn(64, 2)).detach()
        reward = -(action - state @ goal.T).square().mean(1, keepdim=True)
        loss = F.mse_loss(critic(torch.cat([state, action], 1)), reward)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        of_actor.zero_grad()
        (-critic(torch.cat([state, actor(state)], 1)).mean()).backward()
        of_actor.step()
        recorder.step(loss)


@_fault("stepped-twice", "moves them against it", "actor.parameters() only")
def the_optimizer_of_an_actor_holds_the_critic(opened: Open) -> None:
    _actor_and_critic(opened, shared=True)


@_healthy
def an_actor_and_a_critic_with_an_optimizer_each(opened: Open) -> None:
    _actor_and_critic(opened, shared=False)


@_healthy
def a_head_that_is_also_trained_by_itself(opened: Open) -> None:
    """Both losses ask for the same."""
    model = _Body(6)
    every, of_head = torch.optim.Adam(model.parameters(), 3e-3), torch.optim.Adam(model.head.parameters(), 3e-3)
    recorder = opened(model, [every, of_head])
    for x, y in batches(40):
        for optimizer in (of_head, every):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        recorder.step(loss)


def _below_zero(opened: Open, model: nn.Module) -> None:
    """Targets near -5."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, _ in batches(40):
        loss = F.mse_loss(model(x), x[:, :1] - 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("targets-out-of-range", "last function (relu)", "Leave the last function out")
def relu_before_targets_below_zero(opened: Open) -> None:
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU())
    nn.init.constant_(model[2].bias, -0.5)
    _below_zero(opened, model)


@_healthy
def no_function_before_targets_below_zero(opened: Open) -> None:
    _below_zero(opened, nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1)))


def _with_a_line_before_the_step(opened: Open, line: Callable[[nn.Module], None]) -> None:
    model = _Body(6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        line(model)
        optimizer.step()
        recorder.step(loss)


@_fault("zero-gradients", "cleared between the backward pass and the step", "Call zero_grad()")
def cleared_to_zeros_before_the_step(opened: Open) -> None:
    _with_a_line_before_the_step(opened, lambda model: model.zero_grad(set_to_none=False))


@_fault("zero-gradients", "cleared between the backward pass and the step", "Call zero_grad()")
def cleared_to_none_before_the_step(opened: Open) -> None:
    _with_a_line_before_the_step(opened, lambda model: model.zero_grad())


@_fault("zero-gradients", "although gradients reach the modules", "a norm that is Inf", True)
def multiplied_by_a_factor_of_zero(opened: Open) -> None:
    def line(model: nn.Module) -> None:
        for each in model.parameters():
            if each.grad is not None:
                each.grad.mul_(1 / torch.tensor(7e4).half())

    _with_a_line_before_the_step(opened, line)


@_healthy
def gradients_are_looked_at_before_the_step(opened: Open) -> None:
    _with_a_line_before_the_step(opened, lambda model: None)


def _penalised(opened: Open, strength: float) -> None:
    """A penalty on the sum of all squares, added to the loss."""
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(140):
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(x)
        squares = torch.stack([each.square().sum() for each in model.parameters()]).sum()
        loss = F.cross_entropy(scores.float(), y) + strength * squares
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_fault("weights-shrink", "a penalty on them outweighs the loss", "factor of the penalty")
def a_penalty_that_outweighs_the_loss(opened: Open) -> None:
    _penalised(opened, 1.0)


@_healthy
def a_penalty_beside_the_loss(opened: Open) -> None:
    _penalised(opened, 1e-4)


class _BertAdam(torch.optim.Optimizer):
    """Adam without correction of the bias, whose factors are numbers of some format."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__(model.parameters(), {"lr": 1e-3, "eps": 1e-6})
        self.factors = torch.tensor([0.9, 0.999], dtype=dtype)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        first, second = self.factors
        for p in self.param_groups[0]["params"]:
            if not self.state[p]:
                self.state[p] |= {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
            state = self.state[p]
            state["m"].mul_(first).add_(p.grad * (1 - first))
            state["v"].mul_(second).add_(p.grad.square() * (1 - second))
            p.sub_(1e-3 * state["m"] / (state["v"].sqrt() + 1e-6))


@_fault("moments-underflow", "stay zero", "0.999 is 1 in BF16", None)
def factors_of_adam_in_bf16(opened: Open) -> None:
    model = _Body(6)
    _learn(opened, model, _BertAdam(model, torch.bfloat16))


@_healthy
def factors_of_adam_in_fp32(opened: Open) -> None:
    model = _Body(6)
    _learn(opened, model, _BertAdam(model, torch.float32))
