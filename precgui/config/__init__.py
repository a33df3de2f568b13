"""The configuration of a run: names, sections, the tree, recipes, reading and writing."""

from precgui.config.learning import DataConfig, ModelConfig, QatConfig
from precgui.config.names import EMULATED, MODELS, OWN_LOOP, PRECISION_GROUPS, PRECISIONS, TASKS, is_own_task, no_start
from precgui.config.parallel import ParallelConfig
from precgui.config.reading import (
    ConfigError,
    build,
    build_accepted,
    change,
    is_precision_auto,
    key_table,
    load,
    table_paths,
    table_text,
    to_toml,
)
from precgui.config.recipes import DEFAULT_RECIPE, RECIPES
from precgui.config.sections import (
    OptimizerConfig,
    PrecisionOptions,
    RecordConfig,
    ScalingConfig,
    TrainConfig,
)
from precgui.config.tree import RunConfig

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
