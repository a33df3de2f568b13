"""Choosing the tensors of an open run: a button whose menu lists runs, kinds of tensors and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QMenu, QToolButton, QWidget

from precgui.runs.tensors import TensorRecord
from precgui.runs.whatif import BIAS, WhatIf

MOST_LISTED = 60


@dataclass(frozen=True)
class Recorded:
    """The exponent histogram of recorded tensors: one or all of a kind, at the last step that was recorded."""

    title: str
    exponents: NDArray[np.int_]
    share: NDArray[np.float64]
    what_if: WhatIf
    weight: NDArray[np.float64]

    def losses(self, name: str) -> tuple[float, float, float]:
        """Shares that underflow, are subnormal, overflow, over all tensors. Raises ValueError for an integer format."""
        found = self.what_if.predict(name)
        parts = (found.underflow, found.subnormal, found.overflow)
        underflow, subnormal, overflow = (float(np.sum(np.nan_to_num(part) * self.weight)) for part in parts)
        return underflow, subnormal, overflow


def recorded(title: str, record: TensorRecord, tensor: str | None) -> Recorded | None:
    """The last row of a record, for one tensor or for all; None where nothing was recorded."""
    if not len(record):
        return None
    counts, stats = record.exponents(len(record) - 1)[0], record.stats(len(record) - 1)[0]
    if tensor is not None:
        place = record.names.index(tensor)
        counts, stats = counts[place : place + 1], stats[place : place + 1]
    what_if = WhatIf(counts, stats)
    total = float(what_if.count.sum())
    if not total:
        return None
    binades = what_if.counts.sum(axis=0)
    used = np.flatnonzero(binades)
    if not used.size:
        return None
    bins = np.arange(used[0], used[-1] + 1)
    words = f"{title}, step {int(record.steps()[-1])}"
    return Recorded(words, bins - BIAS, binades[bins] / total, what_if, what_if.count / total)


class RunSource(QToolButton):
    """`loaded` brings a Recorded, `failed` one sentence. Hidden while no run is open."""

    loaded = Signal(object)
    failed = Signal(str)

    def __init__(self, state: Any, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = state
        self.setText("From run")
        self.setToolTip("The exponents of a tensor that an open run has recorded")
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._menu = QMenu(self)
        self._menu.aboutToShow.connect(self.fill)
        self.setMenu(self._menu)
        for name in ("run_added", "run_removed"):
            if hasattr(state, name):
                getattr(state, name).connect(self._follow)
        if not self._runs():
            self.hide()

    def _runs(self) -> Mapping[str, Any]:
        return getattr(self._state, "runs", {})

    def _follow(self, _: str = "") -> None:
        self.setVisible(bool(self._runs()))

    def fill(self) -> None:
        """Build the menu anew from the open runs."""
        self._menu.clear()
        for opened in self._runs().values():
            kinds = opened.run.tensors()
            menu = self._menu.addMenu(opened.name)
            menu.setEnabled(bool(kinds))
            for kind, record in kinds.items():
                below = menu.addMenu(kind.replace("_", " "))
                below.addAction("all", partial(self.choose, f"{opened.name}, {kind}", record, None))
                for name in record.names[:MOST_LISTED]:
                    below.addAction(name, partial(self.choose, f"{opened.name}, {kind} {name}", record, name))

    def choose(self, title: str, record: TensorRecord, tensor: str | None) -> None:
        found = recorded(title, record, tensor)
        if found is None:
            self.failed.emit(f"{title}: nothing was recorded of it yet")
        else:
            self.loaded.emit(found)
