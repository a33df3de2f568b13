"""Healthy training loops of unusual kinds: optimizers, losses, schedules and data that look like trouble."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.faults.published_faults import Open, batches, blobs, network

Loop = Callable[[Open], None]
UNUSUAL: dict[str, Loop] = {}


def _unusual(loop: Loop) -> Loop:
    UNUSUAL[loop.__name__] = loop
    return loop


@_unusual
def master_weights_by_hand(opened: Open) -> None:
    """The optimizer holds FP32 copies; gradients of the FP16 model are divided and copied (pytorch/examples#203)."""
    model = network().half()
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    for x, y in batches(120):
        model.zero_grad()
        loss = F.cross_entropy(model(x.half()).float(), y)
        (loss * 128).backward()
        for master, own in zip(masters, model.parameters(), strict=True):
            master.grad = own.grad.float() / 128
        optimizer.step()
        with torch.no_grad():
            for master, own in zip(masters, model.parameters(), strict=True):
                own.copy_(master)
        recorder.step(loss)


@_unusual
def gradient_penalty(opened: Open) -> None:
    """A critic with a penalty on the gradient of its input: derivatives of derivatives."""
    maker, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1))
    ours, theirs = torch.optim.Adam(maker.parameters(), 2e-3), torch.optim.Adam(critic.parameters(), 2e-3)
    recorder = opened(nn.ModuleDict({"maker": maker, "critic": critic}), [ours, theirs])
    for _ in range(150):
        real, fake = torch.randn(64, 2) + 3, maker(torch.randn(64, 4)).detach()
        between = (real + torch.rand(64, 1) * (fake - real)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        ours.zero_grad()
        (-critic(maker(torch.randn(64, 4))).mean()).backward()
        ours.step()
        recorder.step(loss)


@_unusual
def sharpness_aware_minimisation(opened: Open) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    for x, y in batches(100):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moved = [0.05 * p.grad / norm for p in model.parameters()]
            torch._foreach_add_(list(model.parameters()), moved)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moved)
        optimizer.step()
        recorder.step(loss)


@_unusual
def quasi_newton_with_a_closure(opened: Open) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4)
    recorder = opened(model, optimizer)
    x, y = blobs(256)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(25):
        recorder.step(optimizer.step(closure))


@_unusual
def policy_gradient_with_noisy_returns(opened: Open) -> None:
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    recorder = opened(policy, optimizer)
    for _ in range(250):
        state = torch.randn(32, 4)
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        reward = (action == state[:, :3].argmax(1)).float() * 10 + 20 * torch.randn(32)
        advantage = reward - reward.mean()
        loss = -(choice.log_prob(action) * advantage).mean() - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_unusual
def layers_unfrozen_one_after_another(opened: Open) -> None:
    model = network()
    model.requires_grad_(False)
    model[4].requires_grad_(True)
    optimizer = torch.optim.AdamW(model[4].parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(150)):
        if step in (50, 100):
            layer = model[2] if step == 50 else model[0]
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-3})
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_unusual
def harder_data_later(opened: Open) -> None:
    """Classes come in one after another: the loss rises whenever the task grows."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(240)):
        known = y < 2 + step // 60
        loss = F.cross_entropy(model(x[known]), y[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_unusual
def warm_restarts(opened: Open) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.4, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40)
    recorder = opened(model, optimizer)
    for x, y in batches(160):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        recorder.step(loss)


def _scaled(opened: Open, clip: float, growth: int, scale: float, steps: int) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)


UNUSUAL |= {
    "clip_that_always_acts": lambda opened: _scaled(opened, 0.02, 2000, 2.0**10, 150),
    "scale_that_probes_every_twenty_steps": lambda opened: _scaled(opened, 0.0, 20, 2.0**16, 300),
}


@_unusual
def labels_that_cannot_be_learned(opened: Open) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    recorder = opened(model, optimizer)
    for x, _ in batches(150):
        loss = F.cross_entropy(model(x), torch.randint(6, (len(x),)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


class _Dropped(nn.Module):
    """A residual block that is left out in half of the steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.scale = nn.Parameter(1e-6 * torch.ones(width))  # LayerScale

    def forward(self, x: Tensor) -> Tensor:
        kept = (torch.rand(()) < 0.5).to(x.dtype) if self.training else 0.5
        return x + self.scale * self.body(x) * kept


@_unusual
def stochastic_depth_with_layer_scale(opened: Open) -> None:
    model = nn.Sequential(nn.Linear(24, 32), _Dropped(32), _Dropped(32), _Dropped(32), nn.Linear(32, 6))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(150):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_unusual
def sparse_gradients_of_rare_words(opened: Open) -> None:
    embed, head = nn.Embedding(500, 16, sparse=True), nn.Linear(16, 2)
    model = nn.Sequential(embed, head)
    ours, theirs = torch.optim.SparseAdam(embed.parameters(), 1e-2), torch.optim.Adam(head.parameters(), 1e-2)
    recorder = opened(model, [ours, theirs])
    for _ in range(150):
        words = (500 * torch.rand(32) ** 4).long()
        loss = F.cross_entropy(model(words), words % 2)
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        loss.backward()
        ours.step()
        theirs.step()
        recorder.step(loss)


@_unusual
def denoiser_with_weighted_noise_levels(opened: Open) -> None:
    """Losses of one step may be a thousand times those of the next; the average of weights is in FP32."""
    model = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 2))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    recorder = opened(model, optimizer, None, average)
    for _ in range(250):
        level = torch.exp(2.5 * torch.randn(1))
        angle = 6.28 * torch.rand(64, 1)
        clean = torch.cat((angle.cos(), angle.sin()), 1)
        noise = torch.randn(64, 2)
        noisy = torch.cat((clean + level * noise, level.log().expand(64, 1)), 1)
        loss = (model(noisy) - noise).square().mean() / level.clamp(1e-3) ** 2
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for kept, own in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(own, 0.002)
        recorder.step(loss)


@_unusual
def checkpointing_and_accumulation_in_bf16(opened: Open) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(100, 64):
        optimizer.zero_grad()
        total = 0.0
        for inputs, labels in zip(x.chunk(8), y.chunk(8), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                hidden = checkpoint(model[:2], inputs.requires_grad_(), use_reentrant=False)
                loss = F.cross_entropy(model[2:](hidden).float(), labels) / 8
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        recorder.step(total)


class _Gaps(nn.Module):
    """Missing values come as NaN and leave as the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(24))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.isnan(), self.mean, x)


@_unusual
def missing_values_as_nan(opened: Open) -> None:
    model = nn.Sequential(_Gaps(), network())
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(120):
        loss = F.cross_entropy(model(torch.where(torch.rand_like(x) < 0.1, math.nan, x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_unusual
def contrast_with_a_learned_temperature(opened: Open) -> None:
    image, text = nn.Linear(24, 16), nn.Linear(24, 16)
    model = nn.ModuleDict({"image": image, "text": text})
    model.register_parameter("logit_scale", nn.Parameter(torch.tensor(math.log(1 / 0.07))))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for x, _ in batches(150):
        left = F.normalize(image(x + 0.3 * torch.randn_like(x)), dim=1)
        right = F.normalize(text(x + 0.3 * torch.randn_like(x)), dim=1)
        logits = model.logit_scale.exp().clamp(max=100) * left @ right.T
        places = torch.arange(len(x))
        loss = (F.cross_entropy(logits, places) + F.cross_entropy(logits.T, places)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_unusual
def rate_from_zero_to_zero(opened: Open) -> None:
    """The first step and the last twenty have a rate of exactly 0."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(150)):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(step / 20, 1) * max(1 - step / 130, 0)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_unusual
def triplets_that_are_mostly_easy(opened: Open) -> None:
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(200, 24):
        z = model(x)
        other = torch.randperm(len(x))
        positive = torch.stack([(y == label).nonzero()[0, 0] for label in y])
        loss = F.triplet_margin_loss(z, z[positive], z[other], margin=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@_unusual
def learning_to_learn(opened: Open) -> None:
    """An inner step inside each outer one, through functional calls."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    for _ in range(120):
        phase, x = 6.28 * torch.rand(()), 6 * torch.rand(20, 1) - 3
        y = torch.sin(x + phase)
        own = dict(model.named_parameters())
        inner = F.mse_loss(torch.func.functional_call(model, own, (x[:10],)), y[:10])
        slopes = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        fast = {name: p - 0.05 * g for (name, p), g in zip(own.items(), slopes, strict=True)}
        loss = F.mse_loss(torch.func.functional_call(model, fast, (x[10:],)), y[10:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
