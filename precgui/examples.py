"""The bundled examples: small runs that show a fault each, and a finished study, under `resources/examples`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from precgui.paths import examples_dir, is_example
from precgui.sentences import L_


@dataclass(frozen=True)
class Example:
    """A run file, or the folder of a study. `rule` is the finding that `precgui diagnose` has to report for a run."""

    name: str
    title: str  # in the file itself, so that every list and page marks it
    short_title: str  # for lists of examples
    about: str
    rule: str = ""

    @property
    def is_study(self) -> bool:
        return not self.rule

    @property
    def path(self) -> Path:
        return examples_dir() / (self.name if self.is_study else f"{self.name}.h5")


EXAMPLES: tuple[Example, ...] = (
    Example(
        "clip-before-unscale",
        L_("Example: clip before unscale"),
        L_("Clip before unscale"),
        L_("A loop in FP16 clips gradients that are still multiplied by the loss scale, and hardly learns."),
        "clip-before-unscale",
    ),
    Example(
        "scale-collapse",
        L_("Example: collapsed loss scale"),
        L_("Collapsed loss scale"),
        L_("The loss scale falls at every step; FP16 looks guilty, the learning rate is."),
        "divergence",
    ),
    Example(
        "bf16-stagnation",
        L_("Example: BF16 stagnation"),
        L_("Bf16 stagnation"),
        L_("Weights in BF16 lose most of their updates in rounding, at a small learning rate."),
        "stagnation",
    ),
    Example(
        "digits-study",
        L_("Example: study of the digits"),
        L_("Study of the digits"),
        L_("Three precisions with five seeds each, finished: accuracy, time and memory with their intervals."),
    ),
)


def example(name: str) -> Example | None:
    """The example of this name; None for an unknown one."""
    return next((each for each in EXAMPLES if each.name == name), None)


def title_for_reader(title: str, path: Path | None, shown: Callable[[str], str]) -> str:
    """The title of a run or study in `path`: that of a bundled example as `shown`, any other as it was given."""
    return shown(title) if path is not None and is_example(path) else title
