"""Whether two runs do the same work, so that a ratio or a difference of their figures means something."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from precgui.config import RunConfig
from precgui.runs.known_settings import NOT_KNOWN, settings_by_path
from precgui.runs.run import Run
from precgui.sentences import L_, filled

_FIELDS: tuple[tuple[str, Callable[[RunConfig], object]], ...] = (
    (L_("another task: {own}, not {base}"), lambda config: config.task),
    (L_("another model: {own}, not {base}"), lambda config: config.model_name),
    (L_("another model size: {own}, not {base}"), lambda config: config.model.size),
    (
        L_("another sequence length: {own}, not {base}"),
        lambda config: config.data.sequence_length if config.task == "text" else 0,
    ),
    (
        L_("another image size: {own}, not {base}"),
        lambda config: config.data.pixels if config.task not in ("text", "digits") else 0,
    ),
)


def why_not_comparable(own: RunConfig, base: RunConfig) -> str:
    """The first setting in which the work of two runs differs, as "another task: text, not digits"; empty for none."""
    for template, value in _FIELDS:
        if value(own) != value(base):
            return filled(template, own=value(own), base=value(base))
    return ""


def repeated_runs(runs: Iterable[Run]) -> int:
    """How many runs repeat the work and precision of another one with another seed, that one included."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        config = run.config
        if not config.train.rounding_twin:
            key = repr((config.precision, config.task, config.model, training_settings(run)))
            seeds.setdefault(key, set()).add(config.seed)
    return sum(len(each) for each in seeds.values() if len(each) > 1)


_TRAINING_SECTIONS = ("data", "train", "optimizer", "optimizers")
# Steps are compared as they were made; the others move neither the result nor the time of a step.
_LEFT_OUT = (
    "data.workers", "data.path", "data.download", "train.epochs", "train.max_steps", "train.rounding_twin",
    "train.stop_at_nonfinite", "train.stop_after_skipped", "train.save_to", "train.save_average",
    "train.checkpoint_every",
)  # fmt: skip


def training_settings(run: Run) -> dict[str, Any]:
    """The settings of a run that move what a training of the same work learns or costs, flat, as far as they are
    known; those of the precision, of the record and of where it runs aside."""
    return {
        path: value
        for path, value in settings_by_path(run).items()
        if path.partition(".")[0] in _TRAINING_SECTIONS and path not in _LEFT_OUT and value != NOT_KNOWN
    }
