"""Further healthy loops that look odd, written before any threshold was changed for them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.further_faults import CLASSES, WIDTH, Positions
from tests.faults.odd_loops import Loop
from tests.faults.published_faults import Open, batches, network

FURTHER_HEALTHY: dict[str, Loop] = {}


def _healthy(loop: Loop) -> Loop:
    FURTHER_HEALTHY[loop.__name__] = loop
    return loop


@_healthy
def sines_of_small_angles_in_bf16(opened: Open) -> None:
    """Positions up to 24 in BF16, which are exact, with angles up to a few radians."""
    model = Positions(torch.bfloat16)
    model.rates /= 8
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(100):
        positions = torch.randint(24, (256,))
        loss = F.cross_entropy(model(positions), positions // 6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_healthy
def teacher_in_fp32_and_student_in_bf16(opened: Open) -> None:
    """A mean teacher: consistency with an average of the weights that moves slowly, in FP32."""
    model = network()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    recorder = opened(model, optimizer, ema=teacher)
    for x, y in batches(150):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x + 0.1 * torch.randn_like(x))
            goal = teacher(x)
        loss = F.cross_entropy(logits.float(), y) + 0.1 * F.mse_loss(logits.float(), goal.float())
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.001)
        recorder.step(loss)


class _Sign(torch.optim.Optimizer):
    """Steps of the same size in all elements: the sign of the gradient's average (Lion, Chen et al. 2023)."""

    def __init__(self, parameters: object, lr: float) -> None:
        super().__init__(list(parameters), {"lr": lr})  # type: ignore[call-overload]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                parameter.add_((0.9 * average + 0.1 * parameter.grad).sign(), alpha=-group["lr"])
                average.lerp_(parameter.grad, 0.01)


@_healthy
def signs_with_bf16_weights(opened: Open) -> None:
    """BF16 weights with steps of 2^-8, which nearly all of them take."""
    model = network().bfloat16()
    optimizer = _Sign(model.parameters(), 2.0**-9)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(150)):
        optimizer.param_groups[0]["lr"] = 2.0**-9 * (1 - step / 150)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_healthy
def scaler_that_is_switched_off(opened: Open) -> None:
    """As nanoGPT writes it: GradScaler(enabled=False) where autocast is BF16, clipped after unscale_."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(120):
        for inputs, targets in zip(x.chunk(4), y.chunk(4), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(inputs), targets) / 4
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        recorder.step(4 * loss)
        optimizer.zero_grad(set_to_none=True)


class _Deep(nn.Module):
    """Twelve residual blocks without norms, begun too large: the first losses are in the hundreds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, 48), nn.Linear(48, CLASSES)
        self.blocks = nn.ModuleList(nn.Linear(48, 48) for _ in range(12))
        for block in self.blocks:
            nn.init.kaiming_normal_(block.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x).relu()
        out: Tensor = self.head(x)
        return out


@_healthy
def loss_of_hundreds_that_falls(opened: Open) -> None:
    model = _Deep()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(200):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)


@_healthy
def targets_in_large_units(opened: Open) -> None:
    """Prices of some hundred thousand as targets: the squared error begins at 1e11 and falls slowly."""
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.3)
    recorder = opened(model, optimizer)
    slopes = torch.randn(WIDTH)
    for x, _ in batches(200):
        prices = 3e5 + 5e4 * (x @ slopes) + 1e4 * torch.randn(len(x))
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).squeeze(1), prices)
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_healthy
def weight_of_a_penalty_that_grows(opened: Open) -> None:
    """A variational autoencoder whose divergence counts more from step to step: the sum rises again."""
    encode, decode = nn.Linear(WIDTH, 16), nn.Linear(8, WIDTH)
    model = nn.ModuleList((encode, decode))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    recorder = opened(model, optimizer, scaler)
    for step, (x, _) in enumerate(batches(200)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            mean, spread = encode(x).chunk(2, -1)
            code = mean + torch.randn_like(mean) * (spread / 2).exp()
            copied = decode(code)
        divergence = -0.5 * (1 + spread.float() - mean.float() ** 2 - spread.float().exp()).sum(-1).mean()
        loss = F.mse_loss(copied.float(), x, reduction="none").sum(-1).mean() + min(1.0, step / 150) * 4 * divergence
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
