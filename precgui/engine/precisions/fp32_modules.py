"""Modules that stay in FP32 inside a model of lower precision, chosen by pattern."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn

from precgui.engine.casting import cast_floats
from precgui.engine.errors import EngineError
from precgui.sentences import Sentence

_ENDS = {"first": 0, "last": -1}


def find(
    model: nn.Module, patterns: Sequence[str], *, key: str = "precision_options.keep_fp32"
) -> dict[str, nn.Module]:
    """The outermost modules that match a pattern, by name.

    A pattern is compared with the name and with the type of each module, whatever the case (`*norm*`, `head`,
    `BatchNorm2d`); `first` and `last` are the first and last module with weights of two or more dimensions.
    Raises EngineError, which names the config path `key`, for a pattern that matches nothing.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        matches = _matches(model, pattern)
        if not matches:
            raise EngineError(
                Sentence(
                    "{key}: {pattern!r} matches no module; {candidates}",
                    key=key,
                    pattern=pattern,
                    candidates=_candidates_text(model, pattern),
                )
            )
        chosen |= set(matches)
    return {
        name: module
        for name, module in model.named_modules()
        if name in chosen and not any(name.startswith(f"{other}.") for other in chosen)
    }


def _candidates_text(model: nn.Module, pattern: str) -> str:
    """The names that a pattern could have matched."""
    names = {name: type(module).__name__ for name, module in model.named_modules() if name}
    known = list(dict.fromkeys([*names, *names.values()]))
    if near := difflib.get_close_matches(pattern.strip("*"), known, 3, 0.6):
        return Sentence("near are {modules}", modules=", ".join(near))
    types = ", ".join(dict.fromkeys(names.values()))
    return Sentence(
        "the first ones are {modules}, and types count, too: {types}", modules=", ".join(list(names)[:8]), types=types
    )


def _matches(model: nn.Module, pattern: str) -> list[str]:
    named = [(name, module) for name, module in model.named_modules() if name]
    if pattern in _ENDS:
        with_weights = [name for name, m in named if any(p.dim() > 1 for p in m.parameters(recurse=False))]
        return [with_weights[_ENDS[pattern]]] if with_weights else []
    requested = pattern.lower()
    return [
        name
        for name, module in named
        if fnmatchcase(name.lower(), requested) or fnmatchcase(type(module).__name__.lower(), requested)
    ]


def members(kept: dict[str, nn.Module]) -> set[nn.Module]:
    """The kept modules and all that they contain."""
    return {inner for module in kept.values() for inner in module.modules()}


def run_in_fp32(module: nn.Module, device_type: str, returns: torch.dtype | None) -> None:
    """Let `module` store and compute in FP32, with autocast off.

    Floating-point inputs are cast to FP32; with `returns`, results are cast to it for the modules that follow.
    """
    module.float()
    module.forward = partial(_in_fp32, module.forward, device_type, returns)


def _in_fp32(
    forward: Callable[..., Any], device_type: str, returns: torch.dtype | None, *args: Any, **kwargs: Any
) -> Any:
    with torch.autocast(device_type, enabled=False):
        result = forward(*cast_floats(args, torch.float32), **cast_floats(kwargs, torch.float32))
    return result if returns is None else cast_floats(result, returns)
