"""At which places the runs of a study were trained, in words: a seed is compared within itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from precgui.runs.study.run_figures import RunFigures
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence, counted, together

_HERE = L_("this machine")
_MOST_NAMED = 12


def place_notes(runs: Sequence[RunFigures]) -> list[str]:
    """Sentences for runs of more than one place; none else."""
    places = {run.seed: dict.fromkeys(other.place for other in runs if other.seed == run.seed) for run in runs}
    if len({place for of in places.values() for place in of}) < 2:
        return []
    alone: dict[str, list[int]] = {}
    for seed, of in places.items():
        if len(of) == 1:
            alone.setdefault(next(iter(of)), []).append(seed)
    notes: list[str] = []
    if alone:
        parts = (
            Sentence("{place}: {seeds}", place=place or _HERE, seeds=_seeds(seeds))
            for place, seeds in sorted(alone.items())
        )
        notes.append(
            Sentence(
                "All runs of a seed were trained at one place, and are compared there ({places}).",
                places=together(*parts, between="; "),
            )
        )
    if mixed := [seed for seed, of in places.items() if len(of) > 1]:
        notes.append(
            Sentence(
                "The runs of {seeds} were trained at several places: their differences are also those of machines.",
                seeds=_seeds(mixed),
            )
        )
    return notes


def _seeds(seeds: Iterable[int]) -> Sentence:
    numbers = sorted(seeds)
    named = some_names([str(number) for number in numbers], _MOST_NAMED)
    return counted("seed {seeds}", "seeds {seeds}", len(numbers), seeds=named)
