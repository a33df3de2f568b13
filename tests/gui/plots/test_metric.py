"""The plot of the metric speaks in the words and the unit of the tasks whose runs it shows."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from pytestqt.qtbot import QtBot

from precgui.events import Metric
from precgui.gui.plots.linked import LinkedPlots
from tests.gui.plotted import Opened, items, opened, training_run


def with_metric(name: str, metric: Metric, index: int) -> Opened:
    return opened(training_run(name, environment={"metric": asdict(metric)}), index)


def test_that_the_metric_is_plotted_as_the_tasks_call_it(qtbot: QtBot) -> None:
    steps = with_metric("a", Metric("return", "Return", "steps", unit="steps"), 0)
    share = with_metric("b", Metric("iou", "Mean IoU", "overlap"), 1)
    plots = LinkedPlots(["val_accuracy"])
    qtbot.addWidget(plots)
    plots.resize(900, 800)
    plots.show()
    qtbot.waitExposed(plots)
    frame = plots.frames[0]

    def shown(key: str, *runs: Opened) -> tuple[str, str, np.ndarray]:
        plots.set_runs(runs)
        plots.draw_pending()
        drawn = items(frame.chart, "line", key)[0].getData()[1]
        return frame.chart.value_axis.labelText, frame.chooser.currentText(), drawn

    axis, title, values = shown("a", steps)
    assert (axis, title) == ("Return (steps)", "Validation: return")
    np.testing.assert_array_equal(values, steps.run.values["val_accuracy"])
    axis, title, values = shown("b", share)
    assert (axis, title) == ("Mean IoU (%)", "Validation: mean IoU")
    np.testing.assert_allclose(values, 100 * share.run.values["val_accuracy"])
    axis, title, values = shown("b", share, steps)
    assert (axis, title) == ("Metric of the task", "Validation metric")
    np.testing.assert_array_equal(values, share.run.values["val_accuracy"])


def test_that_a_metric_that_becomes_known_while_a_run_goes_on_is_no_accuracy(qtbot: QtBot) -> None:
    """A run has none before its first step: 3.8 bits per byte stood at 380 on an axis of accuracy in per cent."""
    digits = opened(training_run("a", environment={}), 0)
    text = opened(training_run("b", environment={}), 1)
    plots = LinkedPlots(["val_accuracy"])
    qtbot.addWidget(plots)
    plots.resize(900, 800)
    plots.show()
    qtbot.waitExposed(plots)
    frame = plots.frames[0]
    plots.set_runs([digits, text])
    plots.draw_pending()
    assert frame.chart.value_axis.labelText == "Accuracy (%)"
    text.run.environment = {"metric": asdict(Metric("bits", "Bits per byte", "of a byte", unit="bits"))}
    plots.data_arrived()
    plots.draw_pending()
    assert (frame.chart.value_axis.labelText, frame.chooser.currentText()) == (
        "Metric of the task",
        "Validation metric",
    )
    drawn = items(frame.chart, "line", "b")[0].getData()[1]
    np.testing.assert_array_equal(drawn, text.run.values["val_accuracy"])
    plots.set_runs([text])
    plots.draw_pending()
    assert frame.chart.value_axis.labelText == "Bits per byte (bits)"
