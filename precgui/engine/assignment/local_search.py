"""Local search over measured plans: formats of a few layers changed while the measured cost falls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

Plan = dict[str, str]
Single = dict[tuple[str, str], float]  # by layer and its new format
Table = Mapping[str, Mapping[str, float]]  # by layer, then by format

_MOST_EVALUATIONS = 128
_TRIES = 12  # neighbours of one plan that are measured, the most promising first


class LocalSearch:
    """Improves a plan by its neighbours, of which at most `evaluations` are measured.

    `cost` measures a plan, `fits` says whether it keeps the budget, `pack` gives the best plan within the budget for a
    table of costs. Changes of single layers are measured first, also those beyond the budget: their differences predict
    what changes of several layers cost, and neighbours within the budget are measured in the order of that prediction.
    Where one round of single changes would take more than half of `evaluations`, differences of `scores` predict.
    """

    def __init__(
        self, cost: Callable[[Plan], float], fits: Callable[[Plan], bool], pack: Callable[[Table], Plan], scores: Table,
        formats: Sequence[str], evaluations: int = _MOST_EVALUATIONS,
    ) -> None:  # fmt: skip
        self._cost, self._fits, self._pack, self._scores, self._formats = cost, fits, pack, scores, formats
        self._evaluations = evaluations
        self._costs: dict[tuple[str, ...], float] = {}
        self._measures_single = len(scores) * (len(formats) - 1) <= evaluations // 2

    @property
    def evaluations(self) -> int:
        """The number of plans that were measured."""
        return len(self._costs)

    def improve(self, plans: Sequence[Plan]) -> Plan:
        """The cheapest of `plans`, improved until no measured neighbour is cheaper."""
        best = min(plans, key=self._measure)
        while (better := self._better(best)) is not None:
            best = better
        return best

    def _measure(self, plan: Plan) -> float:
        key = tuple(plan.values())
        if key not in self._costs:
            self._costs[key] = self._cost(plan)
        return self._costs[key]

    def _better(self, plan: Plan) -> Plan | None:
        """The first neighbour that costs less, None where none of those that were measured does."""
        cost, single = self._measure(plan), self._single_changes(plan)
        for neighbour in self._promising(plan, single):
            if self.evaluations >= self._evaluations:
                break
            if self._measure(neighbour) < cost:
                return neighbour
        return None

    def _single_changes(self, plan: Plan) -> Single:
        """The cost that another format of one layer adds: measured, else by the scores."""
        others = [(layer, name) for layer in plan for name in self._formats if name != plan[layer]]
        if not self._measures_single or self.evaluations + len(others) > self._evaluations:
            scores = self._scores
            return {(layer, name): scores[layer][name] - scores[layer][plan[layer]] for layer, name in others}
        cost = self._measure(plan)
        return {(layer, name): self._measure(plan | {layer: name}) - cost for layer, name in others}

    def _promising(self, plan: Plan, single: Single) -> Iterator[Plan]:
        """Neighbours within the budget, the best by prediction first; before them the best by all differences."""
        repacked = self._pack({
            layer: {name: single.get((layer, name), 0.0) for name in self._formats} for layer in plan
        })  # fmt: skip
        changes: list[tuple[float, Plan]] = [(added, {layer: name}) for (layer, name), added in single.items()]
        changes += [(single[a] + single[b], dict((a, b))) for a, b in itertools.combinations(single, 2) if a[0] != b[0]]
        changes.sort(key=lambda change: change[0])
        fitting = (plan | change for _, change in changes if self._fits(plan | change))
        return itertools.islice(itertools.chain((repacked,), fitting), _TRIES)
