"""Memory of a step foretold from shapes against the measured peak, on 8 models in 5 settings.

    python benchmarks/ledger.py [--models cnn,gpt] [--threads 1]

Each ledger is predicted before any step of that size is run, then one step is measured by the allocator's own
events (torch.cuda.max_memory_allocated on a GPU). Target: within 5 % for 90 % of the cases. The worst one is named.
"""

from __future__ import annotations

import argparse
import time

from precgui.config import RunConfig, load
from precgui.engine.errors import EngineError
from precgui.engine.profile.measure import measured_ledger
from precgui.engine.profile.predict import FROM_SHAPES, predicted_ledger
from precgui.planner.ledger import mib

ADAMW = "optimizer.name=adamw"
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cnn": ("digits-quick", ("model.size=medium",)),
    "mlp": ("digits-quick", ("model.name=mlp", "model.size=medium", ADAMW)),
    "resnet": ("digits-quick", ("model.name=resnet", "model.size=medium")),
    "vit": ("digits-quick", ("model.name=vit", ADAMW)),
    "resnet18": ("digits-quick", ("model.name=resnet18", "data.batch_size=32")),
    "gpt": ("gpt-quick", ("model.size=medium", "data.batch_size=8")),
    "unet": ("segmentation-quick", ()),
    "gan": ("gan-quick", ()),
}
SETTINGS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "bf16-amp": ("precision=bf16-amp",),
    "bf16-pure": ("precision=bf16-pure",),
    "checkpointing": ("train.checkpointing=true",),
    "accumulation": ("train.accumulation=2",),
}
WITHIN = 0.05


def config_of(model: str, setting: str, threads: int) -> RunConfig:
    recipe, settings = MODELS[model]
    return load(recipe, [*settings, *SETTINGS[setting], f"threads={threads}", "record.tensors=false"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    errors: dict[str, float] = {}
    for model in args.models.split(","):
        for setting in SETTINGS:
            config, name = config_of(model, setting, args.threads), f"{model} {setting}"
            begin = time.perf_counter()
            try:
                predicted = predicted_ledger(config)
                took_s = time.perf_counter() - begin
                measured = measured_ledger(config)
            except EngineError as error:
                print(f"{name:32} not possible: {error}")
                continue
            errors[name] = predicted.total_bytes / measured.total_bytes - 1
            how = "" if predicted.method == FROM_SHAPES else f"  ({predicted.method})"
            print(
                f"{name:32} predicted {mib(predicted.total_bytes):>9}  measured {mib(measured.total_bytes):>9}  "
                f"{errors[name]:+.1%}  in {took_s:.1f} s{how}",
                flush=True,
            )
    good = sum(abs(error) <= WITHIN for error in errors.values())
    worst = max(errors, key=lambda name: abs(errors[name]))
    print(
        f"within {WITHIN:.0%}: {good} of {len(errors)} ({good / len(errors):.0%}); worst: {worst}, {errors[worst]:+.1%}"
    )


if __name__ == "__main__":
    main()
