"""Operations of torch by what they do with the numbers of their operands, for all that follows these through a step.

Names are those of `operation_name` without the `_` of an operation in place. Views need none: torch marks them.
"""

from __future__ import annotations

from typing import Any

SAME_NUMBERS = frozenset({"_to_copy", "clone", "_unsafe_view", "_reshape_copy"})  # beside views; a cast rounds them
PICKS = frozenset({"index", "index_select", "gather", "take", "take_along_dim", "masked_select", "embedding"})
JOINS = frozenset({"cat", "stack"})  # of a list of tensors
ROUNDINGS = frozenset({"round", "floor", "ceil", "trunc"})  # to whole numbers
CLAMPS = frozenset({"clamp", "clamp_min", "clamp_max"})
EXTREMES = frozenset({"minimum", "maximum"})  # of two tensors, as clamps by a tensor
LOWER_BOUNDS = frozenset({"clamp", "clamp_min", "maximum"})
SUMS = frozenset({"add", "sub", "rsub"})
ARITHMETIC = frozenset({"add", "sub", "mul", "div"})
AFFINE = ARITHMETIC | SUMS
UPDATES = ARITHMETIC | {"lerp", "addcmul", "addcdiv"}  # of what a loop or an optimizer keeps
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "mv", "dot", "linear"})
SOFTMAXES = frozenset({"_softmax", "_safe_softmax"})
NLL_LOSSES = frozenset({"nll_loss_forward", "nll_loss2d_forward"})


def keeps_numbers(func: Any, name: str) -> bool:
    """Whether results of an operation are the numbers of its first operand in another place, shape or format."""
    return func.is_view or name in SAME_NUMBERS
