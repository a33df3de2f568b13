"""What is learned: a task gives the model, the data, the loss and the metric; the loop knows nothing else of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from precgui import paths
from precgui.config import RunConfig
from precgui.engine.models import Cnn

Batch = tuple[Tensor, Tensor]


class Task(Protocol):
    """One training problem. Batches are (inputs, targets) on the CPU."""

    steps_per_epoch: int

    def model(self) -> nn.Module: ...
    def train_batches(self) -> Iterable[Batch]: ...
    def validation_batches(self) -> Iterable[Batch]: ...
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor: ...
    def correct(self, outputs: Tensor, targets: Tensor) -> int: ...


class _Images(Dataset[Batch]):
    """Images and labels in memory; indexed by a list, so that one look-up is one batch."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: list[int]) -> Batch:
        return self.images[indices], self.labels[indices]


class Digits:
    """The bundled handwritten digits: [1, 8, 8] images in 0..1, ten classes, a fifth held out for validation."""

    VALIDATION_SHARE = 0.2

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        with np.load(paths.resources() / "data" / "digits.npz", allow_pickle=False) as bundled:
            images = torch.from_numpy(bundled["images"]).float().unsqueeze(1) / 16
            labels = torch.from_numpy(bundled["labels"]).long()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(config.seed))
        held_out = round(len(labels) * self.VALIDATION_SHARE)
        validation, training = order[:held_out], order[held_out:]
        self._training = _Images(images[training], labels[training])
        self._validation = _Images(images[validation], labels[validation])
        self._order = torch.Generator().manual_seed(config.seed + 1)
        self._train_loader = self._loader(RandomSampler(self._training, generator=self._order))
        self.steps_per_epoch = len(self._train_loader)

    def model(self) -> nn.Module:
        return Cnn(self._config.model.size)

    def train_batches(self) -> Iterable[Batch]:
        return self._train_loader

    def validation_batches(self) -> Iterable[Batch]:
        sampler = BatchSampler(SequentialSampler(self._validation), 512, drop_last=False)
        return DataLoader(self._validation, sampler=sampler, batch_size=None)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy; `outputs` come in FP32, or in FP64, whatever the precision of the model."""
        return nn.functional.cross_entropy(outputs, targets)

    def correct(self, outputs: Tensor, targets: Tensor) -> int:
        return int((outputs.argmax(1) == targets).sum())

    def _loader(self, sampler: RandomSampler) -> DataLoader[Batch]:
        data = self._config.data
        batches = BatchSampler(sampler, data.batch_size, drop_last=False)
        return DataLoader(
            self._training,
            sampler=batches,
            batch_size=None,
            num_workers=data.workers,
            persistent_workers=data.workers > 0,
        )


TASKS: dict[str, type[Digits]] = {"digits": Digits}
