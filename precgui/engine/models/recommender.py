"""A network that foretells whether a user likes an item: tables of embeddings, and a perceptron on their rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_DIMENSIONS_WIDTH = {"small": (8, 64), "medium": (32, 256), "large": (64, 1024)}


class Recommender(nn.Module):
    """Embeddings of user and item, their product and a bias of each; input: numbers of user and item [batch, 2].

    Output: logits [batch]. A batch touches a few rows of the tables, so most rows of their gradients are zero.
    """

    def __init__(self, size: str, users: int, items: int) -> None:
        super().__init__()
        dimensions, width = _DIMENSIONS_WIDTH[size]
        self.users, self.items = nn.Embedding(users, dimensions), nn.Embedding(items, dimensions)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.hidden = nn.Linear(3 * dimensions, width)
        self.head = nn.Linear(width, 1)
        for table, spread in ((self.users, 0.1), (self.items, 0.1), (self.user_bias, 0.0), (self.item_bias, 0.0)):
            nn.init.normal_(table.weight, std=spread)

    def forward(self, pairs: Tensor) -> Tensor:
        who, what = pairs[:, 0], pairs[:, 1]
        user, item = self.users(who), self.items(what)
        hidden = nn.functional.relu(self.hidden(torch.cat((user, item, user * item), 1)))
        dot = (user * item).sum(1, keepdim=True)
        logits: Tensor = self.head(hidden) + dot + self.user_bias(who) + self.item_bias(what)
        return logits.flatten()
