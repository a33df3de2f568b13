"""Assigned formats of layers against the best of all plans: INT2 or FP32 for each of the nine layers of a small GPT.

Prints for each budget the rise of the held-out loss of the assigned plan, of the best and of the middle one of all
plans within the budget, and the ratio of the first two.
"""

from __future__ import annotations

import argparse
import itertools
import statistics

from torch import nn

from precgui import config
from precgui.engine.assignment.search import AssignmentSearch
from precgui.engine.models.transformer import Gpt
from precgui.engine.tasks.text import Text
from precgui.engine.train import train_quietly

FORMATS = ("int2", "fp32")
SHARES = (0.5, 0.75)  # of the weights that are in INT2


class NineLayers(Text):
    """Text with the small GPT cut to two blocks."""

    def model(self) -> nn.Module:
        model = Gpt("small", self.config.data.sequence_length)
        model.blocks = model.blocks[:2]
        return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    for seed in range(arguments.seeds):
        settings = [
            f"task={__file__}:NineLayers", "precision=fp32", "device=cpu", "threads=1", f"seed={seed}",
            "data.sequence_length=32", "data.batch_size=16", f"train.max_steps={arguments.steps}",
        ]  # fmt: skip
        trained = config.load("digits-quick", settings)
        search = AssignmentSearch(trained, train_quietly(trained, lambda: False), FORMATS, lambda: False)
        layers = list(search.layers)
        plans = [
            search.measure(dict(zip(layers, choice, strict=True)))
            for choice in itertools.product(FORMATS, repeat=len(layers))
        ]
        for share in SHARES:
            budget = 2 * share + 32 * (1 - share)
            found = search.run(budget, None).best
            rises = [plan.rise for plan in plans if plan.bits <= budget]
            print(
                f"seed {seed}, {len(layers)} layers, {share:.0%} of the weights in INT2: assigned {found.rise:+.4f}, "
                f"best of {len(rises)} {min(rises):+.4f}, middle {statistics.median(rises):+.4f}, "
                f"ratio {found.rise / min(rises):.2f} (noise {found.noise:.4f}), "
                f"{search.evaluations} plans measured in the search"
            )


if __name__ == "__main__":
    main()
