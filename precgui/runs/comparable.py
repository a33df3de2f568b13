"""Whether two runs do the same work, so that a ratio or a difference of their figures means something."""

from __future__ import annotations

from collections.abc import Callable

from precgui.config import RunConfig

_FIELDS: tuple[tuple[str, Callable[[RunConfig], object]], ...] = (
    ("task", lambda config: config.task),
    ("model", lambda config: config.model_name),
    ("model size", lambda config: config.model.size),
    ("sequence length", lambda config: config.data.sequence_length if config.task == "text" else 0),
    ("image size", lambda config: config.data.pixels if config.task not in ("text", "digits") else 0),
)


def why_not_comparable(own: RunConfig, base: RunConfig) -> str:
    """The first setting in which the work of two runs differs, as "another task: text, not digits"; empty for none."""
    for name, value in _FIELDS:
        if value(own) != value(base):
            return f"another {name}: {value(own)}, not {value(base)}"
    return ""
