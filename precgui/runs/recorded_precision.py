"""The precision of a recorded loop, which is known after its first step only."""

from __future__ import annotations

from typing import Any

from precgui.config.names import OWN_LOOP, check_precision
from precgui.config.tree import RunConfig


def with_recorded_precision(config: RunConfig, engine: Any) -> RunConfig:
    """The config with the precision that ran, where `engine`, the facts of the engine, name one for a recorded loop."""
    fact = engine.get("precision") if isinstance(engine, dict) and config.task == OWN_LOOP else None
    name = fact.get("name") if isinstance(fact, dict) else None
    if not isinstance(name, str) or name == config.precision:
        return config
    try:
        check_precision(name)
    except ValueError:  # of a later version
        return config
    return config.model_copy(update={"precision": name})
