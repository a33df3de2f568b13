"""Targets shifted twice, and sound loops whose targets are other tokens than the next ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

_TOKENS, _WIDTH, _PLACES = 12, 24, 12
_NEXT = torch.tensor([5, 3, 8, 0, 11, 7, 2, 10, 1, 6, 4, 9])  # after each token, in nine of ten cases


def _text(sequences: int, places: int) -> Tensor:
    tokens = [torch.randint(_TOKENS, (sequences,))]
    for _ in range(places - 1):
        other = torch.randint(_TOKENS, (sequences,))
        tokens.append(torch.where(torch.rand(sequences) < 0.9, _NEXT[tokens[-1]], other))
    return torch.stack(tokens, 1)


class _Reader(nn.Module):
    """A model of the next token; `heads` give scores for several ones."""

    def __init__(self, heads: int = 1, *, seq_first: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(_TOKENS, _WIDTH)
        self.body = nn.GRU(_WIDTH, _WIDTH, batch_first=not seq_first)
        self.heads = nn.ModuleList(nn.Linear(_WIDTH, _TOKENS) for _ in range(heads))

    def forward(self, tokens: Tensor) -> list[Tensor]:
        hidden = self.body(self.embed(tokens))[0]
        return [head(hidden) for head in self.heads]


class _Attending(nn.Module):
    """The same with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(_TOKENS, _WIDTH), nn.Embedding(2 * _PLACES, _WIDTH)
        self.layer = nn.TransformerEncoderLayer(_WIDTH, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(_WIDTH, _TOKENS)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.embed(tokens) + self.place(torch.arange(length).expand_as(tokens))
        return [self.head(self.layer(x, src_mask=mask))]


def _learn(opened: Open, loss_of: Callable[[nn.Module, Tensor], Tensor], model: nn.Module | None = None,
           places: int = _PLACES + 1) -> None:  # fmt: skip
    model = _Reader() if model is None else model
    optimizer = torch.optim.Adam((each for each in model.parameters() if each.requires_grad), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(40):
        loss = loss_of(model, _text(24, places))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


@fault("shifted-twice", "shifted twice", "labels = input_ids")
def labels_that_the_data_shifts_and_the_model_too(opened: Open) -> None:
    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        read, labels = tokens[:, :-1], tokens[:, 1:]
        return _entropy(model(read)[0][:, :-1], labels[:, 1:])

    _learn(opened, loss_of, _Attending())


@fault("shifted-twice", "shifted twice", "labels = input_ids")
def labels_that_are_padded_and_shifted(opened: Open) -> None:
    """As in new versions of transformers: scores keep all places, and the last labels are ignored."""

    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        labels = F.pad(tokens[:, 1:], (0, 1), value=-100)[:, 1:]
        return _entropy(model(tokens[:, :-1])[0], labels)

    _learn(opened, loss_of)


@fault("shifted-twice", "shifted twice", "labels = input_ids")
def labels_shifted_twice_in_half_of_the_places(opened: Open) -> None:
    """The prompt has no labels; classes stand in the second axis."""

    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        labels = tokens[:, 1:].clone()
        labels[:, :5] = -100
        return F.cross_entropy(model(tokens[:, :-1])[0][:, :-1].transpose(1, 2), labels[:, 1:])

    _learn(opened, loss_of)


@fault("shifted-twice", "shifted twice", "labels = input_ids")
def labels_shifted_twice_where_time_comes_first(opened: Open) -> None:
    """The cross entropy is written by hand."""

    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        turned = tokens.T
        read, labels = turned[:-1], turned[1:]
        logs = model(read)[0][:-1].log_softmax(-1)
        return -logs.gather(-1, labels[1:].unsqueeze(-1)).mean()

    _learn(opened, loss_of, _Reader(seq_first=True))


@healthy
def labels_that_are_shifted_by_the_model(opened: Open) -> None:
    _learn(opened, lambda model, tokens: _entropy(model(tokens)[0][:, :-1], tokens[:, 1:]), _Attending())


@healthy
def labels_that_are_shifted_by_the_data(opened: Open) -> None:
    _learn(opened, lambda model, tokens: _entropy(model(tokens[:, :-1])[0], tokens[:, 1:]))


@healthy
def heads_for_several_next_tokens(opened: Open) -> None:
    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        outs = model(tokens)
        losses = [_entropy(out[:, : -at - 1], tokens[:, at + 1 :]) for at, out in enumerate(outs)]
        return torch.stack(losses).mean()

    _learn(opened, loss_of, _Reader(heads=3))


@healthy
def extra_heads_on_a_frozen_model(opened: Open) -> None:
    """Speculative heads begin with the token after the next one."""
    model = _Reader(heads=4)
    for name, each in model.named_parameters():
        each.requires_grad_(name.startswith(("heads.1", "heads.2")))

    def loss_of(own: nn.Module, tokens: Tensor) -> Tensor:
        outs = own(tokens)
        return _entropy(outs[1][:, :-2], tokens[:, 2:]) + _entropy(outs[2][:, :-3], tokens[:, 3:])

    _learn(opened, loss_of, model)


@healthy
def the_token_after_the_next_on_purpose(opened: Open) -> None:
    """A horizon of two places: this is told, and no problem."""
    _learn(opened, lambda model, tokens: _entropy(model(tokens[:, :-2])[0], tokens[:, 2:]), places=_PLACES + 2)


class _Named(_Reader):
    """A first place, which names the language, has no output."""

    def forward(self, tokens: Tensor) -> list[Tensor]:
        return [each[:, 1:] for each in super().forward(tokens)]


@healthy
def outputs_without_the_first_place(opened: Open) -> None:
    """Outputs begin at the second token, and learn the third one: one place on."""
    _learn(opened, lambda model, tokens: _entropy(model(tokens)[0][:, :-1], tokens[:, 2:]), _Named())


class _BothWays(nn.Module):
    """Reads what is before a token and what is behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_TOKENS, _WIDTH)
        self.body = nn.GRU(_WIDTH, _WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * _WIDTH, _TOKENS)

    def forward(self, tokens: Tensor) -> list[Tensor]:
        out = self.body(self.embed(tokens))[0]
        return [self.head(torch.cat((out[:, :-2, :_WIDTH], out[:, 2:, _WIDTH:]), -1))]


@healthy
def tokens_between_those_that_are_read(opened: Open) -> None:
    _learn(opened, lambda model, tokens: _entropy(model(tokens)[0], tokens[:, 1:-1]), _BothWays())


@healthy
def masked_tokens(opened: Open) -> None:
    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        hidden = torch.rand(tokens.shape) < 0.3
        return _entropy(model(tokens.masked_fill(hidden, 0))[0], tokens.masked_fill(~hidden, -100))

    _learn(opened, loss_of, _BothWaysWhole())


class _BothWaysWhole(_BothWays):
    def forward(self, tokens: Tensor) -> list[Tensor]:
        return [self.head(self.body(self.embed(tokens))[0])]


@healthy
def tokens_copied_two_places_later(opened: Open) -> None:
    """A memory task: the answer is what was read two places before."""

    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        return _entropy(model(tokens)[0][:, 2:], tokens[:, :-2])

    _learn(opened, loss_of)


@healthy
def sequences_of_one_token_again_and_again(opened: Open) -> None:
    """All places are alike: every shift fits."""

    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        alike = tokens[:, :1].expand_as(tokens)
        return _entropy(model(alike[:, :-1])[0], alike[:, 1:]) + 0.1 * _entropy(model(tokens[:, :-1])[0], tokens[:, 1:])

    _learn(opened, loss_of)


@healthy
def a_decoder_that_reads_targets_moved_by_one(opened: Open) -> None:
    """A translation: the decoder reads the answer behind a token for the beginning, the encoder the question."""
    model = _Reader(heads=2)

    def loss_of(own: nn.Module, tokens: Tensor) -> Tensor:
        answer = tokens.roll(-2, 1)
        read = torch.cat((torch.zeros_like(answer[:, :1]), answer[:, :-1]), 1)
        return _entropy(own(tokens)[0] + own(read)[1], answer)

    _learn(opened, loss_of, model)
