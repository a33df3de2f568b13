"""Which gradient broke first in a backward pass: one answer for the loop, the readers of its file and the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def first_nonfinite_gradient(bad: Sequence[str], order: Mapping[str, int]) -> str:
    """The parameter whose gradient the backward pass completed first, of `bad` ones that hold NaN or Inf; '' for none.

    `bad` are names of parameters in the order of the model, `order` the place of each in the backward pass as far as
    that is recorded. Where it holds none of them, that is taken to be the order of modules in reverse: the first
    parameter of the last module.
    """
    known = [name for name in bad if name in order]
    if known:
        return min(known, key=lambda name: order[name])
    module = bad[-1].rpartition(".")[0] if bad else ""
    return next((name for name in bad if name.rpartition(".")[0] == module), "")
