"""One table of figures: the same title and unit for a figure wherever it is shown."""

from __future__ import annotations

import dataclasses

import pytest

from precgui.events import Metric
from precgui.runs.figures import COSTS, FIGURES, metric_figure, study_figures
from precgui.runs.study.run_figures import RunFigures


@pytest.mark.parametrize("key", ["step_s", "cpu_s", "memory_bytes", "tensor_use", "time_s"])
def test_that_tables_and_plots_call_a_figure_by_one_name(key: str) -> None:
    from precgui.cli.compare import _ROWS
    from precgui.gui.panels.compare.table import COLUMNS
    from precgui.gui.plots.signals import SIGNALS

    figure = FIGURES[key]
    assert figure.title in [column.title for column in COLUMNS]
    assert figure.in_words in [name for name, _ in _ROWS]
    plotted = [signal for signal in SIGNALS.values() if signal.series == (key,)]
    words = (figure.title, figure.unit, figure.scale)
    assert all((signal.title, signal.unit, signal.factor) == words for signal in plotted)


def test_that_each_figure_reads_a_value_of_a_run() -> None:
    known = {field.name for field in dataclasses.fields(RunFigures)}
    assert FIGURES.keys() <= known
    assert set(COSTS) <= set(FIGURES.values())


def test_that_a_share_is_shown_in_per_cent_and_its_difference_in_points() -> None:
    share = metric_figure(Metric("accuracy", "Accuracy", "share of right answers"))
    plain = metric_figure(Metric("perplexity", "Perplexity", "of a token", unit="", higher_is_better=False))
    assert (share.scale, share.with_unit("1"), share.difference_with_unit("1")) == (100.0, "1 %", "1 points")
    assert (plain.scale, plain.suffix, plain.better) == (1.0, "", "lower")
    metric = dataclasses.asdict(Metric("iou", "IoU", "overlap"))
    assert study_figures(metric)[0] == study_figures(metric)[0], "a choice of figures is kept while a study grows"
