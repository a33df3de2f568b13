"""Recommendations: whether a user likes an item, from tastes that are made on the spot and hence known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.models.recommender import Recommender
from precgui.engine.tasks.base import DatasetTask, InMemory
from precgui.events import Metric
from precgui.sentences import L_

if TYPE_CHECKING:
    from precgui.config import RunConfig

USERS, ITEMS, TASTES = 300, 200, 4
_PAIRS = (60_000, 10_000)  # to train and to validate
_STRENGTH = 2.5  # of a taste: the larger, the less is chance
_POPULAR = 20  # an item of rank r is met in proportion to 1 / (r + 20)


def likings(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """`count` pairs of user and item [count, 2], whether the user likes the item [count], and the true logits [count].

    The tastes are the same for every seed, which draws who meets what, and chance.
    """
    structure, draw = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    users = torch.randn(USERS, TASTES, generator=structure)
    items = torch.randn(ITEMS, TASTES, generator=structure)
    popularity = torch.randn(ITEMS, generator=structure)
    who = torch.randint(USERS, (count,), generator=draw)
    what = torch.multinomial(1 / (torch.arange(ITEMS) + _POPULAR), count, replacement=True, generator=draw)
    logits = _STRENGTH * (users[who] * items[what]).sum(1) / TASTES**0.5 + popularity[what]
    liked = torch.rand(count, generator=draw) < torch.sigmoid(logits)
    return torch.stack((who, what), 1), liked.float(), logits


class Recommendation(DatasetTask):
    """`outputs` are logits [batch]; the facts name what the true tastes would reach."""

    metric = Metric("accuracy", L_("Accuracy"), L_("share of the pairs of user and item whose liking is foretold"))

    def __init__(self, config: RunConfig) -> None:
        training, validation = (likings(count, 2 * config.seed + n) for n, count in enumerate(_PAIRS))
        super().__init__(config, InMemory(*training[:2]), InMemory(*validation[:2]), _PAIRS[0])
        best = ((validation[2] > 0) == (validation[1] > 0)).float().mean()
        self.facts: Mapping[str, Any] = {
            "training_samples": _PAIRS[0], "validation_samples": _PAIRS[1], "users": USERS, "items": ITEMS,
            "best_accuracy": round(float(best), 4),
            "best_loss": round(float(self.loss(validation[2], validation[1])), 4),
        }  # fmt: skip

    def model(self) -> nn.Module:
        return Recommender(self.config.model.size, USERS, ITEMS)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of liking."""
        return nn.functional.binary_cross_entropy_with_logits(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        result = ((outputs > 0) == (targets > 0)).sum()
        return torch.stack((result, result.new_full((), len(targets))))
