"""The formats of products that are computed outside of layers, as the census counts them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

ATTENTION = "(attention)"  # the label of attention kernels, in whichever module
_label_stack: list[str] = []


@contextlib.contextmanager
def labelled_as(label: str) -> Iterator[None]:
    """Products inside count as those of a format, though their operands are held in FP32 (see `current_label`)."""
    _label_stack.append(label)
    try:
        yield
    finally:
        _label_stack.pop()


def current_label() -> str:
    """The format of the products that are being computed outside of layers, or ''."""
    return _label_stack[-1] if _label_stack else ""
