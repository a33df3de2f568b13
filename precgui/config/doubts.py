"""Settings that a run takes, although they are likely to spoil it."""

from __future__ import annotations

from collections.abc import Iterator

from precgui.config.tree import RunConfig
from precgui.sentences import Sentence

_ZERO_IN_FP16 = 2.0**-25  # what is not larger is rounded to zero


def doubts(config: RunConfig) -> list[str]:
    """The sentences to tell before a run of this config."""
    return [*_of_optimizer(config)]


def _of_optimizer(config: RunConfig) -> Iterator[str]:
    optimizer = config.optimizer
    is_lost = config.precision == "fp16-pure" and optimizer.name == "adamw" and optimizer.eps <= _ZERO_IN_FP16
    if is_lost and not config.precision_options.master_weights:
        yield Sentence(
            "optimizer.eps = {eps:g} is zero in FP16, so weights whose gradient vanishes become NaN; set optimizer.eps "
            "= 1e-4 or precision_options.master_weights = true",
            eps=optimizer.eps,
        )
