"""The multiple-choice knapsack: one format for each layer, the lowest sum of scores within a budget of bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from precgui.sentences import Sentence

Scores = Mapping[str, Mapping[str, float]]  # by layer, then by format
_MOST_STATES = 20_000
_SLACK = 1 + 1e-12  # sums of bits are floats


def best_plan(scores: Scores, weights: Mapping[str, int], bits: Mapping[str, float], budget: float) -> dict[str, str]:
    """The format of each layer with the lowest sum of scores and at most `budget` bits for each weight on average.

    `weights` is the number of weights of each layer, `bits` those of a weight in each format. Exact up to 20 000
    partial sums that no other one beats; with more, of those that are alike the cheapest is kept, so the budget always
    holds. Raises ValueError where no plan fits.
    """
    sizes = {layer: {name: weights[layer] * bits[name] for name in bits} for layer in scores}
    try:
        return best_choice(scores, sizes, budget * sum(weights[layer] for layer in scores))
    except ValueError:
        least = min(bits.values())
        raise ValueError(
            Sentence(
                "{budget:g} bits a weight are too few; the narrowest format has {least:g}", budget=budget, least=least
            )
        ) from None


def best_choice(scores: Scores, sizes: Scores, most: float) -> dict[str, str]:
    """As `best_plan`, for sizes by item and choice, which may have choices of its own; `most` is for all together.

    Raises ValueError where no plan fits.
    """
    capacity = most * _SLACK
    least = {item: min(sizes[item][name] for name in row) for item, row in scores.items()}
    left = sum(least.values())
    if left > capacity:
        raise ValueError(f"{most:g} is too little; the least is {left:g}")
    used, cost = np.zeros(1), np.zeros(1)
    parents: list[NDArray[np.int64]] = []
    for item, row in scores.items():
        left -= least[item]
        all_used = (used[:, None] + np.array([sizes[item][name] for name in row])).ravel()
        all_cost = (cost[:, None] + np.array(list(row.values()))).ravel()
        kept = _unbeaten(all_used, all_cost, capacity - left)
        used, cost = all_used[kept], all_cost[kept]
        parents.append(kept)
    place, plan = int(cost.argmin()), {}
    for (item, row), kept in zip(reversed(list(scores.items())), reversed(parents), strict=True):
        place, choice = divmod(int(kept[place]), len(row))
        plan[item] = list(row)[choice]
    return {item: plan[item] for item in scores}


def fits(plan: Mapping[str, str], weights: Mapping[str, int], bits: Mapping[str, float], budget: float) -> bool:
    """Whether a plan needs at most `budget` bits for each weight on average."""
    return mean_bits(plan, weights, bits) <= budget * _SLACK


def mean_bits(plan: Mapping[str, str], weights: Mapping[str, int], bits: Mapping[str, float]) -> float:
    """Bits of a weight, averaged over all weights of the layers."""
    return sum(bits[name] * weights[layer] for layer, name in plan.items()) / sum(weights[layer] for layer in plan)


def _unbeaten(used: NDArray[np.float64], cost: NDArray[np.float64], most: float) -> NDArray[np.int64]:
    """Indices of the states within `most` bits that no state of fewer bits undercuts, at most 20 000 of them."""
    order = np.lexsort((cost, used))
    order = order[used[order] <= most]
    cheaper = np.minimum.accumulate(cost[order])
    order = order[np.concatenate(([True], cost[order][1:] < cheaper[:-1]))]
    if len(order) > _MOST_STATES:  # cheapest of each part of the range: the last one, for cost falls as bits grow
        part = np.floor((used[order] - used[order[0]]) / (most - used[order[0]]) * _MOST_STATES)
        order = order[np.append(part[1:] != part[:-1], True)]
    return order.astype(np.int64)
