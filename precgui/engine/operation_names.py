"""Operations of torch by what they do with the numbers of their operands, for all that follows these through a step.

Names are those of `operation_name` without the `_` of an operation in place. Views need none: torch marks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

CASTS = frozenset({"_to_copy", "copy_"})  # also of numbers to the same format
COPIES = frozenset({"_to_copy", "clone"})  # in the same shape
SAME_NUMBERS = COPIES | {"_unsafe_view", "_reshape_copy"}  # beside views; a cast rounds them
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
FIT_LOSSES = {  # of outputs and targets of the same shape, and the place of the reduction among the arguments
    "mse_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2, "binary_cross_entropy": 3,
    "binary_cross_entropy_with_logits": 4,
}  # fmt: skip
NO_REDUCTION, MEAN, SUM = range(3)  # as torch counts them


def reduction_of(name: str, args: Sequence[Any]) -> int:
    """The reduction of one of the `FIT_LOSSES`: torch leaves out what is the default."""
    place = FIT_LOSSES[name]
    return int(args[place]) if len(args) > place else MEAN


def base_of(name: str) -> str:
    """The name of an operation, without the `_` of one in place; those of Python (`__and__`) stay as they are."""
    return name if name.endswith("__") else name.removesuffix("_")


def is_elementwise(func: Any) -> bool:
    """Whether each element of a result is computed from those at its place in the operands."""
    return torch.Tag.pointwise in func.tags


def cast_operand(name: str, args: Sequence[Any]) -> Any:
    """The operand whose numbers an operation writes in the format of its result; None of one that is no cast."""
    if name not in CASTS:
        return None
    return args[0] if name == "_to_copy" else args[1]


def keeps_numbers(func: Any, name: str) -> bool:
    """Whether results of an operation are the numbers of its first operand in another place, shape or format."""
    return func.is_view or name in SAME_NUMBERS
