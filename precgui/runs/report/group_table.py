"""The table of groups as finished cells: figures with their spread, comparisons with their interval, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from precgui.events import Metric
from precgui.runs.figures import FIGURES, Figure, metric_figure
from precgui.runs.metric import decimals, signed
from precgui.runs.study.groups import LEVEL, Group, GroupMetric, speed_or_share
from precgui.runs.study.pairs import NOT_MEASURED

Cell = str
Row = tuple[str, tuple[Cell, ...]]
LEVEL_WORD = f"({100 * LEVEL:.0f} % interval)"
TITLES = {
    "speedup": "Speed-up", "memory_saved": "Memory saved", "accuracy_lost": "Loss of the metric",
    "tensor_use": "Tensor cores busy", "energy_saved": "Energy saved", "curve_distance": "Curve like the baseline's",
    "failures": "Failures",
}  # fmt: skip
_ROWS = ("val_loss", "step_s", "cpu_s", "data_share", "memory_bytes", "joules_per_sample")


def group_rows(groups: Sequence[Group], metric: Metric) -> list[Row]:
    """Rows of finished cells, one for each group: runs, metric, costs, each with its comparison, and verdicts."""

    def row(label: str, cell: Callable[[Group], str]) -> Row:
        return label, tuple(cell(group) for group in groups)

    def rows_of(figure: Figure) -> Iterator[Row]:
        title = figure.title if figure.key == "metric" else figure.in_words
        yield row(title, lambda g: _mean(g.metrics[figure.key], figure))
        if figure.compared_by:
            label = f"speed-up in {title}" if figure.target == "speedup" else f"{title} against it"
            cell = _ratio if figure.compared_by == "ratio" else _difference
            yield row(f"{label} {LEVEL_WORD}", lambda g: cell(g, figure))

    ordered = [metric_figure(metric), *(FIGURES[key] for key in _ROWS)]
    results = [
        row("runs that came through", lambda g: f"{g.n} of {g.n + g.failed}"),
        *(each for figure in ordered for each in rows_of(figure)),
        *_to_loss_rows(groups),
        *rows_of(FIGURES["time_s"]),
    ]
    targets = dict.fromkeys(target for group in groups for target in group.verdicts)
    return results + [
        (f"{TITLES[target]}: verdict", tuple(_verdict_cell(group, target) for group in groups)) for target in targets
    ]


def effect_rows(group: Group, metric: Metric) -> list[tuple[str, Cell]]:
    """The metric, time and memory of a group beside its baseline, each under its title."""
    own = metric_figure(metric)
    costs = [FIGURES[key] for key in ("step_s", "memory_bytes")]
    titles = {"step_s": "speed-up in step time", "memory_bytes": "peak memory against it"}
    return [
        (f"{own.title} against it", _difference(group, own)),
        *((titles[figure.key], _ratio(group, figure)) for figure in costs),
    ]


MATRIX_COLUMNS = ("settings", "figure")


@dataclass(frozen=True)
class SettingsMatrix:
    """Varied settings, such as models, down and precisions across: each row has the cell of one figure in each."""

    precisions: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]


def settings_matrix(groups: Sequence[Group], metric: Metric) -> SettingsMatrix | None:
    """The groups of a study that varies settings, each beside a baseline of its own; None for one that varies none."""
    of = {(settings_of(group), group.precision): group for group in groups}
    settings = list(dict.fromkeys(words for words, _ in of))
    precisions = tuple(dict.fromkeys(precision for _, precision in of))
    if len(settings) < 2 or len(precisions) < 2 or len(of) < len(groups):
        return None
    own = metric_figure(metric)
    figures: dict[str, Callable[[Group], Cell]] = {
        own.title: lambda group: _mean(group.metrics["metric"], own),
        f"{own.title} against its baseline {LEVEL_WORD}": lambda group: _difference(group, own),
        "speed-up": lambda group: _judged(group, "speedup"),
        "memory saved": lambda group: _saving(group, "memory_bytes"),
        "largest batch, estimated": _largest_batch,
        "energy saved": lambda group: _saving(group, "joules_per_sample"),
        "runs that came through": lambda group: f"{group.n} of {group.n + group.failed}",
    }
    rows = [
        (words, title, tuple(cell(of[words, name]) if (words, name) in of else "–" for name in precisions))
        for words in settings
        for title, cell in figures.items()
    ]
    return SettingsMatrix(precisions, tuple(rows))


def _largest_batch(group: Group) -> Cell:
    """The samples, and how many times those of the baseline."""
    own = group.metrics["largest_batch"]
    if own.mean is None or group.emulated:
        return "not measured" if own.mean is None else f"not measurable: {group.emulated}"
    beside = "" if own.ratio is None or group.baseline == group.group else f", {own.ratio:.2f}x"
    return f"{own.mean:.0f} samples{beside}"


def settings_of(group: Group) -> str:
    """The values of the varied settings in the name of a group; empty where there are none."""
    return group.group.removeprefix(group.precision).strip()


def _judged(group: Group, target: str) -> Cell:
    """The value of a verdict with its interval, by the clock that the study compares."""
    verdict = group.verdicts.get(target)
    if verdict is None:
        return "baseline"
    if verdict.value is None:
        return verdict.text
    ends = f" [{verdict.ci[0]:.2f}, {verdict.ci[1]:.2f}]" if verdict.ci is not None else ""
    return f"{verdict.value:.2f}x{ends}: {verdict.text}"


def _saving(group: Group, key: str) -> Cell:
    """The share of the baseline's that is saved, in per cent."""
    own = group.metrics[key]
    if group.baseline == group.group:
        return _mean(own, FIGURES[key])
    if own.ratio is None:
        return _ratio(group, FIGURES[key])
    ends = [100 * (1 - end) for end in own.ratio_ci95 or ()]
    interval = f" [{ends[1]:.0f}, {ends[0]:.0f}]" if ends else f" ({own.once})" if own.once else ""
    return f"{100 * (1 - own.ratio):.0f} %{interval}"


def _to_loss_rows(groups: Sequence[Group]) -> list[Row]:
    """When the runs reached the loss that each run of the baseline has reached."""
    losses = [group.to_loss.loss for group in groups if group.to_loss is not None]
    if not losses:
        return []
    title = f"until a validation loss of {losses[0]:.4g}" if len(set(losses)) == 1 else "until the baseline's loss"
    return [(title, tuple(_to_loss(group) for group in groups))]


def _to_loss(group: Group) -> str:
    reached = group.to_loss
    if reached is None:
        return "withheld"
    if reached.time_s is None:
        return f"{reached.reached} of {reached.n} runs reached it"
    if group.emulated:
        return f"all {reached.n} runs reached it; its time is not measurable: emulated here"
    costs = [f"{reached.time_s:.1f} s"]
    costs += [] if reached.cpu_s is None else [f"CPU time {reached.cpu_s:.2f} s"]
    costs += [] if reached.energy_j is None else [f"{reached.energy_j:.1f} J"]
    return f"{', '.join(costs)} (median of {reached.n})"


def _mean(own: GroupMetric, figure: Figure) -> str:
    if own.mean is None:
        return "not measured"
    value, sd = figure.scale * own.mean, figure.scale * (own.sd or 0.0)
    digits = max(decimals(figure.digits, value), decimals(figure.digits, sd))
    spread = f" ± {sd:.{digits}f}" if own.sd is not None else ""
    return f"{value:.{digits}f}{spread}{figure.suffix} ({own.once or f'n = {own.n}'})"


def _difference(group: Group, figure: Figure) -> str:
    own = group.metrics[figure.key]
    if group.baseline == group.group or own.difference is None:
        return _not_compared(group, own)
    value, ci = figure.scale * own.difference, [figure.scale * end for end in own.difference_ci95 or ()]
    digits = decimals(figure.digits, value, ci)
    interval = f" [{signed(ci[0], digits)}, {signed(ci[1], digits)}]" if ci else ", no interval"
    floor = ", not more than rounding" if own.within_rounding else ""
    return f"{signed(value, digits)}{figure.difference_suffix}{interval}{floor}"


def _not_compared(group: Group, own: GroupMetric) -> str:
    if group.baseline == group.group:
        return "baseline"
    return "not measured" if own.withheld in ("", NOT_MEASURED) else f"withheld: {own.withheld}"


def _ratio(group: Group, figure: Figure) -> str:
    own = group.metrics[figure.key]
    if group.baseline == group.group or own.ratio is None:
        return _not_compared(group, own)
    ratio, ci = speed_or_share(own, figure.key)
    digits = decimals(2, ratio - 1, ci or ())
    interval = f" [{ci[0]:.{digits}f}, {ci[1]:.{digits}f}]" if ci else f" ({own.once})" if own.once else ""
    return f"{ratio:.{digits}f}x{interval}"


def _verdict_cell(group: Group, target: str) -> str:
    verdict = group.verdicts.get(target)
    return "baseline" if verdict is None else verdict.text
