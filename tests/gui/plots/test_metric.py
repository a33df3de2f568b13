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
