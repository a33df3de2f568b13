"""The settings of a run as far as they are known: of a recorded loop, those that the recorder was given or observed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from precgui.config.names import OWN_LOOP
from precgui.config.sections import ScalingConfig
from precgui.config.tree import RunConfig
from precgui.runs.run import Run

NOT_KNOWN = "not known"
GIVEN = ("title", "task", "model.name", "precision", "record")  # to the recorder, whatever it observes
_NAMES = {"SGD": "sgd", "AdamW": "adamw"}  # of torch's optimizers, in a config
_OF_SCALER = ("initial_scale", "growth_factor", "backoff_factor", "growth_interval")
_OF_AUTOCAST = ("enabled", "device_type", "dtype")

_TRAINING_SECTIONS = ("data", "train", "optimizer", "optimizers")
# Steps are compared as they were made; the others move neither the result nor the time of a step.
_LEFT_OUT = (
    "data.workers", "data.path", "data.download", "train.epochs", "train.max_steps", "train.rounding_twin",
    "train.stop_at_nonfinite", "train.stop_after_skipped", "train.save_to", "train.save_average",
    "train.checkpoint_every",
)  # fmt: skip


def observed_in_loop(optimizers: Sequence[Any], scaler: Any, autocast: Any = None) -> dict[str, Any]:
    """The settings of a loop by path, from the facts on its optimizers, its scaler and autocast.

    Of one optimizer they are under `optimizer`, of several under `optimizers.1`, `optimizers.2` and so on. Paths that
    no config has, such as `optimizer.betas`, are among them.
    """
    observed: dict[str, Any] = {}
    for number, facts in enumerate(optimizers, 1):
        if isinstance(facts, Mapping):
            known = dict(facts) | {"name": _NAMES.get(str(facts.get("name")), str(facts.get("name", NOT_KNOWN)))}
            observed |= flat(known, "optimizer." if len(optimizers) == 1 else f"optimizers.{number}.")
    if isinstance(scaler, Mapping) and scaler.get("enabled"):
        observed["scaling.mode"] = "dynamic"
        observed |= {f"scaling.{name}": scaler[name] for name in _OF_SCALER if _is_number(scaler.get(name))}
    if isinstance(autocast, Mapping):
        observed |= {f"autocast.{name}": autocast[name] for name in _OF_AUTOCAST if autocast.get(name) is not None}
    return observed


def observed_settings(run: Run) -> dict[str, Any] | None:
    """The settings that were observed of a recorded loop, by path; None for a run of precgui's own.

    The config of such a file holds defaults for what the recorder cannot know, such as the number of epochs; a path
    that `is_given` or is in this table is known, no other. Files name the observed paths of their config under
    `recorder.observed` of the environment; for those of older versions they follow from the other facts.
    """
    if run.config.task != OWN_LOOP:
        return None
    recorder = run.environment.get("recorder")
    facts: Mapping[str, Any] = recorder if isinstance(recorder, Mapping) else {}
    config = flat(run.config.model_dump(mode="json"))
    observed = {path: config[path] for path in _texts(facts.get("observed")) if path in config and not is_given(path)}
    optimizers = facts.get("optimizers")
    observed |= observed_in_loop(
        optimizers if isinstance(optimizers, list) else [], run.environment.get("scaler"),
        run.environment.get("autocast"),
    )  # fmt: skip
    rates, samples = run.series("lr")[1], run.series("samples")[1]
    if len(rates) and np.isfinite(rates[0]):
        observed["optimizer.lr"] = float(rates[0])
    if len(samples) and np.median(samples) > 0:
        observed["data.batch_size"] = int(np.median(samples))
    return observed


def settings_by_path(run: Run) -> dict[str, Any]:
    """Every setting by its path; of a recorded loop NOT_KNOWN for those that are not, and what else was observed."""
    every, observed = flat(run.config.model_dump()), observed_settings(run)
    if observed is None:
        return every
    known = {path: value if is_given(path) else observed.get(path, NOT_KNOWN) for path, value in every.items()}
    return known | {path: value for path, value in observed.items() if path not in known}


def known_config(run: Run) -> dict[str, Any]:
    """The config of a run as a tree in types that JSON knows; of a recorded loop only the settings that are known."""
    tree = run.config.model_dump(mode="json")
    observed = observed_settings(run)
    if observed is None:
        return tree
    return _tree({path: value for path, value in flat(tree).items() if is_given(path)} | observed)


def known_scaling(run: Run) -> ScalingConfig:
    """The policy of the run's loss scaler: of a recorded loop that of its own scaler, where it had one."""
    observed = observed_settings(run) or {}
    own = {path.partition(".")[2]: value for path, value in observed.items() if path.startswith("scaling.")}
    return run.config.scaling.model_copy(update=own)


def training_settings(run: Run) -> dict[str, Any]:
    """The settings of a run that move what a training of the same work learns or costs, flat, as far as they are
    known; those of the precision, of the record and of where it runs aside."""
    return {
        path: value
        for path, value in settings_by_path(run).items()
        if path.partition(".")[0] in _TRAINING_SECTIONS and path not in _LEFT_OUT and value != NOT_KNOWN
    }


def repeated_runs(runs: Iterable[Run]) -> int:
    """How many runs repeat the work and precision of another one with another seed, that one included."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        config = run.config
        if not config.train.rounding_twin:
            key = repr((config.precision, config.task, config.model, training_settings(run)))
            seeds.setdefault(key, set()).add(config.seed)
    return sum(len(each) for each in seeds.values() if len(each) > 1)


def is_given(path: str) -> bool:
    """Whether the config of a recorded loop holds this setting as the recorder was given it."""
    return any(path == each or path.startswith(f"{each}.") for each in GIVEN)


def given_paths(config: RunConfig) -> list[str]:
    """The paths of a config that the recorder of a loop is given."""
    return [path for path in flat(config.model_dump()) if is_given(path)]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree as dotted paths."""
    results: dict[str, Any] = {}
    for key, value in tree.items():
        results |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return results


def _tree(by_path: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`; a path below another that has a value is left out."""
    result: dict[str, Any] = {}
    for path, value in by_path.items():
        *parents, last = path.split(".")
        branch: Any = result
        for parent in parents:
            branch = branch.setdefault(parent, {}) if isinstance(branch, dict) else None
        if isinstance(branch, dict):
            branch[last] = value
    return result


def _texts(value: Any) -> Iterator[str]:
    yield from (each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
