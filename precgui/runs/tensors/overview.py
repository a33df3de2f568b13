"""All rows of a record of tensors in as many columns as a picture has: sums and extremes, no row left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import EXPONENT_BINS, TENSOR_STATS

MOST_COLUMNS = 480  # as many as the picture is wide
MOST_HISTOGRAMS = 16_000  # held at once, 33 MB
FEWEST_COLUMNS = 24
_FIRST_COLUMNS = 16
_COUNTS = ("zeros", "nan", "pos_inf", "neg_inf", "count")
_SHARES = [place for place, name in enumerate(TENSOR_STATS) if name == "changed" or name.startswith("lost_")]
_SHARE_SUMS = slice(len(_COUNTS), len(_COUNTS) + len(_SHARES))  # and behind them their weights
_SHARE_WEIGHTS = slice(_SHARE_SUMS.stop, _SHARE_SUMS.stop + len(_SHARES))
_SUMS = [TENSOR_STATS.index(name) for name in _COUNTS]
_AMAX, _AMIN, _COUNT = (TENSOR_STATS.index(name) for name in ("amax", "amin_nonzero", "count"))
_GROWING = [TENSOR_STATS.index(name) for name in ("zeros", "count")]
_NOT_FINITE = [TENSOR_STATS.index(name) for name in ("nan", "pos_inf", "neg_inf")]

Join = Callable[..., Any]


@dataclass(frozen=True)
class Columns:
    """Columns of an Overview, in the order of the steps; every row that was added is in one column.

    `steps` (columns,) is the first step of each. `exponents` (columns, tensors, 256) are sums. Of `stats` (columns,
    tensors, TENSOR_STATS) the counts are sums, `amax` and `amin_nonzero` the extremes, `changed` and `lost_*` the means
    over the rows (of `lost_*` weighted by `changed`, of which they are shares), others NaN.
    `bad_step` (columns, tensors) is the first step with NaN or Inf, NaN where there is none; `bad_rows` counts the rows
    of a column with any, `rows` all of them.

    A tensor of which one of k blocks was sampled counts k times in `exponents`, `zeros` and `count`, so that it
    weighs what it weighs in the model. `sampled` (tensors, 2) says how many elements were sampled in such rows of
    all columns, and for how many they stand.
    """

    steps: NDArray[np.int64]
    exponents: NDArray[np.float64]
    stats: NDArray[np.float64]
    bad_step: NDArray[np.float64]
    bad_rows: NDArray[np.int64]
    rows: NDArray[np.int64]
    sampled: NDArray[np.float64]


class Overview:
    """Takes rows in any order. A column holds `width` steps, a power of two that grows when columns run out."""

    def __init__(self, most_columns: int = MOST_COLUMNS, most_histograms: int = MOST_HISTOGRAMS) -> None:
        self._most_columns, self._most_histograms = most_columns, most_histograms
        self.width = 1
        self.rows = 0
        self._places: dict[int, int] = {}  # by the number of the column, counted in `width` steps from 0
        self._parts: dict[str, NDArray[Any]] = {}
        self._tensors = 0
        self._sampled = np.zeros((0, 2))

    def expect(self, steps: NDArray[np.int64], tensors: int) -> None:
        """Prepare for rows of these steps, with columns as wide as they need."""
        if not self._places and len(steps):
            most = self._limit(tensors)
            while len(np.unique(steps // self.width)) > most:
                self.width *= 2

    def add(
        self,
        steps: NDArray[np.int64],
        stats: NDArray[Any],
        exponents: NDArray[Any],
        strides: NDArray[Any] | None = None,
    ) -> NDArray[np.bool_]:
        """Rows of shapes (rows,), (rows, tensors, TENSOR_STATS), (rows, tensors, 256); which had anything in them.

        `strides` (rows, tensors) says of how many blocks one was sampled; without it, all were.
        """
        tensors = min(stats.shape[1], exponents.shape[1]) if len(steps) else 0  # which differ in a damaged file only
        known = np.ones((len(steps), tensors))  # missing strides of such a file count as 1
        if strides is not None:
            known[:, : strides.shape[1]] = strides[:, :tensors]
        parts = (known, stats, exponents)
        if tensors > self._tensors:
            self._make_room(tensors)
        rows = zip(steps.tolist(), *(part[:, :tensors] for part in parts), strict=True)
        return np.array([self._add_row(*row) for row in rows], bool)

    def columns(self) -> Columns:
        order = [place for _, place in sorted(self._places.items())]
        part = {name: array[order] for name, array in self._parts.items()}
        stats = np.full((len(order), self._tensors, len(TENSOR_STATS)), np.nan)
        if order:
            sums = part["sums"]
            stats[:, :, _SUMS] = sums[:, :, : len(_COUNTS)]
            stats[:, :, [_AMAX, _AMIN]] = np.stack((part["most"], part["least"][:, :, 0]), 2)
            with np.errstate(all="ignore"):
                stats[:, :, _SHARES] = sums[:, :, _SHARE_SUMS] / sums[:, :, _SHARE_WEIGHTS]
        none = np.empty(0, np.int64)
        return Columns(
            steps=part.get("step", none),
            exponents=part.get("exponents", np.empty((0, self._tensors, EXPONENT_BINS))),
            stats=stats,
            bad_step=part["least"][:, :, 1] if order else np.empty((0, self._tensors)),
            bad_rows=part["rows"][:, 1] if order else none,
            rows=part["rows"][:, 0] if order else none,
            sampled=self._sampled,
        )

    def _add_row(self, step: int, strides: NDArray[Any], stats: NDArray[Any], counts: NDArray[Any]) -> bool:
        reported = stats[:, _COUNT] > 0
        if not reported.any():  # of a row that a damaged file has lost
            return False
        stats, counts = self._weighted(np.where(reported, strides, 1), stats, counts)
        place, own, parts = self._place(step), slice(0, len(stats)), self._parts
        bad = reported & (stats[:, _NOT_FINITE] > 0).any(1)
        shares = np.where(reported[:, None], stats[:, _SHARES], np.nan)
        weights = np.isfinite(shares).astype(np.float64)
        weights[:, 1:] *= np.nan_to_num(shares[:, :1])  # `lost_*` are shares of what has changed
        sums = np.concatenate((np.where(reported[:, None], stats[:, _SUMS], 0),
                               np.nan_to_num(shares) * weights, weights), 1)  # fmt: skip
        _into(np.add, parts["exponents"][place, own], counts)
        _into(np.add, parts["sums"][place, own], sums)
        _into(np.fmax, parts["most"][place, own], np.where(reported, stats[:, _AMAX], np.nan))
        _into(np.fmin, parts["least"][place, own, 0], np.where(reported, stats[:, _AMIN], np.nan))
        _into(np.fmin, parts["least"][place, own, 1], np.where(bad, float(step), np.nan))
        parts["step"][place] = min(step, int(parts["step"][place]))
        parts["rows"][place] += (1, bool(bad.any()))
        self.rows += 1
        return True

    def _weighted(
        self, strides: NDArray[Any], stats: NDArray[Any], counts: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """A row with each tensor counted once for each block that one sampled block stands for."""
        sampled = strides > 1
        if not sampled.any():
            return stats, counts
        elements = np.where(sampled, stats[:, _COUNT], 0.0)
        weighted = at_full_size(strides, stats, counts)
        self._sampled[: len(stats)] += np.stack((elements, np.where(sampled, weighted[0][:, _COUNT], 0.0)), 1)
        return weighted

    def _place(self, step: int) -> int:
        while (key := step // self.width) not in self._places and len(self._places) >= self._most:
            self._widen()
        place = self._places.setdefault(key, len(self._places))
        if place >= len(self._parts["step"]):
            self._grow()
        return place

    def _grow(self) -> None:
        """Twice the columns: zeroed memory costs as much as used memory where the allocator has had it before."""
        fresh = self._empty(min(max(2 * len(self._parts["step"]), _FIRST_COLUMNS), self._most))
        for name, array in self._parts.items():
            fresh[name][: len(array)] = array
        self._parts = fresh

    @property
    def _most(self) -> int:
        return self._limit(self._tensors)

    def _limit(self, tensors: int) -> int:
        """How many columns there may be."""
        return max(min(self._most_columns, self._most_histograms // max(tensors, 1)), FEWEST_COLUMNS)

    def _widen(self) -> None:
        """Put each two neighbours together."""
        self.width *= 2
        before, self._places = self._places, {}
        into = {place: self._places.setdefault(key // 2, len(self._places)) for key, place in before.items()}
        self._parts = _moved(self._parts, into.items(), self._empty(len(self._parts["step"])))

    def _make_room(self, tensors: int) -> None:
        """More tensors than there were: wider columns, and perhaps fewer of them."""
        self._sampled = np.concatenate((self._sampled, np.zeros((tensors - self._tensors, 2))))
        self._tensors = tensors
        while len(self._places) > self._most:
            self._widen()
        held = max(min(self._most, _FIRST_COLUMNS), len(self._places))
        self._parts = _moved(self._parts, ((place, place) for place in self._places.values()), self._empty(held))

    def _empty(self, most: int) -> dict[str, NDArray[Any]]:
        """Arrays of `most` columns in which nothing has been added up."""
        tensors = self._tensors
        return {
            "exponents": np.zeros((most, tensors, EXPONENT_BINS)),
            "sums": np.zeros((most, tensors, _SHARE_WEIGHTS.stop)),
            "most": np.full((most, tensors), np.nan),
            "least": np.full((most, tensors, 2), np.nan),  # the smallest magnitude, the first step that is not finite
            "step": np.full(most, np.iinfo(np.int64).max),
            "rows": np.zeros((most, 2), np.int64),
        }


def at_full_size(
    strides: NDArray[Any], stats: NDArray[Any], exponents: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Counts of samples as estimates of the whole: `stats` (..., TENSOR_STATS), `exponents` (..., 256).

    The counts of NaN and Inf are not scaled up.
    """
    whole = stats.astype(np.float64)
    with np.errstate(all="ignore"):  # wild numbers of a damaged file
        whole[..., _GROWING] *= _weights(strides, stats.shape[-2])
        return whole, exponents * _weights(strides, exponents.shape[-2])


def _weights(strides: NDArray[Any], tensors: int) -> NDArray[np.float64]:
    """Shape (..., tensors, 1); in a damaged file there may be more or fewer tensors than strides."""
    known = min(strides.shape[-1], tensors)
    weights = np.ones((*strides.shape[:-1], tensors, 1))
    weights[..., :known, 0] = np.maximum(strides[..., :known], 1.0)
    return weights


_JOINS: dict[str, Join] = {"most": np.fmax, "least": np.fmin, "step": np.minimum}  # all else are sums


def _into(join: Join, whole: NDArray[Any], part: NDArray[Any]) -> None:
    with np.errstate(all="ignore"):
        join(whole, part, out=whole)


def _moved(
    parts: dict[str, NDArray[Any]], moves: Iterable[tuple[int, int]], fresh: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """The columns at new places in `fresh`, joined where two come to one place."""
    pairs = list(moves)
    for name, array in parts.items():
        for place, target in pairs:
            whole = fresh[name][target : target + 1]
            own = whole if array.ndim == 1 else whole[:, : array.shape[1]]
            _into(_JOINS.get(name, np.add), own, array[place : place + 1])
    return fresh
