"""The gradients of a recorded run as the loss-scale simulator needs them: one entry for each step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from precgui.config.names import EMULATED
from precgui.config.precision_traits import traits
from precgui.events import EXPONENT_BINS, TENSOR_STATS
from precgui.runs.run import Run
from precgui.runs.scaler_simulation import GradientSequence
from precgui.runs.tensors.confidence import BACKWARD, basis_of
from precgui.runs.tensors.overview import at_full_size
from precgui.runs.tensors.record import TensorHistory
from precgui.sentences import L_, Sentence

Values = NDArray[np.float64]
_MOST_AMAX, _MOST_HISTOGRAMS, _AT_ONCE = 2048, 128, 64
_NOT_FINITE = [TENSOR_STATS.index(name) for name in ("nan", "pos_inf", "neg_inf")]
_AMAX, _ZEROS = TENSOR_STATS.index("amax"), TENSOR_STATS.index("zeros")


def recorded_gradients(run: Run) -> GradientSequence | None:
    """The gradients of every step of a run; None where no gradient was recorded in any.

    The largest magnitude is that of the gradients of weights and activations together, of at most 2048 recorded rows;
    between recorded steps its logarithm is interpolated. The shares come from the gradients of weights, of at most 128
    rows spread over the run.
    """
    records = [record for kind, record in run.tensors().items() if kind in BACKWARD]
    weights = run.tensors().get("gradient")
    if weights is None or not len(weights):
        return None
    series_steps, skipped = run.series("skipped")
    steps = series_steps.astype(np.int64)
    if not len(steps):
        return None
    amax, measured = _largest(records, steps)
    share_steps, below, sampled = _shares(weights)
    if not measured.any() or not len(share_steps):
        return None
    scale, norm, loss = (run.series(name)[1][: len(steps)] for name in ("scale", "grad_norm", "loss"))
    own = _own_format(run)
    was_skipped = (skipped > 0) | ~np.isfinite(norm)
    bad = ~np.isfinite(loss) | (~np.isfinite(norm) & (own == ""))  # in FP32 or BF16 no scale is at fault
    basis = basis_of(run, "gradient", sampled=sampled)
    notes = [*_notes(len(steps), int(measured.sum()), len(share_steps)), *_unseen(run, own)]
    certainty = "lower bound" if basis.word(0) == "lower bound" else "estimate"
    return GradientSequence(
        steps, amax, measured, bad, np.where(was_skipped, scale, np.nan), np.where(was_skipped, np.nan, scale), own,
        share_steps, below, (*notes, *basis.reasons(0)), certainty,
    )  # fmt: skip


def _unseen(run: Run, own: str) -> Iterator[str]:
    """Overflows that the record does not show, one sentence each."""
    if not own:
        yield L_(
            "The run was not made in a narrow format: overflows inside modules are not recorded, so not seen. "
            "The simulated scale may be too high: that of a GPT really trained in FP16 was up to 4 octaves lower."
        )
    if "activation_gradient" not in run.tensors():
        yield L_("Gradients of activations were not recorded, which may overflow earlier than those of weights.")


def _notes(steps: int, measured: int, histograms: int) -> list[str]:
    notes: list[str] = [
        L_("The gradients are those of the recorded run: what a skipped step would have changed is not simulated.")
    ]
    if measured < steps:
        notes.append(
            Sentence(
                "The largest gradient was measured in {measured} of {steps} steps; between them it is interpolated, "
                "and a spike there is not seen.",
                measured=measured,
                steps=steps,
            )
        )
    if histograms < steps:
        notes.append(
            Sentence(
                "The underflow rests on the histograms of {histograms} of {steps} steps.",
                histograms=histograms,
                steps=steps,
            )
        )
    return notes


def _own_format(run: Run) -> str:
    """The narrow format in which the run made its gradients; empty for one with the range of FP32."""
    precision = run.config.precision
    if precision.startswith(EMULATED):
        return precision.removeprefix(EMULATED)
    return "fp16" if traits(precision).has_narrow_range and precision.startswith("fp16") else ""


@np.errstate(all="ignore")
def _largest(records: list[TensorHistory], steps: NDArray[np.int64]) -> tuple[Values, NDArray[np.bool_]]:
    """The largest finite magnitude of each step, shape (n,), and where it was measured; rows with NaN or Inf count as
    not measured, as their largest finite number says little.
    """
    logs = np.full(len(steps), -np.inf)
    measured = np.zeros(len(steps), bool)
    for record in records:
        every = -(-len(record) // _MOST_AMAX)
        rows = record.steps()[::every]
        own = np.full(len(rows), np.nan)
        for start in range(0, len(rows), _AT_ONCE):
            stats = record.stats(start * every, min((start + _AT_ONCE) * every, len(record)), every)
            clean = ~(stats[:, :, _NOT_FINITE] > 0).any((1, 2))
            most = np.fmax.reduce(stats[:, :, _AMAX], 1, initial=np.nan)
            own[start : start + len(stats)] = np.where(clean & (most > 0), most, np.nan)
        known = np.isfinite(own)
        if known.any():
            logs = np.fmax(logs, np.interp(steps, rows[known], np.log2(own[known])))
            measured |= np.isin(steps, rows[known])
    return 2.0**logs, measured


def _shares(record: TensorHistory) -> tuple[NDArray[np.int64], Values, bool]:
    """Steps (m,), the share below each bin's lower edge (m, 257), and whether any tensor was sampled."""
    every = -(-len(record) // _MOST_HISTOGRAMS)
    steps, result, kept, sampled = record.steps()[::every], [], [], False
    for row, step in enumerate(steps.tolist()):
        at = row * every
        strides = record.strides(at, at + 1)
        stats, counts = at_full_size(strides, record.stats(at, at + 1), record.exponents(at, at + 1))
        total = np.nansum(stats[0, :, _ZEROS])
        histogram = counts[0].sum(0, dtype=np.float64)
        if histogram[EXPONENT_BINS - 1] or not histogram.sum():
            continue
        size = histogram.sum()
        histogram[0] = max(histogram[0] - total, 0.0)  # what is left are values below 2^-126
        result.append(np.concatenate(([0.0], np.cumsum(histogram))) / size)
        kept.append(step)
        sampled = sampled or bool((strides > 1).any())
    return np.array(kept, np.int64), np.array(result).reshape(-1, EXPONENT_BINS + 1), sampled
