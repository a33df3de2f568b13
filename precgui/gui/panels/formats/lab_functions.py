"""Softmax, dot products and functions in a format, beside the exact results."""

from __future__ import annotations

import numpy as np
import pyqtgraph as pg

from precgui.formats.lab import FUNCTIONS, dot_product, exact_softmax, function_values, softmax
from precgui.formats.registry import get
from precgui.formats.rounding import Convention, Overflow
from precgui.gui.panels.formats.experiment import Experiment
from precgui.gui.panels.formats.plotting import brush, pen
from precgui.gui.theme import themes

FORMATS = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3fn", "e2m3", "e2m1")


class Softmax(Experiment):
    title = "Softmax, naive and shifted"
    lesson = (
        "exp(x) leaves FP16 at x = 11.1. Subtracting the largest logit first changes nothing exactly and keeps every "
        "power at or below 1."
    )

    def __init__(self) -> None:
        super().__init__("logit", "probability")
        self.format = self.choice("Format", FORMATS, "fp16")
        self.largest = self.slider("Largest logit", 0, 120, 12, str)
        self.count = self.slider("Logits", 2, 24, 8, str)

    def draw(self) -> str:
        theme, name = themes().theme, self.format.currentText()
        logits = np.linspace(0, self.largest.value(), self.count.value())
        exact, place = exact_softmax(logits), np.arange(logits.size)
        looks = (
            ("exact", exact, theme.muted), ("shifted", softmax(logits, get(name), shifted=True), theme.ok),
            ("naive", softmax(logits, get(name), shifted=False), theme.error),
        )  # fmt: skip
        said = []
        for n, (words, values, colour) in enumerate(looks):
            bars = pg.BarGraphItem(x=place + 0.26 * (n - 1), height=np.nan_to_num(values), width=0.24, pen=None,
                                   brush=brush(colour, 0.85), name=words)  # fmt: skip
            self.plot.addItem(bars)
            wrong = float(np.max(np.abs(values - exact)))
            said.append(f"{words}: {'NaN' if np.isnan(wrong) else f'{wrong:.2g}'}")
        self.plot.getPlotItem().getAxis("bottom").setTicks([[(float(i), f"{v:.3g}") for i, v in enumerate(logits)]])
        self.plot.getPlotItem().enableAutoRange()
        return f"Largest error in {name}: {', '.join(said[1:])}."


class Dot(Experiment):
    title = "Dot products and accumulators"
    lesson = (
        "Tensor cores multiply exactly and add in a wider format. The error of a long dot product comes from the "
        "accumulator; that of a short one from rounding the operands."
    )

    def __init__(self) -> None:
        super().__init__("length of the vectors, as a power of two", "relative error, as a power of ten")
        self.format = self.choice("Operands", FORMATS, "e4m3fn")
        self.sign = self.choice("Numbers", ("positive, uniform", "normal"), "positive, uniform")
        self.seed = self.slider("Seed", 0, 20, 0, str)

    def draw(self) -> str:
        name, rng = self.format.currentText(), np.random.default_rng(self.seed.value())
        lengths = 2 ** np.arange(1, 12)
        draw = rng.uniform if self.sign.currentText().startswith("positive") else rng.normal
        left, right = draw(size=lengths[-1]), draw(size=lengths[-1])
        theme, said = themes().theme, []
        for accumulator, colour in (("fp16", theme.error), ("bf16", theme.warning), ("fp32", theme.ok)):
            errors = [self._error(left[:n], right[:n], name, accumulator) for n in lengths]
            dots = {"symbol": "o", "symbolSize": 6, "symbolBrush": brush(colour, 1), "symbolPen": None}
            shown = np.log10(np.maximum(errors, 1e-18))
            self.plot.plot(np.log2(lengths), shown, pen=pen(colour, 2), name=f"accumulated in {accumulator}", **dots)
            said.append(f"{accumulator} {errors[-1]:.2g}")
        self.plot.getPlotItem().enableAutoRange()
        return f"Relative error at length {lengths[-1]}, operands in {name}: {', '.join(said)}."

    @staticmethod
    def _error(left: np.ndarray, right: np.ndarray, name: str, accumulator: str) -> float:
        exact = float(np.dot(left, right))
        found = dot_product(left, right, get(name), get(accumulator))
        return abs(found - exact) / abs(exact) if np.isfinite(found) and exact else 1.0


class Functions(Experiment):
    title = "A function in a format"
    lesson = "A function computed in a format is a staircase: input and output are both rounded."

    def __init__(self) -> None:
        super().__init__("x", "f(x)")
        self.function = self.choice("Function", tuple(FUNCTIONS), "tanh(x)")
        self.format = self.choice("Format", FORMATS, "e4m3fn")
        self.saturate = self.choice("Overflow", ("ieee", "saturate"), "ieee")
        self.reach = self.slider("Range of x", -6, 8, 2, lambda n: f"±{2.0**n:g}")

    def draw(self) -> str:
        theme, name = themes().theme, self.format.currentText()
        reach = 2.0 ** self.reach.value()
        x = np.linspace(-reach, reach, 2401)
        overflow: Overflow = "saturate" if self.saturate.currentText() == "saturate" else "ieee"
        exact, rounded = function_values(self.function.currentText(), x, get(name), Convention(overflow=overflow))
        shown, known = np.isfinite(exact), np.isfinite(rounded)
        self.plot.plot(x[shown], exact[shown], pen=pen(theme.muted, 1.5, dashed=True), name="exact")
        self.plot.plot(x[known], rounded[known], pen=pen(theme.accent, 2), name=name)
        self.plot.getPlotItem().enableAutoRange()
        both = shown & known
        if not both.any():
            return f"{name} gives no finite value here."
        worst = float(np.max(np.abs(exact - rounded)[both]))
        steps = np.unique(rounded[known]).size
        lost = f" {np.count_nonzero(~known)} of {x.size} points are not finite." if not known.all() else ""
        return f"{steps} different values of {name} in this range; the largest error is {worst:.3g}.{lost}"
