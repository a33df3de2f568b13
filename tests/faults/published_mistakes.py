"""More published mistakes: of rates, parameters, scales and moments."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.published_faults import FAULTS, Open, _published, batches, blobs, network, score

__all__ = ["FAULTS"]


@_published("no-progress rate-vanished", False, "StackOverflow: a scheduler meant for epochs stepped in each batch")
def scheduler_of_epochs_in_each_batch(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(250)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if broken or step % 50 == 49:
            schedule.step()
        recorder.step(loss)
    return score(model)


@_published(
    "parameters-left-out foreign-parameters", False, "head replaced after the optimizer was made, pytorch forum"
)
def head_replaced_after_the_optimizer(opened: Open, broken: bool) -> float:
    model = network()
    model.requires_grad_(False)

    def replace() -> None:
        model[4] = nn.Linear(48, 6)

    if not broken:
        replace()
    model[4].requires_grad_(True)
    model[0].bias.requires_grad_(True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3)
    if broken:
        replace()
    recorder = opened(model, optimizer)
    for x, y in batches(150):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(model)


@_published("no-gradients zero-gradients weights-unchanged no-step-taken", False, "a loss made anew from a number")
def loss_made_anew_from_a_number(opened: Open, broken: bool) -> float:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(100):
        loss = F.cross_entropy(model(x), y)
        if broken:
            loss = torch.tensor(loss.item(), requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(model)


@_published("gradient-underflow zero-gradients", True, "pytorch#40497; Micikevicius 2018: FP16 without a scale")
def mean_over_many_pixels_without_a_scale(opened: Open, broken: bool) -> float:
    """Segmentation with a mean over all pixels: the gradient of each is tiny."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, eps=1e-15)
    recorder = opened(model, optimizer)
    value = math.nan
    for _ in range(80):
        x = torch.randn(32, 1, 32, 32)
        target = 0.01 * F.avg_pool2d(x, 3, 1, 1)
        with torch.autocast("cpu", torch.float16, enabled=broken):
            out = model(x)
        loss = 0.01 * F.mse_loss(out.float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value


@_published("dead-units divergence no-progress", False, "dying ReLU, StackOverflow")
def units_killed_by_one_large_step(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.5 if broken else 0.005)
    recorder = opened(model, optimizer)
    x, _ = blobs(64, seed=2)
    value = math.nan
    for _ in range(120):
        loss = F.mse_loss(model(x)[:, 0], 5 + x[:, 0] * x[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value


@_published("frozen-moments stagnation", True, "AReaL#1292, OneTrainer#1005: moments of Adam in BF16")
def moments_of_adam_in_bf16(opened: Open, broken: bool) -> float:
    """The first targets are large: the second moment of BF16 keeps what they left behind."""
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 1))
    if broken:
        model.bfloat16()
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    value = math.nan
    for step, (x, _) in enumerate(batches(400, 32)):
        target = torch.sin(x[:, 0] / 2) * (40 if step < 4 else 1)
        loss = F.mse_loss(model(x.to(dtype))[:, 0].float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value


@_published(
    "nonfinite-update forward-overflow undefined-operation weights-not-finite", True, "DeepLearningExamples#139"
)
def fixed_scale_by_hand_that_is_too_large(opened: Open, broken: bool) -> float:
    scale = 2.0**20 if broken else 2.0**8
    model = network().half()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    recorder = opened(model, optimizer)
    for x, y in batches(120):
        loss = F.cross_entropy(model(x.half()).float(), y)
        optimizer.zero_grad()
        (loss * scale).backward()
        for p in model.parameters():
            p.grad.div_(scale)
        optimizer.step()
        recorder.step(loss)
    return score(lambda x: model(x.half()))


class _Normalised(nn.Module):
    def __init__(self, low: bool) -> None:
        super().__init__()
        self.low = low

    def forward(self, x: Tensor) -> Tensor:
        y = x.half() if self.low else x.float()
        return y / (y.norm(dim=-1, keepdim=True) + 1e-12)


@_published("undefined-operation epsilon-vanishes", True, "pytorch#32137: an epsilon that is 0 in FP16")
def epsilon_of_a_norm_in_fp16(opened: Open, broken: bool) -> float:
    """Padded rows are zero: 0 / (0 + 1e-12), and 1e-12 is 0 in FP16."""
    norm, head = _Normalised(broken), nn.Linear(24, 6)
    model = nn.Sequential(norm, head)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(100)):
        if step >= 30:
            x[7] = 0
        loss = F.cross_entropy(head(norm(x).float()), y) if step < 0 else F.cross_entropy(head(_wide(norm(x))), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    return score(lambda x: head(norm(x).float()))


def _wide(x: Tensor) -> Tensor:
    return x.float()


@_published(
    "stagnation rounded-products autocast-not-seen", True, "gpt-neox#1003, transformers#29285: positions in BF16"
)
def positions_counted_in_bf16(opened: Open, broken: bool) -> float:
    """A network of positions up to 2048: whole numbers above 256 are not exact in BF16."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    rates = 2 * math.pi / torch.tensor([2.0, 3, 4, 6, 8, 12, 16, 24])

    def features(positions: Tensor) -> Tensor:
        angles = (positions.bfloat16() if broken else positions).float()[:, None] * rates
        return torch.cat((angles.sin(), angles.cos()), 1)

    value = math.nan
    for _ in range(200):
        positions = torch.randint(2048, (256,))
        loss = F.cross_entropy(model(features(positions.float())), positions % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        value = float(loss.detach())
    return value


@_published("swamped-accumulation stagnation", True, "DeepSpeed#2768: micro-steps added up in BF16")
def many_micro_steps_in_bf16(opened: Open, broken: bool) -> float:
    model = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 6))
    shadow = model.bfloat16() if broken else model
    dtype = next(shadow.parameters()).dtype
    optimizer = torch.optim.SGD(shadow.parameters(), 0.2)
    recorder = opened(shadow, optimizer)
    for step in range(12):
        optimizer.zero_grad()
        total = 0.0
        x, y = blobs(384, seed=step)
        for part in range(384):
            loss = F.cross_entropy(shadow(x[part : part + 1].to(dtype)).float(), y[part : part + 1]) / 384
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        recorder.step(total)
    return score(lambda x: shadow(x.to(dtype)))


@_published("clip-before-unscale", False, "pytorch/examples#1196, Pytorch-UNet#468")
def clip_by_value_before_unscale(opened: Open, broken: bool) -> float:
    """clip_grad_value_ on scaled gradients: nearly all elements become the limit."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(150):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if not broken:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)
    return score(model)


@_published("no-step-taken", True, "deepspeedai/DeepSpeed#697: the loss scale at its least, all steps skipped")
def loss_beyond_the_least_scale(opened: Open, broken: bool) -> float:
    """Masters of an own FP16 optimizer that skips each step with Inf: the loss is of targets in the 100000s."""
    model, teacher = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 1)).half(), torch.randn(12, 1)
    masters = [nn.Parameter(each.detach().float()) for each in model.parameters()]
    optimizer, scale, factor = torch.optim.Adam(masters, 5e-3), 2.0**12, 9e4
    recorder = opened(model, optimizer)

    def error(x: Tensor) -> Tensor:
        wrong = model(x.half()).float() - torch.tanh(x @ teacher)
        return (factor * wrong).square().mean() if broken else wrong.square().mean()

    for _ in range(80):
        loss = error(torch.randn(64, 12))
        model.zero_grad()
        (loss * scale).backward()
        if all(bool(each.grad.isfinite().all()) for each in model.parameters()):
            for master, own in zip(masters, model.parameters(), strict=True):
                master.grad = own.grad.float() / scale
            optimizer.step()
            with torch.no_grad():
                for master, own in zip(masters, model.parameters(), strict=True):
                    own.copy_(master)
        else:
            scale = max(scale / 2, 1.0)
        recorder.step(loss)
    with torch.no_grad():
        return float((model(torch.randn(512, 12).half())).float().var())
