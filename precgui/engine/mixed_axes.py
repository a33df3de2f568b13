"""Axes that a view has mixed where they should have changed places: positions and features in one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from precgui.engine.operation_names import SOFTMAXES
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_PRODUCTS = ("mm", "addmm")
_REGROUPED = {"view", "_unsafe_view", "unsqueeze", "squeeze", "_reshape_alias", "_reshape_copy"}
_PARTS = ("split", "split_with_sizes", "unbind")
_BROADCAST = -1  # the label of an axis that holds the same numbers


class _Factor(NamedTuple):
    """A part of an axis of the base: neighbours are `stride` apart in it."""

    axis: int
    size: int
    stride: int


_Dim = tuple[_Factor, ...]  # the outer one first


class _Base(NamedTuple):
    """A tensor whose axes have a meaning; `feature` is the axis of its features, the others are positions."""

    kind: str  # "product", "convolution", "embedding", "heads"
    sizes: tuple[int, ...]
    feature: int


class _Layout(NamedTuple):
    """Where the axes of a base are in a tensor. `dims` is None where a view has put its borders across theirs."""

    base: _Base
    dims: tuple[_Dim, ...] | None


class MixedAxes(Watcher):
    """Told of each operation outside of the optimizer; follows axes through views, copies and elementwise operations.

    A transposition moves axes as they are; a view that splits one and joins a part of it with another one mixes them.
    Noted are queries and keys of an attention, heads that are put together, classes of a cross entropy and channels of
    a convolution whose axis holds several positions, a part of them.
    """

    fact = "mixed_axes"

    def __init__(self) -> None:
        super().__init__()
        self._layouts = TensorMarks[_Layout]()
        self._weights = TensorMarks[bool]()  # results of a softmax

    def observe(self, call: OperationCall) -> None:
        name, args, out, first = call.name, call.args, call.out, call.args[0]
        if name in _PRODUCTS:
            self._into_layer(args[1 if name == "addmm" else 0], -1, "features", call.module)
            if any(isinstance(each, Tensor) and each.requires_grad for each in args):
                self._begin(out, "product", 1)
        elif name == "convolution":
            self._into_layer(first, 1, "channels", call.module)
            self._begin(out, "convolution", 1)
        elif name == "embedding":
            self._begin(out, "embedding", out.dim() - 1)
        elif name == "bmm":
            self._multiplied(first, args[1], out, call.module)
        elif name.startswith("_scaled_dot_product") and len(args) > 2:
            self._attend(first, args[1], -2, call.module)
            self._begin(as_list(out)[0], "heads", 3)
        else:
            if name == "_log_softmax" and first.requires_grad:
                self._of_classes(first, args[1], call.module)
            if name in SOFTMAXES:
                self._weights[out] = True
            self._follow(call)

    def _begin(self, out: Any, kind: str, feature: int) -> None:
        if isinstance(out, Tensor) and (kind != "heads" or out.dim() == 4):
            self._layouts[out] = _whole(_Base(kind, tuple(out.shape), feature))

    def _follow(self, call: OperationCall) -> None:
        name, args, first = call.name, call.args, call.args[0]
        if isinstance(first, Tensor) and self._weights.get(first):
            for each in as_list(call.out)[:1]:
                if isinstance(each, Tensor):  # not a number that the loop reads
                    self._weights[each] = True
        known = self._layouts.get(first)
        source = first
        if known is None and (known := self._layouts.get(call.second)) is not None:
            source = call.second
        if known is None:
            return
        if name in _PARTS and source is first:
            axis = int(call.kwargs.get("dim", args[-1] if len(args) > (1 if name == "unbind" else 2) else 0))
            for each in as_list(call.out):
                self._keep(each, _part(known, axis % first.dim(), each, removed=name == "unbind"))
            return
        out = next(iter(as_list(call.out)), None)
        if isinstance(out, Tensor):
            self._keep(out, _moved(known, name, args, source, out))

    def _keep(self, out: Any, layout: _Layout | None) -> None:
        if isinstance(out, Tensor) and layout is not None:
            self._layouts[out] = layout

    def _multiplied(self, first: Tensor, second: Tensor, out: Tensor, module: str | None) -> None:
        """A batch of products: of queries and keys, or of the weights of an attention and its values."""
        if self._weights.get(first):
            self._layouts[out] = _whole(_Base("heads", tuple(out.shape), 2))
        else:
            self._attend(first, second, -1, module)

    def _attend(self, queries: Tensor, keys: Any, axis: int, module: str | None) -> None:
        """Queries whose positions are the axis before the last one, and keys with positions along an axis."""
        found = [self._layouts.get(queries), self._layouts.get(keys)]
        mixed = [
            each for each, dim in zip(found, (-2, axis), strict=True)
            if each is not None and each.base.kind == "product" and len(each.base.sizes) > 2 and _is_mixed(each, dim)
        ]  # fmt: skip
        if len(mixed) == 2:
            self._note("heads", mixed[0].base, queries.shape[-2], module)

    def _into_layer(self, given: Any, axis: int, kind: str, module: str | None) -> None:
        """The features that a layer gets along an axis."""
        known = self._layouts.get(given)
        if known is None or given.dim() < 2:
            return
        base, size = known.base, given.shape[axis]
        if base.kind == "heads":
            is_whole = len(base.sizes) == 4 and base.sizes[1] > 1 and size == base.sizes[1] * base.sizes[3]
            if kind == "features" and is_whole and _is_torn(known, axis, (2,)) and not _holds(known, axis, 1):
                self._note("merged", base, size, module)
            return
        if size != base.sizes[base.feature] or size < 2:
            return
        is_followed = kind == "channels" or base.kind == "convolution"
        if is_followed and _holds_positions(known, axis):
            self._note(kind, base, size, module)

    def _of_classes(self, scores: Tensor, axis: int, module: str | None) -> None:
        known = self._layouts.get(scores)
        if known is None or known.base.kind not in ("product", "convolution") or scores.dim() < 2:
            return
        size = scores.shape[axis]
        is_all = size == known.base.sizes[known.base.feature] or known.base.kind == "convolution"
        if is_all and size > 1 and _holds_positions(known, axis):
            self._note("classes", known.base, size, module)

    def _note(self, kind: str, base: _Base, size: int, module: str | None) -> None:
        key = kind, module
        if self._has_room(key):
            self._rows.setdefault(
                key,
                {"step": self._step, "kind": kind, "module": module, "from": base.kind, "shape": list(base.sizes),
                 "size": size},
            )  # fmt: skip


def _whole(base: _Base) -> _Layout:
    return _Layout(base, tuple((_Factor(axis, size, 1),) if size > 1 else () for axis, size in enumerate(base.sizes)))


def _positions(base: _Base) -> tuple[int, ...]:
    return tuple(axis for axis in range(len(base.sizes)) if axis != base.feature)


def _holds(layout: _Layout, dim: int, axis: int) -> bool:
    return layout.dims is not None and any(each.axis == axis for each in layout.dims[dim])


def _is_torn(layout: _Layout, dim: int, axes: Sequence[int]) -> bool:
    """Whether an axis of a tensor has a part of one of these axes of the base, and another axis the rest."""
    return layout.dims is None or any(each.axis in axes for each in _split(layout.dims, dim))


def _split(dims: tuple[_Dim, ...], dim: int) -> list[_Factor]:
    """The factors of an axis of a tensor of whose axis of the base another axis has a part, too."""
    others = {each.axis for place, own in enumerate(dims) if place != dim % len(dims) for each in own}
    return [each for each in dims[dim] if each.axis in others]


def _holds_positions(layout: _Layout, dim: int) -> bool:
    """Whether what should be the features of one position comes from several, and a view has cut an axis for it."""
    base, dims = layout
    return dims is None or (any(each.axis != base.feature for each in dims[dim]) and bool(_split(dims, dim)))


def _is_mixed(layout: _Layout, dim: int) -> bool:
    """Whether an axis joins a part of the positions, of which others are elsewhere, with a part of the features."""
    return layout.dims is None or (
        _holds(layout, dim, layout.base.feature) and _is_torn(layout, dim, _positions(layout.base))
    )


def _moved(layout: _Layout, name: str, args: Any, first: Tensor, out: Tensor) -> _Layout | None:
    """The layout of what an operation makes of a tensor; None where it is not followed."""
    base, dims = layout
    if name in _REGROUPED and out.numel() == first.numel():
        return _regrouped(layout, tuple(out.shape))
    if dims is None:
        return layout if out.numel() == first.numel() else None
    if name in ("transpose", "t"):
        one, other = (0, first.dim() - 1) if name == "t" else (int(args[1]) % first.dim(), int(args[2]) % first.dim())
        order = list(range(first.dim()))
        order[one], order[other] = order[other], order[one]
        return _Layout(base, tuple(dims[each] for each in order))
    if name == "permute":
        return _Layout(base, tuple(dims[int(each) % first.dim()] for each in args[1]))
    if name == "expand":
        return _Layout(base, _expanded(dims, first, out))
    if name in ("select", "slice"):
        axis = int(args[1] if len(args) > 1 else 0) % first.dim()
        return _part(layout, axis, out, removed=name == "select")
    return layout if out.shape == first.shape else None


def _expanded(dims: tuple[_Dim, ...], first: Tensor, out: Tensor) -> tuple[_Dim, ...]:
    own = ((),) * (out.dim() - first.dim()) + dims
    sizes = (1,) * (out.dim() - first.dim()) + tuple(first.shape)
    return tuple(
        dim if size == wanted else (_Factor(_BROADCAST, wanted, 0),)
        for dim, size, wanted in zip(own, sizes, out.shape, strict=True)
    )


def _part(layout: _Layout, axis: int, out: Any, *, removed: bool) -> _Layout | None:
    """The layout of a part of a tensor along an axis, or of one place of it."""
    dims = layout.dims
    if dims is None or not isinstance(out, Tensor):
        return None
    if removed:
        return _Layout(layout.base, dims[:axis] + dims[axis + 1 :])
    own, size = dims[axis], out.shape[axis]
    if math.prod(each.size for each in own) == size:
        return layout
    if len(own) != 1:
        return None
    kept = (own[0]._replace(size=size),) if size > 1 else ()
    sizes = list(layout.base.sizes)
    is_feature = own[0].axis == layout.base.feature and own[0].size == sizes[own[0].axis]
    if is_feature:  # queries, keys and values of one product: each has features of its own
        sizes[own[0].axis] = size
    return _Layout(layout.base._replace(sizes=tuple(sizes)), (*dims[:axis], kept, *dims[axis + 1 :]))


def _regrouped(layout: _Layout, shape: tuple[int, ...]) -> _Layout:
    """The layout after a view: factors in their order, joined and split as the new shape says."""
    base, dims = layout
    named = _named(layout, shape)
    if named is not None:
        return named
    if dims is None:
        return layout
    left, found = [each for dim in dims for each in dim], list[_Dim]()
    for size in reversed(shape):
        own: list[_Factor] = []
        while size > 1 and left:
            last = left.pop()
            if size % last.size == 0:
                own.insert(0, last)
                size //= last.size
            elif last.size % size == 0:
                own.insert(0, last._replace(size=size))
                left.append(_Factor(last.axis, last.size // size, last.stride * size))
                size = 1
            else:
                return _Layout(base, None)
        if size > 1:
            return _Layout(base, None)
        found.insert(0, tuple(own))
    return _Layout(base, tuple(found))


def _named(layout: _Layout, shape: tuple[int, ...]) -> _Layout | None:
    """A layer and a batch of products have their leading axes in one: the first view tells them apart."""
    base = layout.base
    kept = {"product": 1, "heads": 2}.get(base.kind, 0)
    if len(base.sizes) != kept + 1 or len(shape) <= kept + 1 or layout != _whole(base):
        return None
    if shape[-kept:] != base.sizes[-kept:] or math.prod(shape[:-kept]) != base.sizes[0]:
        return None
    return _whole(_Base(base.kind, shape, len(shape) - 1))
