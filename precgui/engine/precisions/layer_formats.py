"""Formats of single layers inside a model whose products are rounded, chosen by pattern."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from precgui.engine.errors import EngineError
from precgui.engine.precisions import fp32_modules
from precgui.sentences import L_, Sentence

_KEY = "precision_options.layers"


def find_layer_formats(
    model: nn.Module,
    patterns: Mapping[str, str],
    layers: Collection[str],
    *,
    key: str = _KEY,
    kind: str = L_("layer whose products are rounded"),
) -> dict[str, str]:
    """The format (or other text) of each of `layers` that a pattern matches; the first pattern that matches counts.

    A pattern is one of `fp32_modules.find`; it matches a layer also through a module around it. Raises EngineError for
    a pattern that matches none of the layers; it names the config path `key` and the `kind` of the layers.
    """
    formats: dict[str, str] = {}
    for pattern, name in patterns.items():
        modules = fp32_modules.find(model, [pattern], key=key)
        inside = [layer for layer in layers if any(layer == m or layer.startswith(f"{m}.") for m in modules)]
        if not inside:
            known = ", ".join(list(layers)[:8])
            raise EngineError(
                Sentence(
                    "{key}: {pattern!r} matches no {kind}; those are {layers}",
                    key=key,
                    pattern=pattern,
                    kind=kind,
                    layers=known,
                )
            )
        for layer in inside:
            formats.setdefault(layer, name)
    return formats
