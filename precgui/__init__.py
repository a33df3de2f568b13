"""precgui: see what numeric precision does to your training on your machine."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {  # looked up on first use, so that importing precgui stays light
    "Metric": "precgui.runs.metric",
    "Recorder": "precgui.record",
    "diagnose": "precgui.runs.diagnosis",
    "keep_shadow": "precgui.record.kept_shadow",
    "open_run": "precgui.runs.file.reader",
    "quantize": "precgui.engine.quantize.elements",
    "quantize_blocks": "precgui.engine.quantize.blocks",
    "shadow": "precgui.engine.shadow.step",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
