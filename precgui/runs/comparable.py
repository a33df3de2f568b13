"""Whether two runs do the same work, so that a ratio or a difference of their figures means something."""

from __future__ import annotations

from collections.abc import Callable

from precgui.config.tree import RunConfig
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
