"""A format for each layer within a budget, from layers measured alone, verified on data that did not choose it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from precgui.engine.assignment.knapsack import best_choice
from precgui.engine.errors import EngineError
from precgui.engine.ptq.effects import EffectMeter, LayerEffect
from precgui.engine.ptq.held_out import LossChange
from precgui.engine.ptq.layer_matrix import weight_of
from precgui.engine.ptq.methods import SCALING, Method
from precgui.engine.ptq.quantised_layers import QuantisedLayer
from precgui.engine.ptq.scale_folds import ScalePlaces
from precgui.sentences import L_, Sentence

Kind = Literal["bytes", "bits", "loss"]
_HALVINGS = 6  # of the range of bytes, to find the smallest plan within a rise of the loss
_FUSED = (re.compile(r"(|.*\.)[qkv]_proj"), re.compile(r"(|.*\.)(?:gate|up)_proj"))  # one product each in vLLM


@dataclass(frozen=True)
class VerifiedPlan:
    """Formats of layers; layers that fit none are not in it. `change` is of all units; the verdict is of half 1.

    Half 0 of the held-out units has chosen the plan. score: "measured" layers, or the name of a score.
    """

    formats: Mapping[str, str]
    method: Method
    nbytes: int
    bits: float
    change: LossChange
    score: str
    layers: Mapping[str, QuantisedLayer]

    @property
    def unscaled(self) -> list[str]:
        """Layers that a method of scales has rounded to nearest, since their scale has no place in a file."""
        return [name for name, low in self.layers.items() if self.method in SCALING and not low.is_scaled]

    @property
    def verified(self) -> LossChange:
        return self.change.half(1)


class Planner:
    """Plans for a model from its layers measured alone, but for those `left_out`.

    scored: whether plans are compared; one format for all layers needs no scores. places: those for scales of input
    channels, where plans are to be written. Raises EngineError for data of one unit only.
    """

    def __init__(
        self, meter: EffectMeter, singles: Sequence[LayerEffect], methods: Sequence[Method], *, inputs: bool,
        fuses: bool = False, left_out: Collection[str] = (), scored: bool = True, places: ScalePlaces | None = None,
    ) -> None:  # fmt: skip
        if meter.held_out.units < 4:
            raise EngineError(
                L_("one half of the held-out samples chooses a plan, the other verifies it: give more of them")
            )
        self.meter, self.methods, self.inputs, self.places = meter, methods, inputs, places
        self.score, by_layer = self._scores(singles) if scored else ("", self._without_scores())
        by_layer = {name: row for name, row in by_layer.items() if name not in left_out}
        self.groups = tied_groups(meter, list(by_layer), fuses=fuses)
        self.scores = {first: _summed([by_layer[name] for name in group]) for first, group in self.groups.items()}
        self.scores = {first: row for first, row in self.scores.items() if row}
        self.sizes = {
            first: {name: sum(self._bytes(member, name) for member in self._stored(first)) for name in row}
            for first, row in self.scores.items()
        }
        if not self.scores:
            raise EngineError(L_("no layer has rows that fit one of the formats, so there is nothing to plan"))

    def _scores(self, singles: Sequence[LayerEffect]) -> tuple[str, dict[str, dict[str, float]]]:
        """By layer and format: the distance on the first half, or the output Fisher where not all were measured."""
        table: dict[str, dict[str, float]] = {}
        if {each.layer for each in singles} >= self.meter.layers.keys() - self.meter.unfit():
            is_loss = self.meter.held_out.truth == "loss"
            for each in singles:
                half = each.change.half(0)
                table.setdefault(each.layer, {})[each.format] = half.rise if is_loss else half.mean_distance
            return "measured", table
        scores = self.meter.scores(inputs=self.inputs)
        return "output_fisher", {
            layer: {name: row["output_fisher"] for name, row in by_format.items()}
            for layer, by_format in scores.items()
        }

    def _without_scores(self) -> dict[str, dict[str, float]]:
        unfit = self.meter.unfit()
        return {
            name: dict.fromkeys((fmt.name for fmt in self.meter.forms(layer)), 0.0)
            for name, layer in self.meter.layers.items()
            if name not in unfit
        }

    @property
    def layers(self) -> list[str]:
        """The layers that a plan is made for."""
        return [name for first in self.scores for name in self.groups[first]]

    def _stored(self, first: str) -> list[str]:
        """The layers of a group, those that share a weight once."""
        seen: dict[int, str] = {}
        for name in self.groups[first]:
            seen.setdefault(id(weight_of(self.meter.layers[name])), name)
        return list(seen.values())

    def _bytes(self, layer: str, name: str) -> int:
        return self.meter.nbytes(layer, self.meter.formats[name])

    @property
    def weights(self) -> int:
        return sum(weight_of(self.meter.layers[name]).numel() for first in self.scores for name in self._stored(first))

    def plan(self, kind: Kind, value: float) -> VerifiedPlan:
        """The best plan of at most so many bytes or bits a weight, or the smallest one within a rise of the loss.

        Raises EngineError where none fits, and Stopped.
        """
        if kind != "loss":
            return self._within(value if kind == "bytes" else value * self.weights / 8, f"{kind}={value:g}")
        least, most = (float(sum(pick(row.values()) for row in self.sizes.values())) for pick in (min, max))
        best = self._within(most, f"loss={value:g}")
        if best.change.half(0).rise > value:
            raise EngineError(
                Sentence(
                    "the loss rises by {rise:.3g} in the widest plan, more than {value:g}; allow it, or name a "
                    "wider format",
                    rise=best.change.half(0).rise,
                    value=value,
                )
            )
        for _ in range(_HALVINGS):
            middle = (least + most) / 2
            found = self._within(middle, f"loss={value:g}")
            if found.change.half(0).rise <= value:
                best, most = found, middle
            else:
                least = middle
        return best

    def _within(self, most: float, asked: str) -> VerifiedPlan:
        try:
            chosen = best_choice(self.scores, self.sizes, most)
        except ValueError:
            least = sum(min(row.values()) for row in self.sizes.values())
            raise EngineError(
                Sentence(
                    "--budget {asked}: the narrowest formats take {size} bytes, {bits:.3g} bits each",
                    asked=asked,
                    size=least,
                    bits=8 * least / self.weights,
                )
            ) from None
        return self.verify({name: chosen[first] for first in chosen for name in self.groups[first]})

    def verify(self, formats: Mapping[str, str]) -> VerifiedPlan:
        """Measure a plan by each method; the one with the least distance on the first half is kept. Raises Stopped."""
        wanted = {name: self.meter.formats[fmt] for name, fmt in formats.items()}
        measured = []
        for method in self.methods:
            layers = self.meter.quantised(wanted, method, inputs=self.inputs, places=self.places)
            measured.append((self.meter.measure(layers), method, layers))
        is_loss = self.meter.held_out.truth == "loss"
        change, method, layers = min(
            measured, key=lambda one: one[0].half(0).rise if is_loss else one[0].half(0).mean_distance
        )
        size = sum(self.sizes[first][formats[first]] for first in self.scores)
        return VerifiedPlan(formats, method, size, 8 * size / self.weights, change, self.score, layers)


def tied_groups(meter: EffectMeter, names: Sequence[str], *, fuses: bool) -> dict[str, list[str]]:
    """Layers that must have one format, by the first of each: those that share a weight, and those of one product.

    fuses: the target computes q, k and v, or gate and up, as one product, as vLLM does.
    """
    groups: dict[str, list[str]] = {}
    first_of: dict[object, str] = {}
    for name in names:
        keys: list[object] = [id(weight_of(meter.layers[name]))]
        if fuses:
            keys += [(number, match[1]) for number, form in enumerate(_FUSED) if (match := form.fullmatch(name))]
        first = next((first_of[key] for key in keys if key in first_of), name)
        groups.setdefault(first, []).append(name)
        for key in keys:
            first_of.setdefault(key, first)
    return groups


def _summed(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The sum of each format that all rows have."""
    return {name: sum(row[name] for row in rows) for name in rows[0] if all(name in row for row in rows)}
