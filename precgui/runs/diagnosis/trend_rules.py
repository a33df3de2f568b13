"""Trends: headroom that shrinks, a rate that vanishes, a scale that is raised too often or set anew."""

from __future__ import annotations

import numpy as np

from precgui.events import Severity
from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import FP16_LARGEST, median, percent, power, streaks
from precgui.runs.diagnosis.findings import BEYOND_RANGE, IN_ANY_FORMAT, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.sentences import L_, Sentence

_FEWEST_ROWS = 10
_FIT = 0.9  # share of the variance that a straight line explains
_NEAR = 4.0  # octaves from the end of the range
_PROBED = 0.25  # of the steps
_VANISHED, _WASTED = 1e-3, 0.5  # of the largest rate; of the steps
_AFTER = 40  # steps after a scale was set anew
_MOST_LOST = 0.4  # of all steps, with which a run is spoilt


def shrinking_headroom(m: Measurements) -> Answer:
    """Outputs in FP16 that grow so evenly that they reach 65504 before the run is over."""
    table = m.table("activation")
    total = max(m.run.total_steps, 0)
    if table is None or (~m.finite_loss).any() or not m.n or total <= m.steps[-1]:
        return None  # nothing is ahead
    best: tuple[float, str, int] | None = None
    half = len(table.steps) // 2
    for place, name in enumerate(table.names):
        amax = table.stat("amax")[half:, place]
        known = np.isfinite(amax) & (amax > 0)
        if table.formats[place] != "fp16" or name in origin.WHOLE or known.sum() < _FEWEST_ROWS:
            continue
        x, y = table.steps[half:][known].astype(np.float64), np.log2(amax[known])
        slope, start = np.polyfit(x, y, 1)
        spread = float(np.var(y))
        fit = 1 - float(np.var(y - slope * x - start)) / spread if spread > 0 else 0.0
        reached = (np.log2(FP16_LARGEST) - start) / slope if slope > 0 else np.inf
        if fit > _FIT and y[-1] > np.log2(FP16_LARGEST) - _NEAR and reached < total and (not best or reached < best[0]):
            best = float(reached), name, place
    if best is None:
        return RuledOut(
            "shrinking-headroom",
            Sentence(
                "because no output in FP16 grows evenly towards 65504 by step {total}",
                total=total,
            ),
        )  # fmt: skip
    reached, name, place = best
    proof = Evidence(
        L_("least squares of log2 amax over the second half: R^2 > 0.9, crosses 65504 before the last step"),
        {"reached": reached, "steps_left": total - int(m.steps[-1])},
        Sentence(
            "At its present pace the output of {name} reaches 65504 near step {reached:.0f} of {total}.",
            name=name,
            reached=reached,
            total=total,
        ),
        Sentence("largest output of {name}", name=name), m.points_of(table.steps, table.stat("amax")[:, place]),
        FP16_LARGEST,
    )  # fmt: skip
    return [
        Finding(
            "shrinking-headroom", "warning", Sentence(
                "The outputs of {name} will overflow FP16 near step {reached:.0f}",
                name=name, reached=reached,
            ),
            int(table.steps[half]), int(table.steps[-1]), (proof,), L_("Use BF16, or keep this module in FP32."), 0.6,
            "transformers issue 9295", name, (name,),
            {"precision": "bf16-amp", "precision_options.keep_fp32": [name]}, "estimate", blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def scale_probing(m: Measurements) -> Answer:
    """A scale that is raised so often that the steps which try it are a large part of all."""
    if not m.loops_scale or m.n < 20:
        return None
    raised = np.append(False, m.scale[1:] > m.scale[:-1])
    tried = raised & m.skipped
    probes = [each for each in streaks(m) if tried[each.first]]
    if len(probes) > 1:  # a single one may be the search of a new scaler
        for each in probes:
            tried[each.first : each.last + 1] = True
    share, count = float(tried.mean()), int(tried.sum())
    if share < _PROBED:
        return RuledOut(
            "scale-probing",
            Sentence(
                "because {share} of the steps are skipped right after the scale was raised",
                share=percent(share),
            ),
        )
    proof = Evidence(
        L_("steps skipped from a rise of the scale on / steps > 0.25"), {"count": count, "steps": m.n, "share": share},
        Sentence(
            "{count} of {steps} steps ({share}) were skipped because the scale had just been raised.",
            count=count, steps=m.n, share=percent(share),
        ),
        *m.log_of(Sentence("loss scale"), m.scale, 2),
    )  # fmt: skip
    return [
        Finding(
            "scale-probing", "warning", Sentence(
                "{share} of the steps are lost in trying a higher scale",
                share=percent(share),
            ),
            int(m.steps[np.flatnonzero(tried)[0]]), int(m.steps[-1]), (proof,),
            L_("Raise the growth interval to 2000 steps and the growth factor to 2, as torch has them."),
            0.95, "torch.amp documentation",
            config_change={"scaling.growth_interval": 2000}, blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def scaler_set_anew(m: Measurements) -> Answer:
    """A scale that jumps by more than its growth factor: the scaler is new, as after a resume without its state."""
    if not m.loops_scale or m.n < 5:
        return None
    factor = m.fact("scaler").get("growth_factor") or (m.config.scaling.growth_factor if not m.own_loop else 2.0)
    jumps = np.flatnonzero((m.scale[1:] > 1.01 * float(factor) * m.scale[:-1]) & (m.scale[:-1] > 0)) + 1
    lost = [int(m.skipped[at : at + _AFTER].sum()) for at in jumps.tolist()]
    if not lost or max(lost) < 3:
        return RuledOut(
            "scaler-set-anew",
            Sentence(
                "because the scale never jumps by more than {factor:g} and skips then",
                factor=float(factor),
            ),
        )
    at = int(jumps[int(np.argmax(lost))])
    proof = Evidence(
        L_("scale(t) / scale(t - 1) > growth factor, and 3 of the next 40 steps skipped"),
        {"step": int(m.steps[at]), "before": float(m.scale[at - 1]), "after": float(m.scale[at]), "skipped": max(lost)},
        Sentence(
            "In step {steps} the scale jumps from {scale} to {scale2}; {lost} of the next {after} steps are skipped.",
            steps=m.steps[at], scale=power(float(m.scale[at - 1])), scale2=power(float(m.scale[at])),
            lost=max(lost), after=_AFTER,
        ),
        *m.log_of(Sentence("loss scale"), m.scale, 2),
    )  # fmt: skip
    often, skipped = sum(count >= 3 for count in lost), float(m.skipped.mean())
    severity: Severity = "error" if skipped > _MOST_LOST else "warning" if max(lost) / m.n > 0.05 else "info"
    title = L_("The loss scaler was made anew and searched again")
    if often > 1 or severity == "error":
        title = Sentence(
            "The loss scaler was set anew {often} times, and {skipped} of the steps are skipped",
            often=often,
            skipped=percent(skipped),
        )
    fix = L_("Save scaler.state_dict() with the checkpoint and load it.")
    if often > 1:
        fix = L_("Make the scaler once, before the loop, and load its state once, after a resume: not in each epoch.")
    return [
        Finding(
            "scaler-set-anew", severity, title, int(m.steps[jumps[0]]),
            int(m.steps[min(int(jumps[-1]) + _AFTER, m.n - 1)]), (proof,), fix,
            0.97 if severity == "error" else 0.85, "transformers issue 11663", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def rate_vanished(m: Measurements) -> Answer:
    """The rate has fallen to nothing long before the end, as when a schedule of epochs is stepped in each batch."""
    rates = m.lr[np.isfinite(m.lr)]
    if len(rates) < 40 or len(rates) < m.n or not rates.max() > 0:
        return None
    peak = int(np.argmax(rates))
    tiny = rates < _VANISHED * rates.max()
    tiny[:peak] = False
    share = float(tiny.mean())
    alive = np.isfinite(m.grad_norm) & (m.grad_norm > 0) & tiny
    if share < _WASTED or not alive.any():
        return RuledOut(
            "rate-vanished",
            Sentence(
                "because the rate is below a thousandth of its largest value, {rates:.3g}, in only {share} of the "
                "steps",
                rates=rates.max(),
                share=percent(share),
            ),
        )
    first = int(np.argmax(tiny))
    proof = Evidence(
        L_("steps after the peak with lr < 0.001 max(lr) > 50 %"),
        {"lr_max": float(rates.max()), "lr_last": float(rates[-1]), "share": share, "step": int(m.steps[first])},
        Sentence(
            "From step {steps} of {steps2} on the rate is below a thousandth of {rates:.3g}; it ends at {rate:.3g}, "
            "with a gradient norm of {grad_norm:.3g}.",
            steps=m.steps[first], steps2=m.n, rates=rates.max(), rate=rates[-1],
            grad_norm=median(m.grad_norm[alive]),
        ),
        *m.log_of(Sentence("learning rate"), m.lr, 10),
    )  # fmt: skip
    return [
        Finding(
            "rate-vanished", "warning", Sentence(
                "The rate is next to nothing in {share} of the steps",
                share=percent(share),
            ),
            int(m.steps[first]), int(m.steps[-1]), (proof,),
            L_(
                "Step the scheduler as often as it was made for (once an epoch, perhaps), or give it the number of "
                "steps."
            ),
            0.8, "torch.optim.lr_scheduler documentation", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule("rate-vanished", "C", L_("Is the rate large enough until the end?"), rate_vanished),
    Rule("shrinking-headroom", "A", L_("Will outputs overflow before the end?"), shrinking_headroom),
    Rule("scale-probing", "A", L_("Is the scale raised too often?"), scale_probing),
    Rule("scaler-set-anew", "D", L_("Does the scale go on where it was?"), scaler_set_anew),
)
