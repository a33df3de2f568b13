"""The states of all random numbers that a run can draw: those of the process, and generators that its task holds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from precgui.engine import device as devices

_MOST_OBJECTS = 10_000  # of a task that are looked through
_KINDS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def random_states(device: torch.device, task: object) -> dict[str, Any]:
    """A tree of plain values and tensors; see `set_random_states`."""
    return {
        "torch": torch.get_rng_state(),
        "device": devices.random_state(device),
        "python": _state(random),
        "numpy": _plain(np.random.get_state(legacy=False)),  # noqa: NPY002 - tasks may draw from it
        "held": [_state(generator) for generator in held_generators(task)],
    }


def set_random_states(states: Mapping[str, Any], device: torch.device, task: object) -> None:
    """Set all generators as they were. Raises ValueError, TypeError, KeyError or RuntimeError for other states."""
    torch.set_rng_state(states["torch"])
    if device.type != "cpu":
        devices.set_random_state(device, states["device"])
    _set(random, states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    for generator, state in zip(held_generators(task), states["held"], strict=True):
        _set(generator, state)


def held_generators(task: object) -> list[Any]:
    """The random generators that a task holds in its attributes and those of its data sets, in their order."""
    return [each for each in _reached(task) if isinstance(each, _KINDS)]


def _reached(task: object) -> Iterator[Any]:
    """The task and what it holds; arrays, models and objects of other libraries are not looked into."""
    waiting, seen = [task], set[int]()
    own = type(task).__module__
    while waiting and len(seen) < _MOST_OBJECTS:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, Tensor | np.ndarray | nn.Module | str | bytes | int | float | type):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, list | tuple):
            held = list(each) if len(each) < _MOST_OBJECTS else []
        elif isinstance(each, dict):
            held = list(each.values()) if len(each) < _MOST_OBJECTS else []
        elif isinstance(each, DataLoader | Dataset | Sampler) or type(each).__module__.startswith(("precgui", own)):
            held = list(getattr(each, "__dict__", {}).values())
        else:
            held = []
        waiting += reversed(held)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return [version, list(words), gauss]


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        version, words, gauss = state
        generator.setstate((version, tuple(words), gauss))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
