"""Complete configs by name, to start from."""

from __future__ import annotations

from precgui.config.sections import ModelConfig, OptimizerConfig, ScalingConfig, TrainConfig
from precgui.config.tree import RunConfig

_QUICK = RunConfig()
RECIPES: dict[str, tuple[str, RunConfig]] = {
    "digits-quick": ("Bundled digits, small CNN, seconds on a laptop.", _QUICK),
    "digits-adamw": (
        "The same with AdamW, to see how an adaptive optimiser takes the format.",
        RunConfig(optimizer=OptimizerConfig(name="adamw", lr=2e-3, weight_decay=0.01)),
    ),
    "digits-scale-demo": (
        "FP16 with a loss scale that starts far too high: watch it back off and grow again.",
        RunConfig(
            precision="fp16-amp",
            scaling=ScalingConfig(mode="dynamic", initial_scale=2.0**30, growth_interval=50),
        ),
    ),
    "digits-long": (
        "Medium CNN for some minutes, long enough to watch, zoom and compare.",
        RunConfig(model=ModelConfig(size="medium"), train=TrainConfig(epochs=100)),
    ),
}
DEFAULT_RECIPE = "digits-quick"
