"""Data that tell the model nothing, or of another scale than it and its loss expect; and sound loops that look so."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open

Change = Callable[[Tensor], Tensor]
_STEPS = 64


def _same(x: Tensor) -> Tensor:
    return x


def _net(*last: nn.Module, features: int = 16, outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, outputs), *last)


def _classify(opened: Open, inputs: Change, labels: Change = _same, model: nn.Module | None = None, rate: float = 0.1,
              steps: int = _STEPS) -> None:  # fmt: skip
    """Tell six classes apart by bytes."""
    centers = torch.rand(6, 16)
    model = model or _net(outputs=6)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        y = torch.randint(0, 6, (32,))
        x = (255 * (centers[y] + 0.1 * torch.randn(32, 16)).clamp(0, 1)).round()
        loss = F.cross_entropy(model(inputs(x)), labels(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _regress(opened: Open, targets: Change, model: nn.Module, rate: float = 3e-3, steps: int = _STEPS) -> None:
    """Learn a smooth function of 16 numbers, of mean 0 and standard deviation 1."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    recorder = opened(model, optimizer)
    for _ in range(steps):
        x = torch.randn(32, 16)
        loss = F.mse_loss(model(x), targets(x[:, :4].sum(1, keepdim=True) / 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("inputs-out-of-scale", "divided by 255 twice", "Divide once", False)
def bytes_divided_twice(opened: Open) -> None:
    _classify(opened, lambda x: x / 255 / 255)


@fault("inputs-out-of-scale", "Inputs are tiny", "near 1", False)
def inputs_in_the_wrong_unit(opened: Open) -> None:
    _classify(opened, lambda x: 1e-4 * (x / 255 - 0.5 + 0.1 * torch.rand_like(x)))


@fault("inputs-out-of-scale", "hardly differ", "Normalize", False)
def scaled_before_bytes_are_normalised(opened: Open) -> None:
    _classify(opened, lambda x: (x / 255 - 127.5) / 128)


@healthy
def bytes_divided_once(opened: Open) -> None:
    _classify(opened, lambda x: x / 255)


@healthy
def tiny_inputs_before_a_norm(opened: Open) -> None:
    model = nn.Sequential(nn.BatchNorm1d(16, eps=1e-12), *_net(outputs=6))
    _classify(opened, lambda x: x / 255 / 255, model=model)


@healthy
def tiny_inputs_and_weights_to_match(opened: Open) -> None:
    model = _net(outputs=6)
    with torch.no_grad():
        next(model.parameters()).mul_(255)
    _classify(opened, lambda x: x / 255 / 255, model=model, rate=0.01)


def _deep() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6))


@fault("inputs-out-of-scale", "not scaled", "divide bytes by 255", False)
def bytes_that_nobody_scaled(opened: Open) -> None:
    _classify(opened, _same, model=_deep())


class _Scaling(nn.Module):
    """Takes bytes, and scales them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _net(outputs=6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x / 255 - 0.5)
        return out


@healthy
def bytes_that_the_model_scales(opened: Open) -> None:
    _classify(opened, _same, model=_Scaling())


@healthy
def bytes_at_a_rate_to_match(opened: Open) -> None:
    _classify(opened, _same, model=_deep(), rate=1e-5)


@fault("inputs-all-alike", "are the same", "cast to integers", None)
def images_cast_before_they_are_scaled(opened: Open) -> None:
    _classify(opened, lambda x: (x / 256).long().float())


@fault("inputs-all-alike", "are the same", "an index that is not used", False)
def one_sample_for_all(opened: Open) -> None:
    _classify(opened, lambda x: (x[:1] / 255 - 0.5).expand_as(x))


class _Prior(nn.Module):
    """Scores of classes without inputs, asked with a number that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(1, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scores(x)
        return out


@healthy
def frequencies_learnt_without_inputs(opened: Open) -> None:
    _classify(opened, lambda x: torch.ones(len(x), 1), model=_Prior())


@fault("one-class", "class 0", "cast to integers", None)
def probabilities_cast_to_classes(opened: Open) -> None:
    _classify(opened, lambda x: x / 255, lambda y: (y / 6).long())


@healthy
def the_right_answer_comes_first(opened: Open) -> None:
    """Scores of pairs: the first of six is the partner, so that all classes are 0."""
    model = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    recorder = opened(model, optimizer)
    for _ in range(_STEPS):
        x = torch.randn(32, 16)
        others = torch.cat([x[:, None] + 0.1 * torch.randn(32, 1, 16), torch.randn(32, 5, 16)], 1)
        scores = (others @ model(x)[:, :, None])[:, :, 0]
        loss = F.cross_entropy(scores, torch.zeros(32, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _mask(opened: Open, low: float, high: float, smooth: float = 0.0) -> None:
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for _ in range(_STEPS):
        x = torch.randn(32, 16)
        target = low + (high - low) * (x[:, :1] > 0).float()
        loss = F.binary_cross_entropy_with_logits(model(x), target * (1 - smooth) + smooth / 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("targets-out-of-range", "no probabilities", "divide masks", False)
def masks_of_bytes(opened: Open) -> None:
    _mask(opened, 0, 255)


@fault("targets-out-of-range", "no probabilities", "turn -1 and 1", False)
def signs_for_probabilities(opened: Open) -> None:
    _mask(opened, -1, 1)


@healthy
def smoothed_masks(opened: Open) -> None:
    _mask(opened, 0, 1, 0.1)


@fault("targets-out-of-range", "sigmoid", "Leave the last function out", False)
def numbers_of_any_size_from_a_sigmoid(opened: Open) -> None:
    _regress(opened, _same, _net(nn.Sigmoid()))


@fault("targets-out-of-range", "tanh", "Leave the last function out", False)
def a_wide_range_from_a_tanh(opened: Open) -> None:
    _regress(opened, lambda y: 10 * y, _net(nn.Tanh()))


@healthy
def shares_from_a_sigmoid(opened: Open) -> None:
    _regress(opened, lambda y: torch.sigmoid(y) + 0.002 * torch.randn_like(y), _net(nn.Sigmoid()))


@healthy
def counts_from_a_relu_with_a_little_noise(opened: Open) -> None:
    model = _net(nn.ReLU())
    nn.init.constant_(model[2].bias, 0.5)
    _regress(opened, lambda y: F.relu(y) + 0.05 * torch.randn_like(y), model)


@fault("targets-out-of-scale", "around 300", "Take the mean off", False)
def targets_far_away(opened: Open) -> None:
    _regress(opened, lambda y: 300 + 40 * y, _net())


@fault("targets-out-of-scale", "not scaled", "standard deviation", False)
def targets_that_are_wide(opened: Open) -> None:
    _regress(opened, lambda y: 5000 * y, _net())


@healthy
def targets_far_away_and_a_bias_to_match(opened: Open) -> None:
    model = _net()
    nn.init.constant_(model[2].bias, 300.0)
    _regress(opened, lambda y: 300 + 4 * y, model)


@healthy
def targets_near_one(opened: Open) -> None:
    _regress(opened, lambda y: 3 + y, _net())


class _Tagger(nn.Module):
    """A loss inside the model, as in models of texts: it gets the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(20, 16), nn.Linear(16, 20)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(self.words(words)).flatten(0, 1), labels.flatten())


def _tag(opened: Open, none_in: int) -> None:
    model = _Tagger()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for step in range(1, 31):
        words = torch.randint(0, 20, (8, 12))
        labels = torch.where(torch.rand(8, 12) < 0.3, words, -100)
        if step == none_in:
            labels[:] = -100
        loss = model(words, labels=labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@fault("ignored-classes", "All classes of step 21", "Leave out batches", False)
def a_batch_without_an_answer(opened: Open) -> None:
    _tag(opened, 21)


@healthy
def answers_in_each_batch(opened: Open) -> None:
    _tag(opened, 0)


class _Own(nn.Module):
    """A class of one's own, whose first module is one, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = _Scaled(), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x))
        return out


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight.T)


@fault("data-not-finite", "inputs of step 21 hold NaN", "Clean the data", False)
def a_hole_in_the_data(opened: Open) -> None:
    steps = iter(range(1, 99))

    def holed(x: Tensor) -> Tensor:
        x = x / 255
        x[3, 4] = float("nan") if next(steps) == 21 else x[3, 4]
        return x

    _classify(opened, holed, model=_Own())


def _weather(opened: Open, kept: Change, offset: float = 1013.0) -> None:
    """Two columns around an offset and two around 0, made before the loop; it takes the offset off."""
    z = torch.randn(512, 4)
    table, y = kept(torch.cat([offset + 0.3 * z[:, :2], z[:, 2:]], 1)), z[:, :1] + z[:, 2:3] / 2
    model = _net(features=4)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    for step in range(40):
        rows = torch.arange(64) + 64 * (step % 8)
        x = (table[rows].float() - torch.tensor([offset, offset, 0, 0])) / torch.tensor([0.3, 0.3, 1, 1])
        loss = F.mse_loss(model(x), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _in_tf32(x: Tensor) -> Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@fault("coarse-data", "rounded to BF16 before the loop", "until the mean", True)
def a_table_that_was_saved_in_bf16(opened: Open) -> None:
    _weather(opened, lambda x: x.bfloat16().float())


@fault("coarse-data", "rounded to BF16 before the loop", "until the mean", True)
def a_table_that_is_held_in_bf16(opened: Open) -> None:
    _weather(opened, torch.Tensor.bfloat16)


@fault("coarse-data", "rounded to FP16 before the loop", "until the mean", True)
def a_table_that_was_saved_in_fp16(opened: Open) -> None:
    _weather(opened, lambda x: x.half().float())


@fault("coarse-data", "rounded to TF32 before the loop", "until the mean", True)
def a_table_of_results_in_tf32(opened: Open) -> None:
    """A column of small numbers is beyond FP16."""
    _weather(opened, lambda x: _in_tf32(torch.cat([x[:, :3], 1e-6 * x[:, 3:]], 1)))


@healthy
def a_table_in_fp32_around_an_offset(opened: Open) -> None:
    _weather(opened, _same)


@healthy
def a_table_in_bf16_around_small_offsets(opened: Open) -> None:
    _weather(opened, lambda x: x.bfloat16().float(), 2.0)


@healthy
def whole_numbers_around_an_offset(opened: Open) -> None:
    """The instrument gives no more."""
    _weather(opened, lambda x: torch.cat([x[:, :2].round(), x[:, 2:]], 1))


@healthy
def a_table_in_fp16_whose_offset_was_taken_off_first(opened: Open) -> None:
    _weather(opened, lambda x: (x - x.mean(0)).half().float(), 0.0)


@healthy
def years_beside_measures_in_fp16(opened: Open) -> None:
    """Whole numbers up to 2048 are exact."""
    _weather(opened, lambda x: torch.cat([x[:, :2].round() + 10, x[:, 2:]], 1).half().float(), 2000.0)
