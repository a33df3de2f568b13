"""The parameters that a graph of autograd hands gradients to."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torch import Tensor

_LAYERS = ("AddmmBackward", "MmBackward", "BmmBackward", "MvBackward", "ConvolutionBackward", "EmbeddingBackward")
_LEAF = "AccumulateGrad"
_HIDES_PARAMETERS = "CheckpointFunctionBackward"  # a pass of its own begins behind it
_MOST_NODES = 20_000


class Leaves(NamedTuple):
    """Leaves of a graph by their id, and whether it has layers."""

    tensors: dict[int, weakref.ref[Tensor]]
    has_layers: bool


def leaves_of(root: Any) -> Leaves | None:
    """The leaves that a node hands gradients to; None where they are not known, or there are too many nodes."""
    seen, waiting, leaves, has_layers = {root}, [root], dict[int, weakref.ref[Tensor]](), False
    while waiting:
        own = waiting.pop()
        name = own.name()
        if name.endswith(_HIDES_PARAMETERS) or len(seen) > _MOST_NODES:
            return None
        has_layers |= name.startswith(_LAYERS)
        if name.endswith(_LEAF):
            leaves[id(own.variable)] = weakref.ref(own.variable)
        for each, _ in own.next_functions:
            if each is not None and each not in seen:
                seen.add(each)
                waiting.append(each)
    return Leaves(leaves, has_layers)
