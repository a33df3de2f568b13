"""One policy of the loss scaler: four sliders, the result in a sentence, and a button that puts it into Run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QPushButton, QSlider, QVBoxLayout, QWidget

from precgui.config.sections import ScalingConfig
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.plots.signals import power_label
from precgui.runs.scaler_simulation import Simulation
from precgui.runs.tensors.confidence import scale_text, share_text
from precgui.words import _

_INITIAL = tuple(2.0**exponent for exponent in range(33))
_GROWTH = (1.1, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0)
_BACKOFF = (0.0625, 0.125, 0.25, 0.5, 0.75, 0.9)
_INTERVAL = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)


class ValueSlider(QWidget):
    """A slider over a row of values with the chosen one written above it. `changed` comes with every move."""

    changed = Signal()

    def __init__(self, title: str, values: tuple[float, ...], text: Callable[[float], str], parent: QWidget) -> None:
        super().__init__(parent)
        self._title, self._values, self._text = title, list(values), text
        self.label = PlainLabel(self)
        self.label.setWordWrap(True)  # in a small window of a longer language
        self.slider = QSlider(Qt.Orientation.Horizontal, self)
        self.slider.setRange(0, len(values) - 1)
        self.slider.setPageStep(1)
        self.slider.setMinimumWidth(60)
        self.slider.setAccessibleName(title)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.label)
        column.addWidget(self.slider)
        self.slider.valueChanged.connect(self._on_moved)
        self._tell()

    @property
    def value(self) -> float:
        return self._values[self.slider.value()]

    def set_value(self, value: float) -> None:
        """Choose a value; one that the slider does not have is put between its neighbours."""
        place = bisect_left(self._values, value)
        if place == len(self._values) or self._values[place] != value:
            self._values.insert(place, value)
            self.slider.setMaximum(len(self._values) - 1)
        self.slider.setValue(place)
        self._tell()

    def _on_moved(self) -> None:
        self._tell()
        self.changed.emit()

    def _tell(self) -> None:
        self.label.setText(f"{self._title} {self._text(self.value)}")


class PolicyRow(QWidget):
    """`changed`: another policy, or shown or hidden; `use_requested`: its numbers are to go into a new run."""

    changed = Signal()
    use_requested = Signal()

    def __init__(self, name: str, policy: ScalingConfig, *, ticked: bool, parent: QWidget) -> None:
        super().__init__(parent)
        self.name = name
        self.box = QCheckBox(name, self)
        self.box.setChecked(ticked)
        self.box.setAccessibleName(_("Show policy {name}").format(name=name))
        self.box.setFixedWidth(self.box.sizeHint().height() + 4 * self.fontMetrics().averageCharWidth())
        self.initial = ValueSlider(_("Initial"), _INITIAL, _power, self)
        self.growth = ValueSlider(_("Growth"), _GROWTH, _plain, self)
        self.backoff = ValueSlider(_("Backoff"), _BACKOFF, _plain, self)
        self.interval = ValueSlider(_("Interval"), _INTERVAL, _plain, self)
        self.result = PlainLabel(self)
        self.result.setWordWrap(True)
        self.use = QPushButton(_("Use in a new run"), self)
        self._arrange()
        self.set_policy(policy)
        self.box.toggled.connect(self._on_ticked)
        self.use.clicked.connect(self.use_requested)
        for slider in self.sliders:
            slider.changed.connect(self.changed)
        self._enable()

    @property
    def sliders(self) -> tuple[ValueSlider, ...]:
        return self.initial, self.growth, self.backoff, self.interval

    @property
    def policy(self) -> ScalingConfig:
        return ScalingConfig(
            mode="dynamic",
            initial_scale=self.initial.value,
            growth_factor=self.growth.value,
            backoff_factor=self.backoff.value,
            growth_interval=round(self.interval.value),
        )

    def set_policy(self, policy: ScalingConfig) -> None:
        self.initial.set_value(policy.initial_scale)
        self.growth.set_value(policy.growth_factor)
        self.backoff.set_value(policy.backoff_factor)
        self.interval.set_value(float(policy.growth_interval))

    def set_colour(self, colour: str) -> None:
        """The colour of the curves, worn by the name."""
        self.box.setStyleSheet(f"QCheckBox {{ color: {colour}; font-weight: 600 }}")

    def show_result(self, simulation: Simulation | None) -> None:
        self.result.setText("" if simulation is None else result_text(simulation))

    def _arrange(self) -> None:
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(8)
        line.addWidget(self.box)
        for slider in self.sliders:
            line.addWidget(slider, 2)
        line.addWidget(self.result, 5)
        line.addWidget(self.use)

    def _on_ticked(self) -> None:
        self._enable()
        self.changed.emit()

    def _enable(self) -> None:
        for slider in self.sliders:
            slider.setEnabled(self.box.isChecked())


def result_text(simulation: Simulation) -> str:
    """The outcome of a policy in a sentence."""
    if simulation.first_taken is None:
        text = _("All {steps} steps are skipped; the last scale is {scale}.")
        return text.format(steps=len(simulation.steps), scale=scale_text(simulation.final_scale))
    text = _("{skipped} of {steps} steps skipped, first taken {first}; {zero} become zero; last scale {scale}.")
    return text.format(
        skipped=int(simulation.skipped.sum()), steps=len(simulation.steps), first=simulation.first_taken,
        zero=share_text(simulation.mean_underflow), scale=scale_text(simulation.final_scale),
    )  # fmt: skip


def _power(value: float) -> str:
    text = scale_text(value)
    return power_label(int(text[2:]), 2) if text.startswith("2^") else text


def _plain(value: float) -> str:
    return f"{value:g}"
