"""A generative adversarial network that draws digits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.models.adversarial import NOISE, GanNetworks, GanOutput
from precgui.engine.tasks.base import Batch, DatasetTask, InMemory, split
from precgui.engine.tasks.images import VALIDATION_SHARE, digits
from precgui.events import Metric
from precgui.sentences import L_

if TYPE_CHECKING:
    from precgui.config import RunConfig

_NEIGHBOURS = 5


class Gan(DatasetTask):
    """Batches are (noise, real images) and the real images again."""

    metric = Metric(
        "coverage", L_("Coverage"), L_("share of real digits with a drawn one nearer than their fifth real neighbour")
    )

    def __init__(self, config: RunConfig) -> None:
        images, _ = digits()
        training, validation = split(len(images), VALIDATION_SHARE, config.seed)
        sets = InMemory(images[training], images[training]), InMemory(images[validation], images[validation])
        super().__init__(config, *sets, len(training))
        self._noise = torch.Generator().manual_seed(config.seed + 2)
        self.facts: Mapping[str, Any] = {"training_samples": len(training), "validation_samples": len(validation)}

    def model(self) -> nn.Module:
        return GanNetworks(self.config.model.size)

    def train_batches(self) -> Iterable[Batch]:
        for images, _ in super().train_batches():
            yield (torch.randn(len(images), NOISE, generator=self._noise), images), images

    def validation_batches(self) -> Iterable[Batch]:
        """Always the same noise, so that evaluations can be compared."""
        draw = torch.Generator().manual_seed(self.config.seed + 3)
        for images, _ in super().validation_batches():
            yield (torch.randn(len(images), NOISE, generator=draw), images), images

    def loss(self, outputs: GanOutput, targets: Tensor) -> Tensor:
        """The losses of both (non-saturating, Goodfellow et al. 2014); between equals their sum is 3 ln 2 = 2.08."""
        reported = nn.functional.softplus(-outputs.real).mean() + nn.functional.softplus(outputs.generated).mean()
        return reported + nn.functional.softplus(-outputs.generated_live).mean()

    def score(self, outputs: GanOutput, targets: Tensor) -> Tensor:
        """Coverage (Naeem et al. 2020, section 3.2) in the space of the pixels."""
        real, created = targets.flatten(1), outputs.images.flatten(1)
        radius = torch.cdist(real, real).kthvalue(min(_NEIGHBOURS + 1, len(real)), dim=1).values
        covered = (torch.cdist(real, created).amin(1) < radius).sum()
        return torch.stack((covered, covered.new_full((), len(real))))
