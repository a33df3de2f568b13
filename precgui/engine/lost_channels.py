"""Channels that a rounding to few whole numbers leaves without any difference, since one step serves all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.operation_names import CASTS, CLAMPS, EXTREMES, ROUNDINGS, SUMS
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher, is_weight

_OF_RANGE = {
    "amax",
    "amin",
    "aminmax",
    "max",
    "min",
    "linalg_vector_norm",
    "norm",
    "quantile",
    "kthvalue",
    "topk",
    "sort",
}
_OF_TORCH = {  # fake quantisations by torch with one scale, and those that take the range themselves
    "fake_quantize_per_tensor_affine_cachemask": False,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": False,
    "_fused_moving_avg_obs_fq_helper": True,
}
_PER_ROW = 11  # the argument of the last of these that says that each row has a scale of its own
_SCALING = {"mul", "div"}
_FEWEST, _MOST = 64, 1 << 22  # numbers of a tensor
_FEWEST_CHANNELS, _FEWEST_SAMPLES, _FEWEST_OF_ROW = 8, 16, 4  # coordinates are fewer
_LEVELS = range(32, 513)  # between the least and the largest result: 6 to 8 bits
_CARRIES = 0.25  # of the samples: a channel that is zero in more of them is sparse
_SAME_UNIT = 0.5  # norm of the error over that of the numbers: results are in the unit of what was rounded
_UNUSED, _NOISE = 0.05, 1e-4  # rms over the step: what a model learns to keep smaller carries nothing, nor such data
_SUM = 1e-3  # distance from 1 of sums of probabilities, most of which are small and matter little
_MOST_STEPS = 8


@dataclass(frozen=True)
class _Coded:
    """Numbers over a step, or made of these. `shape` is that of the step, `levels` how many whole numbers there are
    between the least and the largest one; 0 before the rounding."""

    origin: Tensor
    shape: tuple[int, ...]
    levels: float = 0.0
    is_difference: bool = False  # what a rounding has changed


class _Lost(NamedTuple):
    channels: int  # that hold numbers
    lost: int  # of these, which hold one number afterwards
    largest: float  # magnitude of all
    usual: float  # median of the largest magnitudes of the lost channels
    step: float


class LostChannels(Watcher):
    """Told of each operation outside of the optimizer.

    A rounding counts inside of the model, with a step that follows the range of the numbers: a reduction to their
    extremes ran in the same module. Results are compared in the unit of the numbers.
    """

    fact = "lost_channels"

    def __init__(self) -> None:
        super().__init__()
        self._coded = TensorMarks[_Coded]()
        self._ranged: set[tuple[str, int]] = set()  # modules, and sizes of tensors whose extremes they take
        self._worst: dict[tuple[str, bool], _Lost] = {}  # of this step
        self._found: dict[tuple[str, bool], list[dict[str, Any]]] = {}

    def begin(self, step: int) -> None:
        super().begin(step)
        self._worst.clear()

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        name, args, out, module = call.base, call.args, call.out, call.module
        first = args[0]
        if module is None or not isinstance(first, Tensor):
            return
        if name in _OF_RANGE:
            if first.is_floating_point() and first.numel() >= _FEWEST:
                self._ranged.add((module, first.numel()))
        elif name in _OF_TORCH:
            self._fake(name, args, out, module)
        elif isinstance(out, Tensor) and out.numel() == first.numel() and out.numel() >= _FEWEST:
            self._follow(call, first, out, module)

    def _fake(self, name: str, args: Any, out: Any, module: str) -> None:
        first, result = args[0], out[0] if isinstance(out, tuple) else out
        takes_range = _OF_TORCH[name] and not (len(args) > _PER_ROW and args[_PER_ROW])
        if not (takes_range or (module, first.numel()) in self._ranged) or result.shape != first.shape:
            return
        step = float(args[5 if _OF_TORCH[name] else 1])
        if step > 0 and _FEWEST <= result.numel() <= _MOST:
            low, high = result.aminmax()
            self._compare(_Coded(first, (), float(high - low) / step), result, module)

    def _follow(self, call: OperationCall, first: Tensor, out: Tensor, module: str) -> None:
        name, second = call.base, call.second
        known = self._coded.get(first)
        is_small = not isinstance(second, Tensor) or second.numel() < out.numel()
        if name in _SCALING and is_small and second is not None:
            self._scaled(first, second, out, module, known)
        elif name in ROUNDINGS or (call.name in CASTS and not out.is_floating_point()):
            if known is not None and first.is_floating_point() and out.numel() <= _MOST:
                low, high = (out if out.is_floating_point() else out.float()).aminmax()
                self._coded[out] = replace(known, levels=float(high - low))
        elif name in SUMS and not is_small:
            self._joined(name, known, self._coded.get(second), out)
        elif known is not None and (name in CLAMPS or name in EXTREMES or name in SUMS or call.keeps_numbers):
            self._coded[out] = known

    def _scaled(self, first: Tensor, second: Any, out: Tensor, module: str, known: _Coded | None) -> None:
        if known is not None and known.levels:
            self._coded[out] = known
            if out.is_floating_point():
                self._compare(known, out, module)
        elif (
            (module, first.numel()) in self._ranged
            and first.is_floating_point()
            and not isinstance(second, nn.Parameter)
        ):
            shape = tuple(second.shape) if isinstance(second, Tensor) else ()
            self._coded[out] = _Coded(first, shape)

    def _joined(self, name: str, first: _Coded | None, second: _Coded | None, out: Tensor) -> None:
        """A difference with the rounded numbers, or the sum that takes it back: estimators let gradients through so."""
        rounded = next((each for each in (first, second) if each is not None and each.levels), None)
        if rounded is not None:
            is_difference = name in ("sub", "rsub") and not rounded.is_difference
            self._coded[out] = replace(rounded, is_difference=is_difference)

    def _compare(self, coded: _Coded, out: Tensor, module: str) -> None:
        origin = coded.origin
        if coded.is_difference or int(coded.levels) not in _LEVELS or origin.numel() > _MOST:
            return
        before, after = in_fp64(origin.detach()), in_fp64(out.detach().reshape(origin.shape))
        if not bool((after - before).norm() < _SAME_UNIT * before.norm()):
            return
        step = float(after.max() - after.min()) / coded.levels
        weighs = is_weight(origin)
        axis = _axis(origin, weighs=weighs)
        if axis is None or _has_own(coded.shape, axis, origin.dim()) or _are_probabilities(before):
            return
        least = (_UNUSED if weighs or origin.requires_grad else _NOISE) * step
        lost = _lost(before, after, axis, step, least, _FEWEST_OF_ROW if weighs else _FEWEST_SAMPLES)
        if lost is not None:
            self._keep((module, weighs), lost)

    def _keep(self, key: tuple[str, bool], lost: _Lost) -> None:
        worst = self._worst.get(key)
        if worst is None or lost.lost * worst.channels > worst.lost * lost.channels:
            self._worst[key] = lost

    def end(self) -> None:
        super().end()
        for key, lost in self._worst.items():
            if key not in self._found and len(self._found) >= self.most_rows:
                continue
            rows = self._found.setdefault(key, [])
            rows.append(
                {"step": self._step} | {"step_size" if k == "step" else k: v for k, v in lost._asdict().items()}
            )
            del rows[:-_MOST_STEPS]
        self._worst.clear()

    def facts(self) -> dict[str, list[dict[str, Any]]]:
        rows = [
            {"module": module, "weights": weighs, "steps": steps} for (module, weighs), steps in self._found.items()
        ]
        return {self.fact: rows}


def _axis(origin: Tensor, *, weighs: bool) -> int | None:
    """The axis of channels: of weights that of their results, of activations the last one, of images the second."""
    if origin.dim() < 2:
        return None
    return 0 if weighs else origin.dim() - 1 if origin.dim() < 4 else 1


def _are_probabilities(numbers: Tensor) -> bool:
    return bool((numbers >= 0).all() & ((numbers.sum(-1) - 1).abs() < _SUM).all())


def _has_own(shape: tuple[int, ...], axis: int, dims: int) -> bool:
    """Whether a step of this shape has one value for each channel along an axis."""
    place = axis - dims + len(shape)
    return place >= 0 and shape[place] > 1


def _lost(before: Tensor, after: Tensor, axis: int, step: float, least: float, fewest: int) -> _Lost | None:
    """The channels of which a rounding leaves one number each, where another one still has several; None where a tensor
    has too few channels or numbers to tell. `least` is the rms of a channel that counts."""
    channels = before.shape[axis]
    own, kept = (each.movedim(axis, 0).reshape(channels, -1) for each in (before, after))
    if channels < _FEWEST_CHANNELS or own.shape[1] < fewest:
        return None
    held = ((own != 0).double().mean(1) >= _CARRIES) & (own.amax(1) > own.amin(1)) & own.isfinite().all(1)
    held &= own.square().mean(1).sqrt() >= least
    lost = held & (kept.amax(1) == kept.amin(1))
    count, gone = int(held.sum()), int(lost.sum())
    if count < _FEWEST_CHANNELS or gone == count:
        return None
    peaks = own.abs().amax(1)
    usual = float(peaks[lost].median()) if gone else 0.0
    return _Lost(count, gone, float(peaks.amax()), usual, step)
