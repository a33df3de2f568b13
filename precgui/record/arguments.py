"""Checks the arguments of a Recorder and derives the facts for the file."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from precgui.config import OWN_LOOP, ConfigError, RecordConfig, RunConfig, build, build_accepted
from precgui.config.names import check_precision
from precgui.engine import device as devices
from precgui.engine.telemetry.held import Copies, copies_of
from precgui.engine.telemetry.parameters import Weight
from precgui.events import Metric
from precgui.record.later_numbers import Number
from precgui.record.precision import of_weights
from precgui.record.wrappers import unwrapped
from precgui.runs.known_settings import flat, given_paths, observed_in_loop
from precgui.runs.metric import metric_named

Scaler = torch.amp.GradScaler


def checked(model: object, optimizers: object, scaler: object) -> list[Optimizer]:
    """The optimizers as a list, empty for None, after all three arguments were checked.

    Raises TypeError or ValueError with one sentence for an argument that no training loop has.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {_kind(model)}")
    given: Any = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
    is_list = isinstance(given, Sequence) and len(given) > 0 and all(isinstance(each, Optimizer) for each in given)
    if given is not None and not is_list:
        displayed = " ".join(repr(given).split())
        raise TypeError(
            "optimizer must be a torch.optim.Optimizer, a list of them, or None where the loop updates its weights by "
            f"itself, not {displayed:.80}"
        )
    if scaler is not None and (isinstance(scaler, type) or not hasattr(scaler, "get_scale")):
        raise TypeError(f"scaler must be a torch.amp.GradScaler or None, not {_kind(scaler)}")
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError("the model has lazy modules whose weights have no shape yet; call it once before recording")
    return [unwrapped(each) for each in given or ()]


def checked_path(path: object) -> Path:
    """The absolute path of the file, also when the loop changes the working directory; `~` is the home directory.

    Raises TypeError for what is not a path, ValueError for a path without the name of a file.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path must be a str or a Path, not {_kind(path)}")
    result = Path(os.fsdecode(path)).expanduser().absolute()
    if not os.fsdecode(path).strip() or not result.name:
        raise ValueError(f"{os.fsdecode(path)!r} is no name for a file; choose one such as run.h5")
    return result


def checked_metric(metric: object) -> Metric:
    """The metric of that name, or as given. Raises TypeError for another type, ValueError for an empty name."""
    if not isinstance(metric, (str, Metric)):
        raise TypeError(f"metric must be a name or a precgui.Metric, not {_kind(metric)}")
    return metric_named(metric)


def number(value: object, name: str) -> float:
    """The argument `name` as a float. Raises TypeError for a value that is not one number."""
    return float(unread_number(value, name))


def unread_number(value: object, name: str) -> Number:
    """As `number`, but a plain tensor on another device stays one, since the host would have to wait for it."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.is_meta:
            tensor = "a tensor on meta" if value.is_meta else "a tensor"
            raise TypeError(f"{name} must be one number, not {tensor} of shape {list(value.shape)} and {value.dtype}")
        return value.detach() if type(value) is Tensor and not value.is_cpu else float(value.detach())
    size = getattr(value, "size", 1)
    if isinstance(value, str) or not isinstance(value, SupportsFloat) or (isinstance(size, int) and size != 1):
        raise TypeError(f"{name} must be a number or a tensor of one element, not {_kind(value)}")
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, complex):
        raise TypeError(f"{name} must be a real number, not {value}")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:  # a whole number beyond every float
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def count(value: object, name: str) -> int:
    """The argument `name` as an int. Raises TypeError or ValueError for a value that is not a whole number >= 0."""
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a whole number, not {value!r:.60}") from None
    if result < 0:
        raise ValueError(f"{name} must be 0 or more, not {result}")
    return result


def config_of(
    model: nn.Module, optimizers: Sequence[Optimizer], title: str, precision: str, record: RecordConfig | None
) -> RunConfig:
    """The config, with the precision of the weights where none is given: the first step shows which one runs.

    Raises ValueError with one sentence for each fault.
    """
    if not isinstance(precision or "", str):
        raise TypeError(f"precision must be a name, not {_kind(precision)}")
    check_precision(precision or "fp32")
    name = type(model).__name__
    trained = [p for group in _groups(optimizers) for p in group["params"]]
    if not optimizers:
        trained = list(model.parameters())
    return build(
        {
            "title": title or name[:200],
            "task": OWN_LOOP,
            "model": {"name": name},
            "precision": precision or of_weights(trained).name,
            "record": RecordConfig() if record is None else record,
        }
    )


def with_observed(
    config: RunConfig, optimizers: Sequence[Optimizer], scaler: Scaler | None
) -> tuple[RunConfig, list[str]]:
    """The config with the settings of the loop that a config can hold, and the paths in it that are the loop's own."""
    observed = observed_in_loop([optimizer_facts(each) for each in optimizers], scaler_facts(scaler, used=False))
    tree = config.model_dump()
    held = [path for path in observed if path in flat(tree)]
    for path in held:
        section, _, name = path.partition(".")
        tree[section][name] = observed[path]
    try:
        result, refused = build_accepted(tree)
    except ConfigError:
        return config, given_paths(config)
    return result, [*given_paths(result), *(path for path in held if path not in refused)]


def _groups(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def copies(ema: object, weights: Sequence[Weight]) -> Copies | None:
    """A function that returns the copies of weights that the loop keeps outside the model; None if it keeps none.

    Raises TypeError or ValueError for what is no copy.
    """
    if ema is None:
        return None
    if not isinstance(ema, (nn.Module, Mapping)):
        raise TypeError(f"ema must be a module such as AveragedModel or tensors by name, not {_kind(ema)}")
    if isinstance(ema, Mapping) and not all(isinstance(value, Tensor) for value in ema.values()):
        raise TypeError("ema must hold tensors by the names of the weights")
    if not copies_of(ema, weights):
        raise ValueError("ema holds no copy of a weight that an optimizer updates: names and shapes must be the same")
    return lambda: copies_of(ema, weights)


def scaler_facts(scaler: Scaler | None, *, used: bool) -> dict[str, Any]:
    """The settings of a scaler and whether it has multiplied a loss; {} without a scaler, None for hidden ones."""
    if scaler is None:
        return {}
    reported = {
        "initial_scale": getattr(scaler, "_init_scale", None),
        **{name: _asked(scaler, name) for name in ("growth_factor", "backoff_factor", "growth_interval")},
    }
    return {"class": type(scaler).__name__, **reported, "enabled": scaler.is_enabled(), "used": used}


def _asked(scaler: Scaler, name: str) -> float | None:
    ask = getattr(scaler, f"get_{name}", None)
    return ask() if ask is not None and scaler.is_enabled() else None


def is_idle(scaler: Scaler | None) -> bool:
    """Whether the scaler, if any, has not multiplied a loss yet."""
    return scaler is None or not scaler.is_enabled() or getattr(scaler, "_scale", scaler) is None


def first_scale(scaler: Scaler | None) -> float:
    """The scale of the step in which the scaler came into use: its initial one; 1 as long as it has not."""
    if scaler is None or is_idle(scaler):
        return 1.0
    return float(scaler._init_scale if hasattr(scaler, "_init_scale") else scaler.get_scale())


def unread_scale(scaler: Scaler | None) -> Number:
    """The scale of the next loss, a tensor where it is on a device; 1 as long as the scaler has not been used."""
    if scaler is None or is_idle(scaler):
        return 1.0
    scale = getattr(scaler, "_scale", None)
    return scale if type(scale) is Tensor and not scale.is_cpu else float(scaler.get_scale())


def copied_scale(scaler: Scaler) -> Number:
    """As `unread_scale`, to be read when the scaler has been updated, which writes to its tensor."""
    scale = unread_scale(scaler)
    return scale.clone() if isinstance(scale, Tensor) else scale


def optimizer_facts(optimizer: Optimizer) -> dict[str, Any]:
    """The class of an optimizer and its settings, as far as JSON can hold them; by group under `groups` where they
    differ between its groups."""
    settings = [_plain_settings(group) for group in optimizer.param_groups]
    names = dict.fromkeys(name for each in settings for name in each)
    shared = [name for name in names if all(each.get(name) == settings[0].get(name) for each in settings)]
    common = {name: settings[0][name] for name in shared}
    own = {str(n): {name: each[name] for name in each if name not in common} for n, each in enumerate(settings, 1)}
    groups = {number: each for number, each in own.items() if each}
    return {"name": type(optimizer).__name__, **common, **({"groups": groups} if groups else {})}


def _plain_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group of parameters that JSON can hold; a tensor of one number counts as that number."""
    result: dict[str, Any] = {}
    for name, value in group.items():
        if name == "params":
            continue
        if isinstance(value, tuple | list) and name != "param_names":
            value = [_plain(each) for each in value]
            if value and None not in value:
                result[name] = value
        elif (plain := _plain(value)) is not None:
            result[name] = plain
    return result


def _plain(value: Any) -> bool | float | str | None:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_meta and not value.is_complex():
        value = value.item()
    return value if isinstance(value, bool | int | float | str) else None


def facts(model: nn.Module, device: torch.device, scaler: Scaler | None) -> dict[str, Any]:
    scaling = scaler_facts(scaler, used=not is_idle(scaler))
    return {
        **({"scaler": scaling} if scaling else {}),
        "device": str(device),
        "device_name": devices.name(device),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
