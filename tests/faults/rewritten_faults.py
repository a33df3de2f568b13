"""Loops that round between two steps, cancel digits of FP32, or learn to repeat, and sound ones that look like them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches

Write = Callable[[nn.Sequential, int], None]  # the model, the step that is over


def _net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 6)).to(dtype)


def _train(opened: Open, write: Write, model: nn.Sequential | None = None, rate: float = 2e-4, steps: int = 12) -> None:
    """Adam; after each recorded step something writes weights."""
    model = model or _net()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    recorder = opened(model, optimizer)
    dtype = model[0].weight.dtype
    for step, (x, y) in enumerate(batches(steps), 1):
        loss = F.cross_entropy(model(x.to(dtype)).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        write(model, step)


def _validated(model: nn.Module, dtype: torch.dtype) -> None:
    x, _ = batches(1)[0]
    with torch.no_grad():
        model(x.to(dtype))


@fault("rewritten-weights", "rounded to BF16 between steps", "Validate with a copy", True)
def validated_in_bf16_and_back(opened: Open) -> None:
    def write(model: nn.Sequential, step: int) -> None:
        if step % 2 == 0:
            _validated(model.bfloat16(), torch.bfloat16)
            model.float()

    _train(opened, write)


@fault("rewritten-weights", "rounded to FP16 between steps", "Validate with a copy", True)
def weights_kept_in_fp16_every_third_step(opened: Open) -> None:
    """In none of the steps of fixed numbers but one, and in place."""

    @torch.no_grad()
    def write(model: nn.Sequential, step: int) -> None:
        for each in model.parameters() if step % 3 == 1 else ():
            each.copy_(each.half())

    _train(opened, write, rate=2e-6, steps=24)


@healthy
def validated_with_a_copy_in_bf16(opened: Open) -> None:
    _train(opened, lambda model, step: _validated(copy.deepcopy(model).bfloat16(), torch.bfloat16))


@healthy
def averages_swapped_in_for_a_validation_in_bf16(opened: Open) -> None:
    averages: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def write(model: nn.Sequential, step: int) -> None:
        own = {name: each.clone() for name, each in model.state_dict().items()}
        for name, each in own.items():
            averages[name] = averages.get(name, each).lerp(each, 0.1)
        model.load_state_dict(averages)
        _validated(model.bfloat16(), torch.bfloat16)
        model.float().load_state_dict(own)

    _train(opened, write)


@healthy
def set_back_to_a_checkpoint_in_bf16(opened: Open) -> None:
    saved: dict[str, torch.Tensor] = {}

    def write(model: nn.Sequential, step: int) -> None:
        if step in (1, 5):
            saved.update({name: each.bfloat16() for name, each in model.state_dict().items()})
        if step in (3, 8, 9):
            model.load_state_dict(saved)

    _train(opened, write)


@healthy
def weights_rounded_stochastically_between_steps(opened: Open) -> None:
    @torch.no_grad()
    def write(model: nn.Sequential, step: int) -> None:
        for each in model.parameters():
            bits = each.view(torch.int32)
            each.copy_((bits + torch.randint_like(bits, 1 << 16) & -65536).view(torch.float32))

    _train(opened, write, rate=1e-2)


@healthy
def large_updates_of_weights_rounded_once_in_a_while(opened: Open) -> None:
    """Rounding is small beside what a step changes."""

    def write(model: nn.Sequential, step: int) -> None:
        if step in (2, 8):
            model.half().float()

    _train(opened, write, rate=2e-2)


def _resumed(opened: Open, stored: torch.dtype, weight: float, eps: float = 1e-8, every: int = 6) -> None:
    """A state that goes through a file in another format every few steps; the loss has a weight."""
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, eps=eps)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(20), 1):
        loss = weight * F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        if step % every == 0:
            state = copy.deepcopy(optimizer.state_dict())
            for own in state["state"].values():
                own.update({name: each.to(stored) for name, each in own.items() if each.dim()})
            optimizer.load_state_dict(state)


@fault("moments-underflow", "rounded to FP16 between steps", "in FP32 or BF16", True)
def state_saved_in_fp16(opened: Open) -> None:
    _resumed(opened, torch.float16, 1e-3)


@healthy
def state_saved_in_bf16(opened: Open) -> None:
    _resumed(opened, torch.bfloat16, 1e-3)


@healthy
def state_saved_in_fp16_whose_squares_fit(opened: Open) -> None:
    _resumed(opened, torch.float16, 30.0)


@healthy
def state_saved_in_fp16_beside_a_larger_epsilon(opened: Open) -> None:
    _resumed(opened, torch.float16, 1e-3, eps=1e-2)


@healthy
def state_of_a_chosen_part_begun_anew(opened: Open) -> None:
    """Second moments are set to zero on purpose, with their first ones left."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(14), 1):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        for own in optimizer.state.values() if step == 7 else ():
            own["exp_avg_sq"].zero_()


def _bent(opened: Open, h: float) -> None:
    """A network whose second derivative is to be a given one, by central differences."""
    model = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    with torch.no_grad():
        model[0].weight.mul_(2)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(3):
        x = 2 * torch.rand(64, 1)
        bend = (model(x + h) - 2 * model(x) + model(x - h)) / h**2
        loss = (bend + 9 * torch.sin(3 * x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("inexact-step", "in FP32 at", "larger step of the difference", True)
def second_differences_with_a_small_step(opened: Open) -> None:
    _bent(opened, 2e-4)


@healthy
def second_differences_with_a_larger_step(opened: Open) -> None:
    _bent(opened, 0.05)


@healthy
def all_is_learnt_before_the_first_step(opened: Open) -> None:
    """The gradients are nothing but rounding."""
    x = torch.randn(64, 24)
    model = nn.Linear(24, 6)
    right = (x.double() @ model.weight.double().T + model.bias.double()).float().detach()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for _ in range(3):
        loss = (model(x) - right).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


Code = Callable[[Tensor, Tensor], Tensor]  # of all gradients one after another, with what the messages before left out


def _exchanged(opened: Open, code: Code) -> None:
    """Two halves of a batch send their gradients as one message each, which are averaged."""
    model, scores = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 6)), nn.Linear(24, 1)
    both = nn.ModuleList([model, scores])
    weights = list(both.parameters())
    optimizer = torch.optim.Adam(weights, 1e-3)
    recorder = opened(both, optimizer)
    left = [torch.zeros(sum(each.numel() for each in weights)) for _ in range(2)]
    for x, y in batches(9):
        messages, losses = [], []
        for half in range(2):
            optimizer.zero_grad()
            own = x[half::2]
            size = (300 * own[:, 0] - scores(own)[:, 0]).square().mean()
            loss = F.cross_entropy(model(own), y[half::2]) + size
            loss.backward()
            messages.append(code(torch.cat([each.grad.flatten() for each in weights]), left[half]))
            losses.append(loss.detach())
        mean = sum(messages) / 2
        for each, part in zip(weights, mean.split([each.numel() for each in weights]), strict=True):
            each.grad = part.view_as(each).clone()
        optimizer.step()
        recorder.step(sum(losses) / 2)


def _eight_bits(values: Tensor) -> Tensor:
    scale = values.abs().max() / 127
    return (values / scale).round().to(torch.int8).float() * scale


@fault("rounded-gradients", "to zeros before the step", "scale of its own", True)
def messages_of_eight_bits_with_one_scale(opened: Open) -> None:
    _exchanged(opened, lambda values, left: _eight_bits(values))


@healthy
def messages_of_eight_bits_with_feedback(opened: Open) -> None:
    def code(values: Tensor, left: Tensor) -> Tensor:
        coded = _eight_bits(values + left)
        left += values - coded
        return coded

    _exchanged(opened, code)


@healthy
def messages_in_fp32(opened: Open) -> None:
    _exchanged(opened, lambda values, left: values)


class _Causal(nn.Module):
    def __init__(self, *, causal: bool = True) -> None:
        super().__init__()
        self.words, self.places, self.causal = nn.Embedding(12, 16), nn.Embedding(16, 16), causal
        self.mix, self.out = nn.Linear(16, 48), nn.Linear(16, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        h = self.words(tokens) + 0.1 * self.places(places)
        q, k, v = self.mix(h)[:, None].chunk(3, -1)
        scores: Tensor = self.out(h + F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)[:, 0])
        return scores


def _speak(opened: Open, shift: int, *, causal: bool = True) -> None:
    """Each token is most often followed by the next one."""
    model = _Causal(causal=causal)
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    recorder = opened(model, optimizer)
    for _ in range(45):
        tokens = (torch.randint(12, (32, 1)) + torch.arange(11)) % 12
        loss = F.cross_entropy(model(tokens[:, :10]).flatten(0, 1), tokens[:, shift : shift + 10].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("unshifted-targets", "not shifted by one", "tokens[:, 1:]")
def targets_that_are_the_inputs(opened: Open) -> None:
    _speak(opened, 0)


@healthy
def targets_shifted_by_one(opened: Open) -> None:
    _speak(opened, 1)


@healthy
def inputs_repeated_by_a_model_that_is_not_causal(opened: Open) -> None:
    _speak(opened, 0, causal=False)


@healthy
def losses_of_samples_in_one_backward_pass(opened: Open) -> None:
    """The backward pass begins with a number for each sample."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(9):
        losses = F.cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad()
        losses.backward(torch.ones_like(losses))
        optimizer.step()
        recorder.step(losses.detach().sum())


def _prototypes(opened: Open, offset: float, dtype: torch.dtype) -> None:
    """Classes by the distance to the mean of five samples each, |a|^2 + |b|^2 - 2 a b."""
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    recorder = opened(model, optimizer)
    centers = 2 * torch.randn(4, 12)
    for _ in range(10):
        x = centers[:, None] + 2 * torch.randn(4, 11, 12)
        with torch.autocast("cpu", torch.bfloat16):
            code = model(x).float() + offset
            p, z = code[:, :5].mean(1).to(dtype), code[:, 5:].flatten(0, 1).to(dtype)
            far = z.square().sum(1)[:, None] + p.square().sum(1) - 2 * (z @ p.T)
        loss = F.cross_entropy(-far.float(), torch.arange(4).repeat_interleave(6))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("inexact-step", "nearly equal numbers are subtracted in BF16", "Subtract before rounding", True)
def distances_of_far_codes_in_bf16(opened: Open) -> None:
    _prototypes(opened, 12.0, torch.bfloat16)


@healthy
def distances_of_near_codes_in_bf16(opened: Open) -> None:
    _prototypes(opened, 0.0, torch.bfloat16)


def _returns(opened: Open, dtype: torch.dtype, decay: float) -> None:
    """The targets are discounted sums of rewards, added up one by one from the end."""
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(10):
        rewards = 0.5 + 0.1 * torch.randn(16, 200)
        with torch.autocast("cpu", torch.bfloat16):
            value = model(torch.stack([rewards, torch.arange(200).expand(16, 200) / 200], -1))[..., 0]
        goal, total = [], torch.zeros(16, dtype=dtype)
        for each in rewards.to(dtype).unbind(1)[::-1]:
            total = each + torch.tensor(decay).to(dtype) * total
            goal.append(total)
        loss = (value.float() - torch.stack(goal[::-1], 1).float() / 40).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("inexact-step", "numbers one by one in BF16", "Add in FP32", True)
def returns_added_up_in_bf16(opened: Open) -> None:
    _returns(opened, torch.bfloat16, 0.998)


@healthy
def returns_added_up_in_fp32(opened: Open) -> None:
    _returns(opened, torch.float32, 0.998)
