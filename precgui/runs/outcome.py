"""How a run ended, in words that do not hide that nothing was learned: "completed, NaN since step 2"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.config.names import OWN_LOOP
from precgui.runs.run import Run
from precgui.sentences import L_, Sentence

_ENDS = {"failed": L_("it failed"), "stopped": L_("it was stopped"), "running": L_("it goes on")}


STATUSES = (L_("completed"), L_("stopped"), L_("failed"), L_("running"), L_("imported"))


def nonfinite_since(steps: NDArray[np.float64], loss: NDArray[np.float64]) -> int | None:
    """The first of the steps at the end whose losses are all not finite; None where the last loss is finite."""
    if not len(loss) or np.isfinite(loss[-1]):
        return None
    finite = np.flatnonzero(np.isfinite(loss))
    return int(steps[finite[-1] + 1 if len(finite) else 0])


def why_failed(run: Run) -> str:
    """Why a run that ended did not come through, though it may be called completed; empty where it came through.

    A validation whose loss or metric ends as NaN or Inf is a failure, whatever the training loss says: the training
    loss stands in for it only where there was no validation at all. A metric that was never finite is one that the task
    does not have.
    """
    if run.status != "completed":
        return _ENDS.get(run.status, L_("how it ended is not recorded"))
    if lost := run.events("nonfinite_loss"):
        return Sentence("its training loss was not finite at step {step}", step=lost[0].step)
    if validation := lost_validation(run):
        of_loss, of_metric = (
            L_("its last validation loss is not finite"),
            L_("its last validation metric is not finite"),
        )
        return of_loss if validation == "loss" else of_metric
    loss = run.series("loss")[1]
    if len(loss) and not np.isfinite(loss[-1]):
        return L_("its last training loss is not finite")
    return "" if len(loss) or len(run.series("val_loss")[1]) else L_("it has no loss")


def lost_validation(run: Run) -> str:
    """Which of loss and metric is not finite in the last validation: "loss", "metric" or nothing."""
    val_loss, metric = run.series("val_loss")[1], run.series("val_accuracy")[1]
    if len(val_loss) and not np.isfinite(val_loss[-1]):
        return "loss"
    names_metric = run.config.task != OWN_LOOP and run.status != "imported"
    has_metric = names_metric or np.isfinite(metric).any()
    return "metric" if len(metric) and has_metric and not np.isfinite(metric[-1]) else ""


def outcome(status: str, summary: Mapping[str, Any]) -> str:
    """The status with the reason why it is not worth its name; `summary` as `runs.summary.summarise` gives it.

    Summaries of early versions do not know since when the loss is not finite.
    """
    steps, skipped = summary.get("steps"), summary.get("skipped_steps")
    if status not in ("completed", "stopped") or not isinstance(steps, int) or steps <= 0:
        return status
    since = summary.get("nonfinite_since_step")
    if isinstance(since, int):
        return Sentence("{status}, NaN since step {step}", status=status, step=since)
    if skipped == steps:
        return Sentence("{status}, no step taken", status=status)
    if lost := summary.get("nonfinite_validation"):
        if lost == "loss":
            return Sentence("{status}, last validation loss not finite", status=status)
        return Sentence("{status}, last validation metric not finite", status=status)
    final = summary.get("final")
    loss = final.get("train_loss", 0.0) if isinstance(final, Mapping) else summary.get("train_loss", 0.0)
    if loss is None and "nonfinite_since_step" not in summary:
        return Sentence("{status}, NaN at the end", status=status)
    return status


def outcome_sentence(text: str) -> str:
    """An outcome, also one that was kept as text in an index, as a sentence that can be shown in another language."""
    status = text.partition(",")[0]
    step = re.search(r"\d+$", text)
    known = (
        Sentence("{status}, NaN since step {step}", status=status, step=step.group() if step else ""),
        Sentence("{status}, no step taken", status=status),
        Sentence("{status}, last validation loss not finite", status=status),
        Sentence("{status}, last validation metric not finite", status=status),
        Sentence("{status}, NaN at the end", status=status),
    )
    return next((sentence for sentence in known if sentence == text), text)
