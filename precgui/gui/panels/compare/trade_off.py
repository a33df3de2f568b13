"""Compare > Groups > Trade-off: the metric against a cost, as differences from the baseline with their intervals."""

from __future__ import annotations

import pyqtgraph as pg
from PySide6.QtCore import QPointF
from PySide6.QtWidgets import QWidget

from precgui.gui.colours import DASHES
from precgui.gui.format_colours import style_colour
from precgui.gui.kit.choice import Choice
from precgui.gui.kit.parts import column, label, named, row
from precgui.gui.plots.simple_plot import SimplePlot
from precgui.gui.theme import themes
from precgui.runs.figures import COSTS, Figure
from precgui.runs.line_styles import LineStyle, line_styles
from precgui.runs.study.pareto import Domination, dominated, has_point
from precgui.runs.study.result import Group, GroupMetric, Study
from precgui.words import L_, _, filled, together, translated

_LEFT_OUT = L_("Left out, because this cost is not measurable there: {groups}.")
_GAP_PX = 8
_WORDS = {
    "no": "{group}",
    "perhaps": L_("{group}, perhaps dominated"),
    "surely": L_("{group}, surely dominated"),
}
_ABOUT = L_(
    "A group is dominated when another one has a better metric at a lower cost: surely, where the 95 % intervals of "
    "the differences paired by seed hold no zero in both (open ring); perhaps, by the means alone (pale dot). Crosses "
    "are the 95 % intervals of the differences from the baseline, paired by seed; the baseline stands at zero and 1x. "
    "Groups of one precision have its colour, and a dash of their own."
)


Ends = tuple[float, float, float]  # a value with both ends of its interval


class TradeOffPlot(SimplePlot):
    """Crosses are 95 % intervals of the differences; `places` has the cost and the metric of each group so."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(_("Metric against a cost"), padding=0.06, parent=parent)
        self._names_of_points: list[tuple[pg.TextItem, float, float]] = []
        self.plotItem.vb.sigRangeChanged.connect(lambda *changed: self._place_names())
        self.plotItem.vb.sigResized.connect(lambda *changed: self._place_names())
        self.study: Study | None = None
        self.cost = COSTS[0]
        self.points: dict[str, Domination] = {}
        self.places: dict[str, tuple[Ends, Ends]] = {}

    def show_study(self, study: Study | None, cost: Figure) -> None:
        self.study, self.cost = study, cost
        self.redraw()
        self.show_all()

    def draw(self) -> str:
        study, cost = self.study, self.cost
        self._names_of_points = []
        self.points, self.places = dominated(study, cost.key) if study is not None else {}, {}
        if study is None or not self.points:
            return _("No group has been measured in both: {cost} and the metric.").format(
                cost=translated(cost.in_words)
            )
        share = 100.0 if study.metric.get("unit") == "%" else 1.0
        unit = _("points") if share > 1 else study.metric.get("unit")
        metric = _("{metric} minus the baseline's").format(metric=translated(str(study.metric.get("title"))))
        cost_title = _("{cost}, times the baseline's").format(cost=translated(cost.title))
        self.name_axes(cost_title, _("{quantity} ({unit})").format(quantity=metric, unit=unit) if unit else metric)
        styles = line_styles(study.precisions)
        by_name = {group.group: group for group in study.groups}
        for group in study.groups:
            base = by_name.get(group.baseline, group)
            if has_point(group, cost.key) and has_point(base, cost.key):
                y, low, high = _difference(group.metrics["metric"], base.metrics["metric"])
                of_metric = share * y, share * low, share * high
                self.places[group.group] = _ratio(group.metrics[cost.key], base.metrics[cost.key]), of_metric
                self._add(group, styles[group.group])
        return ""

    def _add(self, group: Group, style: LineStyle) -> None:
        (x, left, right), (y, low, high) = self.places[group.group]
        colour, word = style_colour(style), self.points[group.group]
        pen, line = pg.mkPen(colour, width=1.5), pg.mkPen(colour, width=1.5)
        if dash := DASHES[style.dash]:
            line.setDashPattern(dash)
        self.addItem(pg.PlotCurveItem([left, right], [y, y], pen=line))
        self.addItem(pg.PlotCurveItem([x, x], [low, high], pen=line))
        theme = themes().theme
        brush = {"no": colour, "perhaps": theme.blend(colour, 0.45), "surely": theme.base}[word]
        self.addItem(pg.ScatterPlotItem([x], [y], size=11, pen=pen, brush=pg.mkBrush(brush)))
        label = translated(_WORDS[word]).format(group=group.group)
        name = pg.TextItem(label, color=theme.text)
        name.setFont(self.font())
        self.addItem(name, ignoreBounds=True)
        self._names_of_points.append((name, x, y))

    def _place_names(self) -> None:
        """Beside the points, on the side that has room, and none over another; a plot without a size has no places."""
        view = self.plotItem.vb
        inside = view.sceneBoundingRect()
        if view.rect().isEmpty():
            return
        x_px, y_px = view.viewPixelSize()
        height = self.fontMetrics().height() + 2
        taken: list[tuple[float, float, float]] = []  # left, right and top of the names so far, in pixels
        for name, x, y in sorted(self._names_of_points, key=lambda each: -each[2]):
            place = view.mapViewToScene(QPointF(x, y))
            width = self.fontMetrics().horizontalAdvance(name.toPlainText()) + 12
            fits = place.x() + _GAP_PX + width < inside.right()
            left, top = place.x() + (_GAP_PX if fits else -_GAP_PX - width), place.y() - height - _GAP_PX
            for other_left, other_right, other_top in sorted(taken, key=lambda each: each[2]):
                if left < other_right and other_left < left + width and abs(top - other_top) < height:
                    top = other_top + height
            taken.append((left, left + width, top))
            name.setPos(x + (left - place.x()) * x_px, y - (top - place.y()) * y_px)


def _difference(own: GroupMetric, base: GroupMetric) -> Ends:
    """How much more a group has than its baseline; without pairs by the means, and without an interval."""
    if own is base:
        return 0.0, 0.0, 0.0
    value = own.difference if own.difference is not None else (own.mean or 0.0) - (base.mean or 0.0)
    return (value, *(own.difference_ci95 or (value, value)))


def _ratio(own: GroupMetric, base: GroupMetric) -> Ends:
    """How many times the cost of its baseline a group has; without pairs by the means, and without an interval."""
    if own is base:
        return 1.0, 1.0, 1.0
    value = own.ratio if own.ratio is not None else (own.mean or 0.0) / base.mean if base.mean else 1.0
    return (value, *(own.ratio_ci95 or (value, value)))


class TradeOffView(QWidget):
    """The plot with the choice of its cost, and who is left out."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._study: Study | None = None
        self.plot = TradeOffPlot()
        self.note = label(kind="muted", selectable=True)
        self.cost = Choice(_("Cost"))
        self.cost.offer([(translated(cost.axis), cost) for cost in COSTS])
        column(row(named(_("&Cost"), self.cost), self.cost, 1), (self.plot, 1), self.note, on=self, spacing=-1)
        self.cost.currentIndexChanged.connect(lambda place: self._show())

    def show_study(self, study: Study | None) -> None:
        """Draw a study; at first against the first cost that two groups have."""
        is_other = study is not None and (self._study is None or study.metric != self._study.metric)
        self._study = study
        if study is not None and is_other:
            usable = [place for place, cost in enumerate(COSTS) if len(dominated(study, cost.key)) > 1]
            if self.cost.currentIndex() not in usable and usable:
                self.cost.setCurrentIndex(usable[0])
        self._show()

    def _show(self) -> None:
        cost: Figure = self.cost.currentData()
        self.plot.show_study(self._study, cost)
        missing = [g.group for g in self._study.groups if not has_point(g, cost.key)] if self._study else []
        left_out = filled(_LEFT_OUT, groups=", ".join(missing)) if missing else ""
        self.note.setText(translated(together(left_out, _ABOUT)))
