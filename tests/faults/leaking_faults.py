"""Models that see what they are to predict, parts of a loss that reach nothing, and sound loops that look like it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

LETTERS, WIDTH, LENGTH = 11, 24, 12
Words = Callable[[Tensor], tuple[Tensor, Tensor]]  # sequences to scores and targets


def _sentences(chain: Tensor, count: int = 24) -> Tensor:
    text = [torch.randint(LETTERS, (count,))]
    for _ in range(LENGTH):
        text.append(torch.multinomial(chain[text[-1]], 1)[:, 0])
    return torch.stack(text, 1)


def _speak(opened: Open, model: nn.Module, words: Words, *, steps: int = 135) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder, chain = opened(model, optimizer), torch.softmax(2 * torch.randn(LETTERS, LETTERS), 1)
    for _ in range(steps):
        scores, targets = words(_sentences(chain))
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


class _Attention(nn.Module):
    """Heads by hand: softmax of products, with a mask or without."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH + 1, WIDTH)
        self.both, self.back = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        h = self.letters(x) + self.places(torch.arange(length))
        q, k, v = self.both(self.norm(h)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / WIDTH**0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        out: Tensor = self.head(h + self.back(scores.softmax(-1) @ v))
        return out


@fault("reads-ahead", "no causal mask", "is_causal=True")
def heads_without_a_mask(opened: Open) -> None:
    model = _Attention(causal=False)
    _speak(opened, model, lambda text: (model(text[:, :-1]), text[:, 1:]))


@fault("reads-ahead", "no causal mask", "is_causal=True")
def heads_without_a_mask_and_positions_first(opened: Open) -> None:
    """The loop pads the targets of the last position, and gives the loss an axis of classes in the middle."""
    model = _Attention(causal=False)

    def words(text: Tensor) -> tuple[Tensor, Tensor]:
        targets = F.pad(text[:, 1:], (0, 1), value=-100)
        return model(text).transpose(0, 1), targets.t()

    _speak(opened, model, words)


@healthy
def heads_with_a_mask(opened: Open) -> None:
    model = _Attention(causal=True)
    _speak(opened, model, lambda text: (model(text[:, :-1]), text[:, 1:]))


class _Window(nn.Module):
    """A convolution over three letters, of which the last one is the present or the next one."""

    def __init__(self, *, causal: bool, normed: bool = False) -> None:
        super().__init__()
        self.letters, self.causal = nn.Embedding(LETTERS, WIDTH), causal
        self.mix, self.head = nn.Conv1d(WIDTH, WIDTH, 3), nn.Conv1d(WIDTH, LETTERS, 1)
        self.norm = nn.BatchNorm1d(WIDTH) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.pad(self.letters(x).transpose(1, 2), (2, 0) if self.causal else (1, 1))
        out: Tensor = self.head(torch.relu(self.norm(self.mix(h)))).transpose(1, 2)
        return out


@fault("reads-ahead", "no causal mask", "convolutions")
def a_convolution_padded_on_both_sides(opened: Open) -> None:
    """The loop shifts the outputs, not the inputs."""
    model = _Window(causal=False)
    _speak(opened, model, lambda text: (model(text)[:, :-1], text[:, 1:]))


@healthy
def a_convolution_padded_before_and_normed_over_the_batch(opened: Open) -> None:
    """Statistics of the batch know a little of what comes later."""
    model = _Window(causal=True, normed=True)
    _speak(opened, model, lambda text: (model(text)[:, :-1], text[:, 1:]))


class _Summary(nn.Module):
    """An autoencoder: one vector knows all of the text, and the decoder reads the embedding that the encoder has."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.decoder, self.head = nn.GRU(3 * WIDTH, 2 * WIDTH, batch_first=True), nn.Linear(2 * WIDTH, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.letters(x)
        summary = torch.cat(tuple(self.encoder(h)[1]), 1)
        given = torch.cat((h[:, :-1], summary[:, None].expand(-1, LENGTH, -1)), 2)
        out: Tensor = self.head(self.decoder(given)[0])
        return out


@healthy
def an_autoencoder_of_text(opened: Open) -> None:
    model = _Summary()
    _speak(opened, model, lambda text: (model(text), text[:, 1:]))


class _Translator(nn.Module):
    """An encoder that reads in both directions, and a decoder with a mask, with one table of letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH + 1, WIDTH)
        self.layers = nn.Transformer(WIDTH, 2, 1, 1, 2 * WIDTH, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, LETTERS)

    def _read(self, x: Tensor) -> Tensor:
        out: Tensor = self.letters(x) + self.places(torch.arange(x.shape[1]))
        return out

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        out: Tensor = self.head(self.layers(self._read(source), self._read(target), tgt_mask=mask, tgt_is_causal=True))
        return out


@healthy
def a_text_that_is_copied_by_an_encoder_and_a_decoder(opened: Open) -> None:
    """Both read the same letters: the encoder is meant to see all of them."""
    model = _Translator()
    _speak(opened, model, lambda text: (model(text, text[:, :-1]), text[:, 1:]))


@healthy
def gaps_that_both_sides_tell(opened: Open) -> None:
    """Each position predicts the next letter from all others, that one hidden from it."""
    letters, mix, head = nn.Embedding(LETTERS, WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, LETTERS)
    model = nn.ModuleList([letters, mix, head])

    def words(text: Tensor) -> tuple[Tensor, Tensor]:
        h = letters(text)
        sides = torch.cat((h[:, :-3], h[:, 1:-2], h[:, 3:], h[:, 3:] * h[:, 1:-2]), 2)
        return head(torch.relu(mix(sides))), torch.where(torch.arange(LENGTH) < LENGTH - 2, text[:, 1:], -100)[:, 1:-1]

    _speak(opened, model, words)


NOISE, SIZE = 3, 2
Maker = Callable[[nn.Module, nn.Module, Tensor, Tensor], Tensor]  # generator, discriminator, fake, real to its loss


def _ring(count: int) -> Tensor:
    angle = 6.3 * torch.rand(count)
    return torch.stack((angle.cos(), angle.sin()), 1) + 0.05 * torch.randn(count, 2)


def _real(scores: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))


def _made_up(scores: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.zeros_like(scores))


def _imitate(opened: Open, maker: Maker, *, maker_first: bool = False, steps: int = 60) -> None:
    generator = nn.Sequential(nn.Linear(NOISE, 24), nn.ReLU(), nn.Linear(24, SIZE))
    discriminator = nn.Sequential(nn.Linear(SIZE, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizers = [torch.optim.Adam(each.parameters(), 2e-3) for each in (generator, discriminator)]
    recorder = opened(nn.ModuleDict({"generator": generator, "discriminator": discriminator}), optimizers)
    for _ in range(steps):
        real, fake = _ring(48), generator(torch.randn(48, NOISE))

        def make(real: Tensor = real, fake: Tensor = fake) -> Tensor:
            loss = maker(generator, discriminator, fake, real)
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            return loss

        loss = make() if maker_first else real
        judged = _real(discriminator(real)) + _made_up(discriminator(fake.detach()))
        optimizers[1].zero_grad()
        judged.backward()
        optimizers[1].step()
        recorder.step((loss if maker_first else make()).detach())


def _distance(fake: Tensor, real: Tensor) -> Tensor:
    return (fake.mean(0) - real.mean(0)).square().sum() + (fake.std(0) - real.std(0)).square().sum()


@fault("unused-terms", "reaches none of the parameters", "detach()")
def a_picture_that_is_detached_for_its_maker(opened: Open) -> None:
    _imitate(opened, lambda g, d, fake, real: _real(d(fake.detach())) + 0.5 * _distance(fake, real))


@fault("unused-terms", "reaches none of the parameters", "detach()")
def a_picture_of_no_grad_in_a_list_of_losses(opened: Open) -> None:
    """The generator steps first, and its losses are stacked."""

    def maker(g: nn.Module, d: nn.Module, fake: Tensor, real: Tensor) -> Tensor:
        with torch.no_grad():
            again = g(torch.randn(48, NOISE))
        return torch.stack([_real(d(again)), 5 * _distance(fake, real)]).sum() / 2

    _imitate(opened, maker, maker_first=True)


@healthy
def a_picture_that_its_maker_learns_from(opened: Open) -> None:
    _imitate(opened, lambda g, d, fake, real: _real(d(fake)) + 0.5 * _distance(fake, real))


@healthy
def a_maker_that_its_judge_helps_with_features(opened: Open) -> None:
    """Features of real pictures are a constant for the generator."""

    def maker(g: nn.Module, d: nn.Module, fake: Tensor, real: Tensor) -> Tensor:
        assert isinstance(d, nn.Sequential)
        features = (d[:2](fake).mean(0) - d[:2](real).mean(0).detach()).square().mean()
        return _real(d(fake)) + features + 0.1 * _distance(fake, real)

    _imitate(opened, maker, maker_first=True)


def _pair() -> tuple[nn.Module, nn.Module, list[torch.optim.Optimizer]]:
    first, second = nn.Linear(8, 6), nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    return first, second, [torch.optim.Adam(each.parameters(), 3e-3) for each in (first, second)]


@healthy
def two_losses_in_one_pass_for_two_optimizers(opened: Open) -> None:
    first, second, optimizers = _pair()
    recorder, w = opened(nn.ModuleList([first, second]), optimizers), torch.randn(8)
    for _ in range(60):
        x = torch.randn(32, 8)
        h = first(x)
        loss = F.mse_loss(h[:, 0], x @ w) + F.mse_loss(second(h.detach())[:, 0], (x @ w).sin())
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
        recorder.step(loss)


@healthy
def one_loss_descended_by_two_optimizers_in_turn(opened: Open) -> None:
    """Each pass has the loss of both, and a part that knows one of them only."""
    first, second, optimizers = _pair()
    recorder, w = opened(nn.ModuleList([first, second]), optimizers), torch.randn(8)
    for _ in range(60):
        x = torch.randn(32, 8)
        for each in optimizers:
            h = first(x)
            own, other = F.mse_loss(h[:, 1], x @ w), F.mse_loss(second(torch.ones(4, 6)).mean(), torch.zeros(()))
            loss = F.mse_loss(second(h)[:, 0], (x @ w).sin()) + 0.1 * own + 0.1 * other
            for every in optimizers:
                every.zero_grad()
            loss.backward()
            each.step()
        recorder.step(loss)


@healthy
def phases_that_alternate(opened: Open) -> None:
    """The losses of both are always added up, and one optimizer steps in even steps, the other one in odd ones."""
    first, second, optimizers = _pair()
    recorder, w = opened(nn.ModuleList([first, second]), optimizers), torch.randn(8)
    for step in range(60):
        x = torch.randn(32, 8)
        h = first(x)
        loss = F.mse_loss(h[:, 0], x @ w) + F.mse_loss(second(h.detach())[:, 0], (x @ w).sin())
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        optimizers[step % 2].step()
        recorder.step(loss)


@healthy
def a_judge_that_steps_in_every_fourth_step(opened: Open) -> None:
    """Its gradients add up until then."""
    first, second, optimizers = _pair()
    recorder, w = opened(nn.ModuleList([first, second]), optimizers), torch.randn(8)
    for step in range(60):
        x = torch.randn(32, 8)
        h = first(x)
        loss = F.mse_loss(h[:, 0], x @ w) + F.mse_loss(second(h.detach())[:, 0], (x @ w).sin()) / 4
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        if step % 4 == 3:
            optimizers[1].step()
            optimizers[1].zero_grad()
        recorder.step(loss)


Ratio = Callable[[Tensor, Tensor], Tensor]  # logarithms of the new and the old policy to what is clipped


def _improve(opened: Open, ratio: Ratio, *, continuous: bool = False, steps: int = 48) -> None:
    """Proximal policy optimisation of a bandit with a context; values are clipped, too."""
    policy, values = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3)), nn.Linear(6, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *values.parameters()], 3e-3)
    recorder, best = opened(nn.ModuleList([policy, values]), optimizer), torch.randn(6, 3)

    def of(x: Tensor) -> torch.distributions.Distribution:
        out = policy(x)
        return torch.distributions.Normal(out, 0.5) if continuous else torch.distributions.Categorical(logits=out)

    for step in range(steps):
        if step % 4 == 0:
            with torch.no_grad():
                x = torch.randn(128, 6)
                actions, before = of(x).sample(), values(x)[:, 0]
                old = of(x).log_prob(actions)
                wanted = x @ best
                rewards = (
                    -(actions - wanted).square().mean(1) if continuous else wanted.gather(1, actions[:, None])[:, 0]
                )
                gain = (rewards - before - (rewards - before).mean()) / (rewards - before).std()
        new = of(x).log_prob(actions)
        r = ratio(new.sum(1), old.sum(1)) if continuous else ratio(new, old)
        surrogate = torch.minimum(r * gain, r.clamp(0.8, 1.2) * gain).mean()
        now = values(x)[:, 0]
        near = before + (now - before).clamp(-0.2, 0.2)
        loss = -surrogate + 0.5 * torch.maximum((now - rewards).square(), (near - rewards).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("policy-ratio", "not its exponential", "torch.exp")
def a_ratio_without_its_exponential(opened: Open) -> None:
    _improve(opened, lambda new, old: new - old)


@fault("policy-ratio", "to itself", "detach")
def a_ratio_of_a_policy_to_itself(opened: Open) -> None:
    _improve(opened, lambda new, old: torch.exp(new - new.clone()))


@healthy
def a_ratio_to_the_same_policy_without_its_gradient(opened: Open) -> None:
    """One update for each batch: the ratio is 1, and its derivative that of the new logarithm."""
    _improve(opened, lambda new, old: torch.exp(new - new.detach()))


@healthy
def a_ratio_of_the_new_and_the_old_policy(opened: Open) -> None:
    _improve(opened, lambda new, old: torch.exp(new - old))


@healthy
def a_ratio_of_negative_logarithms(opened: Open) -> None:
    """Entropies of codes: the negative logarithms of both, the old one minus the new one."""
    _improve(opened, lambda new, old: torch.exp(-old - -new), continuous=True)


@healthy
def a_gain_that_stays_near_one(opened: Open) -> None:
    """Deviations of a layer's output from a template, kept between a half and three halves, most of them inside."""
    model, template = nn.Linear(6, 6), torch.randn(64, 6) - 1
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(40):
        x = template + 1 + 0.2 * torch.randn(64, 6)
        gain = (model(x) - template).clamp(0.5, 1.5)
        loss = (gain * x - x).square().mean() + F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
