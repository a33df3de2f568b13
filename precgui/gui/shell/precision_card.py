"""The first card of the sheet: a choice of work to train in two precisions, and what this machine makes of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QFrame, QProgressBar, QSizePolicy, QToolButton

from precgui.gui.kit.bars import BarChart, BarRow, Segment
from precgui.gui.kit.parts import button, column, label, row
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.shell.guided_path import FirstPath, PathChoice
from precgui.gui.theme import themes
from precgui.hardware.measured import best_tops, newest_with, rate_text
from precgui.runs.facts import wait_text
from precgui.runs.outlook import WORDS, outlook, time_estimate
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.hardware.device import Device

MEASURE_S = 20
_PICTURE = QSize(84, 48)
_NAMES_PX = 130  # of the bars
_ASKING = L_("Asking the machine...")


class PrecisionCard(QFrame):
    """`chosen` carries a choice, `measure_requested` asks for the rates of FP32 and BF16 on this machine."""

    chosen = Signal(object)
    measure_requested = Signal()

    def __init__(self, path: FirstPath) -> None:
        super().__init__()
        self.setProperty("kind", "choice")
        self.title = label(translated(path.title), "heading")
        self.choices = {each.name: self._choice(each) for each in path.choices}
        self._about = path.choices
        self.machine = label(translated(_ASKING), "muted")
        text = _("Measure it ({seconds} s)").format(seconds=MEASURE_S)
        tip = _("Multiply matrices in FP32 and in BF16 on this machine, and keep the rates in Hardware > Measured")
        self.measure = button(text, self.measure_requested.emit, tip)
        self.bars, self.progress = BarChart(names_px=_NAMES_PX), QProgressBar()
        self.bars.setAccessibleName(_("Measured rates by format"))
        self.progress.setTextVisible(False)
        column(
            self.title,
            label(translated(path.about), "muted"),
            row(*self.choices.values(), spacing=8),
            row((self.machine, 1), self.measure),
            self.progress,
            self.bars,
            spacing=8,
            margins=(12, 8, 12, 8),
            on=self,
        )
        for part in (self.measure, self.progress, self.bars):
            part.hide()
        self._show_times(None)
        themes().follow(self, self.recolour)
        self.recolour()

    def _choice(self, choice: PathChoice) -> QToolButton:
        made = QToolButton()
        made.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
        made.setProperty("kind", "picture")
        made.setIconSize(_PICTURE)
        made.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        made.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        made.clicked.connect(lambda: self.chosen.emit(choice))
        return made

    def _show_times(self, factor: float | None) -> None:
        """Under each choice the time of both runs: as it was timed here, else on two cores."""
        for choice in self._about:
            shown, tip = translated(choice.about), translated(choice.about)
            if choice.pair:
                shown, why = _time_of(choice, factor)
                tip = f"{tip}\n{why}"
            made = self.choices[choice.name]
            made.setText(f"{translated(choice.title)}\n{shown}")
            made.setToolTip(plain_tip(tip))
            made.setAccessibleName(f"{translated(choice.title)}: {shown}")

    def show_machine(self, device: Device, results: Sequence[Mapping[str, Any]]) -> None:
        """Say what the device of a run makes of BF16 and FP16, with the measured rates where there are some."""
        bf16, fp16 = (outlook(name, device, results) for name in ("bf16-amp", "fp16-amp"))
        result = newest_with(device.name, results, "bf16")
        rates = best_tops(result) if result is not None else {}
        text = (
            _("This machine: {device}. BF16 is {bf16}, FP16 {fp16}.")
            if rates
            else _("This machine: {device}. BF16 is {bf16}, FP16 {fp16}; not measured yet.")
        )
        words = [translated(WORDS[each.level]) for each in (bf16, fp16)]
        self.machine.setText(text.format(device=device.name, bf16=words[0], fp16=words[1]))
        self.measure.setVisible(not rates)
        self.bars.setVisible(bool(rates))
        self.progress.setVisible(not rates and not self.progress.isHidden())
        self.bars.set_rows(_bars(rates) if rates else [])
        self._show_times(bf16.factor)

    def show_progress(self, done: int, total: int) -> None:
        """Show how far the measurement is; `total` 0 while that is not known."""
        self.progress.setRange(0, total)
        self.progress.setValue(done)
        self.progress.show()
        self.measure.setEnabled(False)

    def show_end(self, problem: str) -> None:
        """The measurement has ended; `problem` says why there is nothing to show."""
        self.progress.hide()
        self.measure.setEnabled(True)
        if problem:
            self.machine.setText(problem)

    def recolour(self) -> None:
        """Draw the pictures in the colours of the theme."""
        from precgui.gui.panels.setup.recipe_pictures import recipe_picture

        for choice in self._about:
            made = self.choices[choice.name]
            made.setIcon(recipe_picture(choice.picture, self.devicePixelRatioF()))


def _time_of(choice: PathChoice, factor: float | None) -> tuple[str, str]:
    """The time of both runs in some words, and in a sentence."""
    factors = (1.0, factor)
    times = [time_estimate(config, each).seconds for config, each in zip(choice.pair, factors, strict=True)]
    here = [each for each in times if each is not None]
    if len(here) == len(times):
        time = translated(wait_text(sum(here)))
        return _("{time} here").format(time=time), _("Both runs take about {time} on this machine.").format(time=time)
    time = translated(wait_text(choice.two_core_s))
    return (
        _("{time} on two cores").format(time=time),
        _("Not timed on this machine yet; both runs take about {time} on two cores with nothing beside them.").format(
            time=time
        ),
    )


def _bars(rates: Mapping[str, float]) -> list[BarRow]:
    """FP32 and BF16 with their rates, BF16 also as a multiple of FP32."""
    names = {"fp32": "FP32", "bf16": f"BF16, {rates['bf16'] / rates['fp32']:.2g} x FP32"}
    return [
        BarRow(names[name], (Segment(0, rates[name], colour),), rate_text(rates[name]))
        for name, colour in (("fp32", "muted"), ("bf16", "accent"))
    ]
