"""The fix of each rule, applied to a training in which its fault is planted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.runs.diagnosis import Finding
from tests.faults.plants import swap
from tests.faults.training import Edit, Setting

Fix = Callable[[Setting, Finding], Setting]


class InFp32(nn.Module):
    """A module outside of autocast."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            out: Tensor = self.inner(x.float())
        return out


@dataclass(frozen=True)
class Remedy:
    """How the fix of a finding on `plant` is applied, and the share of the twin's progress that may be missing then."""

    plant: str
    apply: Fix
    left: float = 0.1


def _both(first: Edit | None, second: Edit) -> Edit:
    def edit(model: nn.Module) -> None:
        if first is not None:
            first(model)
        second(model)

    return edit


def by_config(setting: Setting, finding: Finding) -> Setting:
    """The training with the changes of the config that the finding proposes. Raises KeyError for an unknown path."""
    return changed(setting, finding.config_change)


def changed(setting: Setting, change: Mapping[str, Any]) -> Setting:
    fields = {
        "optimizer.lr": "lr",
        "optimizer.eps": "eps",
        "optimizer.weight_decay": "weight_decay",
        "train.clip_norm": "clip",
        "scaling.initial_scale": "init_scale",
        "scaling.growth_interval": "growth_interval",
        "precision": "precision",
    }
    for path, value in change.items():
        if path == "scaling.mode":
            setting = replace(setting, loop=setting.loop - {"no_scaler"})
        elif path == "precision_options.master_weights":
            setting = replace(setting, precision=setting.precision.replace("-pure", "-master"))
        elif path == "precision_options.keep_fp32":
            for name in value if setting.precision.endswith("-amp") else ():
                setting = replace(setting, edit=_both(setting.edit, swap(name, InFp32)))
        else:
            setting = replace(setting, **{fields[path]: value})
    return setting


def without(flag: str, *words: str) -> Fix:
    """What a config cannot change: a statement of the loop. The fix must name it by these words."""

    def apply(setting: Setting, finding: Finding) -> Setting:
        assert not finding.config_change
        assert all(word in finding.fix for word in words), finding.fix
        assert flag in setting.loop
        return replace(setting, loop=setting.loop - {flag})

    return apply


def instead(*words: str, **fields: Any) -> Fix:
    """Other settings of the loop that no config has; the fix must name them by these words."""

    def apply(setting: Setting, finding: Finding) -> Setting:
        assert all(word in finding.fix for word in words), finding.fix
        return replace(setting, **fields)

    return apply


REMEDIES: dict[str, Remedy] = {
    "clip-before-unscale": Remedy("clipped before unscaled mlp", without("clip_first", "scaler.unscale_")),
    "divergence": Remedy("rate x1000 fp32 mlp", by_config, 0.3),
    "epsilon-vanishes": Remedy("epsilon vanishes in FP16 mlp", by_config),
    "foreign-parameters": Remedy(
        "the optimizer has other tensors mlp", without("foreign_parameters", "Make the optimizer after")
    ),
    "forward-overflow": Remedy("overflow in the forward pass x300000 mlp", by_config),
    "frozen-average": Remedy("average in BF16, decay 0.995 mlp", instead("average in FP32", ema_dtype=torch.float32)),
    "gradient-underflow": Remedy("scale of 2^-8 mlp", by_config),
    "gradients-not-cleared": Remedy("gradients not cleared mlp", without("keep_gradients", "zero_grad()")),
    "gradients-not-unscaled": Remedy(
        "optimizer.step() in place of scaler.step() mlp", without("plain_step", "scaler.step(optimizer)")
    ),
    "no-progress": Remedy("rate far too low mlp", by_config, 0.9),
    "no-step-taken": Remedy("no optimizer step mlp", without("no_step", "optimizer.step()")),
    "parameters-left-out": Remedy(
        "every other parameter left out mlp", without("left_out", "Give them to the optimizer")
    ),
    "scale-probing": Remedy("a scale that grows in each step mlp", by_config),
    "scale-too-high": Remedy("scale of 2^40 at the start mlp", by_config),
    "skipped-but-changed": Remedy(
        "a second step after a skipped one mlp", without("second_step", "Remove optimizer.step()")
    ),
    "stagnation": Remedy("BF16 weights, AdamW at 3e-05 mlp", by_config),
    "unused-scaler": Remedy(
        "the scaler is made and not used, loss x1e-7 mlp", without("idle_scaler", "scaler.scale(loss)")
    ),
    "zero-gradients": Remedy("graph cut mlp", without("detached", "detach()")),
}
