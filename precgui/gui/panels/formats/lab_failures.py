"""The three failures of FP16: gradients that vanish, products that overflow, sums that stop growing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyqtgraph as pg

from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.lab import ScaleCurve, gradients, kahan_sums, running_sums, scale_curve, stagnation
from precgui.formats.model import FloatFormat, Format
from precgui.formats.registry import get
from precgui.gui.answer import Computation, ProgressCallback
from precgui.gui.format_colours import format_colour
from precgui.gui.panels.formats.experiment import Experiment, percent
from precgui.gui.panels.formats.plotting import brush, pen
from precgui.gui.theme import themes
from precgui.words import L_, _

FORMATS = ("fp16", "bf16", "fp32", "e5m2", "e4m3fn")
SAMPLES = 20_000


class Underflow(Experiment):
    legend_offset = (-14, 12)
    title = L_("Small gradients vanish")
    lesson = L_(
        "Gradients are small. A value below half the smallest subnormal becomes zero; a loss scale multiplies all of "
        "them before they are rounded, and is divided out later."
    )

    def __init__(self) -> None:
        super().__init__(_("loss scale, as a power of two"), _("share of gradients, %"))
        self.format = self.format_choice(_("Format of the gradients"), "fp16")
        self.typical = self.slider(_("Typical gradient"), -14, 2, -8, lambda n: f"1e{n}")
        self.spread = self.slider(_("Spread"), 1, 40, 12, lambda n: _("{count:.1f} decades").format(count=n / 10))
        self.scale = self.slider(_("Loss scale"), 0, 32, 0, lambda n: f"2^{n} = {2**n}")

    def work(self) -> Computation:
        typical, spread, fmt = 10.0 ** self.typical.value(), self.spread.value() / 10, self.format.known()
        return lambda _: (fmt.name, scale_curve(gradients(SAMPLES, typical, spread), fmt))

    def show_result(self, curves: tuple[str, ScaleCurve]) -> str:
        name, curve = curves
        theme, at = themes().theme, self.scale.value()
        zero, over = 100 * curve.underflow, 100 * curve.overflow
        self.plot.plot(curve.exponents, zero, pen=pen(theme.info, 2.5), name=_("become zero"))
        self.plot.plot(curve.exponents, over, pen=pen(theme.error, 2.5, dashed=True), name=_("overflow"))
        self.plot.addItem(pg.InfiniteLine(at, pen=pen(theme.text, 1.5, 0.7)))
        self.plot.setXRange(0, 32)
        self.plot.setYRange(0, 100)
        good = curve.exponents[(curve.overflow == 0) & (curve.underflow == curve.underflow.min())]
        text = _(
            "With a loss scale of 2^{at}, {lost} of the gradients become zero in {name} and "
            "{over} overflow; without a scale {vanish} vanish."
        ).format(
            at=at, lost=percent(curve.underflow[at]), name=name, over=percent(curve.overflow[at]),
            vanish=percent(curve.underflow[0]),
        )  # fmt: skip
        return _("{text} The least is lost at 2^{good}.").format(text=text, good=good[0]) if good.size else text


class Overflowing(Experiment):
    title = L_("Large values overflow")
    lesson = L_(
        "A dot product of K terms of size a is about K a². FP16 ends at 65504, so attention scores and large "
        "activations become infinite long before BF16 or FP32 do."
    )

    def __init__(self) -> None:
        super().__init__(_("size of an activation, as a power of two"), _("dot product, as a power of ten"))
        self.format = self.format_choice(_("One more format"), "fp16")
        self.activation = self.slider(_("Activation a"), -4, 20, 6, lambda n: f"2^{n} = {2.0**n:g}")
        self.terms = self.slider(_("Terms K"), 0, 16, 10, lambda n: str(2**n))

    def work(self) -> Computation:
        terms, at, more = 2 ** self.terms.value(), self.activation.value(), self.format.known()
        chosen = [get(name) for name in FORMATS if name != more.name] + [more]
        exact = terms * 4.0 ** np.arange(-4, 21)
        return lambda _: (terms, at, exact, {fmt.name: quantize_array(exact, fmt) for fmt in chosen}, more)

    def show_result(self, formats: tuple[int, int, Floats, dict[str, Floats], Format]) -> str:
        terms, at, exact, stored, chosen = formats
        theme, exponents = themes().theme, np.arange(-4, 21)
        self.plot.plot(exponents, np.log10(exact), pen=pen(theme.text, 1.5, 0.8, dashed=True), name=_("exact"))
        said = []
        for place, (name, values) in enumerate(stored.items()):
            kept = np.isfinite(values) & (values > 0)
            self.plot.plot(exponents[kept], np.log10(values[kept]), pen=None, symbol="o", symbolSize=12 - place,
                           symbolPen=None, symbolBrush=brush(format_colour(name), 0.9), name=name)  # fmt: skip
            said.append(f"{name}: {values[at + 4]:g}")
        limit = float(np.log10(float(min(chosen.max_finite, get("fp64").max_finite))))
        self.plot.addItem(pg.InfiniteLine(limit, angle=0, pen=pen(theme.error, 1.2, 0.9)))
        self.plot.addItem(pg.InfiniteLine(at, pen=pen(theme.text, 1.5, 0.7)))
        here = f"{terms} × a² = {terms * 4.0**at:g}"
        return _("{here}. Stored: {said}. The red line is the largest value of {name}.").format(
            here=here, said=", ".join(said), name=chosen.name
        )


@dataclass(frozen=True)
class _Sums:
    """Every partial sum, by how it was rounded."""

    fmt: Format
    held: float
    nearest: Floats
    kahan: Floats
    trials: Floats
    stops: float | None


class LongSum(Experiment):
    title = L_("Long sums stop growing")
    lesson = L_(
        "When a sum is so large that an increment is less than half an ulp, nearest rounding returns the same sum for "
        "ever. Stochastic rounding goes up with the probability of the lost part; Kahan keeps the lost part aside."
    )

    def __init__(self) -> None:
        super().__init__(_("additions"), _("sum"))
        self.format = self.format_choice(_("Accumulator"), "bf16")
        self.increment = self.slider(_("Increment"), 1, 100, 10, lambda n: f"{n / 10:g}")
        self.count = self.slider(_("Additions"), 5, 12, 10, lambda n: str(2**n))
        self.trials = self.slider(_("Trials of stochastic rounding"), 1, 40, 16, str)

    def work(self) -> Computation:
        fmt, step = self.format.known(), self.increment.value() / 10
        count, trials = 2 ** self.count.value(), self.trials.value()

        def sums(progress: ProgressCallback) -> _Sums:
            held = float(quantize_array(step, fmt))
            steps = np.full(count, held)
            stops = stagnation(held, fmt) if isinstance(fmt, FloatFormat) else None
            nearest, kahan = running_sums(steps, fmt)[0], kahan_sums(steps, fmt)
            return _Sums(fmt, held, nearest, kahan, running_sums(steps, fmt, "stochastic", trials, 1, progress), stops)

        return sums

    def show_result(self, sums: _Sums) -> str:
        theme, held = themes().theme, sums.held
        x = np.arange(sums.nearest.size)
        mean, spread = sums.trials.mean(axis=0), sums.trials.std(axis=0)
        low = self.plot.plot(x, mean - spread, pen=pen(theme.info, 0.5, 0.4))
        high = self.plot.plot(x, mean + spread, pen=pen(theme.info, 0.5, 0.4))
        self.plot.addItem(pg.FillBetweenItem(low, high, brush=brush(theme.info, 0.2)))
        self.plot.plot(x, x * held, pen=pen(theme.text, 1.5, 0.8, dashed=True), name=_("exact"))
        self.plot.plot(x, sums.nearest, pen=pen(theme.error, 2.5), name=_("nearest"))
        self.plot.plot(x, mean, pen=pen(theme.info, 2), name=_("stochastic: mean ± one sigma"))
        self.plot.plot(x, sums.kahan, pen=pen(theme.ok, 2), name="Kahan")
        self.plot.getPlotItem().enableAutoRange()
        count = sums.nearest.size - 1
        values = {
            "count": count, "step": held, "exact": count * held, "name": sums.fmt.name, "nearest": sums.nearest[-1],
            "mean": mean[-1], "spread": spread[-1], "stops": sums.stops,
        }  # fmt: skip
        if sums.stops is None:
            return _(
                "{count} times {step:g} is {exact:g}. In {name}, nearest rounding never stops below its largest value "
                "and gives {nearest:g} here; stochastic rounding gives {mean:.6g} ± {spread:.3g}."
            ).format(**values)
        return _(
            "{count} times {step:g} is {exact:g}. In {name}, nearest rounding stops at {stops:g} and gives "
            "{nearest:g} here; stochastic rounding gives {mean:.6g} ± {spread:.3g}."
        ).format(**values)
