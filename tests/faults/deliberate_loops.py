"""Sound loops that do on purpose what the newest rules name as a mistake."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches
from tests.faults.rewritten_faults import _Causal

_BF16 = torch.bfloat16


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 6))


@healthy
def forward_passes_on_weights_in_bf16_that_are_set_back(opened: Open) -> None:
    """As binary networks learn: gradients at the rounded weights, the step on the weights as they were."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        own = [each.detach().clone() for each in model.parameters()]
        with torch.no_grad():
            for each in model.parameters():
                each.copy_(each.to(_BF16).float())
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for each, before in zip(model.parameters(), own, strict=True):
                each.copy_(before)
        optimizer.step()
        recorder.step(loss)


@healthy
def weights_on_the_grid_of_bf16_with_what_was_cut_off_added_again(opened: Open) -> None:
    """An emulated BF16 weight with a compensation: each rounding is of the weight and of what earlier ones left."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    left = [torch.zeros_like(each) for each in model.parameters()]
    for x, y in batches(40):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        with torch.no_grad():
            for each, rest in zip(model.parameters(), left, strict=True):
                whole = each + rest
                each.copy_(whole.to(_BF16).float())
                rest.copy_(whole - each)


@healthy
def a_model_in_bf16_behind_master_weights_in_fp32(opened: Open) -> None:
    """The optimizer holds the FP32 copies; the model gets their rounding, and the recorder knows both."""
    model = _net().to(_BF16)
    masters = [nn.Parameter(each.detach().float()) for each in model.parameters()]
    optimizer = torch.optim.Adam(masters, 2e-3)
    recorder = opened(model, optimizer)
    for x, y in batches(40):
        loss = F.cross_entropy(model(x.to(_BF16)).float(), y)
        model.zero_grad()
        loss.backward()
        for master, each in zip(masters, model.parameters(), strict=True):
            assert each.grad is not None
            master.grad = each.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, each in zip(masters, model.parameters(), strict=True):
                each.copy_(master)
        recorder.step(loss)


@healthy
def adam_in_fp16_with_an_epsilon_that_fp16_holds(opened: Open) -> None:
    """Its second moments are zero or nearly so; the epsilon bounds the steps, which are longer than Adam's."""
    model = _net().half()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, eps=1e-4)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        loss = F.cross_entropy(model(x.half()).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


class _Repeating(nn.Module):
    """Encodes a sentence into one vector and says it again with a causal decoder that gets only that vector."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(12, 24), nn.Embedding(8, 24)
        self.squeeze, self.mix, self.out = nn.Linear(8 * 24, 48), nn.Linear(48, 72), nn.Linear(24, 12)
        self.grow = nn.Linear(48, 8 * 48)

    def forward(self, tokens: Tensor) -> Tensor:
        code = torch.tanh(self.squeeze((self.words(tokens) + self.places.weight).flatten(1)))
        q, k, v = self.mix(self.grow(code).view(-1, 8, 48))[:, None].chunk(3, -1)
        scores: Tensor = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        return scores


@healthy
def a_sentence_said_again_from_one_vector(opened: Open) -> None:
    """An autoencoder: the targets are the indices that it embeds, and its decoder is causal."""
    model = _Repeating()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(60):
        tokens = (torch.randint(12, (48, 1)) + torch.arange(8)) % 12
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def masked_words_guessed_by_a_causal_model(opened: Open) -> None:
    """The indices with holes; the targets are those before: they differ where the answer counts."""
    model = _Causal()
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    recorder = opened(model, optimizer)
    for _ in range(45):
        tokens = (torch.randint(11, (32, 1)) + torch.arange(10)) % 11
        hidden = torch.rand(tokens.shape) < 0.3
        hidden[:, 0] = False
        loss = F.cross_entropy(model(tokens.masked_fill(hidden, 11)).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def a_critic_frozen_while_all_is_trained_against_it(opened: Open) -> None:
    """One optimizer for all, another for the critic; the critic has no gradient while the body moves against it."""
    body, critic, head = nn.Sequential(nn.Linear(24, 32), nn.Tanh()), nn.Linear(32, 2), nn.Linear(32, 6)
    model = nn.ModuleList([body, critic, head])
    every = torch.optim.Adam(model.parameters(), 3e-3)
    own = torch.optim.Adam(critic.parameters(), 3e-3)
    recorder = opened(model, [every, own])
    for x, y in batches(60):
        side = (torch.rand(len(x)) < 0.5).long()
        features = body(x + side[:, None] * 0.5)
        guess = F.cross_entropy(critic(features.detach()), side)
        own.zero_grad()
        guess.backward()
        own.step()
        critic.requires_grad_(requires_grad=False)
        loss = F.cross_entropy(head(features), y) - 0.1 * F.cross_entropy(critic(features), side)
        every.zero_grad()
        loss.backward()
        every.step()
        critic.requires_grad_()
        recorder.step(loss)


@healthy
def a_shared_trunk_with_two_optimizers_in_turn(opened: Open) -> None:
    """A discriminator and a classifier over one trunk, which is in both optimizers; a generator in a third."""
    trunk, judge, head = nn.Sequential(nn.Linear(24, 32), nn.LeakyReLU(0.2)), nn.Linear(32, 1), nn.Linear(32, 6)
    maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 24))
    model = nn.ModuleList([trunk, judge, head, maker])
    first = torch.optim.Adam([*trunk.parameters(), *judge.parameters(), *head.parameters()], 1e-3, betas=(0.5, 0.99))
    second = torch.optim.Adam([*trunk.parameters(), *head.parameters()], 1e-3)
    third = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.99))
    recorder = opened(model, [first, second, third])
    for x, y in batches(60):
        fake = maker(torch.randn(len(x), 8))
        loss = F.softplus(-judge(trunk(x))).mean() + F.softplus(judge(trunk(fake.detach()))).mean()
        model.zero_grad()
        loss.backward()
        first.step()
        model.zero_grad()
        F.cross_entropy(head(trunk(x)), y).backward()
        second.step()
        model.zero_grad()
        F.softplus(-judge(trunk(fake))).mean().backward()
        third.step()
        recorder.step(loss)


@healthy
def a_body_whose_gradients_are_cleared_while_the_head_warms_up(opened: Open) -> None:
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for step, (x, y) in enumerate(batches(60)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if step < 40:
            for each in model[:4].parameters():
                if each.grad is not None:
                    each.grad.zero_()
        optimizer.step()
        recorder.step(loss)


@healthy
def words_that_are_kept_as_they_were(opened: Open) -> None:
    """All but two rows of an embedding are fixed by clearing their gradients; the optimizer has nothing else."""
    torch.manual_seed(3)
    table, head = nn.Embedding(40, 16), nn.Linear(16, 2)
    model = nn.Sequential(table, head)
    head.requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(table.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(60):
        words = torch.randint(40, (64,))
        words[::3] = torch.randint(38, 40, (22,))
        loss = F.cross_entropy(model(words), (words == 39).long(), reduction="none")[::3].mean()
        optimizer.zero_grad()
        loss.backward()
        assert table.weight.grad is not None
        table.weight.grad[:38].zero_()
        optimizer.step()
        recorder.step(loss)


@healthy
def a_penalty_on_a_large_beginning_that_leaves_what_is_needed(opened: Open) -> None:
    """Weights begin ten times too large and a penalty takes nearly all of them: two of 24 inputs say all."""
    model = nn.Linear(24, 1)
    with torch.no_grad():
        model.weight.normal_(0, 6)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    recorder = opened(model, optimizer)
    for _ in range(300):
        x = torch.randn(64, 24)
        y = x[:, :1] - 0.5 * x[:, 1:2] + 0.01 * torch.randn(64, 1)
        loss = F.mse_loss(model(x), y) + 0.05 * model.weight.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def pairs_told_apart_over_the_batch_in_both_directions(opened: Open) -> None:
    """Images and texts as CLIP matches them, written with a softmax over either dimension."""
    images, texts = nn.Linear(24, 16), nn.Linear(12, 16)
    model = nn.ModuleList([images, texts])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    together = torch.randn(24, 12)
    for x, _ in batches(60):
        scores = F.normalize(images(x), dim=1) @ F.normalize(texts(x @ together), dim=1).T / 0.1
        own = torch.arange(len(x))
        one = F.nll_loss(F.log_softmax(scores, 0), own)
        loss = 0.5 * (one + F.nll_loss(F.log_softmax(scores, 1), own))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def gradients_of_one_bit_with_feedback(opened: Open) -> None:
    """Two workers send signs times one size, and keep the rest for the next message."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    recorder = opened(model, optimizer)
    parameters = list(model.parameters())
    rests = [[torch.zeros_like(each) for each in parameters] for _ in range(2)]
    for x, y in batches(60):
        loss = F.cross_entropy(model(x), y)
        parts = [(x[:32], y[:32]), (x[32:], y[32:])]
        sent = [torch.zeros_like(each) for each in parameters]
        for rest, (own_x, own_y) in zip(rests, parts, strict=True):
            own = torch.autograd.grad(F.cross_entropy(model(own_x), own_y), parameters)
            for place, gradient in enumerate(own):
                whole = gradient + rest[place]
                size = whole.abs().mean()
                message = (whole / size.clamp_min(1e-12)).clamp(-1, 1).round() * size
                rest[place] = whole - message
                sent[place] += message / 2
        for each, gradient in zip(parameters, sent, strict=True):
            each.grad = gradient
        optimizer.step()
        recorder.step(loss)


@healthy
def most_of_each_gradient_sent_later(opened: Open) -> None:
    """The largest tenth of each gradient is sent, all others are kept and added to the next one."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer)
    rests = [torch.zeros_like(each) for each in model.parameters()]
    for x, y in batches(60):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for each, rest in zip(model.parameters(), rests, strict=True):
            assert each.grad is not None
            rest += each.grad
            bound = rest.abs().flatten().topk(max(rest.numel() // 10, 1)).values[-1]
            chosen = torch.where(rest.abs() >= bound, rest, 0.0)
            each.grad = chosen.clone()
            rest -= chosen
        optimizer.step()
        recorder.step(loss)


@healthy
def an_adam_whose_epsilon_rules(opened: Open) -> None:
    """Epsilon far above the roots of the second moments makes it a method with momentum, and the rate fits that."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 1.0, eps=10.0)
    recorder = opened(model, optimizer)
    for x, y in batches(60):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def slow_weights_that_take_over_every_fifth_step(opened: Open) -> None:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    recorder = opened(model, optimizer)
    slow = [each.detach().clone() for each in model.parameters()]
    for step, (x, y) in enumerate(batches(60), 1):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            with torch.no_grad():
                for each, before in zip(model.parameters(), slow, strict=True):
                    before.lerp_(each, 0.5)
                    each.copy_(before)
        recorder.step(loss)


@healthy
def a_teacher_in_bf16_whose_scores_are_distilled(opened: Open) -> None:
    teacher = _net()
    student = _net()
    optimizer = torch.optim.Adam(student.parameters(), 3e-3)
    frozen = copy.deepcopy(teacher).to(_BF16).requires_grad_(requires_grad=False)
    recorder = opened(student, optimizer)
    for x, _ in batches(60):
        with torch.no_grad():
            wanted = frozen(x.to(_BF16)).float().mul(4).softmax(-1)
        with torch.autocast("cpu", _BF16):
            scores = student(x)
        loss = F.kl_div(scores.float().log_softmax(-1), wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def steps_whose_gradient_is_nearly_nothing_at_the_end(opened: Open) -> None:
    """A convex problem in BF16 autocast, trained beyond the place where its gradient is rounding."""
    model = nn.Linear(24, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    recorder = opened(model, optimizer)
    x, y = batches(1)[0]
    for step in range(150):
        with torch.autocast("cpu", _BF16):
            scores = model(x)
        loss = F.cross_entropy(scores.float(), y) + 0.05 * model.weight.square().sum()
        optimizer.param_groups[0]["lr"] = 0.5 / (1 + 0.05 * step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def a_curve_matched_by_differences_of_a_fair_step(opened: Open) -> None:
    """Derivatives by central differences with a step of 0.01, in FP32."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    h = 0.01
    for _ in range(60):
        x = torch.rand(64, 1) * 4
        slope = (model(x + h) - model(x - h)) / (2 * h)
        loss = F.mse_loss(slope, torch.cos(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
