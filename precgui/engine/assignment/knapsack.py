"""The multiple-choice knapsack: one format for each layer, the lowest sum of scores within a budget of bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Scores = Mapping[str, Mapping[str, float]]  # by layer, then by format
_MOST_STATES = 20_000
_SLACK = 1 + 1e-12  # sums of bits are floats


def best_plan(scores: Scores, weights: Mapping[str, int], bits: Mapping[str, float], budget: float) -> dict[str, str]:
    """The format of each layer with the lowest sum of scores and at most `budget` bits for each weight on average.

    `weights` is the number of weights of each layer, `bits` those of a weight in each format. Exact up to 20 000
    partial sums that no other one beats; with more, of those that are alike the cheapest is kept, so the budget always
    holds. Raises ValueError where no plan fits.
    """
    layers, formats = list(scores), list(bits)
    capacity = budget * sum(weights[layer] for layer in layers) * _SLACK
    least = min(bits.values())
    left = sum(weights[layer] for layer in layers) * least
    if left > capacity:
        raise ValueError(f"{budget:g} bits a weight are too few; the narrowest format has {least:g}")
    used, cost = np.zeros(1), np.zeros(1)
    parents: list[NDArray[np.int64]] = []
    for layer in layers:
        left -= weights[layer] * least
        all_used = (used[:, None] + weights[layer] * np.array([bits[name] for name in formats])).ravel()
        all_cost = (cost[:, None] + np.array([scores[layer][name] for name in formats])).ravel()
        kept = _unbeaten(all_used, all_cost, capacity - left)
        used, cost = all_used[kept], all_cost[kept]
        parents.append(kept)
    place, plan = int(cost.argmin()), {}
    for layer, kept in zip(reversed(layers), reversed(parents), strict=True):
        place, choice = divmod(int(kept[place]), len(formats))
        plan[layer] = formats[choice]
    return {layer: plan[layer] for layer in layers}


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
