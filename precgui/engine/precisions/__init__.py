"""How a run uses formats: one small class per precision; the training loop never asks which one it has."""

from __future__ import annotations

import importlib
from typing import cast

import torch

from precgui.config import RunConfig
from precgui.config.precision_traits import traits
from precgui.config.refusals import refusals
from precgui.engine.errors import EngineError
from precgui.engine.precisions.base import Precision
from precgui.sentences import together


def chosen(config: RunConfig) -> type[Precision]:
    """The class of the precision that the config names."""
    module, _, name = traits(config.precision).engine_class.partition(":")
    return cast(type[Precision], getattr(importlib.import_module(f"precgui.engine.precisions.{module}"), name))


def make(config: RunConfig, device: torch.device) -> Precision:
    """The precision that the config names. Raises EngineError where its settings do not go together."""
    if found := refusals(config):
        raise EngineError(together(*found.values(), between="; "))
    return chosen(config)(config, device)
