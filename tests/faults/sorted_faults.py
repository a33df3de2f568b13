"""Data that come class by class, and sound loops whose batches hold few classes on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, blobs

_CLASSES, _FEATURES = 6, 24
_Loss = Callable[[Tensor, Tensor], Tensor]


def _net(classes: int = _CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(_FEATURES, 48), nn.ReLU(), nn.Linear(48, classes))


def _train(opened: Open, batches: Iterable[tuple[Tensor, Tensor]], *, rate: float = 0.1, momentum: float = 0.9,
           adam: bool = False, loss_of: _Loss = F.cross_entropy, model: nn.Module | None = None) -> None:  # fmt: skip
    model = model or _net()
    optimizer = (
        torch.optim.Adam(model.parameters(), rate)
        if adam
        else torch.optim.SGD(model.parameters(), rate, momentum=momentum)
    )
    recorder = opened(model, optimizer)
    for x, y in batches:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _alike(count: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    """Clusters with a large common mean, as pictures have one."""
    x, y = blobs(count, seed=seed)
    return 0.5 * x + 1.0, y


def _by_class(count: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    x, y = _alike(count, seed=seed)
    order = y.argsort(stable=True)
    return x[order], y[order]


def _of_class(label: int, size: int = 32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A batch of one class."""
    x, y = _alike(16 * size, seed=seed + 11)
    return x[y == label][:size], y[y == label][:size]


@fault("sorted-batches", "come class by class", "Shuffle")
def folders_one_behind_another(opened: Open) -> None:
    """Batches at the end of a class hold the beginning of the next one."""
    loader = DataLoader(TensorDataset(*_by_class(900)), batch_size=48)
    _train(opened, [batch for _ in range(8) for batch in loader])


@fault("sorted-batches", "come class by class", "Shuffle")
def long_blocks_that_are_learnt_by_heart_each(opened: Open) -> None:
    """The loss is next to nothing in most steps."""
    loader = DataLoader(TensorDataset(*_by_class(6 * 24 * 12)), batch_size=24)
    _train(opened, [batch for _ in range(5) for batch in loader], rate=0.05)


@fault("sorted-batches", "come class by class", "Shuffle")
def shards_that_are_nearly_pure(opened: Open) -> None:
    """Shuffled within a shard only, which has 85 % of one class; the loss has weights and is called by itself."""
    x, y = _alike(1600)
    at = torch.where(torch.rand(len(y)) < 0.85, y, torch.randint(_CLASSES, (len(y),))).argsort(stable=True)
    loader = DataLoader(TensorDataset(x[at], y[at]), batch_size=32)
    weight = torch.tensor([1.0, 1.5, 1.0, 0.8, 1.2, 1.0])
    _train(
        opened, [batch for _ in range(7) for batch in loader], rate=0.1,
        loss_of=lambda scores, labels: F.nll_loss(scores.log_softmax(1), labels, weight),
    )  # fmt: skip


@fault("sorted-batches", "come class by class", "Shuffle")
def two_classes_in_blocks(opened: Open) -> None:
    x, y = _alike(800)
    order = (y > 2).long().argsort(stable=True)
    loader = DataLoader(TensorDataset(x[order], (y > 2).long()[order]), batch_size=16)
    _train(opened, [batch for _ in range(6) for batch in loader], rate=0.1, model=_net(2))


@healthy
def one_class_in_each_step_in_turn(opened: Open) -> None:
    """As slowly as a whole round needs: the classes are learnt together."""
    _train(opened, [_of_class(step // 2 % _CLASSES, seed=step) for step in range(240)], rate=0.003)


@healthy
def tasks_of_one_class_with_replay(opened: Open) -> None:
    """Half of a batch is new, the other half of all classes so far."""

    def stream() -> Iterable[tuple[Tensor, Tensor]]:
        kept_x, kept_y = _of_class(0, 24, seed=99)
        for label in range(_CLASSES):
            for step in range(25):
                x, y = _of_class(label, 24, seed=step)
                chosen = torch.randint(len(kept_y), (24,))
                yield torch.cat([x, kept_x[chosen]]), torch.cat([y, kept_y[chosen]])
            x, y = _of_class(label, 24, seed=99)
            kept_x, kept_y = torch.cat([kept_x, x]), torch.cat([kept_y, y])

    _train(opened, stream(), rate=0.02)


@healthy
def tasks_of_one_class_that_never_come_back(opened: Open) -> None:
    """The baseline of continual learning: what is known of a class is lost, as it has to be."""
    _train(opened, [_of_class(step // 25, seed=step) for step in range(150)], rate=0.01)


@healthy
def tasks_of_two_classes(opened: Open) -> None:
    """Each task is trained on until it is known, three tasks twice."""

    def of_task(task: int, step: int) -> tuple[Tensor, Tensor]:
        pairs = [_of_class(2 * task + place, 16, seed=step) for place in range(2)]
        return torch.cat([pairs[0][0], pairs[1][0]]), torch.cat([pairs[0][1], pairs[1][1]])

    _train(opened, [of_task(step // 25 % 3, step) for step in range(150)], rate=0.02)


@healthy
def classes_that_are_added_one_by_one(opened: Open) -> None:
    """A curriculum."""

    def stream() -> Iterable[tuple[Tensor, Tensor]]:
        for step in range(160):
            x, y = blobs(256, seed=step)
            chosen = (y <= step // 20).nonzero().flatten()[:32]
            yield x[chosen], y[chosen]

    _train(opened, stream(), rate=0.05)


@healthy
def few_classes_and_many_samples_of_each(opened: Open) -> None:
    """Two of six classes in a batch, in blocks, as losses of pairs ask for."""

    def of_two(step: int) -> tuple[Tensor, Tensor]:
        pairs = [_of_class(int(each), 16, seed=step) for each in torch.randperm(_CLASSES)[:2]]
        return torch.cat([pairs[0][0], pairs[1][0]]), torch.cat([pairs[0][1], pairs[1][1]])

    _train(opened, [of_two(step) for step in range(160)], rate=0.05)


@healthy
def labels_of_an_episode(opened: Open) -> None:
    """Classes get other numbers in each task, and the model learns each task anew from the same beginning."""
    model = _net(3)
    began = {name: each.clone() for name, each in model.state_dict().items()}

    def stream() -> Iterable[tuple[Tensor, Tensor]]:
        for step in range(120):
            if step % 20 == 0:
                model.load_state_dict(began)
                order = torch.randperm(_CLASSES)[:3]
            batch = [_of_class(int(each), 12, seed=step) for each in order]
            places = [torch.full((len(x),), place) for place, (x, _) in enumerate(batch)]
            yield torch.cat([x for x, _ in batch]), torch.cat(places)

    _train(opened, stream(), rate=0.1, model=model)


@healthy
def padded_sequences_of_one_tag_mostly(opened: Open) -> None:
    """Tags of tokens, with a class for padding; a batch is one document."""

    def stream() -> Iterable[tuple[Tensor, Tensor]]:
        for step in range(150):
            x, y = blobs(96, seed=step)
            long = int(torch.randint(30, 96, ()))
            tags = torch.where(y < 2, y, 2)
            tags[long:] = 5
            yield torch.where((tags == 5)[:, None], 0.0, x), tags

    _train(opened, stream(), rate=0.05)


class _Judge(nn.Module):
    """A generator that learns apart, and the judge, which the recorder sees."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _net(2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


@healthy
def a_judge_of_true_and_false_in_turn(opened: Open) -> None:
    """Two classes, one in each step; a generator keeps the judge at chance."""
    judge, generator = _Judge(), nn.Linear(8, _FEATURES)
    own = torch.optim.Adam(generator.parameters(), 1e-2)
    optimizer = torch.optim.Adam(judge.parameters(), 1e-3)
    recorder = opened(judge, optimizer)
    for step in range(240):
        is_real = step % 2
        x = blobs(64, seed=step)[0] if is_real else generator(torch.randn(64, 8)).detach()
        loss = F.cross_entropy(judge(x), torch.full((64,), is_real))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        own.zero_grad()
        F.cross_entropy(judge.net(generator(torch.randn(64, 8))), torch.ones(64, dtype=torch.long)).backward()
        own.step()


@healthy
def clients_with_two_classes_each(opened: Open) -> None:
    """Each trains a copy for some steps; the mean of the copies is the next beginning."""
    model = _net()

    def stream() -> Iterable[tuple[Tensor, Tensor]]:
        begin = {name: each.clone() for name, each in model.state_dict().items()}
        for turn in range(20):
            ends = []
            for client in range(3):
                model.load_state_dict(begin)
                for step in range(4):
                    pairs = [_of_class(2 * client + place, 16, seed=turn * 9 + step) for place in range(2)]
                    yield torch.cat([pairs[0][0], pairs[1][0]]), torch.cat([pairs[0][1], pairs[1][1]])
                ends.append({name: each.clone() for name, each in model.state_dict().items()})
            begin = {name: torch.stack([end[name] for end in ends]).mean(0) for name in begin}

    _train(opened, stream(), rate=0.02, model=model, momentum=0.0)


@healthy
def actions_of_a_policy(opened: Open) -> None:
    """Classes are its own actions, nearly always the same one for a state, and states come in long stretches."""
    model = _net(4)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = opened(model, optimizer)
    goals = torch.randn(4, _FEATURES)
    for step in range(200):
        state = goals[(step // 10) % 4] + 0.3 * torch.randn(32, _FEATURES)
        scores = model(state)
        actions = scores.softmax(1).multinomial(1).flatten()
        reward = (actions == (step // 10) % 4).float()
        loss = (F.cross_entropy(scores, actions, reduction="none") * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
