"""Evenly spaced elements of tensors and lists."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from precgui.engine.telemetry.readable import readable

Row = TypeVar("Row", bound=list | Tensor)  # type: ignore[type-arg]


def evenly_spaced(row: Row, most: int) -> Row:
    """At most `most` parts of a list or elements of a flat tensor: a part of the memory of that."""
    return row[:: max(-(-len(row) // most), 1)]  # type: ignore[return-value]


def readable_sample(tensor: Tensor | None, most: int, fewest: int = 1) -> Tensor | None:
    """At most `most` elements of a tensor, flat and without a copy where memory allows; None where fewer than `fewest`
    can be read."""
    values = readable(tensor) if tensor is not None else None
    if values is None or values.numel() < fewest:
        return None
    return evenly_spaced(values.detach().reshape(-1), most)


def sampled_table(tensor: Tensor, most_rows: int, most: int) -> Tensor:
    """The first rows of a tensor [samples, ...], at most `most` elements together, with the rest as evenly spaced
    columns."""
    rows = tensor.detach()[:most_rows]
    table = rows.reshape(len(rows), -1)
    return table[:, :: max(-(-table.numel() // most), 1)]


def sampled(value: Tensor, shape: torch.Size, most: int) -> Tensor:
    """At most about `most` elements of a tensor that is broadcast to a shape, evenly spaced, as a copy in FP32."""
    whole = value.detach().expand(shape)
    count = whole.numel()
    if count <= most:
        return whole.reshape(-1).to(torch.float32, copy=True)
    places = torch.arange(0, count, count // most, device=value.device)
    return whole[torch.unravel_index(places, shape)].float()
