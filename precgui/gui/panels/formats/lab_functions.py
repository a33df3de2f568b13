"""Softmax, dot products and functions in a format, beside the exact results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyqtgraph as pg

from precgui.formats.arrays import Floats
from precgui.formats.lab import FUNCTIONS, dot_product, exact_softmax, function_values, softmax
from precgui.formats.model import Format
from precgui.formats.rounding import CastPolicy, Overflow
from precgui.gui.answer import Computation, ProgressCallback
from precgui.gui.panels.formats.experiment import Experiment
from precgui.gui.panels.formats.plotting import brush, pen
from precgui.gui.theme import themes
from precgui.words import L_, _


class Softmax(Experiment):
    title = L_("Softmax, naive and shifted")
    lesson = L_(
        "exp(x) leaves FP16 at x = 11.1. Subtracting the largest logit first changes nothing exactly and keeps every "
        "power at or below 1."
    )

    def __init__(self) -> None:
        super().__init__(_("logit"), _("probability"))
        self.format = self.format_choice(_("Format"), "fp16")
        self.largest = self.slider(_("Largest logit"), 0, 120, 12, str)
        self.count = self.slider(_("Logits"), 2, 24, 8, str)

    def work(self) -> Computation:
        fmt, logits = self.format.known(), np.linspace(0, self.largest.value(), self.count.value())
        return lambda _: (fmt.name, logits, exact_softmax(logits), softmax(logits, fmt, shifted=True),
                          softmax(logits, fmt, shifted=False))  # fmt: skip

    def show_result(self, floats: tuple[str, Floats, Floats, Floats, Floats]) -> str:
        theme, (name, logits, exact, shifted, naive) = themes().theme, floats
        looks = (
            (_("exact"), exact, theme.muted), (_("shifted"), shifted, theme.ok), (_("naive"), naive, theme.error)
        )  # fmt: skip
        said, place = [], np.arange(logits.size)
        for n, (words, values, colour) in enumerate(looks):
            bars = pg.BarGraphItem(x=place + 0.26 * (n - 1), height=np.nan_to_num(values, posinf=0.0), width=0.24,
                                   pen=None, brush=brush(colour, 0.85), name=words)  # fmt: skip
            self.plot.addItem(bars)
            wrong = float(np.max(np.abs(values - exact)))
            said.append(f"{words}: {'NaN' if np.isnan(wrong) else f'{wrong:.2g}'}")
        self.plot.getPlotItem().getAxis("bottom").setTicks([[(float(i), f"{v:.3g}") for i, v in enumerate(logits)]])
        self.plot.getPlotItem().enableAutoRange()
        return _("Largest error in {name}: {said}.").format(name=name, said=", ".join(said[1:]))


@dataclass(frozen=True)
class _Dots:
    """Relative errors by the name of the accumulator, one for each length."""

    name: str
    lengths: Floats
    errors: dict[str, list[float]]


class Dot(Experiment):
    title = L_("Dot products and accumulators")
    lesson = L_(
        "Tensor cores multiply exactly and add in a wider format. The error of a long dot product comes from the "
        "accumulator; that of a short one from rounding the operands."
    )

    def __init__(self) -> None:
        super().__init__(_("length of the vectors, as a power of two"), _("relative error, as a power of ten"))
        self.format = self.format_choice(_("Operands"), "e4m3fn")
        self.accumulators = [self.format_choice(_("Accumulator {number}").format(number=n + 1), name)
                             for n, name in enumerate(("fp16", "bf16", "fp32"))]  # fmt: skip
        self.sign = self.choice(_("Numbers"), (L_("positive, uniform"), L_("normal distribution")), "positive, uniform")
        self.seed = self.slider(_("Seed"), 0, 20, 0, str)

    def work(self) -> Computation:
        fmt, rng = self.format.known(), np.random.default_rng(self.seed.value())
        accumulators = [choice.known() for choice in self.accumulators]
        lengths = 2 ** np.arange(1, 12)
        draw = rng.uniform if self.sign.currentData() == "positive, uniform" else rng.normal
        left, right = draw(size=lengths[-1]), draw(size=lengths[-1])

        def errors(progress: ProgressCallback) -> _Dots:
            results: dict[str, list[float]] = {}
            for place, accumulator in enumerate(accumulators):
                progress(place / len(accumulators))
                results[accumulator.name] = [_error(left[:n], right[:n], fmt, accumulator) for n in lengths]
            return _Dots(fmt.name, lengths.astype(np.float64), results)

        return errors

    def show_result(self, result: _Dots) -> str:
        theme, said = themes().theme, []
        colours = (theme.error, theme.warning, theme.ok)
        for (accumulator, errors), colour in zip(result.errors.items(), colours, strict=False):
            dots = {"symbol": "o", "symbolSize": 6, "symbolBrush": brush(colour, 1), "symbolPen": None}
            displayed, name = (
                np.log10(np.maximum(errors, 1e-18)),
                _("accumulated in {accumulator}").format(accumulator=accumulator),
            )
            self.plot.plot(np.log2(result.lengths), displayed, pen=pen(colour, 2), name=name, **dots)
            said.append(f"{accumulator} {errors[-1]:.2g}")
        self.plot.getPlotItem().enableAutoRange()
        return _("Relative error at length {lengths:g}, operands in {name}: {said}.").format(
            lengths=result.lengths[-1], name=result.name, said=", ".join(said)
        )


def _error(left: Floats, right: Floats, fmt: Format, accumulator: Format) -> float:
    exact = float(np.dot(left, right))
    result = dot_product(left, right, fmt, accumulator)
    return abs(result - exact) / abs(exact) if np.isfinite(result) and exact else 1.0


class Functions(Experiment):
    title = L_("A function in a format")
    lesson = L_("A function computed in a format is a staircase: input and output are both rounded.")

    def __init__(self) -> None:
        super().__init__("x", "f(x)")
        self.function = self.choice(_("Function"), tuple(FUNCTIONS), "tanh(x)")
        self.format = self.format_choice(_("Format"), "e4m3fn")
        self.saturate = self.choice(_("Overflow"), ("ieee", L_("saturate")), "ieee")
        self.reach = self.slider(_("Range of x"), -6, 8, 2, lambda n: f"±{2.0**n:g}")

    def work(self) -> Computation:
        fmt, function, reach = self.format.known(), self.function.currentData(), 2.0 ** self.reach.value()
        overflow: Overflow = "saturate" if self.saturate.currentData() == "saturate" else "ieee"
        x = np.linspace(-reach, reach, 2401)
        return lambda _: (fmt.name, x, *function_values(function, x, fmt, CastPolicy(overflow=overflow)))

    def show_result(self, floats: tuple[str, Floats, Floats, Floats]) -> str:
        theme, (name, x, exact, rounded) = themes().theme, floats
        displayed, known = np.isfinite(exact), np.isfinite(rounded)
        self.plot.plot(x[displayed], exact[displayed], pen=pen(theme.muted, 1.5, dashed=True), name=_("exact"))
        self.plot.plot(x[known], rounded[known], pen=pen(theme.accent, 2), name=name)
        self.plot.getPlotItem().enableAutoRange()
        both = displayed & known
        if not both.any():
            return _("{name} gives no finite value here.").format(name=name)
        worst = float(np.max(np.abs(exact - rounded)[both]))
        steps = np.unique(rounded[known]).size
        text = _("{steps} different values of {name} in this range; the largest error is {worst:.3g}.").format(
            steps=steps, name=name, worst=worst
        )
        lost = np.count_nonzero(~known)
        return (
            _("{text} {lost} of {size} points are not finite.").format(text=text, lost=lost, size=x.size)
            if lost
            else text
        )
