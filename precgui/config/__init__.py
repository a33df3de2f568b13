"""The configuration of a run: names, sections, the tree, recipes, reading and writing."""

from precgui.config.learning import DataConfig, ModelConfig, QatConfig
from precgui.config.names import EMULATED, MODELS, OWN_LOOP, PRECISION_GROUPS, PRECISIONS, TASKS, is_own_task, no_start
from precgui.config.parallel import ParallelConfig
from precgui.config.reading import change, is_precision_auto, load, to_toml
from precgui.config.recipes import DEFAULT_RECIPE, RECIPES
from precgui.config.section import table_text
from precgui.config.sections import (
    OptimizerConfig,
    PrecisionOptions,
    RecordConfig,
    ScalingConfig,
    TrainConfig,
)
from precgui.config.tree import RunConfig
from precgui.config.validation import ConfigError, build, build_accepted, key_table, table_paths

__all__ = [
    "DEFAULT_RECIPE",
    "EMULATED",
    "MODELS",
    "OWN_LOOP",
    "PRECISIONS",
    "PRECISION_GROUPS",
    "RECIPES",
    "TASKS",
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "PrecisionOptions",
    "QatConfig",
    "RecordConfig",
    "RunConfig",
    "ScalingConfig",
    "TrainConfig",
    "build",
    "build_accepted",
    "change",
    "is_own_task",
    "is_precision_auto",
    "key_table",
    "load",
    "no_start",
    "table_paths",
    "table_text",
    "to_toml",
]
