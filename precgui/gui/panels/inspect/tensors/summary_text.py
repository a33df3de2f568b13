"""Sentences of the Tensors panel about all tensors at once."""

from __future__ import annotations

from math import isnan

from precgui.gui.panels.inspect.tensors.model import snr_text
from precgui.gui.plots.signals import power_label
from precgui.runs.run import Run
from precgui.runs.tensors.confidence import Provenance, spread, spread_text
from precgui.runs.tensors.first_broken import first_broken
from precgui.runs.tensors.grouping import View
from precgui.runs.tensors.lost import LostShares
from precgui.runs.tensors.what_if import Prediction
from precgui.runs.tensors.what_if_table import LOST_FORMATS, lost_sentence, mean_share
from precgui.words import L_, _, n_, paragraph, translated

_BROKEN = {  # in several steps, in several tensors
    (False, False): L_("NaN or Inf in step {step} in {name}."),
    (False, True): L_("NaN or Inf in step {step} in {name}, then in {others} more."),
    (True, False): L_("NaN or Inf in {rows} recorded steps, first in step {step} in {name}."),
    (True, True): L_("NaN or Inf in {rows} recorded steps, first in step {step} in {name}, then in {others} more."),
}
_MOST_NAME = 45  # characters
_MOST_REASONS = 2  # so that nothing below jumps; all of them are in the hint of the word beside the scale


def answer(prediction: Prediction, view: View, basis: Provenance, question: tuple[str, int, str]) -> str:
    """The effect of a format at 2^log2_scale on all tensors; `question` is format, log2_scale and what they are."""
    name, log2_scale, kind = question
    zero, over, snr, safe = (
        float(v[0]) for v in (prediction.underflow, prediction.overflow, prediction.snr_db, prediction.safe_scale)
    )
    if isnan(zero):
        return _("Not one finite number was recorded of the {kind}.").format(kind=kind)
    sampled, count = view.sampled[:1], view.what_if.count[:1]
    become, overflow = (
        spread_text(float(share[0]), float(spread(share[:1], sampled, count)[0]))
        for share in (prediction.underflow, prediction.overflow)
    )
    lost_text = _("In {format} at {scale}, {zero} of all {kind} become zero, {overflow} overflow.")
    scale = power_label(log2_scale, 2)
    sentences = [lost_text.format(format=name, scale=scale, zero=become, kind=kind, overflow=overflow)]
    if not isnan(snr) and not over > 0:
        sentences.append(_("The signal is {snr} above the rounding noise.").format(snr=snr_text(snr)))
    if not isnan(safe):
        sentences.append(_("The largest safe scale is {scale}.").format(scale=power_label(round(safe), 2)))
    text = paragraph(*sentences)
    lost = {each: float(mean_share(view, f"lost_{each}")[0]) for each in LOST_FORMATS}
    reasons = map(translated, basis.reasons(log2_scale)[:_MOST_REASONS])
    own = {each: share for each, share in lost.items() if each == name} or lost
    return paragraph(text, translated(lost_sentence(own)), *reasons)


def what_broke(view: View, run: Run) -> str:
    """Where NaN or Inf came first, and how often; of several tensors the one that was computed first."""
    first, rows = view.first_bad(), view.rows.bad_rows
    if not first:
        return ""
    step, names = first
    name = first_broken(run, view.rows.kind, step, names)
    sentence = _BROKEN[rows > 1, len(names) > 1]
    return " " + translated(sentence).format(rows=rows, step=step, name=name, others=len(names) - 1)


def how_much(done: int, total: int) -> str:
    """How much of a long record this is so far."""
    if total <= done:
        return ""
    return " " + _("So far {done} of {total} recorded steps are read.").format(done=done, total=total)


def caption(view: View, entry: int, done: int) -> str:
    """A sentence on the contents of the picture."""
    name, every = short(translated(view.names[entry])), view.rows.every
    if every > 1:
        text = _("{name}, measured at {count} steps, up to {every} in a column")
        return text.format(name=name, count=done, every=every)
    return n_("{name}, measured at {count} step", "{name}, measured at {count} steps", done).format(
        name=name, count=done
    )


def losses_caption(lost: LostShares, name: str) -> str:
    """A sentence on the contents of the heat map."""
    about = {
        "half ulp": _("Share of the updates below half an ulp of their weight in {format}, step by step"),
        "unchanged": _("Share of the weights, stored in {format}, that a step does not change, step by step"),
        "zero": _("Share of the elements that become zero in {format}, step by step"),
    }
    return about[lost.meaning].format(format=name)


def short(name: str) -> str:
    """A name with its middle left out where it is very long: names differ at their ends."""
    return name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME // 3]}…{name[-2 * _MOST_NAME // 3 :]}"
