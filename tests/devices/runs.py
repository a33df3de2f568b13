"""Short runs of bundled recipes on a device, and what is compared of them with those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from precgui import config
from precgui.config import PRECISIONS
from precgui.config.recipes import RECIPES
from precgui.config.refusals import WITH_ADAPTERS
from precgui.engine import precisions
from precgui.engine.errors import EngineError
from precgui.engine.train import train
from precgui.events import Event, Incident, StepDone, TensorStats

# Recipes that need no download, with what makes their steps small enough.
SMALL: dict[str, tuple[str, ...]] = {
    "digits-quick": (), "digits-adamw": (), "digits-long": (), "digits-int8": (), "digits-pruned": (),
    "digits-scale-demo": (), "regression-precise": (), "cartpole-quick": (), "gan-quick": (),
    "gpt-quick": ("model.size=small",), "lstm-quick": (), "segmentation-quick": (), "detection-quick": (),
    "speech-quick": (), "recommender-quick": (),
    "gpt-qlora": ("model.size=small", "base.train_steps=2"),
}  # fmt: skip
DOWNLOADED = [name for name, (_, chosen) in RECIPES.items() if chosen.task in ("fashion-mnist", "cifar10")]
# `emulated:` and the name of a format has a class of its own.
EVERY_PRECISION = (*PRECISIONS, "emulated:e5m2")
_REFUSED = "adapter.kind = lora goes with {}, not with {}; base.format holds the base in other formats"


@dataclass
class Ran:
    """A run on one device; `refused` is the sentence where the config is refused there."""

    losses: list[float] = field(default_factory=list)
    incidents: list[tuple[int, str, str]] = field(default_factory=list)  # what was not finite: step, kind, module
    gradients: list[int] = field(default_factory=list)  # steps in which those of a parameter were measured
    refused: str = ""


def run_on(
    device: str, recipe: str, *settings: str, steps: int = 3, to_the_end: bool = False,
    seen: Callable[[Event], None] = lambda _: None,
) -> Ran:  # fmt: skip
    """A run that stops after its last step without a validation, but `to_the_end`; `seen` gets each event.

    The budget is so large that which tensors are measured in a step does not depend on the time that the others took.
    """
    ran = Ran()

    def emit(event: Event) -> None:
        if isinstance(event, StepDone):
            ran.losses.append(event.loss)
        if isinstance(event, Incident) and event.kind.startswith("nonfinite"):
            ran.incidents.append((event.step, event.kind, event.module))
        if isinstance(event, TensorStats) and event.kind == "gradient":
            ran.gradients.append(event.step)
        seen(event)

    common = [*settings, f"train.max_steps={steps}", "data.batch_size=16", "record.budget=100", f"device={device}"]
    try:
        train(config.load(recipe, common), emit, lambda: len(ran.losses) == steps and not to_the_end)
    except (config.ConfigError, EngineError) as error:
        ran.refused = str(error)
    return ran


def refusal(recipe: str, precision: str) -> str:
    """The sentence that refuses a recipe in a precision on every device; empty where they go together."""
    refused = recipe == "gpt-qlora" and precision not in WITH_ADAPTERS
    return _REFUSED.format(", ".join(WITH_ADAPTERS), precision) if refused else ""


def fp8_errors(device: str, *settings: str) -> tuple[list[float], str]:
    """How far a linear layer with FP8 products is on a device from its emulation on the CPU, and the note on it.

    These are relative differences of the result, the gradient of the input, and those of weight and bias.
    """
    found: list[list[torch.Tensor]] = []
    notes: list[str] = []
    for place in (device, "cpu"):
        torch.manual_seed(1)
        layer, x = nn.Sequential(nn.Linear(48, 64)), torch.randn(24, 48)
        precision = precisions.make(config.load("gpt-quick", ["precision=fp8", *settings]), torch.device(place))
        model = precision.convert(layer.to(place))
        x = x.to(place).requires_grad_()
        with precision.forward_context():
            result = model(x)
        result.square().mean().backward()
        found.append([each.detach().cpu() for each in (result, x.grad, *(p.grad for p in model.parameters()))])
        notes += precision.notes[:1]
    errors = [float((own - other).norm() / other.norm()) for own, other in zip(*found, strict=True)]
    return errors, notes[0]
