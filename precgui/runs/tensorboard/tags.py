"""Which scalar of a TensorBoard file is which signal: names differ with every library, so their words are compared."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from precgui.runs.errors import RunFileError
from precgui.runs.tensorboard.export import EVALUATION_TAGS, STEP_TAGS
from precgui.runs.tensorboard.imported_run import Scalars
from precgui.sanitize import some_names
from precgui.sentences import Sentence

OWN_TAGS = {**STEP_TAGS, **EVALUATION_TAGS}  # as precgui writes them
SIGNALS = tuple(OWN_TAGS)
_HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "test", "dev"}
_TRAINING = {"train", "training", "step", "epoch", "batch", "iter", "running", "avg", "mean", "total"}
# A signal's words: one of each group has to be among the words of the tag.
_WORDS: dict[str, tuple[set[str], ...]] = {
    "scale": ({"scale", "scaler"},),
    "grad_norm": ({"grad", "gradient", "gradients"}, {"norm"}),
    "lr": ({"lr", "learning"},),
    "val_loss": ({"loss"}, _HELD_OUT),
    "loss": ({"loss"},),
    "val_accuracy": ({"acc", "accuracy", "top1"}, _HELD_OUT),
}
_FILLERS = _TRAINING | {"rate", "loss", "amp", "factor", "global", "optimizer", "group", "0", "2", "l2"}
_MOST_NAMED = 12


def choose(scalars: Mapping[str, Scalars], requested: Mapping[str, str]) -> dict[str, str]:
    """The tag of each signal: as requested, as precgui writes it, else the one whose words fit best and say least more.

    A signal that is requested as `""` is left out. Raises RunFileError for a signal or tag that does not exist.
    """
    for signal, tag in requested.items():
        if signal not in SIGNALS:
            raise RunFileError(
                Sentence("{signal} is not a signal; choose {signals}.", signal=signal, signals=", ".join(SIGNALS))
            )
        if tag and tag not in scalars:
            raise RunFileError(
                Sentence("no scalar is called {tag}; there are {names}.", tag=tag, names=listed(scalars))
            )
    chosen = {signal: tag for signal, tag in OWN_TAGS.items() if tag in scalars} | dict(requested)
    for signal in _WORDS:
        free = [tag for tag in scalars if tag not in chosen.values() and _fits(tag, signal)]
        if signal not in chosen and free:
            chosen[signal] = min(free, key=lambda tag: (_more(tag, signal), -len(scalars[tag].step), tag))
    return {signal: tag for signal, tag in chosen.items() if tag}


def shows_training(signals: Container[str]) -> bool:
    """Whether these signals say anything of how a training went."""
    return any(signal in signals for signal in ("loss", "val_loss", "val_accuracy"))


def listed(tags: Mapping[str, Scalars] | Sequence[str]) -> str:
    """The first tags by name, and how many more there are."""
    return some_names(sorted(tags), _MOST_NAMED)


def _words(tag: str) -> set[str]:
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", tag)
    return set(re.split(r"[^a-z0-9]+", apart.lower())) - {""}


def _fits(tag: str, signal: str) -> bool:
    words = _words(tag)
    if signal == "loss" and words & _HELD_OUT:
        return False
    return all(words & group for group in _WORDS[signal])


def _more(tag: str, signal: str) -> int:
    """How many words of the tag neither the signal nor habit explains: loss/box is a worse loss than loss."""
    return len(_words(tag) - set().union(*_WORDS[signal]) - _FILLERS)
