"""Undoes the conversion of a model to a precision in place, so that another one can take its turn."""

from __future__ import annotations

from typing import Any

from torch import nn


class Conversion:
    """Remembers classes and attributes of all modules from before a conversion to what it changed.

    Conversions change classes and plain attributes of modules in place (`emulate_products`, `run_in_fp32`); parameters,
    buffers and hooks stay the same objects.
    """

    def __init__(self, model: nn.Module) -> None:
        self._before = [(module, type(module), dict(vars(module))) for module in model.modules()]
        self._changed: list[tuple[nn.Module, type[nn.Module], dict[str, Any], set[str]]] = []

    def converted(self) -> None:
        """The conversion is complete; changes that come later are not undone."""
        for module, kind, attributes in self._before:
            now = vars(module)
            added = now.keys() - attributes.keys()
            replaced = {name: value for name, value in attributes.items() if now.get(name) is not value}
            if added or replaced or type(module) is not kind:
                self._changed.append((module, kind, replaced, added))
        self._before = []

    def undo(self) -> None:
        """Put classes and attributes back."""
        for module, kind, replaced, added in self._changed:
            module.__class__ = kind
            for name in added:
                vars(module).pop(name, None)
            vars(module).update(replaced)
        self._changed = []
