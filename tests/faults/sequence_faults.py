"""Recurrent layers and attentions along the samples of a batch, and sound models that take places of their results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

SAMPLES, LENGTH, WIDTH, CLASSES = 24, 10, 12, 3
Read = Callable[[Tensor], Tensor]  # [batch, steps, 1] to scores
_ALONG_SAMPLES = "runs along the samples of the batch", "batch_first=True"


def _signals() -> tuple[Tensor, Tensor]:
    """Noise with pulses, and how many there are."""
    number = torch.randint(CLASSES, (SAMPLES,))
    places = torch.rand(SAMPLES, LENGTH).argsort(1)
    return 0.2 * torch.randn(SAMPLES, LENGTH, 1) + 2.0 * (places < number[:, None])[..., None], number


class _Reader(nn.Module):
    def __init__(self, parts: dict[str, nn.Module], read: Callable[[_Reader, Tensor], Tensor]) -> None:
        super().__init__()
        self.parts, self.read = nn.ModuleDict(parts), read
        self.stem, self.head = nn.Linear(1, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self, self.stem(x))

    def run(self, name: str, *args: Tensor) -> Tensor:
        """The sequence that a part returns."""
        out = self.parts[name](*args)
        sequence: Tensor = out[0] if isinstance(out, tuple) else out
        return sequence


def _count(opened: Open, model: nn.Module, steps: int = 12, *, time_first: bool = False) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        x, y = _signals()
        loss = F.cross_entropy(model(x.transpose(0, 1) if time_first else x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _layer(batch_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=batch_first)


@fault("sequence-axis", *_ALONG_SAMPLES)
def lstm_without_batch_first(opened: Open) -> None:
    parts = {"lstm": nn.LSTM(WIDTH, WIDTH, 2)}
    _count(opened, _Reader(parts, lambda own, x: own.head(own.run("lstm", x)[:, -1, :])))


@fault("sequence-axis", *_ALONG_SAMPLES)
def rnn_whose_scores_are_picked(opened: Open) -> None:
    parts = {"rnn": nn.RNN(WIDTH, WIDTH), "norm": nn.LayerNorm(WIDTH), "drop": nn.Dropout(0.1)}
    read = lambda own, x: own.head(own.run("drop", own.run("norm", own.run("rnn", x))))[:, -1]  # noqa: E731
    _count(opened, _Reader(parts, read))


@fault("sequence-axis", *_ALONG_SAMPLES)
def gru_with_batch_first_of_steps_first(opened: Open) -> None:
    parts = {"gru": nn.GRU(WIDTH, WIDTH, batch_first=True)}
    _count(opened, _Reader(parts, lambda own, x: own.head(own.run("gru", x)[-1].relu())), time_first=True)


@fault("sequence-axis", *_ALONG_SAMPLES)
def encoder_without_batch_first(opened: Open) -> None:
    parts = {"one": _layer(False), "two": _layer(False)}
    _count(opened, _Reader(parts, lambda own, x: own.head(own.run("two", own.run("one", x))[:, 0])))


@fault("sequence-axis", *_ALONG_SAMPLES)
def blocks_without_batch_first(opened: Open) -> None:
    parts: dict[str, nn.Module] = {"norm": nn.LayerNorm(WIDTH), "mix": nn.Linear(WIDTH, WIDTH)}
    parts |= {name: nn.MultiheadAttention(WIDTH, 2) for name in ("one", "two")}

    def read(own: _Reader, x: Tensor) -> Tensor:
        for name in ("one", "two"):
            h = own.run("norm", x)
            x = x + own.run(name, h, h, h)
            x = x + own.run("mix", x).relu()
        return own.head(own.run("norm", x)[:, -1])

    _count(opened, _Reader(parts, read))


@healthy
def lstm_with_batch_first(opened: Open) -> None:
    parts = {"lstm": nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)}
    _count(opened, _Reader(parts, lambda own, x: own.head(own.run("lstm", x)[:, -1, :])))


@healthy
def gru_of_steps_first(opened: Open) -> None:
    parts = {"gru": nn.GRU(WIDTH, WIDTH)}
    _count(opened, _Reader(parts, lambda own, x: own.head(own.run("gru", x)[-1])), time_first=True)


@healthy
def as_many_steps_as_samples(opened: Open) -> None:
    parts = {"lstm": nn.LSTM(WIDTH, WIDTH, batch_first=True)}

    def read(own: _Reader, x: Tensor) -> Tensor:
        return own.head(own.run("lstm", x.repeat(1, 3, 1)[:, :SAMPLES])[:, -1])

    _count(opened, _Reader(parts, read))


@healthy
def last_states_of_layers(opened: Open) -> None:
    parts = {"lstm": nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)}
    _count(opened, _Reader(parts, lambda own, x: own.head(own.parts["lstm"](x)[1][0][-1])))


@healthy
def mean_over_steps(opened: Open) -> None:
    parts = {"one": _layer(True), "lstm": nn.LSTM(WIDTH, WIDTH)}

    def read(own: _Reader, x: Tensor) -> Tensor:
        return own.head(own.run("lstm", own.run("one", x).transpose(0, 1)).mean(0))

    _count(opened, _Reader(parts, read))


@healthy
def encoder_with_batch_first(opened: Open) -> None:
    parts = {"one": _layer(True), "two": _layer(True)}
    _count(opened, _Reader(parts, lambda own, x: own.head(own.run("two", own.run("one", x))[:, 0])))


@healthy
def packed_sequences(opened: Open) -> None:
    lengths = torch.randint(4, LENGTH + 1, (SAMPLES,), generator=torch.Generator().manual_seed(0))

    def read(own: _Reader, x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(own.parts["lstm"](packed)[0], batch_first=True)
        return own.head(out[torch.arange(SAMPLES), lengths - 1])

    _count(opened, _Reader({"lstm": nn.LSTM(WIDTH, WIDTH, batch_first=True)}, read))


@healthy
def attention_between_samples_and_between_features(opened: Open) -> None:
    """The last column is that of the answer: samples and columns attend in turns (non-parametric transformers)."""
    parts = {"columns": _layer(True), "samples": _layer(False)}
    _count(opened, _Reader(parts, lambda own, x: own.head(own.run("samples", own.run("columns", x))[:, -1])))


def _follow(opened: Open, read: Callable[[_Reader, Tensor], Tensor], sequences: int) -> None:
    """A class for each step of sequences [steps, sequences]."""
    model = _Reader({"lstm": nn.LSTM(WIDTH, WIDTH)}, read)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(12):
        x = torch.randn(SAMPLES, sequences, 1)
        y = x.mean((1, 2)).cumsum(0).sign().long() + 1
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@healthy
def labels_of_one_long_sequence(opened: Open) -> None:
    _follow(opened, lambda own, x: own.head(own.run("lstm", x)[:, 0]), 1)


@healthy
def labels_of_all_persons_of_each_frame(opened: Open) -> None:
    """The largest over the sequences has a label for each step: at most an info."""
    _follow(opened, lambda own, x: own.head(own.run("lstm", x).amax(1)), 5)


@healthy
def two_directions_in_one_batch(opened: Open) -> None:
    def read(own: _Reader, x: Tensor) -> Tensor:
        out = own.run("lstm", torch.cat((x, x.flip(0)), 1))
        return own.head(out[:, 0] + out[:, -1].flip(0))

    _follow(opened, read, 1)


@healthy
def labels_of_each_step_of_all_sequences(opened: Open) -> None:
    model = _Reader({"lstm": nn.LSTM(WIDTH, WIDTH)}, lambda own, x: own.head(own.run("lstm", x)))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    recorder = opened(model, optimizer)
    for _ in range(12):
        x = torch.randn(LENGTH, SAMPLES, 1)
        y = x[..., 0].cumsum(0).sign().long() + 1
        scores = model(x)
        loss = F.cross_entropy(scores.flatten(0, 1), y.flatten()) + 0.5 * F.cross_entropy(scores[:, -1], y[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
